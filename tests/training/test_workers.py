"""Workers in separate processes repeat the simulation, with bytes alone between them and the server."""

from collections import namedtuple
from dataclasses import replace

import pytest
import torch

import fedlap as fl
from fedlap.algorithms import GatheredRows
from fedlap.training.scores import Tally, compute_score
from fedlap.training.state import list_tensors, trim_rows
from fedlap.training.state_bytes import decode_state, encode_state, list_state_types
from fedlap.training.worker import Worker
from laws import METHODS, WORK
from random_inputs import random_arrays, random_weights
from worker_processes import Deployment, ProcessPool, cut_client

WITH_WORKERS = [name for name in METHODS if name != "global"]
LATER = ("fedrep", "ifca", "fedamp", "fedfomo", "gtvmin", "dfedu-learned")
PRIVATE = [
    "dfedu",
    "dfedu-implicit",
    "dfedu-int8",
    "dfedu-top-k",
    "local",
    "pfedme",
    "mocha",
    "scaffold",
    "ditto",
    "apfl",
    "fedper",
    "l2gd",
    "dpsgd",
    *(pytest.param(name, marks=pytest.mark.slow) for name in LATER),
]


def list_trials():
    """Return every method with both kinds of local work, sampled and not; all but one per method are slow."""
    trials = []
    for number, name in enumerate(WITH_WORKERS):
        samples = (0.5, 1.0) if METHODS[name].sampled else (1.0,)
        cases = [(kind, sample) for sample in samples for kind in WORK]
        for place, (kind, sample) in enumerate(cases):
            marks = [] if place == number % 2 else [pytest.mark.slow]
            trials.append(pytest.param(name, WORK[kind], sample, id=f"{name}-{kind}-{sample}", marks=marks))
    return trials


@pytest.fixture(scope="session")
def pool():
    started = ProcessPool(2)
    yield started
    started.close()


@pytest.fixture(scope="session")
def matrix(federation):
    return random_weights(federation.clients)


def simulate(name, work, federation, graph, sample, **schedule):
    method = METHODS[name]
    settings = {"batch": 4, "seed": 5, "evaluate_every": 0, "sample": sample, **schedule}
    return fl.fit(method.make(graph, **work), federation, method.model, **settings)


def assert_equal(deployment, result):
    """Compare models, server state and private state bit for bit.

    A worker's dual variables have its rows only; the simulation pads them to the largest client.
    """
    models = torch.cat(deployment.ask_everyone("adapt", deployment.collect_models()))
    assert torch.equal(models, result.models)
    servers = zip(list_tensors(deployment.server), list_tensors(result.server), strict=True)
    assert all(torch.equal(one, other) for one, other in servers)
    for k, private in enumerate(deployment.ask_everyone("private")):
        for one, other in zip(list_tensors(private), list_tensors(result.private), strict=True):
            row = other[k : k + 1]
            assert torch.equal(one, trim_rows(row, one))
            assert not row[(slice(None), *(slice(n, None) for n in one.shape[1:2]))].any()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "work", "sample"), list_trials())
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_plain_workers_are_one_by_one(name, work, sample, dtype, pool, federation, graph, matrix):
    deployment = Deployment(pool, name, work, federation, matrix, sample=sample, dtype=dtype)
    for _ in range(6):
        deployment.play()
    assert_equal(
        deployment,
        simulate(name, work, federation, graph, sample, rounds=6, dtype=dtype, engine="one_by_one"),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "work", "sample"), list_trials())
