"""dFedU with compression: where it converges, what its messages are, and what it refuses."""

from functools import cache, partial

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.algorithms.compression import parse_compression
from fedlap.algorithms.peer_state import CompressedPeer
from fedlap.theory import LaplacianProblem, find_optimum
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job, bind_algorithm, compute_stack_key, plan_local_work
from fedlap.training.placement import PlacedClients
from fedlap.training.plain_task import HOST
from fedlap.training.schedule import Schedule
from fedlap.training.state import copy_state, count_bytes, gather_rows
from fedlap.training.task import StackTask
from fit_results import same
from random_inputs import random_arrays

COUNTS = [7, 23, 5, 12, 40, 9]
COMPRESSIONS = ["float16", "int8", "top-k:0.2"]
every_one = pytest.mark.parametrize("compression", COMPRESSIONS)
either_engine = pytest.mark.parametrize("engine", ["stacked", "one_by_one"])
FULL = {"batch": "all", "dtype": "float64"}


def ring_with_chord(federation):
    graph = fl.Graph.ring(federation.clients, 0.8).weights.matrix().toarray()
    graph[0, 3] = graph[3, 0] = 0.5
    return fl.Graph.from_matrix(graph, federation.clients)


# Convergence


ROUNDS, STEPS, LR, STRONG = 150, 3, 0.2, fl.models.linear(l2=0.5)
# What is left in the last round: rounding errors, numbers below those of float16, and differences that still
# fall, since top-k converges more slowly.
LEFT = {"int8": 1e-12, "float16": 2e-8, "top-k:0.2": 1e-9}


@cache
def train_long(compression):
    """Return J after the 10th and the last round, and the result."""
    federation = fl.Federation.from_arrays(random_arrays(COUNTS), labels=3, test_share=0, scale="none")
    graph = ring_with_chord(federation)
    method = fl.DFedU(graph, strength=0.5, lr=LR, local_steps=STEPS, compression=compression)
    schedule = {"evaluate_every": 10, "score_training": "always", **FULL}
    result = fl.fit(method, federation, STRONG, rounds=ROUNDS, **schedule)
    return result.scores[0].objective, result.scores[-1].objective, result


@every_one
def test_what_a_message_loses_is_sent_later(compression):
    """J reaches that of the run without compression, which is above J*: dFedU itself has a bias."""
    (early, plain, without), (found_early, found, result) = train_long(None), train_long(compression)
    problem = LaplacianProblem.of(without.algorithm, without.federation, STRONG, batch="all")
    assert plain - find_optimum(problem).value > 0.01
    assert abs(found - plain) < LEFT[compression]
    assert abs(found_early - early) > 10 * LEFT[compression]
    assert (result.models - without.models).abs().max() < 5 * LEFT[compression]


def test_without_public_models_it_would_stay_lost():
    """Top-k of the models themselves, which receivers know nothing of, ends elsewhere."""
    _, plain, without = train_long(None)
    method = train_long("top-k:0.2")[2].algorithm
    problem = LaplacianProblem.of(method, without.federation, STRONG, batch="all")
    nothing, w = torch.zeros_like(without.models), torch.zeros_like(without.models)
    for _ in range(60):
        for _ in range(STEPS):
            w = w - LR * problem.loss_gradient(w)
        message = parse_compression(method.compression).compress(w)
        w = method.mix_all(CompressedPeer(w, method.receive(nothing, message))).model
    assert abs(problem.objective(w) - plain) > 1e6 * LEFT["top-k:0.2"]


# The largest ‖d − D(C(d))‖ / ‖d‖ for 15 parameters, of which top-k sends 3 or 12.
ERRORS = {"int8": 256**0.5 / 254, "top-k:0.2": 0.8**0.5, "top-k:0.8": 0.2**0.5}


