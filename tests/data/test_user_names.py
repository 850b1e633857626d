"""Names in a user's own files: of labels, of clients, of the files themselves; they stay what they are."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedlap as fl
from user_tables import FEATURES, FILES, QUICK, ROWS, TABLE, arrays, load_rows, metadata, write

LABELS = {
    "text": (["well", "ill", "ill", "ok"], ["ill", "ok", "well"]),
    "text, capitals and accents": (["b", "É", "B", "é"], ["B", "b", "É", "é"]),
    "true or false": ([True, False, False, True], ["False", "True"]),
    "from one": ([6, 4, 2, 5, 1, 3, 1, 1], ["1", "2", "3", "4", "5", "6"]),
    "signs": ([1, -1, -1, 1], ["-1", "1"]),
    "by size, not as text": ([10, 9, 9, 100], ["9", "10", "100"]),
    "whole though real": ([2.0, 1.0, 2.0, 2.0], ["1", "2"]),
    "words for nothing": (["None", "NA", "ill", "nan"], ["NA", "None", "ill", "nan"]),
    "words beside numbers": (["1", "2", "x", "NA"], ["1", "2", "NA", "x"]),
}


def list_label_names(federation):
    """Return the name of every training row's label."""
    return [federation.labels[y] for y in federation.train.y.tolist()]


@pytest.mark.parametrize("form", [*FILES, "frame"])
@pytest.mark.parametrize("case", LABELS)
def test_labels_keep_their_names(case, form, tmp_path):
    values, names = LABELS[case]
    hospitals = np.repeat(["a", "b"], 16)
    federation = load_rows(
        form, ROWS.assign(hospital=hospitals, outcome=np.tile(values, 32 // len(values))), tmp_path
    )
    assert federation.labels == tuple(names)
    expected = [str(int(v)) if isinstance(v, float) else str(v) for v in np.tile(values, 32 // len(values))]
    rows = {
        tuple(x): label for x, label in zip(ROWS[FEATURES].to_numpy(float).tolist(), expected, strict=True)
    }
    assert list_label_names(federation) == [rows[tuple(x)] for x in federation.train.x.tolist()]


@pytest.mark.parametrize("form", ["parquet", "frame"])
def test_categories_keep_their_own_order(form, tmp_path):
    order = ["low", "mid", "high"]
    values = pd.Categorical(np.resize(["mid", "high", "low"], 32), categories=order)
    federation = load_rows(form, ROWS.assign(outcome=values), tmp_path)
    assert federation.labels == tuple(order)
    assert set(list_label_names(federation)) == set(order)


@pytest.mark.parametrize("form", [*FILES, "frame"])
@pytest.mark.parametrize(
    ("train_labels", "test", "names"),
    [
        (["1", "2", "x", "2"], ["1", "2"], ("1", "2", "x")),
        (["true", "maybe", "true", "maybe"], ["true"], ("maybe", "true")),
        (["NA", "ill", "NA", "ill"], ["NA"], ("NA", "ill")),
        ([1, 2, 1, 2], [3], ("1", "2", "3")),
    ],
    ids=["numbers", "truth", "nothing", "one class more"],
)
def test_a_label_is_the_same_in_the_test_file(train_labels, test, names, form, tmp_path):
    frame = ROWS.assign(outcome=np.tile(np.repeat(train_labels, 4), 2))
    federation = load_rows(form, frame, tmp_path, frame[:8].assign(outcome=np.resize(test, 8)))
    assert federation.labels == names
    assert {names[y] for y in federation.test.y.tolist()} == set(map(str, test))


CLIENTS = ("007", "NA", "1.0", "None", "São José", "a b", "東京", "nan", "true", "1")


@pytest.mark.parametrize("form", [*FILES, "frame"])
def test_names_of_clients_stay_text(form, tmp_path):
    frame = pd.DataFrame({"hospital": np.resize(CLIENTS, 80), "age": np.arange(80.0)})
    frame["outcome"] = np.where(np.arange(80) // 10 % 2, "x", "y")
    assert load_rows(form, frame, tmp_path).clients == CLIENTS


def test_names_end_up_in_the_run_folder(call, tmp_path):
    path = write(tmp_path / "a b.csv", ROWS.assign(hospital=np.resize(["007", "NA", "1.0", "São José"], 32)))
    code, out, _ = call("run", "--data", path, *TABLE, *QUICK, "--json")
    folder = json.loads(out)["folder"]
    assert code == 0
    assert Path(folder).name.startswith("a b-fedu-")
    assert metadata(folder)["clients"] == ["007", "NA", "1.0", "São José"]
    assert metadata(folder)["labels"] == ["ill", "well"]


@pytest.mark.parametrize("form", ["parquet", "npz", "frame"])
@pytest.mark.parametrize("kind", [int, float])
def test_clients_that_are_whole_numbers(kind, form, tmp_path):
    frame = ROWS.assign(hospital=np.resize(np.array([7, 1, 20, 3], kind), 32))
    assert load_rows(form, frame, tmp_path).clients == ("7", "1", "20", "3")


def test_clients_in_an_array_of_bytes(tmp_path):
    columns = {**arrays(ROWS), "hospital": ROWS.hospital.to_numpy().astype("S")}
    path = write(tmp_path / "my.npz", columns)
    federation = fl.data.load("file", path=path, client="hospital", label="outcome")
    assert federation.clients == ("north", "south", "east", "west")


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    path = write(tmp_path / "my.csv", b"\xef\xbb\xbf" + ROWS.to_csv(index=False).encode())
    assert len(fl.data.load("file", path=path, client="hospital", label="outcome").clients) == 4


@pytest.mark.parametrize("name", ["São José", "東京", "$1%$", r"up $\q$", "[/b]"])
def test_names_of_any_kind_can_be_drawn(name, call, tmp_path):
    path = write(tmp_path / "my.csv", ROWS.replace({"north": name, "ill": name}))
    code, out, err = call("data", "describe", path, *TABLE)
    assert (code, err) == (0, "")
    assert f"{name}: 16" in out


@pytest.mark.parametrize("stem", ["my[b]rows", "$1%$", "ünï.a b"])
def test_a_file_may_have_any_name(stem, call, tmp_path):
    path = write(tmp_path / f"{stem}.csv", ROWS)
    assert call("data", "describe", path, *TABLE)[0] == 0
    code, out, _ = call("run", "--data", path, *TABLE, *QUICK)
    assert code == 0
    assert f"{stem}: test rows" in out
    assert len(list((tmp_path / "runs").glob("*-fedu-*"))) == 1
