"""All steps of a round as one kernel: the same as step by step, wherever it runs."""

import pytest
import torch

import affine_steps
import emulation
import fedlap as fl
from fedlap.algorithms.conjugates import Squared
from fedlap.kernels.dense import DenseKernel, DualAscent, count_scratch_values
from fedlap.kernels.nvrtc import set_cuda_home
from fedlap.models import CrossEntropy, DenseNetwork, Model
from fedlap.training.batches import BatchPlan, Cohort
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.placement import PlacedClients
from fedlap.training.schedule import Schedule

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="no C++ compiler")

MODELS = {
    "linear": fl.models.linear(0.01),
    "a hidden layer": fl.models.mlp(11, l2=0.01),
    "three, and one that is streamed": fl.models.mlp((200, 6, 5)),
}
METHODS = {
    "fedu": lambda f, **work: fl.FedU(fl.Graph.complete(f.clients), lr=0.05, **work),
    "fedprox": lambda f, **work: fl.FedProx(proximal=0.3, lr=0.05, **work),
    "perfedavg": lambda f, **work: fl.PerFedAvg(adapt_lr=0.1, lr=0.05, **work),
    "pfedme": lambda f, **work: fl.PFedMe(regularisation=5.0, inner_lr=0.03, inner_steps=3, lr=0.05, **work),
    "scaffold": lambda f, **work: fl.Scaffold(lr=0.05, **work),
}
WORK = {"steps": ({"local_steps": 3}, 1.0), "epochs": ({"local_epochs": 1}, 0.5)}  # and the share of clients


def make_clients(kind):
    """Return clients of unequal size, some with less than a batch: images as bytes, or numbers."""
    draw = torch.Generator().manual_seed(7)
    sizes = [9, 2, 13, 5, 21]
    shape = (4, 4) if kind == "bytes" else (37,)
    arrays = {
        str(k): (
            torch.randint(0, 256, (n, *shape), generator=draw).byte()
            if kind == "bytes"
            else torch.randn(n, *shape, generator=draw, dtype=torch.float64),
            torch.randint(0, 3, (n,), generator=draw),
        )
        for k, n in enumerate(sizes)
    }
    federation = fl.Federation.from_arrays(arrays, labels=3, test_share=0.0, scale="none")
    return federation.standardize("pooled") if kind == "bytes" else federation


@pytest.fixture(scope="module", params=["bytes", "numbers"])
def clients(request):
    return make_clients(request.param)


def make_emulated_kernel(clients, used):
    """Return the kernel of a GPU, emulated; each launch appends its dual loss code to `used`."""
    network, batch = clients.model.network, clients.batch
    assert isinstance(network, DenseNetwork)
    as_bytes = clients.train.store.dtype == torch.uint8

    def make(ascent, shifted):
        call, shared = emulation.kernel(network.widths, batch, as_bytes, ascent, shifted)

        def count_launch(*args):
            used.append(ascent)
            call(*args)

        return count_launch, shared

    # Values that no one has written are NaN, so that the kernel must not read them.
    scratch = torch.full((2, count_scratch_values(network.widths)), float("nan"))
    return DenseKernel(clients, make, scratch)


@pytest.fixture
def emulated_kernel(monkeypatch):
    """Runs take the kernel, on a CPU; how often is counted."""
    used = []
    monkeypatch.setattr(PlacedClients, "fused", property(lambda clients: make_emulated_kernel(clients, used)))
    return used


def train_models(method, clients, model, **schedule):
    schedule = {"rounds": 2, "batch": 4, "seed": 3, **schedule}
    return fl.fit(method, clients, model, **schedule).models.double()


@pytest.mark.parametrize(("work", "sample"), WORK.values(), ids=WORK)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_kernel_makes_the_same_steps(model, name, work, sample, clients, emulated_kernel, monkeypatch):
    method = METHODS[name](clients, **work)
    ours = train_models(method, clients, model, sample=sample)
    assert emulated_kernel
    monkeypatch.undo()
    exact = train_models(method, clients, model, sample=sample, dtype="float64")
    assert (ours - exact).abs().max() < 2e-6