@pytest.mark.parametrize(
    ("compression", "strength", "holds"),
    [("int8", 0.2, True), ("int8", 0.7, True), ("top-k:0.8", 0.03, True), ("top-k:0.2", 0.5, False)],
)
def test_every_round_is_within_the_bounds_of_the_theorem(compression, strength, holds):
    """Both inequalities of its proof on quadratics, and its rate if its condition holds.

    x is the largest error of a model after a round, and e that of a public model as neighbours use it. With
    v_k the result of local steps, whose contraction is r, and c = μRηd ≤ 1:
    w_k⁺ = (1 − μRηd_k) v_k + μRη Σ_ℓ a_kℓ ŵ_ℓ, so x⁺ ≤ r x + c e; and e⁺ ≤ q ‖v⁺ − ŵ‖ ≤ q (e + r x⁺ + r x).
    """
    arrays, lr, steps, l2 = random_arrays(COUNTS, real=True), 0.15, 4, 0.6
    federation = fl.Federation.from_arrays(arrays, test_share=0, scale="none")
    graph = ring_with_chord(federation)
    method = fl.DFedU(graph, strength=strength, lr=lr, local_steps=steps, compression=compression)
    step, a = method.coupling.step, graph.weights.matrix().toarray()
    degrees = a.sum(1).reshape(-1, 1, 1)

    # R local steps are θ ← z + M (θ − z) for every output θ, whose last entry is the bias.
    designs = [np.hstack([x, np.ones((len(x), 1))]) for x, _ in arrays.values()]
    hessians = np.stack([x.T @ x / len(x) + l2 * np.eye(5) for x in designs])
    slopes = [(x.T @ y / len(x)).T for x, (_, y) in zip(designs, arrays.values(), strict=True)]
    z = np.linalg.solve(hessians[:, None], np.stack(slopes)[..., None])[..., 0]
    local = np.linalg.matrix_power(np.eye(5) - lr * hessians, steps)
    best = np.zeros_like(z)
    for _ in range(2000):
        trained = z + np.einsum("kij,koj->koi", local, best - z)
        best = trained - step * (degrees * trained - np.einsum("kl,loi->koi", a, trained))

    c, q = float(step * degrees.max()), ERRORS[compression]
    r = float(np.linalg.norm(local, 2, axis=(1, 2)).max())
    assert c <= 1
    assert (2 * c * q * r < (1 - q) * (1 - r)) == holds
    distances, lost = [np.linalg.norm(best, axis=(1, 2)).max()], []
    for peers in list_private_states(method, federation, fl.models.linear(l2=l2), 60):
        w, public = (np.concatenate([x[:, :12].reshape(-1, 3, 4), x[:, 12:, None]], 2) for x in peers)
        before_mixing = (w - step * np.einsum("kl,loi->koi", a, public)) / (1 - step * degrees)
        distances.append(np.linalg.norm(w - best, axis=(1, 2)).max())
        lost.append(np.linalg.norm(public - before_mixing, axis=(1, 2)).max())
        farthest = np.linalg.norm(before_mixing - trained, axis=(1, 2)).max()
        assert farthest <= r * distances[-2] + 1e-12
    for x, next_x, e, next_e in zip(distances, distances[1:], lost, lost[1:], strict=False):
        assert next_x <= r * x + c * e + 1e-12
        assert next_e <= q * (e + r * x + r * next_x) + 1e-12
    matrix = np.array([[r, c], [q * r * (1 + r), q * (1 + r * c)]])
    bound = np.linalg.matrix_power(matrix, len(lost) - 1) @ [distances[0], lost[0]]
    assert distances[-2] <= bound[0] + 1e-9
    assert (np.abs(np.linalg.eigvals(matrix)).max() < 1) == holds
    assert distances[-1] < 1e-4  # it converges as well where the theorem is silent


def list_private_states(method, federation, model, rounds):
    """Return the private state of all peers after every round."""
    states = []

    def store(end):
        (progress,) = end.collect_progress()
        states.append([tensor.numpy() for tensor in copy_state(progress.private)])

    job = Job(method, federation, model, start=torch.zeros(15))
    fit_all([job], Schedule(rounds, evaluate_every=0, **FULL), on_round=store)
    return states


# Messages


@every_one
@either_engine
def test_bytes_are_those_of_the_messages(compression, engine, federation, graph):
    method = fl.DFedU(graph, compression=compression)
    result = fl.fit(method, federation, fl.models.linear(), rounds=3, engine=engine)
    message = parse_compression(compression).compress(torch.zeros(1, 15))
    last = result.scores[-1]
    assert last.bytes_up == last.bytes_down == 3 * 2 * graph.edges * count_bytes(message)
    assert count_bytes(message) == {"float16": 30, "int8": 19, "top-k:0.2": 24}[compression] < 60


@every_one
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_receivers_know_the_sender_s_public_model(compression, dtype, federation, graph):
    """Bit for bit, whoever receives them; without compression the message is the model."""
    for name in (compression, None):
        method, model = bind_algorithm(
            fl.DFedU(graph, lr=0.3, compression=name), federation, fl.models.linear()
        )
        placed = federation.to_device(HOST, dtype)
        clients = PlacedClients.of([placed], [0], model, 4, HOST, dtype)
        ids = clients.sort_by_count(torch.arange(6))
        start = torch.stack([model.start(k) for k in range(6)]).to(dtype)
        private = gather_rows(method.init_clients(start, federation.train.count), ids)
        known = method.public_models(private).clone()
        for round in range(1, 4):
            task = StackTask(clients, clients.build_cohort(ids), round, plan_local_work(method, 6))
            private, message = method.local(private, None, task)
            before, known = known, method.receive(known, message)
            assert torch.equal(known, method.public_models(private))
            assert not torch.equal(known, before)


