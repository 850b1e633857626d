"""The same numbers on a GPU; skipped where there is none."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import fedlap as fl
from fedlap.training.assemble import assemble
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.schedule import Schedule
from fit_results import same
from laws import METHODS, WORK
from stacked_jobs import STACKABLE, make_jobs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def both(algorithm, federation, model, **schedule):
    schedule = {"rounds": 20, "batch": 4, "seed": 5, "dtype": "float64", **schedule}
    return [fl.fit(algorithm, federation, model, device=device, **schedule) for device in ("cpu", "cuda")]


@pytest.mark.parametrize("engine", ["stacked", "one_by_one"])
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("name", METHODS)
def test_cpu_is_gpu(name, work, engine, federation, graph):
    sample = 0.5 if METHODS[name].sampled else 1.0
    method = METHODS[name].make(graph, **work)
    one, other = both(method, federation, METHODS[name].model, sample=sample, engine=engine)
    assert (one.models - other.models.cpu()).abs().max() < 1e-9
    assert one.scores[-1].objective == pytest.approx(other.scores[-1].objective, abs=1e-9)


@pytest.mark.parametrize("engine", ["stacked", "one_by_one"])
@pytest.mark.parametrize("keep", ["device", "host"])
@pytest.mark.parametrize("name", [name for name in METHODS if name != "mocha"])
def test_cpu_is_gpu_with_sample_weights(name, keep, engine, federation, graph):
    weight = torch.arange(len(federation.train.row)).double() % 3
    weighted = replace(federation, train=replace(federation.train, weight=weight + 0.5 * (weight > 0)))
    method = METHODS[name].make(graph, local_steps=2)
    one, other = both(method, weighted, METHODS[name].model, rounds=6, keep=keep, engine=engine)
    assert (one.models - other.models.cpu()).abs().max() < 1e-9
    assert one.scores[-1].objective == pytest.approx(other.scores[-1].objective, abs=1e-9)


@pytest.mark.parametrize("model", [fl.models.linear(), fl.models.cnn()], ids=["linear", "cnn"])
def test_cpu_is_gpu_on_images(model):
    federation = fl.data.load("digits", partition=fl.partition.Labels(8, 3))
    for graph in (fl.Graph.complete(federation.clients), fl.Graph.star(federation.clients, server=True)):
        one, other = both(fl.FedU(graph, lr=0.05), federation, model, rounds=5)
        assert (one.models - other.models.cpu()).abs().max() < 1e-9


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("sample", [0.5, 1.0])
def test_cpu_is_gpu_where_rows_of_a_batch_meet(sample, work, federation, graph):
    layers = nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.ReLU(), nn.Linear(6, 3)
    method, model = fl.FedU(graph, strength=0.3, **work), fl.models.module(nn.Sequential(*layers))
    one, other = both(method, with_tests_on(federation, 2), model, sample=sample, batch=7)
    assert (one.models - other.models.cpu()).abs().max() < 1e-9
    assert one.scores[-1].objective == pytest.approx(other.scores[-1].objective, abs=1e-9)


def with_tests_on(federation, rows):
    """The federation with the first training rows of each client as its test rows."""
    first = torch.cat([torch.arange(n) < rows for n in federation.train.count.tolist()])
    return replace(federation, test=federation.train.select(first))


@pytest.mark.parametrize("kind", [fl.FedU, fl.FedUPassing])
def test_cpu_is_gpu_on_a_large_sparse_graph(kind):
    """Steps are passed by a factorisation on a CPU, and by conjugate gradients on a GPU."""
    names = [str(k) for k in range(2100)]
    arrays = {name: (torch.randn(3, 2, generator=torch.Generator().manual_seed(k)), torch.tensor([0, 1, 0]))
              for k, name in enumerate(names)}  # fmt: skip
    federation = fl.Federation.from_arrays(arrays, test_share=0.0, scale="none")
    edges = [(names[k - 1], names[k], 0.5 + k % 7 / 7) for k in range(2100)]
    method = kind(fl.Graph.from_edges(edges, names), strength=0.5)
    one, other = both(method, federation, fl.models.linear(), rounds=3, sample=0.3)
    assert (one.models - other.models.cpu()).abs().max() < 1e-9


@pytest.mark.parametrize("name", METHODS)
def test_a_gpu_repeats_bit_for_bit(name, federation, graph):
    one, again = (
        fl.fit(METHODS[name].make(graph), federation, METHODS[name].model, rounds=10, batch=4, device="cuda")
        for _ in range(2)
    )
    assert torch.equal(one.models, again.models)


@pytest.mark.parametrize("sample", [1.0, 0.5])
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("name", METHODS)
def test_a_gpu_goes_on_bit_for_bit(name, work, sample, federation, graph):
    """Rounds that were recorded and rounds that were not are the same operations."""
    method, model = METHODS[name].make(graph, **work), METHODS[name].model
    schedule = {"batch": 4, "device": "cuda", "sample": sample if METHODS[name].sampled else 1.0}
    unbroken, broken = fl.fit(method, federation, model, rounds=12, **schedule), None
    for rounds in (1, 3, 4, 9, 12):
        broken = fl.fit(method, federation, model, rounds=rounds, resume=broken, **schedule)
    same(broken, unbroken)


@pytest.mark.parametrize("sample", [1.0, 0.5])
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("name", STACKABLE)
def test_a_stack_on_a_gpu_goes_on_bit_for_bit(name, work, sample, federation, graph):
    many, share = make_jobs(name, work, federation, graph), sample if METHODS[name].sampled else 1.0

    def train(rounds, before):
        begun = [replace(trial, progress=at and at.progress) for trial, at in zip(many, before, strict=True)]
        return fit_all(begun, Schedule(rounds, 4, share, device="cuda"))

    nothing = [None] * len(many)
    for one, other in zip(train(10, train(4, nothing)), train(10, nothing), strict=True):
        same(one, other)


@pytest.mark.parametrize("sample", [1.0, 0.5])
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("name", STACKABLE)
def test_a_stack_of_runs_on_a_gpu_is_each_of_them_on_a_cpu(name, work, sample, federation, graph):
    schedule = {"rounds": 6, "batch": 4, "dtype": "float64", "evaluate_every": 3}
    schedule["sample"] = sample if METHODS[name].sampled else 1.0
    many = make_jobs(name, work, federation, graph)
    for trial, result in zip(many, fit_all(many, Schedule(**schedule, device="cuda")), strict=True):
        alone = fl.fit(trial.algorithm, trial.federation, trial.model, seed=trial.seed, **schedule)
        assert (alone.models - result.models.cpu()).abs().max() < 1e-9


@pytest.mark.parametrize("sample", [1.0, 0.5])
@pytest.mark.parametrize("name", METHODS)
def test_what_is_kept_on_the_host_gives_the_same_numbers(name, sample, federation, graph):
    schedule = {"rounds": 6, "batch": 4, "dtype": "float64", "device": "cuda"}
    schedule["sample"] = sample if METHODS[name].sampled else 1.0
    method, model = METHODS[name].make(graph), METHODS[name].model
    near, far = (fl.fit(method, federation, model, **schedule, keep=keep) for keep in ("device", "host"))
    assert near.models.is_cuda
    assert not far.models.is_cuda
    assert (near.models.cpu() - far.models).abs().max() < 1e-9
    assert near.scores[-1].objective == pytest.approx(far.scores[-1].objective, abs=1e-9)


@pytest.mark.parametrize("dtype", ["float64", "float32"])  # step by step, and as one kernel
@pytest.mark.parametrize("kind", ["pooled", "client"])
def test_images_kept_on_the_host_are_brought_as_bytes(kind, dtype):
    federation = fl.data.load("digits", partition=fl.partition.Labels(8, 3))
    images = {c: ((16 * x).byte(), y) for c, (x, y) in zip(
        federation.clients, map(federation.train.client, range(8)), strict=True)}  # fmt: skip
    scaled = fl.Federation.from_arrays(images, labels=10).standardize(kind)
    cpu, near, far = (
        fl.fit(fl.Local(), scaled, fl.models.linear(), rounds=5, sample=0.5, dtype=dtype, **where)
        for where in ({}, {"device": "cuda"}, {"device": "cuda", "keep": "host"})
    )
    close = 1e-9 if dtype == "float64" else 1e-5
    assert (cpu.models - near.models.cpu()).abs().max() < close
    assert (cpu.models - far.models).abs().max() < close


@pytest.mark.parametrize(
    ("method", "sample", "work", "recorded"),
    [
        (fl.FedAvg, 1.0, {"local_steps": 2}, True),
        (fl.FedAvg, 0.5, {"local_steps": 2}, True),
        (fl.FedAvg, 1.0, {"local_epochs": 2}, True),
        (fl.FedAvg, 0.5, {"local_epochs": 2}, False),  # how many steps is known on the host alone
        (fl.L2GD, 1.0, {"local_steps": 2}, False),  # a coin decides
    ],
)
def test_rounds_are_recorded_where_they_can_be(method, sample, work, recorded, federation):
    trial = Job(method(**work), federation, fl.models.linear())
    training = assemble([trial], Schedule(sample=sample, device="cuda"))
    assert training.engine.can_capture_rounds == recorded


def test_coarser_products_are_a_choice(federation, graph):
    model = fl.models.mlp((64,))
    exact, fine, coarse = (
        fl.fit(
            fl.FedU(graph, 0.1), federation, model, rounds=10, batch="all", device="cuda", **how
        ).models.cpu()
        for how in ({"dtype": "float64"}, {}, {"precision": "bf16"})
    )
    assert (exact - fine).abs().max() < 1e-4
    assert torch.get_float32_matmul_precision() == "highest"
    assert (exact - coarse).abs().max() < 0.1
