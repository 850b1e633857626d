"""Separators, decimal signs and byte order marks: equal rows from every dialect."""

import numpy as np
import pandas as pd
import pytest
import torch

import fedlap as fl
from fedlap.data import user_files
from fedlap.data.csv_dialect import detect_separator
from user_tables import QUICK, REAL, ROWS, TABLE, load_rows, write


def write_dialect(path, frame, separator, decimal, mark=""):
    text = frame.to_csv(index=False, sep=separator, decimal=decimal)
    path.write_bytes((mark + text).encode())
    return str(path)


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "marked"])
@pytest.mark.parametrize(
    ("separator", "decimal"),
    [*((separator, ".") for separator in ",;\t|"), *((separator, ",") for separator in ";\t|")],
)
@pytest.mark.parametrize("rows", [ROWS, REAL], ids=["classes", "targets"])
def test_every_dialect_gives_equal_rows(rows, separator, decimal, mark, tmp_path):
    path = write_dialect(tmp_path / "my.csv", rows, separator, decimal, mark)
    federation = fl.data.load("file", 3, scale="none", path=path, client="hospital", label="outcome")
    expected = load_rows("frame", rows, tmp_path)
    assert (federation.clients, federation.labels) == (expected.clients, expected.labels)
    assert torch.equal(federation.train.x, expected.train.x)
    assert torch.equal(federation.train.y, expected.train.y)


def test_decimal_commas_are_exact_to_the_last_bit(tmp_path):
    values = np.random.default_rng(7).integers(0, 0x7FF << 52, 600).view(np.float64)
    frame = pd.DataFrame({"hospital": "a", "v": values, "outcome": values[::-1]})
    path = write_dialect(tmp_path / "my.csv", frame, ";", ",")
    federation = fl.data.load(
        "file", 3, scale="none", test_share=0.0, path=path, client="hospital", label="outcome"
    )
    assert np.array_equal(federation.train.x[:, 0].numpy(), values)
    assert np.array_equal(federation.train.y[:, 0].numpy(), values[::-1])


def test_quoted_decimal_commas_are_read_if_the_sign_is_set(tmp_path):
    path = write_dialect(tmp_path / "my.csv", REAL, ",", ",")
    settings = {"path": path, "client": "hospital", "label": "outcome", "scale": "none"}
    with pytest.raises(fl.InputError, match="--decimal"):
        fl.data.load("file", **settings)
    federation = fl.data.load("file", 3, **settings, decimal=",")
    assert torch.equal(federation.train.x, load_rows("frame", REAL, tmp_path).train.x)


def test_text_with_commas_and_points_stays_text(tmp_path):
    rows = "hospital;version;age;outcome\n" + "a;1.5b;1,5;ill\na;2,x;2,5;well\n" * 12
    path = write(tmp_path / "my.csv", rows)
    federation = fl.data.load("file", path=path, client="hospital", label="outcome", test_share=0.0)
    assert federation.features == ("version=1.5b", "version=2,x", "age")


@pytest.mark.parametrize(
    ("header", "wanted", "separator"),
    [
        ("a,b,c", [], ","),
        ("a", [], ","),
        ("a;b;c", [], ";"),
        ("a\tb", ["a"], "\t"),
        ("a|b", ["b"], "|"),
        ("height, m;age, years;x", ["x"], ";"),
        ("a;b;c;d,e", ["e"], ","),
        ('"a;b",c', ["c"], ","),
        ('"a,b";c', ["c"], ";"),
        ("a;b", ["typo"], ";"),
        ("a,b", ["typo"], ","),
    ],
)
def test_the_separator_is_the_one_that_finds_the_names(header, wanted, separator):
    assert detect_separator(header.encode() + b"\r\n1\n", wanted) == separator
    assert detect_separator(b"\xef\xbb\xbf" + header.encode(), wanted) == separator


def test_a_file_of_numbers_is_read_once_by_the_plain_reader(tmp_path, monkeypatch):
    reads = []
    plain = pd.read_csv
    monkeypatch.setattr(pd, "read_csv", lambda *args, **named: reads.append(named) or plain(*args, **named))
    user_files._load_table.cache_clear()
    load_rows("csv", ROWS, tmp_path)
    assert [named.get("nrows") for named in reads] == [1, None, None]  # header, rows, clients and labels
    assert all(named["sep"] == "," for named in reads)


def test_a_german_file_trains_and_predicts(call, tmp_path):
    rows = REAL.assign(
        day=pd.date_range("2020-01-01", periods=32).strftime("%d.%m.%Y"), city=["Köln", "Bonn"] * 16
    )
    path = write_dialect(tmp_path / "my.csv", rows, ";", ",", "\ufeff")
    code, out, err = call("run", "--data", path, *TABLE, *QUICK)
    assert code == 0, err
    assert "day (days since 2020-01-0" in err
    folder = out.split("Stored in ")[1].split()[0].rstrip(".")
    code, out, err = call("predict", folder, path, "--by", "hospital")
    assert code == 0, err
    assert len(out.splitlines()) == 33
    assert "32 rows" in err
