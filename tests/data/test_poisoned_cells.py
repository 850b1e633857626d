"""Errors about a wrong cell state its row and count, and never quote it."""

import numpy as np
import pandas as pd
import pytest

import fedlap as fl
from fedlap.data.prediction_rows import read_prediction_rows
from fedlap.data.user_files import load_file

MARK = "SECRET77"
ROW = 30  # counted from 1
draws = np.random.default_rng(0)
COUNT = 40
TABLE = pd.DataFrame(
    {
        "who": np.tile(["north", "south"], COUNT // 2),
        "age": draws.normal(size=COUNT).round(3),
        "day": pd.date_range("2021-08-01", periods=COUNT).strftime("%d.%m.%Y"),
        "when": pd.date_range("2021-08-01", periods=COUNT).strftime("%Y-%m-%d"),
        "weight": 1,
        "y": draws.normal(size=COUNT).round(3),
    }
)
PLAIN = {"client": "who", "label": "y", "drop": ["weight"]}
OPTIONS = {
    "features": PLAIN,
    "time": PLAIN | {"split": "time", "time": "when"},
    "weight": {"client": "who", "label": "y", "weight": "weight"},
    "drop": PLAIN | {"missing": "drop", "split": "time", "time": "when"},
}


def poison(frame, column, cell=MARK, row=ROW):
    """Return the table with another cell in a row."""
    frame = frame.astype({column: object})
    frame.loc[row - 1, column] = cell
    return frame


def read_error(load):
    with pytest.raises(fl.InputError) as caught:
        load()
    return str(caught.value)


@pytest.mark.parametrize("form", ["csv", "parquet", "frame"])
@pytest.mark.parametrize(
    ("column", "options"),
    [
        ("age", "features"),
        ("day", "features"),
        ("when", "time"),
        ("when", "drop"),
        ("weight", "weight"),
        ("y", "features"),
    ],
)
def test_an_error_has_the_row_and_not_the_cell(tmp_path, form, column, options):
    frame = poison(TABLE, column)
    if options == "drop":
        frame = poison(frame, "age", np.nan, row=3)
        frame["age"] = frame["age"].astype(float)
    path, settings = tmp_path / f"my.{form}", OPTIONS[options]
    if form == "frame":
        frame.index = [f"{MARK}-{row}" for row in range(COUNT)]
        if column == "y":
            settings = settings | {"task": "regression"}
        names = {"client": settings["client"], "label": settings["label"]}
        others = {name: value for name, value in settings.items() if name not in names}
        message = read_error(lambda: fl.Federation.from_dataframe(frame, **names, **others))
    else:
        # PyArrow has no columns of several types.
        frame = frame.astype({column: str})
        frame.to_csv(path, index=False) if form == "csv" else frame.to_parquet(path)
        if column == "y" and form == "parquet":
            settings = settings | {"task": "regression"}
        message = read_error(lambda: load_file(str(path), **settings))
    assert MARK not in message
    assert repr(column) in message
    if column != "y" or form == "csv":
        assert f"row {ROW if form != 'frame' else ROW - 1}" in message
        assert "column of str" not in message


@pytest.mark.parametrize(
    ("column", "cell", "problem"),
    [
        ("day", "31.02.2021", "1 of 40 cells are no dates like the others (the first in row 30)"),
        ("day", "2021-08-30", "1 of 40 cells are no dates like the others (the first in row 30)"),
        ("age", "n.a.?", "1 of 40 cells are no numbers (the first in row 30)"),
        ("y", "n.a.?", "1 of 40 cells are no numbers, unlike the others (the first in row 30)"),
    ],
)
def test_one_cell_in_a_file_with_decimal_commas_has_its_row(tmp_path, column, cell, problem):
    """Also if most cells of the column would not be read without the wrong one."""
    frame = TABLE.assign(**{name: TABLE[name].map("{:.3f}".format) for name in ("age", "y")})
    for name in ("age", "y"):
        frame[name] = frame[name].str.replace(".", ",")
    path = tmp_path / "my.csv"
    poison(frame, column, cell).to_csv(path, index=False, sep=";")
    message = read_error(lambda: load_file(str(path), **PLAIN))
    assert f"column {column!r}: {problem}" in message
    assert cell not in message


def test_a_wrong_target_of_the_test_file_has_the_row_of_that_file(tmp_path):
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    TABLE.to_csv(train, index=False)
    poison(TABLE, "y").to_csv(test, index=False)
    message = read_error(lambda: load_file(str(train), test=str(test), **PLAIN))
    assert message.startswith(f"{test}, column 'y': 1 of 40 cells are no numbers")
    assert f"row {ROW})" in message
    assert MARK not in message


def test_whole_numbers_with_a_word_have_its_row_if_they_are_targets(tmp_path):
    path = tmp_path / "my.csv"
    poison(TABLE.assign(y=np.arange(COUNT) % 7), "y").to_csv(path, index=False)
    message = read_error(lambda: load_file(str(path), task="regression", **PLAIN))
    assert f"(the first in row {ROW})" in message
    assert MARK not in message
    assert load_file(str(path), **PLAIN).labels is not None  # or else a class


def test_a_wrong_truth_of_rows_to_predict_is_not_quoted(tmp_path):
    path = tmp_path / "new.csv"
    poison(TABLE, "y").to_csv(path, index=False)
    for labels in (None, ["ill", "well"]):
        rows = read_prediction_rows(str(path), (1,), ["age"], client=["who"], label="y")
        message = read_error(lambda rows=rows, labels=labels: rows.parse_truth(labels, 1))
        assert MARK not in message
        assert f"row {ROW if labels is None else 1}:" in message


def test_arrays_with_text_are_not_quoted():
    words = np.array([MARK] * 4)
    for pair in ((words, np.zeros(4)), (np.zeros((4, 1)), words)):
        message = read_error(lambda pair=pair: fl.Federation.from_arrays({"a": pair}))
        assert MARK not in message
        assert "are text" in message