@either_engine
def test_nothing_changes_without_compression(engine, federation, graph):
    train = partial(fl.fit, federation=federation, model=fl.models.linear(), rounds=2, engine=engine)
    plain, none = (train(fl.DFedU(graph, compression=name)) for name in (None, "none"))
    same(plain, none)
    assert isinstance(plain.private, torch.Tensor)
    assert isinstance(train(fl.DFedU(graph, compression="int8")).private, CompressedPeer)


# Engines


@pytest.mark.parametrize(
    ("compression", "dtype", "tolerance"),
    [("float16", "float64", 1e-9), ("top-k:0.15", "float64", 1e-9), ("top-k:0.15", "float32", 1e-5)],
)
def test_engines_agree_about_values_that_differ_by_rounding_alone(compression, dtype, tolerance):
    """Two labels and repeated columns: every value has opposite or equal ones, in exact arithmetic.

    A selection that compares all bits sends other places on every engine, and models differ by up to 0.04.
    """
    random, arrays = np.random.default_rng(0), {}
    for name in "abcdef":
        real, binary = random.normal(size=(15, 3)), random.integers(0, 2, (15, 3)) * 1.0
        arrays[name] = np.hstack([real, binary, 1 - binary, real[:, :1]]), random.integers(0, 2, 15)
    federation = fl.Federation.from_arrays(arrays, test_share=0, labels=2, scale="none")
    method = fl.DFedU(ring_with_chord(federation), strength=0.3, lr=0.05, compression=compression)
    together, apart = (
        fl.fit(method, federation, fl.models.linear(), rounds=6, batch=4, dtype=dtype, engine=engine)
        for engine in ("stacked", "one_by_one")
    )
    assert (together.models - apart.models).abs().max() < tolerance
    assert together.scores[-1].bytes_up == apart.scores[-1].bytes_up


def test_float16_resumes_bit_for_bit(federation, graph):
    """Other laws of all methods are tested with int8 and top-k."""

    def train(rounds, resume=None):
        method = fl.DFedU(graph, strength=0.3, compression="float16")
        return fl.fit(method, federation, fl.models.linear(), rounds=rounds, resume=resume)

    same(train(5, train(2)), train(5))


def test_runs_with_different_messages_are_no_stack(federation, graph):
    def key(compression, **settings):
        return compute_stack_key(
            Job(fl.DFedU(graph, compression=compression, **settings), federation, STRONG)
        )

    assert key("top-k:0.2") == key("top-k:0.2", lr=0.01)
    assert len({str(key(name)[1]) for name in (None, "float16", "int8", "top-k:0.1", "top-k:0.2")}) == 5


@every_one
@either_engine
def test_divergence_is_found(compression, engine, arrays, graph):
    large = {name: (1e3 * x, y) for name, (x, y) in arrays.items()}
    federation = fl.Federation.from_arrays(large, labels=3, scale="none")
    method = fl.DFedU(graph, strength=1e-30, lr=1e25, compression=compression)
    with pytest.raises(fl.DivergedError, match="training diverged"):
        fl.fit(method, federation, fl.models.linear(l2=1.0), rounds=3, engine=engine)


@every_one
def test_one_infinite_model_reaches_its_neighbours(compression, federation, graph):
    start = torch.zeros(6, 15)
    method = fl.DFedU(graph, compression=compression)
    peers = method.init_clients(start, federation.train.count)
    peers.model[2, 7] = torch.inf
    message = parse_compression(compression).compress(peers.model - peers.public)
    mixed = method.mix_all(peers._replace(public=method.receive(peers.public, message))).model
    near = graph.neighbours(2)[0]
    assert not mixed[near].isfinite().all(1).any()


@every_one
def test_compression_of_nothing_is_local(compression, federation, graph):
    """No block has a strength, so messages are empty."""
    settings = {"rounds": 2, "engine": "one_by_one", **FULL}
    method = fl.DFedU(graph, strength={}, compression=compression)
    found, local = (fl.fit(m, federation, fl.models.linear(), **settings) for m in (method, fl.Local()))
    assert torch.equal(found.models, local.models)
