"""A user's own files: the same rows are the same from every kind of file, and a file goes by its content."""

import hashlib
import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fedlap as fl
from fedlap.data import user_npz
from fedlap.experiments.experiment import Experiment
from fedlap.storage.array_files import parse_npz
from user_tables import (
    FILES,
    QUICK,
    REAL,
    ROWS,
    TABLE,
    arrays,
    load_rows,
    metadata,
    models,
    pack_arrays,
    write,
)

# The same rows are the same rows.


@pytest.mark.parametrize("rows", [ROWS, REAL], ids=["classes", "targets"])
@pytest.mark.parametrize("held", [False, True], ids=["drawn", "given"])
@pytest.mark.parametrize("form", [*FILES, "arrays"])
def test_every_form_of_the_same_rows_trains_the_same_models(form, held, rows, tmp_path):
    arguments = (
        (rows[:21], tmp_path, rows[21:]) if held else (rows[:29], tmp_path)
    )  # clients of unequal sizes
    one, other = load_rows(form, *arguments), load_rows("frame", *arguments)
    assert (one.clients, one.labels, one.inputs) == (other.clients, other.labels, other.inputs)
    for mine, theirs in ((one.train, other.train), (one.test, other.test)):
        for field in ("x", "y", "count"):
            assert torch.equal(getattr(mine, field), getattr(theirs, field))

    def train(federation):
        method = fl.FedU(fl.Graph.ring(federation.clients), strength=0.1, lr=0.1, local_steps=3)
        return fl.fit(method, federation.standardize("pooled"), fl.models.linear(), rounds=2, batch=4, seed=1)

    assert torch.equal(train(one).models, train(other).models)


def test_the_command_line_trains_the_same_models_from_every_kind_of_file(call, tmp_path):
    trained_models = []
    for form in FILES:
        path = write(tmp_path / f"my.{form}", ROWS)
        code, out, _ = call("run", "--data", path, *TABLE, "--rounds", "3", "--json")
        folder = Path(json.loads(out)["folder"])
        assert code == 0
        assert folder.name.startswith("my-fedu-")
        about = metadata(folder)
        assert about["labels"] == ["ill", "well"]
        assert about["clients"] == ["north", "south", "east", "west"]
        trained_models.append(models(folder))
    assert np.array_equal(trained_models[0], trained_models[1])
    assert np.array_equal(trained_models[0], trained_models[2])


@pytest.mark.parametrize("form", FILES)
def test_numbers_survive_to_the_last_bit(form, tmp_path):
    values = np.random.default_rng(7).integers(0, 0x7FF << 52, 600).view(np.float64)  # of every magnitude
    frame = pd.DataFrame({"hospital": "a", "v": values, "outcome": values[::-1]})
    federation = load_rows(form, frame, tmp_path, test_share=0.0)
    assert np.array_equal(federation.train.x[:, 0].numpy(), values)
    assert np.array_equal(federation.train.y[:, 0].numpy(), values[::-1])


@pytest.mark.parametrize("form", [*FILES, "frame"])
def test_huge_targets_stay_what_they_are(form, tmp_path):
    federation = load_rows(form, ROWS.assign(outcome=np.tile([1e20, -3e30], 16)), tmp_path, task="regression")
    assert sorted(set(federation.train.y.flatten().tolist())) == [-3e30, 1e20]


# Classes or targets.


@pytest.mark.parametrize("form", [*FILES, "frame"])
def test_the_task_follows_from_the_labels_and_can_be_overridden(form, tmp_path):
    whole = ROWS.assign(outcome=np.tile(np.repeat([1, 4], 4), 4))
    assert load_rows(form, REAL, tmp_path).labels is None
    assert load_rows(form, whole, tmp_path).labels == ("1", "4")
    forced = load_rows(form, whole, tmp_path, task="regression")
    assert forced.labels is None
    assert forced.train.y.unique().tolist() == [1.0, 4.0]
    many = pd.DataFrame({"hospital": "a", "age": 0.5, "outcome": np.arange(101)})
    assert len(load_rows(form, many, tmp_path, task="classification").labels) == 101
    assert len(load_rows(form, many[:100], tmp_path).labels) == 100
    with pytest.raises(fl.InputError, match=r"101 distinct integers.*task = classification.*regression"):
        load_rows(form, many, tmp_path)


@pytest.mark.parametrize("form", FILES)
def test_a_regression_is_scored_by_its_loss(form, call, tmp_path):
    code, out, _ = call("run", "--data", write(tmp_path / f"my.{form}", REAL), *TABLE, *QUICK)
    assert code == 0
    assert "loss" in out
    assert "accuracy" not in out


