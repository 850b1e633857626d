"""Laws that tie methods, engines, orders and seeds together."""

from functools import cache, partial

import pytest
import torch

import fedlap as fl
from fedlap.algorithms import Binding, ClientTable, Pooling, ServerAlgorithm
from fedlap.algorithms.server_state import ClientModels
from fedlap.models import Model
from fedlap.training.jobs import plan_local_work
from fedlap.training.placement import PlacedClients
from fedlap.training.state import gather_lazy_rows, gather_rows
from fedlap.training.task import StackTask
from laws import LINEAR, LR, METHODS, WORK


def train(algorithm, federation, model=LINEAR, **schedule):
    usual = {"rounds": 6, "batch": 4, "seed": 5, "dtype": "float64", "evaluate_every": 3}
    schedule = {**usual, "score_training": "always", **schedule}
    return fl.fit(algorithm, federation, model, **schedule)


@cache
def plainly_trained(name, work, sample, federation, graph):
    """Train with the default engine; several laws start from this result."""
    make, tried = methods(name, sample)
    return train(make(graph, **dict(work)), federation, **tried)


def distance(one, other):
    return (one - other).abs().max().item()


every_method = pytest.mark.parametrize("name", METHODS)
every_work = pytest.mark.parametrize("work", WORK.values(), ids=WORK)
either_sample = pytest.mark.parametrize("sample", [1.0, 0.5])
every_trial = pytest.mark.parametrize(
    ("work", "sample"),
    [
        pytest.param(WORK[kind], sample, id=f"{kind}-{sample}", marks=[pytest.mark.slow] if later else [])
        for kind, sample, later in (
            ("steps", 0.5, False), ("epochs", 1.0, False), ("steps", 1.0, True), ("epochs", 0.5, True),
        )
    ],
)  # fmt: skip


def methods(name, sample):
    """Return the constructor of a method, and the settings that it is tested with."""
    method = METHODS[name]
    return method.make, {"sample": sample if method.sampled else 1.0, "model": method.model}


@every_method
@every_trial
@pytest.mark.parametrize("kernel", [True, pytest.param(False, id="no compiler", marks=pytest.mark.slow)])
def test_stacked_is_one_by_one(kernel, name, work, sample, federation, graph, request):
    make, tried = methods(name, sample)
    if kernel:
        together = plainly_trained(name, tuple(work.items()), sample, federation, graph)
    else:
        request.getfixturevalue("no_compiler")
        together = train(make(graph, **work), federation, **tried)
    apart = train(make(graph, **work), federation, **tried, engine="one_by_one")
    assert distance(together.models, apart.models) < 1e-9
    one, other = (
        [[v for k, v in s.as_dict().items() if k != "seconds" and v is not None] for s in result.scores]
        for result in (together, apart)
    )
    assert distance(torch.tensor(one), torch.tensor(other)) < 1e-5  # bytes are counted alike too


@pytest.mark.slow
@every_method
@every_work
def test_kernels_are_autograd_in_single_precision_too(name, work, federation, graph):
    """Equal to 1e-4 of the largest entry in float32: the order of sums differs, nothing else."""
    make, tried = methods(name, 1.0)
    together, apart = (
        train(
            make(graph, **work), federation, **tried, dtype="float32", evaluate_every=0, engine=engine
        ).models
        for engine in ("stacked", "one_by_one")
    )
    assert together.dtype == apart.dtype == torch.float32
    assert distance(together, apart) < 1e-4 * apart.abs().max().item()


@every_method
@every_trial
def test_reordering_clients_reorders_the_result(name, work, sample, federation, graph):
    make, tried = methods(name, sample)
    order = ("d", "a", "f", "c", "b", "e")
    result = plainly_trained(name, tuple(work.items()), sample, federation, graph)
    again = train(make(graph, **work), federation.reorder(order), **tried)
    places = [federation.clients.index(client) for client in order]
    assert again.federation.clients == order
    assert distance(again.models, result.models[places]) < 1e-9


@every_method
@every_trial
def test_the_same_seed_is_bit_identical(name, work, sample, federation, graph):
    make, tried = methods(name, sample)
    one, again = (
        train(make(graph, **work), federation, **tried, dtype="float32", rounds=4) for _ in range(2)
    )
    assert torch.equal(one.models, again.models)
    assert [{**s.as_dict(), "seconds": 0} for s in one.scores] == [
        {**s.as_dict(), "seconds": 0} for s in again.scores
    ]
    other = train(make(graph, **work), federation, **tried, dtype="float32", rounds=4, seed=6)
    assert not torch.equal(one.models, other.models)