def test_fast_workers_are_a_stack(name, work, sample, pool, federation, graph, matrix):
    deployment = Deployment(pool, name, work, federation, matrix, sample=sample, dtype="float64", fast=True)
    for _ in range(20):
        deployment.play()
    result = simulate(name, work, federation, graph, sample, rounds=20, dtype="float64")
    models = torch.cat(deployment.ask_everyone("adapt", deployment.collect_models()))
    assert (models - result.models).abs().max() < 1e-9


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("sample", [0.5, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_lost_reply_changes_nothing(name, sample, pool, federation, graph, matrix):
    sample, work = sample if METHODS[name].sampled else 1.0, WORK["steps"]
    deployment = Deployment(pool, name, work, federation, matrix, sample=sample, dtype="float64")
    for number in range(6):
        deployment.play(lose=number in (0, 3, 5))
    result = simulate(name, work, federation, graph, sample, rounds=6, dtype="float64", engine="one_by_one")
    assert_equal(deployment, result)


@pytest.mark.parametrize("name", ["scaffold", "mocha"])
def test_client_and_server_agree_after_replies_that_never_arrive(name, pool, federation, matrix):
    deployment = Deployment(pool, name, WORK["steps"], federation, matrix, dtype="float64")
    for number in range(6):
        deployment.play(without={number % 4, 4})  # The reply of client 4 never arrives.
    deployment.ask_everyone("confirm")
    private = deployment.ask_everyone("private")
    if name == "scaffold":  # c is the mean of all c_k
        expected, found = torch.cat(private).mean(0), deployment.server.control[0]
    else:  # v_k = 1/n_k Σ_i α_i x_i, where x ends in a one
        rows = [federation.train.client(k)[0] for k in range(len(private))]
        sums = [
            torch.cat([(alpha[0].T @ x).flatten(), alpha[0].sum(0)]) / len(x)
            for alpha, x in zip(private, rows, strict=True)
        ]
        expected, found = torch.stack(sums), deployment.server.sums.values
    assert (expected - found).abs().max() < 1e-12
    assert not private[4].any()
    assert private[5].any()


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("fast", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_saved_workers_resume(name, fast, pool, federation, graph, matrix, tmp_path):
    """Replace all workers after round 3, and in round 5 before its replies arrive, by new ones."""
    sample = 0.5 if METHODS[name].sampled else 1.0
    settings = {"sample": sample, "dtype": "float64", "fast": fast}
    without, deployment = (
        Deployment(pool, name, WORK["steps"], federation, matrix, run=run, **settings) for run in range(2)
    )

    def restart():
        deployment.store("save", tmp_path)
        deployment.build_workers()
        deployment.store("load", tmp_path)

    for number in range(1, 7):
        without.play()
        deployment.play(lose=number == 5, between=restart)
        if number == 3:
            restart()
    assert torch.equal(torch.cat(without.collect_models()), torch.cat(deployment.collect_models()))


@pytest.mark.parametrize("name", ["fedavg", "perfedavg", "mocha", "apfl", "scaffold"])
@pytest.mark.parametrize("scale", ["client", pytest.param("pooled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("fast", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("real", [False, True])
def test_tallies_of_workers_are_the_scores(name, scale, fast, real, pool, graph, matrix):
    arrays = random_arrays([7, 23, 5, 12, 40, 9], real=real)
    federation = fl.Federation.from_arrays(arrays, labels=None if real else 3, scale=scale)
    deployment = Deployment(pool, name, WORK["steps"], federation, matrix, dtype="float64", fast=fast)
    for _ in range(2):
        deployment.play()
    tallies = deployment.ask_everyone("score", deployment.collect_models())
    train, test, ridge, gap = zip(*tallies, strict=True)
    sums = [
        Tally(*(None if part[0] is None else torch.cat(part) for part in zip(*split, strict=True)))
        for split in (train, test)
    ]
    total = None if gap[0] is None else float(torch.cat(gap).sum())
    score = compute_score(2, *sums, torch.cat(ridge), 0.0, total, (0, 0), 0.0).as_dict()
    engine = "stacked" if fast else "one_by_one"
    expected = simulate(name, WORK["steps"], federation, graph, 1.0, rounds=2, dtype="float64", engine=engine)
    expected = expected.scores[-1].as_dict()
    skipped = {"bytes_up", "bytes_down", "seconds", *(["objective"] if name == "mocha" else [])}
    for key in expected.keys() - skipped:
        assert score[key] == pytest.approx(expected[key], abs=1e-9), key


def make_worker(federation, algorithm=None, k=0, roster=None, **settings):
    rows = cut_client(federation, k)
    roster = roster or federation.roster
    return Worker(algorithm or fl.Scaffold(), rows, fl.models.linear(), roster, **settings)


def test_a_worker_needs_no_rows_of_others(arrays, federation):
    """Rows that are read at the client alone, split by its name, give the client of the simulation."""
    alone = fl.Federation.from_arrays({"c": arrays["c"]}, seed=3, labels=3, scale="none")
    workers = (
        Worker(fl.Local(), rows, fl.models.linear(), federation.roster)
        for rows in (alone, cut_client(federation, 2))
    )
    models = []
    for worker in workers:
        assert worker.position == 2
        assert worker.local(1, None, merged=0) is None
        worker.confirm(1)
        models.append(worker.personal_model(None))
    assert torch.equal(*models)
    assert models[0].any()


def test_global_has_no_worker(federation):
    with pytest.raises(
        fl.InputError, match=r"Global trains on the rows of all clients; .* use another method"
    ):
        make_worker(federation, fl.Global())


def test_rows_that_are_not_of_the_client_are_refused(federation):
    roster = federation.roster
    with pytest.raises(fl.InputError, match="the federation has 6 clients; expected one"):
        Worker(fl.FedAvg(), federation, fl.models.linear(), roster)
    for changed, message in (
        (replace(roster, clients=("u", *roster.clients[1:])), "unknown client 'a'"),
        (replace(roster, counts=roster.counts + 1), "has 5 training rows; expected 6"),
        (replace(roster, labels=("0", "1")), "has labels .*; expected"),
    ):
        with pytest.raises(fl.InputError, match=message):
            make_worker(federation, roster=changed)


def test_a_worker_that_missed_a_merge_is_refused(federation):
    worker = make_worker(federation, fl.Local())
    worker.local(3, None, merged=0)
    with pytest.raises(
        fl.InputError, match=r"merged = 2; expected a finished round of client 'a', one of \[0, 3\]"
    ):
        worker.local(4, None, merged=2)
    with pytest.raises(fl.InputError, match="round = 3; expected an integer of at least 4"):
        worker.local(3, None, merged=3)


def test_exchanges_come_in_order(federation, graph):
    peer = make_worker(federation, fl.DFedU(graph, mixing="implicit", exchanges=2))
    ids, weights = peer.method.in_neighbours(peer.position)
    received = torch.zeros(1, len(ids), peer.model.size)
    with pytest.raises(fl.InputError, match="exchange 0 of round 1 is not next"):
        peer.mix(1, 0, received, weights.unsqueeze(0))
    peer.local(1, None, merged=0)
    peer.mix(1, 0, received, weights.unsqueeze(0))
    with pytest.raises(fl.InputError, match=r"exchange 0 of round 1 is not next; .* exchange 1 of round 1"):
        peer.mix(1, 0, received, weights.unsqueeze(0))
    with pytest.raises(fl.InputError, match="merged = 1; expected a finished round"):
        peer.confirm(1)
    peer.mix(1, 1, received, weights.unsqueeze(0))
    peer.confirm(1)


def test_saved_states_are_checked(federation, tmp_path):
    path = tmp_path / "worker"
    make_worker(federation).save(path)
    make_worker(federation).load(path)
    with pytest.raises(fl.InputError, match=r"is the state of client 'a' .*; expected client 'b'"):
        make_worker(federation, k=1).load(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(fl.InputError, match="its checksum differs"):
        make_worker(federation).load(path)
    with pytest.raises(fl.InputError, match="No such file"):
        make_worker(federation).load(tmp_path / "absent")


def test_states_survive_encoding():
    Pair = namedtuple("Pair", "one other")
    tensors = [torch.tensor(3.0), torch.ones(2, 0), torch.tensor([[True]]), torch.arange(3).expand(2, 3)]
    state = Pair((tensors[0], None, ()), Pair(tensors[1], tuple(tensors[2:])))
    found = decode_state(encode_state(state), [Pair])
    assert type(found) is type(found.other) is Pair
    assert found.one[1:] == (None, ())
    for one, other in zip(list_tensors(found), list_tensors(state), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert decode_state(encode_state(None)) is None
    with pytest.raises(fl.InputError, match=r"a tuple of type 'Pair'; expected one of \[\]"):
        decode_state(encode_state(state))
    with pytest.raises(fl.InputError, match=r"contains GatheredRows; .* call gather_lazy_rows"):
        encode_state(GatheredRows(tensors[1], torch.tensor([0])))


@pytest.mark.parametrize(
    "content",
    [b"", b"0\n", b"[", b"[null, 0]\n" + b"x" * 20, b"[" * 10_000, encode_state(torch.ones(3))[:-1]],
)
def test_damaged_messages_are_refused(content):
    with pytest.raises(fl.InputError, match="bytes are not a state"):
        decode_state(content)


@pytest.mark.parametrize(
    "line", [b"7", b'"x"', b"{}", b"[]", b'["Scaffold", 0]', b'["ScaffoldMessage", 0]', b"[[0]]"]
)
def test_invalid_structures_are_refused(line):
    content = line + b"\n" + encode_state(torch.ones(3)).partition(b"\n")[2]
    with pytest.raises(fl.InputError):
        decode_state(content, list_state_types(fl.Scaffold()))
