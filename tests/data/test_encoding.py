"""Columns of text, dates and gaps: exact features, and equal ones at prediction."""

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fedlap as fl
from fedlap.data.encoding import Encoding
from fedlap.data.frames import FRAME_LOCATION
from fedlap.errors import DataWarning
from fedlap.personal import Personals
from user_tables import QUICK, TABLE, metadata, models, write

pytestmark = pytest.mark.filterwarnings("ignore::fedlap.errors.DataWarning")
TRAIN = pd.DataFrame(
    {
        "hospital": ["north", "north", "south", "south"],
        "city": ["Oslo", "Bergen", "Oslo", None],
        "age": [30.0, 40.0, np.nan, 80.0],
        "smokes": [True, False, True, True],
        "day": ["2020-03-05", "2020-03-02", None, "2020-03-02 12:00"],
        "ward": pd.Categorical(["b", "a", "b", "b"], categories=["a", "b", "c"]),
        "outcome": ["ill", "well", "ill", "well"],
    }
)
TEST = TRAIN.assign(
    city=["Rome", None, "Bergen", "Oslo"], age=[1.0, 2.0, 3.0, np.nan], day="2021-03-02", ward=list("abac")
)
FEATURES = (
    *("city=Bergen", "city=Oslo", "city=missing", "age", "smokes", "day", "ward=a", "ward=b"),
)  # an unused category is no level
MEAN_DAY = (3 + 0 + 0.5) / 3


def build(frame, test=None, **settings):
    settings = {"missing": "mean", "scale": "none", **settings}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        federation = fl.Federation.from_dataframe(frame, "hospital", "outcome", test=test, **settings)
    return federation, [str(warning.message) for warning in caught]


def test_features_have_exact_values_and_names():
    federation, remarks = build(TRAIN, TEST)
    assert federation.features == FEATURES
    expected = [
        [0, 1, 0, 30, 1, 3, 0, 1],
        [1, 0, 0, 40, 0, 0, 1, 0],
        [0, 1, 0, 50, 1, MEAN_DAY, 0, 1],
        [0, 0, 1, 80, 1, 0.5, 0, 1],
    ]
    assert torch.allclose(federation.train.x, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)
    expected = [[0, 0, 0, 1], [0, 0, 1, 2], [1, 0, 0, 3], [0, 1, 0, 50]]
    assert federation.test.x[:, :4].tolist() == expected
    assert federation.test.x[:, 5].tolist() == [365.0] * 4
    assert federation.test.x[:, 6:].tolist() == [[1, 0], [0, 1], [1, 0], [0, 0]]
    for column in ("city", "ward"):
        assert (
            f"1 of 4 test rows have a text in column '{column}' that no training row has; "
            "all its features are zero there"
        ) in remarks
    assert any(
        "5 missing cells in 4 of 8 rows are filled" in line and "city 2, age 2" in line for line in remarks
    )
    assert federation.encoding.describe() == [
        "columns of text are one-hot, with one feature per level: city (3), ward (2)",
        "columns of dates are numbers: day (days since 2020-03-02)",
    ]


def test_numbers_alone_are_not_encoded_and_not_copied():
    frame = TRAIN[["hospital", "outcome"]].assign(a=[1.0, 2.0, 3.0, 4.0], b=[1, 2, 3, 4], c=True)
    federation, _ = build(frame, missing="refuse", test_share=0.0)
    assert federation.encoding is federation.raw is None
    assert federation.features == ("a", "b", "c")
    assert federation.train.x.tolist() == [[k, k, 1] for k in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        (["2020-02-28", "2020-03-01"], 2),
        (["28.02.2020", "01.03.2020"], 2),
        (["28.02.2020 12:00", "01.03.2020 00:00"], 1.5),
        (["2020/02/28", "2020/03/01"], 2),
        (["28/02/2020", "01/03/2020"], 2),
        (["02/28/2020", "03/01/2020"], 2),
        (["2020-02-28T06:00:00Z", "2020-03-01T00:00:00+06:00"], 1.5),
        (pd.to_datetime(["2020-02-28", "2020-03-01"]), 2),
        (pd.to_datetime(["2020-02-28", "2020-03-01"]).tz_localize("UTC"), 2),
        (pd.to_datetime(["2020-02-28", "2020-03-01"]).date, 2),
    ],
    ids=str,
)
def test_dates_in_common_forms(days, expected):
    frame = pd.DataFrame({"hospital": "a", "day": days, "outcome": ["ill", "well"]})
    federation, _ = build(frame, missing="refuse", test_share=0.0)
    assert federation.train.x.flatten().tolist() == [0, expected]


