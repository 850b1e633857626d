"""Federations in folders: shards have the rows of the whole, and a run repeats the one in memory."""

import json

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.data import FederationFolder, LargeSynthetic, load_with_graph, open_folder, write_federation
from fedlap.data import federation_folder as module
from fedlap.graph import sparse_weights
from fedlap.randomness import digest_names
from fedlap.storage.array_files import map_npy

SETTINGS = LargeSynthetic(clients=1_300, structure="geometric", rows=3, test_rows=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_federation(tmp_path_factory.mktemp("data") / "large", SETTINGS)


def assert_same_rows(a, b):
    assert torch.equal(a.count, b.count)
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.y, b.y)


def test_the_whole_is_the_federation_in_memory(folder):
    opened, generated = folder.open(), SETTINGS.generate()
    assert opened.clients == generated.clients
    assert opened.labels == generated.labels
    assert torch.equal(opened.digests, digest_names(generated.clients))
    assert_same_rows(opened.train, generated.train)
    assert_same_rows(opened.test, generated.test)
    graph, built = folder.graph, SETTINGS.build_graph()
    assert (graph.weights.matrix() != built.weights.matrix()).nnz == 0
    assert (graph.clients, graph.rho) == (built.clients, built.rho)


def test_a_run_on_the_folder_is_bit_identical_to_the_run_in_memory(folder):
    pairs = (folder.open(), folder.graph), (SETTINGS.generate(), SETTINGS.build_graph())
    results = [
        fl.fit(fl.FedU(graph, strength=0.01), federation, fl.models.linear(), rounds=3, sample=0.1)
        for federation, graph in pairs
    ]
    assert torch.equal(*(result.models for result in results))
    assert results[0].scores[-1].accuracy == results[1].scores[-1].accuracy


@pytest.mark.parametrize("ids", [range(1000, 1100), [3, 1299, 7, 1024], torch.tensor([5])])
def test_a_shard_has_the_rows_of_its_clients(folder, ids):
    whole, shard = folder.open(), folder.open_shard(ids)
    order = list(ids) if not isinstance(ids, torch.Tensor) else ids.tolist()
    assert shard.clients == tuple(map(str, order))
    assert torch.equal(shard.digests, whole.digests[order])
    assert_same_rows(shard.train, whole.train.reorder(order))
    assert_same_rows(shard.test, whole.test.reorder(order))


def test_the_rows_of_a_range_are_views_of_the_file(tmp_path, monkeypatch):
    """The counts of all clients are read; of the rows, only those of the shard are in reach."""
    folder = write_federation(tmp_path / "large", LargeSynthetic(clients=50))
    mapped = {}

    def remember(path):
        return mapped.setdefault(path.stem, map_npy(path))

    monkeypatch.setattr(module, "map_npy", remember)
    shard = folder.open_shard(range(20, 25))
    assert set(mapped) == {"train-x", "train-y", "test-x", "test-y", "train-count", "test-count", "digest"}
    assert all(isinstance(array, np.memmap) for array in mapped.values())
    assert np.shares_memory(shard.train.store.numpy(), mapped["train-x"])
    assert np.shares_memory(shard.train.y.numpy(), mapped["train-y"])
    assert len(shard.train.store) == len(shard.train.row) == int(shard.train.count.sum())


def test_rows_can_be_changed_in_memory_and_not_in_the_file(folder):
    before = folder.open_shard(range(1)).train.store.clone()
    folder.open_shard(range(1)).train.store.zero_()
    assert torch.equal(folder.open_shard(range(1)).train.store, before)


def test_the_folder_is_a_data_set(folder):
    federation, graph = load_with_graph("folder", path=str(folder.path))
    assert len(federation.clients) == graph.size == SETTINGS.clients
    with pytest.raises(fl.InputError, match="fixed clients and test rows"):
        fl.data.load("folder", path=str(folder.path), test_share=0.5)


def test_a_large_graph_is_read_as_it_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr("fedlap.graph.graph.DENSE_UP_TO", 100)
    graph = write_federation(tmp_path / "large", LargeSynthetic(clients=200, rows=1, test_rows=0)).graph
    assert isinstance(graph.weights, sparse_weights.SparseWeights)
    assert np.shares_memory(graph.weights.csr.data, graph.weights.matrix().data)
    assert graph.neighbours(0)[0].tolist() == list(range(1, 11))


def test_no_test_rows_and_real_targets(tmp_path):
    settings = LargeSynthetic(clients=20, task="regression", test_rows=0, degree=0)
    opened = write_federation(tmp_path / "large", settings).open()
    assert_same_rows(opened.train, settings.generate().train)
    assert opened.test.store.shape == (0, 10)
    assert opened.labels is None


def test_a_folder_of_something_else_is_not_overwritten(tmp_path, folder):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(fl.InputError, match="exists and is no federation"):
        write_federation(tmp_path, SETTINGS)
    (tmp_path / "empty").mkdir()
    small = LargeSynthetic(clients=12)
    assert write_federation(tmp_path / "empty", small).clients == 12
    assert write_federation(tmp_path / "empty", LargeSynthetic(clients=13)).clients == 13


def test_a_full_disk_is_reported_before_anything_is_written(tmp_path):
    with pytest.raises(fl.InputError, match=r"needs about .* GB, but its disk has .* GB left"):
        write_federation(tmp_path / "large", LargeSynthetic(clients=10**12))
    assert not (tmp_path / "large").exists()


def test_the_estimate_of_the_disk_is_near(folder):
    size = sum(path.stat().st_size for path in folder.path.iterdir())
    assert 0.8 < module.estimate_disk(SETTINGS) / size < 1.25


def test_missing_and_damaged_folders_are_reported(tmp_path):
    with pytest.raises(fl.InputError, match=r"cannot be read as a federation .*; write it with"):
        open_folder(str(tmp_path / "none"))
    path = write_federation(tmp_path / "large", LargeSynthetic(clients=12)).path
    facts = json.loads((path / "federation.json").read_text())
    (path / "federation.json").write_text(json.dumps({**facts, "format": 0}))
    with pytest.raises(fl.InputError, match="has format 0; expected 1"):
        FederationFolder.of(path)
    (path / "federation.json").write_text(json.dumps(facts))
    with (path / "train-x.npy").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(fl.InputError, match=r"is damaged .*; write the folder again"):
        open_folder(str(path)).open()


@pytest.mark.parametrize(
    ("ids", "message"),
    [([], "the shard has none"), ([3, 99], "the shard has client 99"), (range(0, 0), "expected a non-empty")],
)
def test_shards_without_clients_or_with_unknown_ones_are_refused(tmp_path, ids, message):
    folder = write_federation(tmp_path / "large", LargeSynthetic(clients=12))
    with pytest.raises(fl.InputError, match=message):
        folder.open_shard(ids)
