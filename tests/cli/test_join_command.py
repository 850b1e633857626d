"""`fedlap join`: a client after training, from a stored run; the same model as in Python."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from fedlap.cli.neighbours import parse_neighbours
from fedlap.errors import InputError
from fedlap.experiments.run_folder import list_run_folders
from fedlap.personal import Personal, Personals

SITES = ("north", "south", "a,b", "x=1")


def write_rows(path, sites, count, seed, real=False):
    """Write rows of sites whose models are alike."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"site": np.resize(sites, count), "age": rng.normal(50, 12, count)})
    frame["dose"] = rng.integers(0, 9, count)
    z = (frame.age - 50) / 12 + (frame.dose - 4) / 3 + rng.normal(size=count) / 2
    frame["outcome"] = z if real else np.where(z > 0, "ill", "well")
    frame.to_csv(path, index=False)
    return frame


@pytest.fixture
def folder(call, tmp_path, monkeypatch):
    """Train a run on four sites, and write the rows of a fifth."""
    monkeypatch.chdir(tmp_path)
    write_rows("my.csv", SITES, 120, 1)
    words = ("--data", "my.csv", "--client", "site", "--label", "outcome", "--rounds", "5", "--lr", "0.1")
    assert call("run", *words)[0] == 0
    write_rows("new.csv", ("west",), 40, 2)
    return list_run_folders(tmp_path / "runs")[0].folder


def test_the_newcomer_is_that_of_python(call, folder, tmp_path):
    frame = pd.read_csv("new.csv")
    words = ("join", folder.name, "new.csv", "--name", "west", "--neighbours", "north,south=0.5")
    code, out, err = call(*words, "--rounds", "3", "--seed", "2", "--to", "west.safetensors")
    assert (code, err) == (0, "")
    assert "west joins 4 clients; neighbours and weights: north 1, south 0.5" in out
    assert "3 rounds of 5 steps on 40 rows, lr 0.1, pull of strength 0.45 (FedU)" in out
    trained = Personals.load(folder / "models")
    wanted = trained.join(
        frame[["age", "dose"]].to_numpy(), frame.outcome.to_numpy(), {"north": 1, "south": 0.5},
        rounds=3, seed=2, name="west",
    )  # fmt: skip
    stored = Personal.load("west.safetensors")
    assert stored.client == "west"
    assert torch.equal(stored.parameters, wanted.parameters)
    code, out, err = call("predict", "west.safetensors", "new.csv", out=False)
    assert code == 0
    assert out.startswith("row,client,outcome,probability\n1,west,")
    assert err.startswith("accuracy ")


@pytest.mark.slow
def test_held_out_rows_are_scored_and_not_trained_on(call, folder):
    words = ("join", folder.name, "new.csv", "--neighbours", "north", "--test-share", "0.25", "--json")
    code, out, _ = call(*words)
    answer = json.loads(out)
    assert code == 0
    assert (answer["rows"], answer["test"]["known"], answer["left_out"]) == (30, 10, 0)
    assert 0 <= answer["test_of_start"]["accuracy"] <= 1
    # Another label of a held-out row leaves the model unchanged; one of a training row does not.
    frame, before = pd.read_csv("new.csv"), Personal.load("model.safetensors").parameters
    unchanged = 0
    for row in range(40):
        flipped = frame.copy()
        flipped.loc[row, "outcome"] = "well" if frame.outcome[row] == "ill" else "ill"
        flipped.to_csv("new.csv", index=False)
        assert call(*words)[0] == 0
        unchanged += torch.equal(Personal.load("model.safetensors").parameters, before)
    assert unchanged == 10
    code, out, _ = call(*words[:-1])
    assert "held-out rows, model of new: accuracy" in out
    assert "held-out rows, mean of the neighbours: accuracy" in out


def test_rows_without_a_label_are_left_out(call, folder):
    frame = pd.read_csv("new.csv")
    frame.loc[3:, "outcome"] = ""
    frame.to_csv("new.csv", index=False)
    code, out, _ = call("join", folder.name, "new.csv", "--neighbours", "north")
    assert code == 0
    assert "on 3 rows" in out
    assert "37 rows without a true label are left out" in out


def test_regression(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows("my.csv", SITES, 120, 1, real=True)
    write_rows("new.csv", ("west",), 40, 2, real=True)
    words = ("--data", "my.csv", "--client", "site", "--label", "outcome", "--rounds", "5")
    assert call("run", *words)[0] == 0
    (run,) = list_run_folders(tmp_path / "runs")
    words = ("join", run.name, "new.csv", "--neighbours", "north", "--test-share", "0.5", "--json")
    code, out, _ = call(*words)
    assert code == 0
    assert json.loads(out)["test"]["loss"] < json.loads(out)["test_of_start"]["loss"]


@pytest.mark.parametrize(
    ("words", "weights"),
    [
        (["north"], {"north": 1.0}),
        (["north,south=0.5"], {"north": 1.0, "south": 0.5}),
        (["north=2,south"], {"north": 2.0, "south": 1.0}),
        (["north = 2", "south"], {"north": 2.0, "south": 1.0}),
        (["a,b"], {"a,b": 1.0}),
        (["a,b=3", "x=1", "north"], {"a,b": 3.0, "x=1": 1.0, "north": 1.0}),
        (["x=1=4"], {"x=1": 4.0}),
    ],
)
def test_neighbours_are_names_with_weights(words, weights):
    assert parse_neighbours(words, SITES) == weights


@pytest.mark.parametrize("word", ["", ",", "north,", "=2", "north,north", "north=much"])
def test_other_neighbours_are_refused(word):
    with pytest.raises(InputError, match=r"^--neighbours "):
        parse_neighbours([word], SITES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("new.csv", "--neighbours"),
        ("new.csv --neighbours nort", "unknown client among the neighbours 'nort'; did you mean 'north'"),
        ("new.csv --neighbours north=-1", "weight of neighbour 'north' = -1.0"),
        ("new.csv --neighbours north=1e9", "and the pull to them diverges"),
        ("new.csv --neighbours north --name south", "client 'south' already exists"),
        ("new.csv --neighbours north --batch few", "--batch few: expected a whole number or 'all'"),
        ("new.csv --neighbours north --test-share 0.001", "no row of 40 would be held out"),
        ("bare.csv --neighbours north", "bare.csv has no column of true labels; add the column 'outcome'"),
        ("bare.csv --neighbours north --label site", "bare.csv, row 1: the label is not one of ill, well"),
        ("empty.csv --neighbours north", "no row has a true label"),
        ("new.csv --neighbours north --to new.bin", "unsupported extension in 'new.bin'"),
        ("absent.csv --neighbours north", "'absent.csv' cannot be read"),
    ],
)
def test_a_mistake_is_one_line(call, folder, words, message):
    frame = pd.read_csv("new.csv")
    frame.drop(columns="outcome").to_csv("bare.csv", index=False)
    frame.assign(outcome="").to_csv("empty.csv", index=False)
    code, out, err = call("join", folder.name, *words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