@every_method
@every_work
def test_local_work_does_not_mix_rows(name, work, federation, graph):
    """`local` on a stack equals `local` on each of its rows."""
    algorithm = METHODS[name].make(graph, **work)
    seen = algorithm.view(federation) if isinstance(algorithm, Pooling) else federation
    model = Model(METHODS[name].model.build(seen.inputs, seen.outputs), seen.loss, 0.01)
    if isinstance(algorithm, Binding):
        algorithm = algorithm.bind(federation.roster, model)
    clients = PlacedClients.of([seen], [0], model, 4, torch.device("cpu"), torch.float64)
    ids = clients.sort_by_count(torch.arange(len(seen.clients)))
    start = torch.stack([model.start(k) for k in range(len(federation.clients))])
    server, private = algorithm.init_server(start), algorithm.init_clients(start, federation.train.count)
    down = gather_lazy_rows(algorithm.send(server, ids)) if isinstance(algorithm, ServerAlgorithm) else None

    def flat(state):
        if state is None:
            return []
        return [part for entry in state for part in flat(entry)] if isinstance(state, tuple) else [state]

    def done(places):
        at = torch.tensor(places)
        task = StackTask(clients, clients.build_cohort(ids[at]), 1, plan_local_work(algorithm, 2))
        return flat(algorithm.local(gather_rows(private, ids[at]), gather_rows(down, at), task))

    together = done(list(range(len(ids))))
    apart = [torch.cat(parts) for parts in zip(*(done([k]) for k in range(len(ids))), strict=True)]
    assert all(distance(one, other) < 1e-12 for one, other in zip(together, apart, strict=True))
    before = flat(gather_rows(private, ids)) + flat(down)
    assert max(distance(x, y) for x in apart for y in before if x.shape == y.shape) > 1e-3


@every_method
def test_test_rows_never_reach_training(name, federation, graph):
    """Test rows that are no numbers, the same models."""
    make, tried = methods(name, 1.0)
    poisoned = fl.Federation(
        federation.clients,
        federation.train,
        type(federation.test).of(federation.test.x * torch.nan, 2 - federation.test.y, federation.test.count),
        federation.labels,
    )
    one, other = (train(make(graph), data, **tried).models for data in (federation, poisoned))
    assert torch.equal(one, other)


OVER_A_GRAPH = {
    "fedu": fl.FedU,
    "fedu-sampled": partial(fl.FedU, neighbours="sampled"),
    "dfedu": fl.DFedU,
}
over_a_graph = pytest.mark.parametrize("name", OVER_A_GRAPH)


@over_a_graph
@every_work
@either_sample
def test_strength_zero_is_local(name, work, sample, federation, graph):
    sample = methods(name, sample)[1]["sample"]
    alone = train(fl.Local(lr=LR, **work), federation, sample=sample)
    together = train(OVER_A_GRAPH[name](graph, strength=0.0, lr=LR, **work), federation, sample=sample)
    assert distance(alone.models, together.models) == 0


@over_a_graph
@every_work
@either_sample
def test_an_edgeless_graph_is_local(name, work, sample, federation):
    sample = methods(name, sample)[1]["sample"]
    alone = train(fl.Local(lr=LR, **work), federation, sample=sample)
    empty = fl.Graph.empty(federation.clients)
    together = train(OVER_A_GRAPH[name](empty, strength=5.0, lr=LR, **work), federation, sample=sample)
    assert distance(alone.models, together.models) == 0


@every_work
def test_with_everyone_sampled_fedu_is_dfedu(work, federation, graph):
    server = train(fl.FedU(graph, strength=0.3, lr=LR, **work), federation)
    peers = train(fl.DFedU(graph, strength=0.3, lr=LR, **work), federation)
    assert distance(server.models, peers.models) < 1e-9