def test_numbers_can_be_levels(tmp_path):
    rows = "hospital,zip,age,outcome\na,01067,1,ill\na,10115,2,well\nb,01067,3,ill\nb,NA,4,well\n"
    path = write(tmp_path / "my.csv", rows)
    table = {"path": path, "client": "hospital", "label": "outcome", "missing": "mean", "test_share": 0.0}
    federation = fl.data.load("file", scale="none", levels=["zip"], **table)
    assert federation.features == ("zip=01067", "zip=10115", "zip=missing", "age")
    assert federation.train.x.sum(0).tolist() == [2, 1, 1, 10]


def test_rows_with_gaps_are_dropped_and_counted():
    frame = TRAIN.assign(outcome=["ill", None, "ill", "well"], group=[1.0, 1.0, 2.0, np.nan])
    federation, remarks = build(
        frame.drop(columns=["day", "age"]), missing="drop", group="group", test_share=0.0
    )
    assert federation.train.count.tolist() == [1, 1]
    assert remarks[0] == "2 of 4 rows have missing values and are dropped: city 1, outcome 1, group 1"


def test_clients_without_rows_are_left_out_on_request():
    frame = TRAIN[["hospital", "age", "outcome"]].assign(age=[1.0, 2.0, np.nan, np.nan])
    with pytest.raises(fl.InputError, match=r"client 'south' has no training rows.*skip_empty, --skip-empty"):
        build(frame, missing="drop")
    federation, remarks = build(frame, missing="drop", skip_empty=True)
    assert federation.clients == ("north",)
    assert "1 of 2 clients have no training rows and are left out: south" in remarks
    test = TRAIN[["hospital", "age", "outcome"]].assign(hospital="moon", age=1.0)
    with pytest.raises(fl.InputError, match=r"client 'moon' has no rows.*--skip-empty"):
        build(frame[:2], test, missing="refuse")
    federation, _ = build(frame[:2], test, missing="refuse", skip_empty=True)
    assert (federation.clients, len(federation.test.row)) == (("north",), 0)


def test_arrays_without_rows_are_left_out_on_request():
    arrays = {"a": (np.ones((4, 2)), [0, 1, 0, 1]), "b": (np.ones((0, 2)), np.ones(0, int))}
    with pytest.raises(fl.InputError, match=r"client 'b' has no training rows.*skip_empty"):
        fl.Federation.from_arrays(arrays)
    federation = fl.Federation.from_arrays(arrays, skip_empty=True)
    assert federation.clients == ("a",)
    assert federation.notes == ("1 of 2 clients have no training rows and are left out: b",)


def test_several_columns_name_a_client():
    frame = TRAIN[["hospital", "ward", "age", "outcome"]].fillna({"age": 1.0})
    federation = fl.Federation.from_dataframe(
        frame, ["hospital", "ward"], "outcome", test_share=0.0, scale="none"
    )
    assert federation.clients == ("north / b", "north / a", "south / b")
    assert federation.features == ("age",)
    assert federation.train.count.tolist() == [1, 1, 2]


def test_a_covariate_that_is_constant_within_clients_is_learned_from_or_named():
    frame = pd.DataFrame(
        {
            "hospital": np.repeat(["a", "b"], 4),
            "height": np.repeat([100.0, 900.0], 4),
            "sign": np.tile([-1.0, 1.0], 4),  # of deviation one: its factor is that of a constant
            "outcome": np.tile(["ill", "well"], 4),
        }
    )
    federation, remarks = build(frame, scale="client", missing="refuse", test_share=0.0)
    assert not federation.to_device(torch.device("cpu"), torch.float64).train.x[:, 0].any()
    assert [line for line in remarks if "constant within every client" in line] == [
        "1 of 2 features are constant within every client, and scale = client turns them into zeros; "
        "use scale = pooled: height"
    ]
    federation, remarks = build(frame, scale="pooled", missing="refuse", test_share=0.0)
    scaled = federation.to_device(torch.device("cpu"), torch.float64).train.x[:, 0]
    assert scaled.tolist() == [-1.0] * 4 + [1.0] * 4
    assert not any("constant" in line for line in remarks)


