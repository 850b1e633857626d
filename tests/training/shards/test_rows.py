"""Workers read their rows from a folder: the bits of a run are those of rows that are sent to them."""

import pytest
import torch

import fedlap as fl
from fedlap.data import LargeSynthetic, write_federation
from fedlap.training.shards.rows import FolderRows, PassedRows, choose_source
from sharded_runs import list_scores

TASKS = ("classification", "regression")


def describe(task):
    return LargeSynthetic(clients=150, structure="geometric", rows=4, test_rows=2, task=task)


@pytest.fixture(scope="module", params=TASKS)
def both(request, tmp_path_factory):
    """A federation and its graph, in memory and in a folder."""
    settings = describe(request.param)
    folder = write_federation(tmp_path_factory.mktemp("data") / request.param, settings)
    return (settings.generate(), settings.build_graph()), (folder.open(), folder.graph)


def train(federation, graph, scale, engine="ray"):
    schedule = {"rounds": 4, "sample": 0.3, "dtype": "float64", "evaluate_every": 2, "seed": 3}
    return fl.fit(
        fl.FedU(graph, strength=0.01),
        federation.standardize(scale),
        fl.models.linear(l2=0.01),
        score_training="always",
        engine=engine,
        **schedule,
    )


@pytest.mark.parametrize("scale", ["none", "pooled"])
def test_rows_of_a_folder_give_the_bits_of_rows_in_memory(scale, both, shards):
    results = []
    for workers in (1, 3):
        shards(workers)
        results += [train(federation, graph, scale) for federation, graph in both]
    for result in results:
        assert torch.equal(result.models, results[0].models)
        assert list_scores(result) == list_scores(results[0])
    assert (results[0].models - train(*both[0], scale, engine="stacked").models).abs().max() <= 1e-9


@pytest.mark.parametrize("scale", ["none", "pooled"])
def test_rows_of_a_folder_are_not_sent(scale, both):
    (generated, _), (opened, _) = both
    blocks = [range(40), range(40, 90)]
    assert isinstance(choose_source(generated.standardize(scale), blocks), PassedRows)
    source = choose_source(opened.standardize(scale), blocks)
    assert isinstance(source, FolderRows)
    for block in blocks:
        found, expected = source.read(block), choose_source(generated.standardize(scale), blocks).read(block)
        assert found.clients == expected.clients
        assert torch.equal(found.train.x, expected.train.x)
        assert torch.equal(found.test.y, expected.test.y)
        for name in ("shift", "factor"):
            assert torch.equal(getattr(found.scale, name), getattr(expected.scale, name))


def test_rows_that_were_changed_since_they_were_mapped_are_sent(tmp_path):
    opened = write_federation(tmp_path / "rows", describe("classification")).open()
    blocks = [range(len(opened.clients))]
    scarce = opened.scarce(share_of_clients=0.5, keep=0.5, seed=1)
    source = choose_source(scarce, blocks)
    assert isinstance(source, PassedRows)
    assert torch.equal(source.read(blocks[0]).train.count, scarce.train.count)
