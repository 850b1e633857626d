"""Scores as tables for other programs: to the last digit, or refused in one line."""

import json
import sys
from functools import partial

import pandas
import pytest

import fedlap as fl
from fedlap.data.user_files import get_exact_options
from fedlap.report.score_export import write_scores
from trackers import NAMES, SCORES, make_score

read_exactly = partial(pandas.read_csv, **get_exact_options(pandas.__version__))


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".CSV"])
def test_scores_are_written_to_the_last_digit(suffix, tmp_path):
    file = tmp_path / f"scores{suffix}"
    scores = [*SCORES, make_score(7, gap=1e-300, accuracy=0.1 + 0.2)]
    write_scores(scores, file)
    frame = pandas.read_parquet(file) if suffix == ".parquet" else read_exactly(file)
    assert list(frame.columns) == ["round", *NAMES]
    assert {name: str(kind) for name, kind in frame.dtypes.items() if kind == "int64"} == dict.fromkeys(
        ("round", "bytes_up", "bytes_down"), "int64"
    )
    read = [
        {name: None if pandas.isna(value) else value for name, value in row.items()}
        for row in frame.to_dict("records")
    ]
    assert read == [score.as_dict() for score in scores]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_run_without_scores_is_a_table_without_rows(suffix, tmp_path):
    write_scores([], tmp_path / f"scores{suffix}")
    read = read_exactly if suffix == ".csv" else pandas.read_parquet
    frame = read(tmp_path / f"scores{suffix}")
    assert (len(frame), list(frame.columns)) == (0, ["round", *NAMES])


def test_what_was_never_measured_is_empty(tmp_path):
    scores = [make_score(1, accuracy=None, loss=None)]
    write_scores(scores, tmp_path / "scores.parquet")
    frame = pandas.read_parquet(tmp_path / "scores.parquet")
    assert str(frame["accuracy"].dtype) == "float64"
    write_scores(scores, tmp_path / "scores.csv")
    assert (tmp_path / "scores.csv").read_text().splitlines()[1].startswith("1,,")


def test_a_table_of_another_kind_is_refused(tmp_path):
    with pytest.raises(
        fl.InputError, match=r"scores.xlsx': unsupported extension '.xlsx'; use .csv or .parquet"
    ):
        write_scores(SCORES, tmp_path / "scores.xlsx")
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_its_package_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        fl.InputError, match=r"needs pyarrow; run pip install 'fedlap\[parquet\]', or use .csv$"
    ):
        write_scores(SCORES, tmp_path / "scores.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["rounds.csv", "rounds.parquet"])
def test_the_scores_of_a_run_as_a_table(name, call, tmp_path):
    answer = json.loads(call("run", "--data", "synthetic", "--rounds", "3", "--json")[1])
    code, _, err = call("show", answer["folder"], "--to", str(tmp_path / name), out=False)
    assert code == 0, err
    read = read_exactly if name.endswith("csv") else pandas.read_parquet
    frame = read(tmp_path / name)
    assert list(frame["round"]) == [1, 2, 3]
    assert frame["objective"].iloc[-1] == answer["last"]["objective"]
