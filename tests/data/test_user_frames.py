"""A user's data frame: any that converts to pandas; mistakes in Python are errors of one line."""

import numpy as np
import pandas as pd
import pytest

import fedlap as fl
from user_tables import FEATURES, REAL, ROWS, WHO, Y, but, place


@pytest.mark.parametrize(
    ("kind", "names"), [("Int64", ("1", "2")), ("Float64", ("1", "2")), ("string", ("1", "2"))]
)
def test_labels_of_nullable_columns(kind, names):
    frame = ROWS.assign(outcome=pd.array(np.tile(np.repeat([2, 1], 4), 4), dtype="Int64").astype(kind))
    assert fl.Federation.from_dataframe(frame, "hospital", "outcome").labels == names


def test_columns_of_a_frame_may_be_numbered():
    frame = pd.DataFrame(ROWS[FEATURES].to_numpy(float)).assign(hospital=ROWS.hospital, outcome=ROWS.outcome)
    federation = fl.Federation.from_dataframe(frame, "hospital", "outcome")
    assert federation.inputs == (2,)


def test_any_frame_that_turns_into_one_of_pandas():
    class Other:
        def to_pandas(self):
            return ROWS

    federation = fl.Federation.from_dataframe(Other(), "hospital", "outcome", drop=["dose"])
    assert federation.inputs == (1,)
    assert federation.labels == ("ill", "well")


def test_features_are_those_that_are_named():
    federation = fl.Federation.from_dataframe(
        ROWS, "hospital", "outcome", features=["dose"], test_share=0.125
    )
    assert np.array_equal(federation.train.x.unique().numpy(), np.unique(ROWS.dose.astype(float)))
    assert federation.train.count.tolist() == [7] * 4


WRONG = {
    # name: (frame, settings, what the error says)
    "no frame": (ROWS.to_dict(), {}, "type dict; expected a pandas DataFrame"),
    "no rows": (ROWS[:0], {}, "the data frame has no rows"),
    "no test rows": (ROWS, {"test": ROWS[:0]}, "the test frame has no rows"),
    "a column twice": (pd.concat([ROWS, ROWS[["age"]]], axis=1), {}, "'age' appears twice"),
    "a feature twice": (ROWS, {"features": ["age", "age"]}, "'age'.*twice"),
    "a gap": (but(3, age=np.nan), {}, "the data frame, row 3, column 'age'"),
    "a gap of its own kind": (ROWS.assign(dose=pd.array([None, *[1] * 31], dtype="Int64")), {}, "row 0"),
    "a test gap": (ROWS, {"test": but(3, outcome=None)}, "the test frame, row 3, column 'outcome'"),
    "an infinite target": (REAL.assign(outcome=place(Y, 3, np.inf)), {}, "row 3, column 'outcome'"),
    "an infinite client": (ROWS.assign(hospital=place(WHO, 3, np.inf)), {}, "row 3, column 'hospital'"),
    "a stranger": (ROWS, {"test": but(0, hospital="moon")}, "'moon' has no rows"),
    "no client": (ROWS[["age", "outcome"]], {"client": None}, "client.*partition"),
    "unknown label": (ROWS, {"label": "outcom"}, "'outcom'; did you mean 'outcome'"),
    "one column for both": (ROWS, {"client": "outcome", "drop": ["hospital"]}, "'outcome'"),
    "unknown task": (ROWS, {"task": "regresion"}, "regresion"),
    "a partition's name": (ROWS, {"partition": "iid"}, "partition"),
    "one feature, no list": (ROWS, {"features": "age"}, "'age'"),
    "one column to drop, no list": (ROWS, {"drop": "age"}, "'age'"),
    "test share": (ROWS, {"test_share": 1.5}, "test_share = 1.5"),
    "text as targets": (ROWS, {"task": "regression"}, "'outcome'.*numbers"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.filterwarnings("ignore::fedlap.DataWarning")
def test_a_mistake_in_python_is_one_line_too(case):
    frame, settings, message = WRONG[case]
    with pytest.raises(fl.InputError, match=message) as error:
        fl.Federation.from_dataframe(frame, **{"client": "hospital", "label": "outcome"} | settings)
    assert "\n" not in str(error.value)
