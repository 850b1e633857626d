"""Mistakes in a user's files and in the options for them: one line per mistake, and exit code 2."""

import zipfile

import numpy as np
import pandas as pd
import pytest

from user_tables import (
    FILES,
    QUICK,
    REAL,
    ROWS,
    SAVED,
    TABLE,
    WHO,
    X,
    Y,
    but,
    pack_arrays,
    place,
    write,
)

HEAD = "hospital,age,outcome\n"
LINES = "north,1,ill\nnorth,2,well\nsouth,3,ill\nsouth,4,well\n"
WIDE = [f"f{k}" for k in range(1100)]


def npz(**changes):
    return {"my.npz": {"x": X, "y": Y, "client": WHO} | changes}


HELD = [*TABLE, "--test", "{}/held.csv"]


def put(setting):
    return [*TABLE, "--set", setting]


BAD = {
    # name: ({file: content}, further words, what the line says); the first file is the data
    **{
        f"{what} in a {column} of {form}": (
            {f"my.{form}": but(3, **{column: value})}, TABLE,
            [f"my.{form}", "row 4", f"'{column}'", "missing", "fill in or remove"])
        for form in ("csv", "parquet")
        for what, column, value in [
            ("a gap", "age", np.nan), ("infinity", "age", np.inf), ("minus infinity", "age", -np.inf),
            ("a gap", "outcome", None), ("a gap", "hospital", None)]
    },
    **{
        f"{text!r} among numbers like {number}": (
            {"my.csv": but(3, outcome=text).replace({"outcome": {"ill": "1", "well": number}})}, TABLE,
            ["my.csv", "row 4", "'outcome'", "missing"])
        for text in ("NA", "nan", "NULL", "None", "") for number in ("2", "2.5")
    },
    **{
        f"nothing but {text!r} in {column}": (
            {"my.csv": ROWS.assign(**{column: text})}, TABLE, ["my.csv", "row 1", f"'{column}'", "missing"])
        for column, text in (("outcome", ""), ("outcome", "NA"), ("hospital", ""), ("age", ""))
    },
    "a truth is missing": (
        {"my.csv": but(3, outcome="").replace({"outcome": {"ill": "true", "well": "false"}})}, TABLE,
        ["row 4", "'outcome'"]),
    **{
        f"infinite targets of {form}, others {kind}": (
            {f"my.{form}": REAL.assign(outcome=place(values, 3, np.inf))}, TABLE,
            [f"my.{form}", "row 4", "'outcome'", "infinite"])
        for form in ("csv", "parquet") for kind, values in (("real", REAL.outcome), ("whole", Y))
    },
    "a gap in the test file": (
        {"my.csv": ROWS, "held.csv": but(3, age=np.nan)}, HELD,
        ["held.csv", "row 4", "'age'"]),
    "a short line": ({"my.csv": HEAD + LINES + "south,5\n"}, TABLE, ["row 5", "'outcome'", "missing"]),
    "a long line": ({"my.csv": HEAD + LINES + "south,5,ill,9\n"}, TABLE, ["my.csv", "line 6"]),
    "lines longer than the header": (
        {"my.csv": HEAD + LINES.replace("north", "1,north").replace("south", "2,south")}, TABLE, ["my.csv"]),
    "an open quotation mark": ({"my.csv": HEAD + LINES + '"south,5,ill\n'}, TABLE, ["my.csv"]),
    "another encoding": (
        {"my.csv": (HEAD + LINES + "Jos\u00e9,5,ill\n").encode("latin-1")}, TABLE, ["my.csv", "utf-8"]),
    "utf-16": ({"my.csv": (HEAD + LINES).encode("utf-16")}, TABLE, ["my.csv", "utf-8"]),
    "binary": ({"my.csv": bytes(range(256)) * 4}, TABLE, ["my.csv"]),
    "a header twice": ({"my.csv": "hospital,age,age,outcome\nnorth,1,2,ill\n"}, TABLE, ["'age'", "twice"]),
    "a feature twice": ({"my.csv": ROWS}, put('data.features=["age", "age"]'), ["'age'", "twice"]),
    "no features chosen": ({"my.csv": ROWS}, put("data.features=[]"), ["feature"]),
    "one column for both": ({"my.csv": ROWS}, [
        "--client", "outcome", "--label", "outcome", "--set", 'data.drop=["hospital"]'], ["'outcome'"]),
    "the label a feature": ({"my.csv": ROWS}, put('data.features=["outcome"]'), ["'outcome'"]),
    "nearly as many texts as rows": (
        {"my.csv": ROWS.assign(patient=[f"p{k}" for k in range(32)])}, TABLE,
        ["'patient'", "32 different texts", "32 rows", "--drop"]),
    "lists of parquet": (
        {"my.parquet": ROWS.assign(city=[["Rome"]] * 32)}, TABLE,
        ["'city'", "32 of 32 cells are neither numbers nor text", "drop"]),
    "durations of parquet": (
        {"my.parquet": ROWS.assign(stay=pd.Timedelta(days=2))}, TABLE,
        ["'stay'", "row 1", "neither numbers nor text"]),
    "words in the test file": (
        {"my.csv": ROWS, "held.csv": ROWS.assign(age="old")}, HELD,
        ["held.csv", "'age'", "row 1", "no numbers"]),
    "one word among numbers": (
        {"my.csv": but(20, age="?")}, TABLE, ["my.csv", "'age'", "1 of 32 cells", "row 21"]),
    "one word in a large file": (
        {"my.csv": ",".join([*WIDE, "hospital", "outcome\n"]) + ("1," * 1100 + "a,x\n") * 999
         + "1," * 1099 + "?,a,y\n"},
        TABLE, ["'f1099'", "no numbers", "row 1000"]),
    "days or months": (
        {"my.csv": ROWS.assign(day="05/06/2020")}, TABLE,
        ["'day'", "with the day or with the month", "2020-01-31"]),
    "one word among dates": (
        {"my.csv": ROWS.assign(day=["2020-01-31"] * 31 + ["soon"])}, TABLE,
        ["row 32", "'day'", "no dates", "2020-01-31"]),
    "no feature": ({"my.csv": ROWS[["hospital", "outcome"]]}, TABLE, ["no column is left as a feature"]),
    "all dropped": ({"my.csv": ROWS}, put('data.drop=["age", "dose"]'), ["no column is left"]),
    "an empty file": ({"my.csv": ""}, TABLE, ["my.csv"]),
    "an empty parquet file": ({"my.parquet": b""}, TABLE, ["my.parquet", "cannot be read"]),
    "an empty npz file": ({"my.npz": b""}, TABLE, ["my.npz", "cannot be read"]),
    "a header only": ({"my.csv": HEAD}, TABLE, ["my.csv", "no rows"]),
    "no rows in parquet": ({"my.parquet": ROWS[:0]}, TABLE, ["my.parquet", "no rows"]),
    "no test rows": ({"my.csv": ROWS, "held.csv": HEAD}, HELD, ["held.csv", "no rows"]),
    "unknown client column": (
        {"my.csv": ROWS}, ["--client", "hospitl", "--label", "outcome"], ["'hospitl'", "mean 'hospital'"]),
    "unknown label": ({"my.csv": ROWS}, ["--client", "hospital", "--label", "outcom"], ["mean 'outcome'"]),
    "unknown column to drop": ({"my.csv": ROWS}, put('data.drop=["dos"]'), ["mean 'dose'"]),
    "unknown feature": ({"my.csv": ROWS}, put('data.features=["agee"]'), ["mean 'age'"]),
    "unknown column of parquet": (
        {"my.parquet": ROWS}, ["--client", "hospital", "--label", "outcom"],
        ["my.parquet", "mean 'outcome'"]),
    "unknown array": (npz(), ["--label", "yy"], ["my.npz", "mean 'y'"]),
    "drop is no list": ({"my.csv": ROWS}, put("data.drop=age"), ["data.drop", "'age'", "list"]),
    "other separators": (
        {"my.csv": (HEAD + LINES).replace(",", ";")}, [*TABLE, "--separator", ","], ["my.csv", "'hospital'"]),
    "a word as separator": (
        {"my.csv": ROWS}, [*TABLE, "--separator", "dot"], ["data.separator", "'dot'", "tab"]),
    "a word as decimal sign": ({"my.csv": ROWS}, [*TABLE, "--decimal", "x"], ["data.decimal", "'x'"]),
    "commas in numbers, separated by commas": (
        {"my.csv": HEAD + 'north,"1,5",ill\nnorth,"2,5",well\n'}, TABLE,
        ["row 1", "'age'", "decimal point", "--decimal"]),
    "commas in labels, separated by commas": (
        {"my.csv": HEAD + 'north,1,"1,5"\nnorth,2,"2,5"\n'}, TABLE,
        ["'outcome'", "row 1", "decimal comma", "--decimal"]),
    "commas and points": (
        {"my.csv": "hospital;age;dose;outcome\nnorth;1,5;1.5;ill\nnorth;2,5;2.5;well\n"}, TABLE,
        ["my.csv", "'dose'", "points", "--decimal"]),
    "commas and points in a column": (
        {"my.csv": "hospital;age;outcome\nnorth;1,5;ill\nnorth;2.5;well\nnorth;7,5;well\n"}, TABLE,
        ["my.csv", "row 1", "'age'", "decimal point", "1234.5"]),
    "points between thousands": (
        {"my.csv": "hospital;age;outcome\nnorth;1.234,5;ill\nnorth;2.345,5;well\n"}, TABLE,
        ["row 1", "'age'", "1234,5"]),
    "no such rule for missing values": (
        {"my.csv": ROWS}, [*TABLE, "--missing", "median"], ["data.missing", "'median'", "mean"]),
    "a gap in a label with means": (
        {"my.csv": but(3, outcome=None)}, [*TABLE, "--missing", "mean"],
        ["row 4", "'outcome'", "missing = drop"]),
    "a column without values": (
        {"my.csv": ROWS.assign(dose=np.nan)}, [*TABLE, "--missing", "mean"],
        ["'dose'", "no value", "--drop"]),
    "no complete row": (
        {"my.csv": ROWS.assign(dose=np.nan)}, [*TABLE, "--missing", "drop"], ["my.csv", "every row", "mean"]),
    "a client without complete rows": (
        {"my.csv": ROWS.assign(dose=ROWS.dose.where(ROWS.hospital != "east"))}, [*TABLE, "--missing", "drop"],
        ["'east'", "no training rows", "--skip-empty"]),
    "a split by time without times": ({"my.csv": ROWS}, [*TABLE, "--split", "time"], ["split", "--time"]),
    "times for a random split": ({"my.csv": ROWS}, [*TABLE, "--time", "dose"], ["time", "--split time"]),
    "times and groups": (
        {"my.csv": ROWS}, [*TABLE, "--split", "time", "--time", "dose", "--group", "age"], ["group", "time"]),
    "times and a test file": (
        {"my.csv": ROWS, "held.csv": ROWS}, [*HELD, "--split", "time", "--time", "dose"], ["test", "split"]),
    "unknown time": ({"my.csv": ROWS}, [*TABLE, "--split", "time", "--time", "dosee"], ["mean 'dose'"]),
    "unknown group": ({"my.csv": ROWS}, [*TABLE, "--group", "dosee"], ["mean 'dose'"]),
    "unknown second client": (
        {"my.csv": ROWS}, ["--client", "hospital,dosee", "--label", "outcome"], ["'dose'"]),
    "the client twice": (
        {"my.csv": ROWS}, ["--client", "hospital,hospital", "--label", "outcome"], ["'hospital'", "twice"]),
    "joined names of two clients": (
        {"my.csv": "a,b,age,outcome\nx / y,z,1,ill\nx,y / z,2,well\n"},
        ["--client", "a,b", "--label", "outcome"],
        ["'x / y / z'", "two clients"]),
    "columns of a file of arrays": (npz(), ["--group", "x"], ["group", "my.npz", "not columns"]),
    "missing of a known set": ({"digits": None}, ["--missing", "drop"], ["--missing", "'digits'"]),
    "skip-empty of a known set": ({"digits": None}, ["--skip-empty"], ["--skip-empty", "'digits'"]),
    "no label": ({"my.csv": ROWS}, ["--client", "hospital"], ["my.csv", "--label"]),
    "no label of parquet": ({"my.parquet": ROWS}, ["--client", "hospital"], ["my.parquet", "--label"]),
    "no client": (
        {"my.csv": ROWS}, ["--label", "outcome", "--set", 'data.drop=["hospital"]'], ["client", "partition"]),
    "natural without clients": (npz() | {"my.npz": {"x": X, "y": Y}}, ["--partition", "natural"], ["client"]),
    "no such file": ({"other.csv": ROWS}, ["--set", "data.path={}/none.csv"], ["none.csv", "No such file"]),
    "no such test file": ({"my.csv": ROWS}, [*TABLE, "--test", "{}/none.csv"], ["none.csv", "No such file"]),
    "a folder": ({"my.csv": None}, TABLE, ["my.csv", "directory"]),
    "a folder as parquet": ({"my.parquet": None}, TABLE, ["my.parquet", "directory"]),
    "a folder as npz": ({"my.npz": None}, TABLE, ["my.npz", "directory"]),
    "a spreadsheet": ({"my.xlsx": b"PK"}, TABLE, ["my.xlsx", ".csv", ".parquet", ".npz"]),
    "plain text": ({"my.txt": HEAD + LINES}, TABLE, ["my.txt", ".csv"]),
    "a test file of another kind": (
        {"my.csv": ROWS, "held.parquet": ROWS}, [*TABLE, "--test", "{}/held.parquet"],
        ["my.csv", "held.parquet", "use one file type"]),
    "a test file without a column": (
        {"my.csv": ROWS, "held.csv": ROWS.drop(columns="dose")}, HELD,
        ["held.csv", "'dose'"]),
    "a test file without the label": (
        {"my.csv": ROWS, "held.csv": ROWS.drop(columns="outcome")}, HELD,
        ["held.csv", "'outcome'"]),
    **{
        f"a client of the test file only, {form}": (
            {f"my.{form}": ROWS, f"held.{form}": but(0, hospital="moon")},
            [*TABLE, "--test", f"{{}}/held.{form}"],
            [f"held.{form}", "'moon'", f"my.{form}", "remove its test rows"])
        for form in FILES
    },
    "junk as parquet": ({"my.parquet": b"PAR1 nothing"}, TABLE, ["my.parquet", "cannot be read"]),
    "half a parquet file": ({"my.parquet": ROWS.to_parquet()[:900]}, TABLE, ["my.parquet", "cannot be read"]),
    "csv called parquet": ({"my.parquet": HEAD + LINES}, TABLE, ["my.parquet", "cannot be read"]),
    "junk as npz": ({"my.npz": b"nothing"}, TABLE, ["my.npz", "cannot be read"]),
    "half an npz file": ({"my.npz": pack_arrays(x=X, y=Y)[:600]}, TABLE, ["my.npz", "cannot be read"]),
    **{
        f"npz damaged at byte {at}": (
            {"my.npz": SAVED[:at] + b"\xff" * 40 + SAVED[at + 40:]}, [], ["my.npz", "cannot be read"])
        for at in (0, 26, 55, 100, len(SAVED) - 60)
    },
    "one array as npz": ({"my.npz": pack_arrays(np.save, arr=X)}, [], ["my.npz", "cannot be read"]),
    "objects": (npz(y=np.array(["ill", None] * 16, object)), [], ["my.npz", "y", "objects"]),
    "objects, compressed": (
        {"my.npz": pack_arrays(np.savez_compressed, x=X, y=np.array([0, None] * 16, object))}, [],
        ["my.npz", "cannot be read"]),
    "no arrays": ({"my.npz": pack_arrays()}, [], ["my.npz", "'x'"]),
    "no x": (npz() | {"my.npz": {"features": X, "y": Y, "client": WHO}}, [], ["my.npz", "'x'", "features"]),
    "labels too few": (npz(y=Y[:-1]), [], ["my.npz", "(32, 2)", "(31,)"]),
    "clients too few": (npz(client=WHO[:-1]), [], ["my.npz", "31", "32"]),
    "test labels too few": (
        npz(x=X[:31]) | {"held.npz": {"x": X, "y": Y[:-1], "client": WHO[:-1]}}, ["--test", "{}/held.npz"],
        ["my.npz", "(31, 2)", "(32,)"]),
    "test rows of another shape": (
        npz() | {"held.npz": {"x": X[:, :1], "y": Y, "client": WHO}}, ["--test", "{}/held.npz"],
        ["held.npz"]),
    "test rows without clients": (
        npz() | {"held.npz": {"x": X, "y": Y}}, ["--test", "{}/held.npz"], ["'client'"]),
    "one label for all": (npz(y=np.array(1)), [], ["my.npz", "labels of shape"]),
    "clients in a table": (npz(client=np.stack([WHO, WHO], 1)), [], ["my.npz", "client"]),
    "a gap in x": (npz(x=place(X, (3, 0), np.nan)), [], ["my.npz", "row 3", "feature", "NaN"]),
    "a gap in y": (npz(y=place(Y, 3, np.nan)), [], ["my.npz", "row 3", "label", "NaN"]),
    "infinity in y": (npz(y=place(Y, 3, np.inf)), [], ["my.npz", "row 3", "label", "infinite"]),
    "a gap in client": (npz(client=place(WHO, 3, np.nan)), [], ["my.npz", "row 3", "client"]),
    "text in x": (npz(x=X.astype(str)), [], ["my.npz", "numbers"]),
    "complex x": (npz(x=X + 1j), [], ["my.npz", "real numbers"]),
    "complex y": (npz(y=Y + 1j), [], ["my.npz", "real numbers"]),
    "whole numbers in columns": (npz(y=np.stack([Y, Y], 1)), [], ["my.npz", "(32, 2)"]),
    "columns as classes": (
        npz(y=np.zeros((32, 2))), ["--set", "data.task=classification"], ["my.npz", "classification"]),
    "no rows in npz": (npz(x=X[:0], y=Y[:0], client=WHO[:0]), [], ["my.npz", "no rows"]),
    "two arrays of features": (npz(), ["--set", 'data.features=["x", "y"]'], ["my.npz", "one array"]),
    "columns of npz dropped": (npz(), ["--set", 'data.drop=["x"]'], ["drop", "my.npz"]),
    "text as targets": ({"my.csv": ROWS}, put("data.task=regression"), ["'outcome'", "numbers"]),
    "reals as classes": ({"my.csv": REAL}, put("data.task=classification"), ["'outcome'", "regression"]),
    "many whole numbers": (
        {"my.csv": pd.DataFrame({"hospital": "a", "age": 0.5, "outcome": range(101)})}, TABLE,
        ["my.csv", "'outcome'", "101", "task = classification", "task = regression"]),
    "no such task": ({"my.csv": ROWS}, put("data.task=regresion"), ["data.task", "'regression'"]),
    "no such setting": ({"my.csv": ROWS}, put("data.drp=1"), ["'drp'", "'drop'"]),
    "another content": ({"my.csv": ROWS}, put("data.sha256=abc"), ["my.csv", "SHA-256"]),
    "more clients than rows": (
        {"my.csv": ROWS}, [*TABLE, "--partition", "iid", "--set", "partition.clients=33"],
        ["33 clients", "32 rows"]),
    "targets cut by label": ({"my.csv": REAL}, [*TABLE, "--partition", "dirichlet"], ["real numbers", "iid"]),
    "no such partition": ({"my.csv": ROWS}, [*TABLE, "--partition", "lables"], ["'lables'", "'labels'"]),
    "no such setting of scarce": ({"my.csv": ROWS}, put("scarce.kep=1"), ["'kep'", "'keep'"]),
    "scarce by too much": ({"my.csv": ROWS}, put("scarce.keep=2"), ["keep = 2"]),
    "test all": ({"my.csv": ROWS}, put("data.test_share=1"), ["test_share = 1"]),
    "client of a known set": ({"digits": None}, ["--client", "x"], ["--client", "'digits'"]),
    "drop of a known set": ({"digits": None}, ["--drop", "x"], ["--drop", "'digits'"]),
    "label of a known set": ({"digits": None}, ["--label", "x"], ["--label", "'digits'"]),
    "test of a known set": ({"synthetic": None}, ["--test", "x.csv"], ["--test", "'synthetic'"]),
    "natural digits": ({"digits": None}, ["--partition", "natural"], ["'digits'", "labels", "iid"]),
    "too few clients for the labels": (
        {"digits": None}, ["--partition", "labels", "--set", "partition.clients=5"],
        ["5 clients", "10 labels"]),
    "a cut of synthetic": ({"synthetic": None}, ["--partition", "iid"], ["'synthetic'", "partition"]),
    "a set misspelt": ({"digts": None}, [], ["'digts'", "did you mean 'digits'"]),
    "no path": ({"file": None}, [], ["path"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_clear_line_and_exit_code_2(case, call, tmp_path):
    contents, words, wanted = BAD[case]
    for name, content in contents.items():
        if "." in name:
            write(tmp_path / name, content)
    first = next(iter(contents))
    data = str(tmp_path / first) if "." in first else first
    arguments = [word.replace("{}", str(tmp_path)) for word in words]
    for command in (["run", *QUICK, "--data", data], ["data", "describe", data]):
        code, out, err = call(*command, *arguments)
        assert (code, out) == (2, ""), err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err
        for piece in wanted:
            assert piece in err, err


@pytest.mark.parametrize("setting", ["rounds=3", "algorithm.lr=1", "model=mlp"])
def test_a_description_takes_no_settings_of_training(setting, call):
    code, _, err = call("data", "describe", "digits", "--set", setting)
    assert code == 2
    assert err.count("\n") == 1
    assert f"--set {setting}: data describe only uses data, partition, scarce and seed" in err


def test_a_zip_file_of_something_else(call, tmp_path):
    with zipfile.ZipFile(tmp_path / "my.npz", "w") as archive:
        archive.writestr("x.txt", "hello")
    code, _, err = call("run", "--data", str(tmp_path / "my.npz"))
    assert (code, err.count("\n")) == (2, 1)
    assert "cannot be read" in err