def test_an_encoding_survives_its_description():
    encoding = build(TRAIN)[0].encoding
    assert Encoding.parse(json.loads(json.dumps(encoding.to_dict()))) == encoding
    raw = encoding.read(TRAIN, FRAME_LOCATION)
    assert torch.equal(raw[0], Encoding.parse(encoding.to_dict()).read(TRAIN, FRAME_LOCATION)[0])


@pytest.mark.parametrize(
    "damage",
    [
        {"fills": 1},
        {"columns": None},
        {"columns": []},
        {"columns": [{"name": "a", "kind": "colour"}]},
        {"columns": [{"name": "a", "kind": "levels", "levels": [1]}]},
        {"columns": [{"name": "a", "kind": "number", "fill": "x"}]},
        {"columns": [{"name": "a", "kind": "number"}]},
    ],
    ids=str,
)
def test_a_damaged_encoding_is_refused(damage, tmp_path):
    federation, _ = build(TRAIN, test_share=0.0)
    result = fl.fit(fl.Local(lr=0.1), federation, fl.models.linear(), rounds=1)
    result.personals.save(tmp_path)
    path = tmp_path / "about.json"
    values = json.loads(path.read_text())
    values["encoding"] |= damage
    path.write_text(json.dumps(values))
    with pytest.raises(fl.InputError, match=r"about\.json"):
        Personals.load(tmp_path)


def test_stored_models_encode_frames_and_files_as_in_training(call, tmp_path):
    path = write(tmp_path / "my.csv", pd.concat([TRAIN] * 3))
    code, out, err = call("run", "--data", path, *TABLE, *QUICK, "--missing", "mean", "--json")
    assert code == 0, err
    assert "note: columns of text are one-hot" in err
    folder = json.loads(out)["folder"]
    assert metadata(folder)["features"] == list(FEATURES)
    loaded = Personals.load(Path(folder) / "models")
    with pytest.warns(
        DataWarning, match=r"1 of 4 rows have a text in column 'city' that no training row has"
    ):
        scores = loaded.scores(list(TEST.hospital), TEST.drop(columns="outcome"))
    encoded = loaded.metadata.encoding.read(TEST, FRAME_LOCATION)[0]
    assert torch.equal(scores, loaded.scores(list(TEST.hospital), encoded))
    code, out, err = call("predict", folder, write(tmp_path / "new.csv", TEST), "--by", "hospital", "--json")
    assert code == 0, err
    assert "note: 1 of 4 rows have a text in column 'city' that no training row has" in err
    predicted = [answer["outcome"] for answer in json.loads(out)["predictions"]]
    assert predicted == [loaded.metadata.labels[k] for k in scores.argmax(1).tolist()]
    assert models(folder).shape == (2, 2 * (len(FEATURES) + 1))


def test_gaps_are_refused_at_prediction_unless_they_are_filled(call, tmp_path):
    complete = pd.concat([TRAIN.dropna()] * 4).assign(hospital=["north", "south"] * 4)
    _, out, _ = call("run", "--data", write(tmp_path / "my.csv", complete), *TABLE, *QUICK, "--json")
    code, _, err = call(
        "predict", json.loads(out)["folder"], write(tmp_path / "new.csv", TRAIN), "--client", "north"
    )
    assert code == 2
    assert "new.csv, row 4, column 'city': a value is missing" in err


def test_a_client_of_several_columns_predicts_by_these_columns(call, tmp_path):
    rows = pd.concat([TRAIN[["hospital", "ward", "smokes", "outcome"]]] * 4)
    path = write(tmp_path / "my.csv", rows)
    _, out, _ = call(
        "run", "--data", path, "--client", "hospital,ward", "--label", "outcome", *QUICK, "--json"
    )
    folder = json.loads(out)["folder"]
    assert metadata(folder)["clients"] == ["north / b", "north / a", "south / b"]
    code, out, _ = call("predict", folder, path, "--by", "hospital,ward", "--json")
    assert code == 0
    assert [row["client"] for row in json.loads(out)["predictions"]][:3] == [
        "north / b",
        "north / a",
        "south / b",
    ]
