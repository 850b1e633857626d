"""Linear models score rows where they are stored, if these are many and lie together: scores are the same."""

import pytest
import torch

import fedlap as fl
from fedlap.models import CrossEntropy, Model, SquaredError
from fedlap.training import stored_scores
from fedlap.training.placement import PlacedClients

SIZES = (40, 3, 17, 33, 1)


def federation(kind):
    g = torch.Generator().manual_seed(3)
    arrays = {}
    for place, n in enumerate(SIZES):
        y = torch.randint(0, 3, (n,), generator=g)
        arrays[f"k{place}"] = torch.randn(n, 4, 2, generator=g).double(), y.double() if kind == "real" else y
    return fl.Federation.from_arrays(
        arrays, test_share=0.3, labels=None if kind == "real" else 3, scale="none"
    )


def clients(data):
    resident = data.to_device(torch.device("cpu"), torch.float64)
    loss = SquaredError() if data.outputs == 1 else CrossEntropy()
    model = Model(fl.models.linear().build(data.inputs, data.outputs), loss)
    return PlacedClients.of([resident], [0], model, 4, torch.device("cpu"), torch.float64)


@pytest.mark.parametrize("kind", ["labels", "real"])
@pytest.mark.parametrize("block", [8_000_000, 400], ids=["one block", "several"])
def test_scores_are_those_of_gathered_rows(kind, block, monkeypatch):
    monkeypatch.setattr("fedlap.training.placement.EVALUATION_BLOCK_VALUES", block)
    data = federation(kind).standardize("pooled")  # which lays the rows of a client together
    W = torch.randn(len(SIZES), clients(data).model.size, generator=torch.Generator().manual_seed(1)).double()
    called, score_spans = [], stored_scores.score_spans
    monkeypatch.setattr(
        stored_scores, "score_spans", lambda *arguments: called.append(1) or score_spans(*arguments)
    )
    every, tallies = torch.arange(len(SIZES)), []
    for alone in (10**9, 0):
        monkeypatch.setattr(stored_scores, "MIN_VALUES_PER_CLIENT", alone)
        for part in ("train", "test"):
            placed = clients(data)
            tallies.append(placed.tally(W, getattr(placed, part), every))
        assert bool(called) == (alone == 0)
    for gathered, there in zip(tallies[:2], tallies[2:], strict=True):
        assert torch.allclose(gathered.loss, there.loss, rtol=1e-13, atol=0)
        assert (gathered.hits is None and there.hits is None) or torch.equal(gathered.hits, there.hits)


def spans(network, rows, inside):
    return stored_scores.find_spans(network, torch.tensor(rows).flatten(), torch.tensor(inside))


def test_rows_are_read_in_the_store_only_where_they_lie_together(monkeypatch):
    monkeypatch.setattr(stored_scores, "MIN_VALUES_PER_CLIENT", 0)
    network = fl.models.linear().build((8,), 3)
    together = [[5, 6, 7], [0, 1, 0]], [[True, True, True], [True, True, False]]
    assert spans(network, *together) == [(5, 3), (0, 2)]
    assert spans(network, [[5, 7, 6], [0, 1, 0]], together[1]) is None
    assert spans(fl.models.mlp(4).build((8,), 3), *together) is None
    monkeypatch.setattr(stored_scores, "MIN_VALUES_PER_CLIENT", 21)  # values of a client: 2.5 rows of 8
    assert spans(network, *together) is None
    monkeypatch.setattr(stored_scores, "MIN_VALUES_PER_CLIENT", 20)
    assert spans(network, *together) is not None


@pytest.mark.parametrize("scaled", ["none", "pooled"])
def test_fit_on_scaled_and_plain_rows_is_scored_alike_by_both_engines(scaled, monkeypatch):
    monkeypatch.setattr(stored_scores, "MIN_VALUES_PER_CLIENT", 0)
    data = federation("labels").standardize(scaled)
    here, apart = (
        fl.fit(
            fl.Local(),
            data,
            fl.models.linear(),
            rounds=2,
            engine=engine,
            dtype="float64",
            score_training="always",
        )
        for engine in ("stacked", "one_by_one")
    )
    for a, b in zip(here.scores, apart.scores, strict=True):
        assert a.train_loss == pytest.approx(b.train_loss, rel=1e-12)
        assert a.accuracy == b.accuracy
