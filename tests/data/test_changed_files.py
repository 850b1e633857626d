"""The hashed content is used: a user's file that changes later changes no number and ends no process."""

import hashlib
import os
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
import torch

import fedlap as fl
from fedlap.data.prediction_rows import read_prediction_rows
from fedlap.experiments import checkpoints
from fedlap.experiments.checkpoints import Owner
from fedlap.personal import Personals
from fedlap.storage import files
from fedlap.training.result import Progress
from user_tables import FILES, ROWS, arrays, write

NAMES = {"client": "hospital", "label": "outcome"}


def rows_of(form, folder, factor=1.0):
    """A file of rows, whose feature `age` is multiplied by a factor."""
    folder.mkdir(exist_ok=True)
    path = folder / f"my.{form}"
    rows = ROWS.assign(age=ROWS.age * factor)
    # Rows one after another, as arrays mostly are; columns would be turned, which copies them.
    ordered = {name: np.ascontiguousarray(array) for name, array in arrays(rows).items()}
    write(path, ordered if form == "npz" else rows)
    return path


def load(path, **settings):
    return fl.data.load("file", path=str(path), **NAMES, **settings)


def overwrite(path, content):
    """In place, as an editor or `cp` does: the same file, other bytes."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def in_a_child(job):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            job()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("form", FILES)
def test_a_file_that_is_overwritten_in_place_changes_nothing(form, tmp_path):
    path = rows_of(form, tmp_path)
    federation = load(path)
    before = federation.train.store.clone()
    overwrite(path, bytes(path.stat().st_size))
    assert torch.equal(federation.train.store, before)


@pytest.mark.parametrize("form", FILES)
def test_a_file_that_is_cut_off_ends_no_process(form, tmp_path):
    path = rows_of(form, tmp_path)

    def job():
        federation = load(path)
        overwrite(path, b"")
        federation.train.store.sum()

    assert in_a_child(job) == 0


@pytest.mark.parametrize("form", FILES)
def test_what_is_read_is_what_was_hashed(form, tmp_path, monkeypatch):
    """Another process replaces the file as soon as it has been hashed."""
    expected = load(rows_of(form, tmp_path / "before")).train.store.clone()
    path, other, hashed = rows_of(form, tmp_path), rows_of(form, tmp_path / "other", 2.0), files.hash_file
    digest = hashed(path)

    def then_replaced(at):
        found = hashed(at)
        if other.exists():
            other.replace(path)
        return found

    monkeypatch.setattr(files, "hash_file", then_replaced)
    federation = None
    with suppress(fl.InputError):  # it may be refused
        federation = load(path, sha256=digest)
    assert federation is None or torch.equal(federation.train.store, expected)


def test_a_graph_is_that_which_was_hashed(tmp_path, monkeypatch):
    path, hashed = tmp_path / "graph.csv", files.hash_file
    path.write_text("a,b,1\n")
    digest = hashlib.sha256(b"a,b,1\n").hexdigest()

    def then_replaced(at):
        found = hashed(at)
        path.write_text("a,b,7\n")
        return found

    monkeypatch.setattr(files, "hash_file", then_replaced)
    graph = fl.graph.from_file(["a", "b"], str(path), digest)
    assert graph.weights.matrix().max() == 1


def test_rows_to_predict_are_held(tmp_path):
    path = tmp_path / "rows.npz"
    np.savez(path, x=np.ones((4, 2)))
    x = read_prediction_rows(str(path), (2,), None).x
    overwrite(path, bytes(path.stat().st_size))
    assert bool((x == 1).all())


def test_tensors_of_a_checkpoint_and_of_models_are_held(tmp_path, federation, graph):
    W = torch.arange(6.0).reshape(2, 3)
    checkpoints.write_checkpoint(tmp_path, Progress(1, W, None, (1, 2), 0.5, []), Owner("e", ("e",)))
    found = checkpoints.read_checkpoint(tmp_path, 1, "e").load_progress([])
    fl.fit(fl.FedU(graph), federation, fl.models.linear(), rounds=1).personals.save(tmp_path / "models")
    models = Personals.load(tmp_path / "models").models
    before = models.clone()
    for path in tmp_path.rglob("*.safetensors"):
        overwrite(path, bytes(path.stat().st_size))
    assert torch.equal(found.server, W)
    assert torch.equal(models, before)


def test_a_checkpoint_that_changes_after_it_was_checked_is_refused(tmp_path):
    W = torch.arange(6.0).reshape(2, 3)
    checkpoints.write_checkpoint(tmp_path, Progress(1, W, None, (1, 2), 0.5, []), Owner("e", ("e",)))
    checkpoint = checkpoints.read_checkpoint(tmp_path, 1, "e")
    state = tmp_path / "round-00000001" / "state.safetensors"
    content = state.read_bytes()
    overwrite(state, content[:-1] + b"\x01")
    with pytest.raises(fl.InputError, match="is damaged"):
        checkpoint.load_progress([])


def test_the_next_load_sees_the_new_content(tmp_path):
    path = tmp_path / "my.npz"
    x = np.arange(8.0).reshape(8, 1)
    for factor in (1.0, 2.0):
        np.savez(path, x=factor * x, y=np.arange(8) % 2, client=np.arange(8) // 4)
        federation = fl.data.load("file", path=str(path), scale="none")
        assert np.array_equal(federation.train.store.numpy(), factor * x)


def test_frames_are_read_from_what_was_hashed_once(tmp_path):
    """A table of the same content is not read again, one of other content is."""
    path = tmp_path / "my.csv"
    for value in (1.5, 2.5):
        frame = pd.DataFrame({"a": [value] * 8, "who": list("xxxxyyyy"), "sick": [0, 1] * 4})
        frame.to_csv(path, index=False)
        federation = fl.data.load("file", path=str(path), client="who", label="sick", scale="none")
        assert federation.train.store.unique().tolist() == [value]