@pytest.mark.parametrize("epochs", [True, False], ids=["epochs", "steps"])
@pytest.mark.parametrize("kind", ["numbers", "bytes"])
@pytest.mark.parametrize("hidden", [(), (11,), (200, 6, 5)], ids=str)
@pytest.mark.parametrize("terms", affine_steps.TERMS)
def test_affine_steps_are_those_of_a_plain_loop(terms, hidden, kind, epochs):
    features = 48 if kind == "bytes" else 37  # a GPU reads sixteen bytes at once
    problem = affine_steps.make_problem(terms, kind, hidden, features, epochs, torch.float32)
    ours = problem.run(make_emulated_kernel(problem.clients, used := []))
    assert used == [0]
    for tensor, exact in zip(ours, problem.run_plainly(), strict=True):
        assert (tensor - exact).abs().max() < 2e-6


@pytest.mark.parametrize(("work", "sample"), WORK.values(), ids=WORK)
@pytest.mark.parametrize("loss", ["logistic", "squared", "hinge"])
def test_a_kernel_ascends_the_same(loss, work, sample, clients, emulated_kernel, monkeypatch):
    graph = fl.Graph.complete(clients.clients)
    method = fl.Mocha(graph, 0.1, loss=loss, least_work=0.3, aggregation=0.9, **work)
    ours = train_models(method, clients, fl.models.linear(0.01), sample=sample)
    assert set(emulated_kernel) == {{"squared": 1, "hinge": 2, "logistic": 3}[loss]}
    monkeypatch.undo()
    exact = train_models(method, clients, fl.models.linear(0.01), sample=sample, dtype="float64")
    assert exact.abs().max() > 0.02
    assert (ours - exact).abs().max() < 2e-6


def test_runs_of_a_stack_differ_in_settings(clients, emulated_kernel):
    """Rates, pulls and constants of the scale are each client's own."""
    model, others = (
        fl.models.mlp(11, l2=0.01),
        make_clients("bytes" if clients.inputs == (4, 4) else "numbers"),
    )
    trials = [
        Job(fl.PFedMe(5.0, 3, 0.03, lr=0.05), clients, model, 0),
        Job(fl.PFedMe(2.0, 3, 0.01, lr=0.1), others.fold(3, 1, 0), model, 1),
    ]
    stacked = fit_all(trials, Schedule(rounds=2, batch=4))
    assert len(emulated_kernel) == 2
    for trial, result in zip(trials, stacked, strict=True):
        alone = fl.fit(trial.algorithm, trial.federation, model, rounds=2, batch=4, seed=trial.seed)
        assert (alone.models - result.models).abs().max() < 1e-6  # products of settings are rounded or not


@pytest.mark.slow
def test_many_small_pulls_do_not_add_up(clients, emulated_kernel, monkeypatch):
    """A model is drawn to one that follows it, a thousand times: rounding must not take sides."""
    method = fl.PFedMe(regularisation=5.0, inner_lr=0.03, inner_steps=5, lr=0.05, local_steps=100)
    ours = train_models(method, clients, fl.models.linear(), batch=2)
    monkeypatch.undo()
    exact = train_models(method, clients, fl.models.linear(), batch=2, dtype="float64")
    assert (ours - exact).abs().max() < 1e-6


def test_no_toolkit_is_needed(monkeypatch):
    """PyTorch would refuse to compile where CUDA's own folder is not found."""
    from torch.utils import cpp_extension

    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    with pytest.raises(OSError, match="CUDA_HOME"):
        cpp_extension.include_paths("cuda")
    with set_cuda_home():
        assert cpp_extension.include_paths("cuda")
    assert cpp_extension.CUDA_HOME is None


def test_a_loss_that_the_kernel_does_not_know_goes_row_by_row():
    class Other(Squared):
        """A loss that the kernel does not implement."""

    one, none = torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1)
    way = DualAscent(Other(), torch.zeros(1, 1, 1), none, none)
    plan = BatchPlan(torch.zeros(1, 1, 4, dtype=torch.int64), torch.ones(1, 1, 4).double(), (1,))
    model = Model(fl.models.linear().build((3,), 2), CrossEntropy())
    federation = fl.Federation.from_arrays(
        {"a": (torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))}, labels=2, scale="none"
    )
    clients = PlacedClients.of([federation], [0], model, 4, torch.device("cpu"), torch.float32)
    fused = DenseKernel(clients, lambda ascent: pytest.fail("asked for"), torch.empty(1, 1))
    assert not fused(torch.zeros(1, model.size), Cohort(one, one, one, one, one), plan, 0.0, 1, way)