def test_targets_of_several_columns(call, tmp_path):
    columns = {**arrays(ROWS), "outcome": np.random.default_rng(1).normal(size=(32, 3))}
    path = write(tmp_path / "my.npz", columns)
    assert fl.data.load("file", path=path, client="hospital", label="outcome").outputs == 3
    code, out, _ = call("run", "--data", path, *TABLE, *QUICK, "--json")
    assert code == 0
    assert metadata(json.loads(out)["folder"])["labels"] is None


# NPZ files.


@pytest.mark.parametrize("model", ["cnn", "linear"])
def test_pictures_stay_bytes(model, call, tmp_path):
    pictures = np.random.default_rng(0).integers(0, 256, (32, 1, 8, 8)).astype(np.uint8)
    path = write(
        tmp_path / "my.npz",
        {"x": pictures, "y": np.arange(32) // 4 % 2, "client": ROWS.hospital.to_numpy(str)},
    )
    code, out, _ = call("run", "--data", path, "--model", model, *QUICK, "--json")
    assert code == 0
    assert json.loads(out)["experiment"]["model"]["name"] == model
    federation = fl.data.load("file", path=path)
    assert federation.train.store.dtype == torch.uint8
    assert (federation.inputs, federation.clients) == ((1, 8, 8), ("north", "south", "east", "west"))


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.uint8])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_features_are_held_in_memory_once(save, kind, tmp_path, monkeypatch):
    """Whatever the number of federations; where they are stored plainly, as a part of the file's content."""
    seen = {}
    monkeypatch.setattr(user_npz, "parse_npz", lambda content: seen.setdefault("arrays", parse_npz(content)))
    x = np.arange(64).reshape(32, 2).astype(kind)
    path = write(
        tmp_path / "my.npz", pack_arrays(save, x=x, y=np.arange(32) // 4 % 2, client=np.arange(32) % 4)
    )
    store, other = (fl.data.load("file", path=path, seed=seed).train.store for seed in (0, 1))
    found = seen["arrays"]["x"]
    assert store.data_ptr() == other.data_ptr() == found.ctypes.data
    assert store.dtype == torch.from_numpy(x).dtype
    assert np.array_equal(store.numpy(), x)
    while isinstance(found, np.ndarray):
        assert not isinstance(found, np.memmap)
        found = found.base
    assert (found is not None) == (save is np.savez)


# Files by their content.


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("changed", ["my", "held"])
def test_an_experiment_refuses_a_file_that_changed(changed, form, tmp_path):
    paths = {name: tmp_path / f"{name}.{form}" for name in ("my", "held")}
    for path in paths.values():
        write(path, ROWS)
    data = {"name": "file", "path": str(paths["my"]), "client": "hospital", "label": "outcome"}
    experiment = Experiment.of({"data": {**data, "test": str(paths["held"])}})
    description = experiment.describe()
    assert description["data"]["sha256"] == hashlib.sha256(paths["my"].read_bytes()).hexdigest()
    assert description["data"]["test_sha256"] == hashlib.sha256(paths["held"].read_bytes()).hexdigest()
    Experiment.of(description).build()
    write(paths[changed], ROWS[::-1])
    with pytest.raises(
        fl.InputError, match=rf"{changed}\.{form}.*has another SHA-256 than the file of this experiment"
    ):
        Experiment.of(description).build()
    assert Experiment.of({"data": {**data, "test": str(paths["held"])}}).digest != experiment.digest


@pytest.mark.parametrize("form", FILES)
def test_a_file_that_changed_is_read_again(form, tmp_path):
    first = load_rows(form, ROWS, tmp_path).train.x
    second = load_rows(form, ROWS.assign(age=ROWS.age + 1), tmp_path).train.x
    assert torch.equal(second[:, 0], first[:, 0] + 1)
    assert torch.equal(load_rows(form, ROWS, tmp_path).train.x, first)


def test_a_run_of_one_s_own_file_can_be_repeated_from_its_folder(call, tmp_path):
    _, out, _ = call(
        "run",
        "--data",
        write(tmp_path / "my.csv", ROWS),
        *TABLE,
        "--rounds",
        "2",
        "--scarce",
        "--json",
    )
    folder = json.loads(out)["folder"]
    again = Experiment.of(tomllib.loads((Path(folder) / "experiment.toml").read_text()))
    assert np.array_equal(models(folder), again.run().models.numpy())
