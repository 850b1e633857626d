"""If all clients take equally many steps, a CPU trains them in the stored models; no bit changes."""

import pytest
import torch

import fedlap as fl
from fedlap.training.assemble import assemble
from fedlap.training.buffers import BufferPool
from fedlap.training.jobs import Job
from fedlap.training.loop import play_rounds
from fedlap.training.schedule import Schedule
from fedlap.training.state import list_tensors
from laws import METHODS, WORK

IN_PLACE = [
    name for name in METHODS if not METHODS[name].make(fl.Graph.complete("abcdef")).traits.reads_old_rows
]
every_one = pytest.mark.parametrize("name", IN_PLACE)
schedules = pytest.mark.parametrize("batch", [4, "all"])


def train(name, federation, graph, batch, **more):
    method = METHODS[name]
    return fl.fit(
        method.make(graph, **WORK["steps"]), federation, method.model, rounds=5, batch=batch, seed=2, **more
    )


@schedules
@every_one
def test_the_bits_are_those_of_work_on_copies(name, batch, federation, graph, monkeypatch):
    here = train(name, federation, graph, batch)
    gather = BufferPool.gather
    monkeypatch.setattr(BufferPool, "gather", lambda pool, inputs, in_place: gather(pool, inputs))
    copied = train(name, federation, graph, batch)
    assert torch.equal(here.models, copied.models)
    assert [score.objective for score in here.scores] == [score.objective for score in copied.scores]


@schedules
@every_one
def test_it_is_what_clients_do_one_by_one(name, batch, federation, graph):
    here, apart = (
        train(name, federation, graph, batch, engine=engine, dtype="float64")
        for engine in ("stacked", "one_by_one")
    )
    assert (here.models - apart.models).abs().max() < 1e-12


@torch.no_grad()
@pytest.mark.parametrize(
    ("work", "sample", "in_place"),
    [
        (WORK["steps"], 1.0, True),
        (WORK["steps"], 0.5, False),  # those who do not work are asked for as they were
        (WORK["epochs"], 1.0, False),  # those with most steps come first
    ],
)
def test_what_is_kept_stays_where_it_is(work, sample, in_place, federation, monkeypatch):
    handed, gather = [], BufferPool.gather

    def watch_gather(pool, inputs, in_place=False):
        gathered = gather(pool, inputs, in_place)
        handed.append((gathered[1].data_ptr(), inputs[1].table.data_ptr()))
        return gathered

    monkeypatch.setattr(BufferPool, "gather", watch_gather)
    method = fl.FedU(fl.Graph.complete(federation.clients), strength=0.05, **work)
    training = assemble([Job(method, federation, fl.models.linear())], Schedule(sample=sample, batch=4))
    for _ in play_rounds(training.method, training.engine, training.server, range(1, 4)):
        pass
    assert {passed == table for passed, table in handed} == {in_place}
    if in_place:
        assert len({table for _, table in handed}) == 1


def test_a_server_vertex_is_left_where_it_is(federation):
    """It has a row of the table and no client."""
    method = fl.FedU(fl.Graph.star(federation.clients, server=True), strength=0.01, **WORK["steps"])
    here, apart = (
        fl.fit(method, federation, fl.models.linear(), rounds=3, engine=engine, dtype="float64")
        for engine in ("stacked", "one_by_one")
    )
    assert (here.models - apart.models).abs().max() < 1e-12


@every_one
def test_what_was_given_stays_as_it_was(name, federation, graph):
    """The start, and what is resumed."""
    model = METHODS[name].model.build(federation.inputs, federation.outputs)
    start = 0.1 * torch.randn(len(federation.clients), model.size, generator=torch.Generator().manual_seed(0))
    before = start.clone()
    first = train(name, federation, graph, 4, start=start)
    models, state = first.models.clone(), [leaf.clone() for leaf in list_tensors(first.server)]
    method = METHODS[name]
    for _ in range(2):
        fl.fit(
            method.make(graph, **WORK["steps"]), federation, method.model, rounds=7, batch=4, seed=2,
            start=start, resume=first,
        )  # fmt: skip
    assert torch.equal(start, before)
    assert torch.equal(first.models, models)
    assert all(torch.equal(a, b) for a, b in zip(list_tensors(first.server), state, strict=True))