def stack(rows, seed=0):
    return torch.randn(rows, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("neighbours", ["all", "sampled"])
@pytest.mark.parametrize("ids", [[0, 1, 2, 3, 4, 5], [4, 1, 2]], ids=["everyone", "some"])
def test_mixing_keeps_the_mean(ids, neighbours, graph):
    method = fl.FedU(graph, strength=0.3, lr=LR, neighbours=neighbours)
    W, ids = stack(6), torch.tensor(ids)
    rows = method.merge(ClientModels(ClientTable(W)), ids, W[ids]).models
    change = (W.index_copy(0, rows.ids, rows.values) - W).sum(0)
    if neighbours == "sampled" or len(ids) == 6:
        assert change.abs().max() < 1e-12
    else:
        assert change.abs().max() > 1e-3  # Algorithm 1 with sampling does not keep it


@pytest.mark.parametrize("neighbours", ["all", "sampled"])
@pytest.mark.parametrize("ids", [[0, 1, 2, 3, 4, 5], [4, 1, 2]], ids=["everyone", "some"])
def test_mixing_is_a_step_along_the_laplacian(ids, neighbours, graph):
    """W ← W − μ̃ηLW on the sampled rows, from the values that the clients sent."""
    method = fl.FedU(graph, strength=0.3, lr=LR, local_steps=4, neighbours=neighbours)
    a = torch.from_numpy(graph.weights.matrix().toarray())
    if neighbours == "sampled":
        inside = torch.zeros(6, dtype=torch.float64).index_fill(0, torch.tensor(ids), 1.0)
        a = a * inside * inside.unsqueeze(1)
    laplacian = torch.diag(a.sum(1)) - a
    W, ids, ups = stack(6), torch.tensor(ids), stack(len(ids), seed=1)
    arrived = W.index_copy(0, ids, ups)
    expected = arrived - LR * 4 * 0.3 * laplacian @ arrived
    mixed = method.merge(ClientModels(ClientTable(W)), ids, ups).models.values
    assert distance(mixed, expected[ids]) < 1e-12


def test_a_peer_does_what_the_stack_does(graph):
    method = fl.DFedU(graph, strength=0.3, lr=LR)
    W = stack(6)
    for place in range(6):
        near, weights = method.in_neighbours(place)
        (mine,) = method.mix(0, (W[place : place + 1],), W[near].unsqueeze(0), weights.unsqueeze(0))
        assert distance(mine[0], method.mix_all(W)[place]) < 1e-12


def test_bytes_are_what_crosses_the_wire(federation, graph):
    size = 4 * (4 * 3 + 3)  # float32, four features, three labels
    last = {}
    for name in METHODS:
        make, tried = methods(name, 0.5)
        last[name] = train(make(graph), federation, **tried, rounds=2, dtype="float32").scores[-1]
    assert last["fedu"].bytes_up == last["fedu"].bytes_down == 2 * 3 * size
    assert last["dfedu"].bytes_up == last["dfedu"].bytes_down == 2 * 2 * graph.edges * size
    assert last["local"].bytes_up == last["local"].bytes_down == last["global"].bytes_up == 0


def test_a_server_vertex_is_kept_but_not_scored(federation):
    star = fl.Graph.star(federation.clients, server=True)
    result = train(fl.FedU(star, strength=0.3, lr=LR), federation, sample=0.5)
    assert result.models.shape[0] == len(federation.clients) == len(result.server.models.values) - 1
    assert distance(result.models, result.server.models.values[:-1]) == 0


def test_a_common_start_or_one_each(federation, graph):
    method = fl.FedU(graph, strength=0.3, lr=LR)
    row = torch.linspace(-1, 1, 15, dtype=torch.float64)
    one = train(method, federation, start=row)
    separate = train(method, federation, start=row.expand(6, -1))
    assert torch.equal(one.models, separate.models)
    assert distance(one.models, train(method, federation).models) > 1e-3


def test_scores_do_not_change_training(federation, graph):
    method = fl.FedU(graph, strength=0.3, lr=LR)
    often, once = (train(method, federation, rounds=8, evaluate_every=every) for every in (1, 0))
    assert torch.equal(often.models, once.models)
    assert [s.round for s in often.scores] == list(range(1, 9))
    assert [s.round for s in once.scores] == [8]
    three = train(method, federation, rounds=8, evaluate_every=3)
    assert [s.round for s in three.scores] == [3, 6, 8]


def test_models_that_agree_cost_nothing():
    """The penalty of nearly equal models does not drown in rounding."""
    names = [str(k) for k in range(100)]
    common = torch.randn(1, 500, generator=torch.Generator().manual_seed(0))
    apart = 1e-5 * torch.randn(100, 500, generator=torch.Generator().manual_seed(1))
    W = common + apart
    true = (W.double() - W.double().mean(0)).square().sum().item() * 100
    assert fl.Graph.complete(names).smoothness(W).item() == pytest.approx(true, rel=1e-9)
    assert fl.Graph.ring(names).smoothness(common.expand(100, -1)).item() == pytest.approx(0, abs=1e-12)
