"""Any federation as a folder: what is written is read again, and its run has the bits of the original's."""

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.data import FederationFolder, load, load_with_graph, store_federation
from fedlap.data import folder_writing as module
from fedlap.personal import Personals
from fedlap.training.shards import cluster
from fedlap.training.shards.rows import FolderRows, choose_source
from shard_clusters import MemoryCluster

FIT = {"rounds": 3, "sample": 0.5, "dtype": "float64", "evaluate_every": 1, "score_training": "always"}


def make_weighted():
    """Clients with names, of different sizes, one without test rows, with weights and places."""
    rng = np.random.default_rng(0)
    counts = {"north": 9, "Süd": 5, "7": 12}
    arrays = {name: (rng.normal(size=(n, 3)), rng.normal(size=n)) for name, n in counts.items()}
    weight = {name: rng.uniform(0.5, 2, n) for name, n in counts.items()}
    return fl.Federation.from_arrays(arrays, scale="client", weight=weight), fl.Graph.ring(list(counts))


FEDERATIONS = {
    "radon": lambda: load_with_graph("radon"),
    "digits": lambda: (load("digits", partition=fl.data.SOURCES["digits"].partition), None),
    "weighted": make_weighted,
}


@pytest.fixture(scope="module", params=FEDERATIONS)
def both(request, tmp_path_factory):
    """A federation with its graph, and its folder."""
    federation, graph = FEDERATIONS[request.param]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WRITTEN_BYTES", 1_000)
        path = tmp_path_factory.mktemp("data") / request.param
        return federation, graph, store_federation(path, federation, graph)


def test_what_was_written_is_read(both):
    federation, graph, folder = both
    opened = folder.open()
    for name in ("clients", "labels", "features", "target"):
        assert getattr(opened, name) == getattr(federation, name), name
    assert torch.equal(opened.digests, federation.digests)
    for split in ("train", "test"):
        assert getattr(opened, split).find_difference(getattr(federation, split)) is None
        assert getattr(opened, split).store.dtype == getattr(federation, split).store.dtype
    if federation.train.weight is not None:
        assert torch.equal(opened.train.weight, federation.train.weight)
    if federation.places is not None:
        assert np.array_equal(opened.places.values, federation.places.values)
    assert (folder.known_graph is None) == (graph is None)
    if graph is not None:
        assert (folder.graph.clients, folder.graph.rho) == (graph.clients, graph.rho)
        assert (folder.graph.weights.matrix() != graph.weights.matrix()).nnz == 0
    scaled = opened.standardize(folder.scale)
    assert torch.equal(scaled.scale.shift, federation.scale.shift)
    assert torch.equal(scaled.scale.factor, federation.scale.factor)


def test_a_run_has_the_bits_of_the_original(both, monkeypatch):
    federation, graph, folder = both
    opened = folder.open().standardize(folder.scale)
    graph = graph or fl.Graph.ring(federation.clients)
    monkeypatch.setattr(cluster, "open_cluster", lambda _: MemoryCluster(2))
    for engine in ("stacked", "ray"):
        found, expected = (
            fl.fit(fl.FedU(graph, strength=0.01), data, fl.models.linear(), engine=engine, **FIT)
            for data in (opened, federation)
        )
        assert torch.equal(found.models, expected.models)
        for one, other in zip(found.scores, expected.scores, strict=True):
            assert one.objective == other.objective
    assert isinstance(choose_source(opened, [range(1)]), FolderRows)


def test_a_graph_in_another_order_is_reordered(tmp_path):
    federation, graph = make_weighted()
    turned = fl.Graph.ring(federation.clients[::-1])
    stored = store_federation(tmp_path / "turned", federation, turned).graph
    assert stored.clients == federation.clients
    assert (stored.weights.matrix() != graph.weights.matrix()).nnz == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda names: fl.Graph.complete(names), "pass --graph complete"),
        (lambda names: fl.Graph.ring("abc"), "the graph has other clients"),
    ],
)
def test_graphs_that_cannot_be_written_are_refused(make, message, tmp_path):
    federation, _ = make_weighted()
    with pytest.raises(fl.InputError, match=message):
        store_federation(tmp_path / "folder", federation, make(federation.clients))
    assert not (tmp_path / "folder").exists()


def test_other_folders_are_not_overwritten(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(fl.InputError, match="exists and is no federation"):
        store_federation(tmp_path, make_weighted()[0])


def test_damaged_names_are_one_line(tmp_path):
    folder = store_federation(tmp_path / "folder", make_weighted()[0])
    (folder.path / "names.json").write_text("{")
    with pytest.raises(fl.InputError, match="write the folder again with `fedlap data write`"):
        FederationFolder.of(folder.path).open()


def test_the_command_writes_a_folder_that_runs_use(call, tmp_path):
    """The run on the folder has the scores of the run on the data set."""
    words = ("data", "write", "radon", str(tmp_path / "radon"))
    code, out, err = call(*words, out=False)
    assert (code, err) == (0, "")
    assert "85" in out
    settings = ("--graph", "known", "--set", "rounds=3", "--set", "algorithm.strength=0.01")
    scores = []
    for data in ("radon", str(tmp_path / "radon")):
        out_folder = tmp_path / f"out-{len(scores)}"
        code, _, err = call("run", "--data", data, *settings, "--out", str(out_folder), out=False)
        assert code == 0, err
        (run,) = out_folder.iterdir()
        scores.append(Personals.load(run / "models").models)
    assert torch.equal(*scores)
