"""The convolutional network by the kernels of a GPU: what PyTorch's operations give, wherever they run."""

import math

import pytest
import torch

import emulation
import fedlap as fl
from fedlap.models import kernels
from fedlap.models.convolutional import FILTERS, HIDDEN, ConvolutionalNetwork
from fedlap.models.layout import views
from fedlap.schedule import Schedule
from fedlap.training import fit_all
from fedlap.trials import Trial

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="no C++ compiler")

CLIENTS, LABELS = 3, 5
IMAGES = [(3, 32, 32), (1, 28, 28), (2, 9, 11), (4, 6, 21)]
every_image = pytest.mark.parametrize(
    "image",
    [
        pytest.param(image, id="×".join(map(str, image)), marks=[pytest.mark.slow] * (math.prod(image) > 700))
        for image in IMAGES
    ],
)


class ByKernels(ConvolutionalNetwork):
    """The network as it is on a GPU, on this CPU."""

    def _body(self, W, into):
        assert W.dtype == torch.float32
        return emulation.body(self.image, FILTERS, HIDDEN)


def problem(image, batch):
    """Networks, rows that are views of a larger tensor, a batch, and the slope ½ Σ (scores − y)² has."""
    g = torch.Generator().manual_seed(sum(image) + batch)
    exact, own = ConvolutionalNetwork(image, LABELS), ByKernels(image, LABELS)
    rows = torch.randn(2 * CLIENTS, own.size + 3, generator=g)[::2, 1:-2]
    rows.mul_(0.05)
    x = torch.randn(CLIENTS, batch, *image, generator=g)
    y = torch.randn(CLIENTS, LABELS, batch, generator=g)
    return exact, own, rows, x, lambda scores: scores - y.to(scores.dtype)


def close(network, one, other):
    """Every layer, relative to its largest number; no layer is left out."""
    for mine, theirs in zip(views(one, network.shapes), views(other, network.shapes), strict=True):
        assert theirs.abs().max() > 1e-4
        assert (mine - theirs).abs().max() < 3e-6 * theirs.abs().max()


# For the largest the full layer has no kernels.
BATCHES = [pytest.param(1, marks=pytest.mark.slow), 7, pytest.param(33, marks=pytest.mark.slow)]


@every_image
@pytest.mark.parametrize("batch", BATCHES)
def test_scores_and_gradient(image, batch):
    exact, own, W, x, slope = problem(image, batch)
    scores = exact.scores(W.double(), x.double())
    assert (own.scores(W, x) - scores).abs().max() < 1e-5 * scores.abs().max()
    before = W.clone()
    close(own, own.gradient(W, x, slope), exact.gradient(W.double(), x.double(), slope))
    assert torch.equal(W, before)


def test_where_less_is_shared(monkeypatch):
    """As on an A100, whose blocks hold fewer filters at a time."""
    exact, own, W, x, slope = problem((3, 32, 32), 2)
    less = emulation.body((3, 32, 32), FILTERS, HIDDEN, 166_848)
    monkeypatch.setattr(ByKernels, "_body", lambda network, W, into: less)
    close(own, own.gradient(W, x, slope), exact.gradient(W.double(), x.double(), slope))


@pytest.mark.parametrize("keep", [1.0, 0.9, torch.tensor([[0.9], [0.5], [0.0]])], ids=["all", "some", "each"])
@pytest.mark.parametrize("batch", [6, 33])
def test_descending(keep, batch):
    """In place, on rows of a larger tensor, of which nothing else is touched."""
    exact, own, W, x, slope = problem((2, 9, 11), batch)
    base = W._base
    around = base.clone()
    gradient = exact.gradient(W.double(), x.double(), slope)
    kept = keep if isinstance(keep, float) else keep.double()
    expected = kept * W.double() - 0.3 * gradient
    own.hold(W).first(CLIENTS)(x, slope, 0.3, keep)
    close(own, W, expected)
    around[::2, 1:-2] = W
    assert torch.equal(base, around)


METHODS = {
    "fedu": lambda clients, **work: fl.FedU(fl.Graph.complete(clients), lr=0.05, **work),
    "pfedme": lambda clients, **work: fl.PFedMe(inner_lr=0.03, inner_steps=3, lr=0.05, **work),
    "perfedavg": lambda clients, **work: fl.PerFedAvg(adapt_lr=0.05, lr=0.05, **work),
    "scaffold": lambda clients, **work: fl.Scaffold(lr=0.05, **work),
}
WORK = {"steps": {"local_steps": 3}, "epochs": {"local_epochs": 1}}


def federation():
    """Clients of unequal size with random images."""
    g = torch.Generator().manual_seed(2)
    arrays = {
        str(k): (torch.randn(n, 2, 9, 11, generator=g), torch.randint(LABELS, (n,), generator=g))
        for k, n in enumerate([7, 31, 12, 22])
    }
    return fl.Federation.from_arrays(arrays, labels=LABELS, scale="none")


def run(name, work, device, seed, dtype="float32"):
    """The models after a round of half of the clients."""
    clients = federation()
    method = METHODS[name](clients.clients, **work)
    schedule = {"rounds": 1, "batch": 9, "sample": 0.5, "device": device, "seed": seed, "dtype": dtype}
    return fl.fit(method, clients, fl.models.cnn(0.01), **schedule).models.double()


def middle_error(name, work, device):
    """How far a round is from one in float64, at the middle of five seeds.

    Where two values of a window are equal to the last digit, either may be the maximum, in PyTorch's float32,
    too, and what follows differs.
    """
    errors = []
    for seed in range(5):
        exact = run(name, work, device, seed, "float64")
        errors.append(float((run(name, work, device, seed) - exact).norm() / exact.norm()))
    return sorted(errors)[2]


@pytest.fixture
def emulated(monkeypatch):
    """Runs in float32 take the kernels, on a CPU; for how many clients is listed."""
    used, ordinary = [], ConvolutionalNetwork._body

    def body(network, W, into):
        if W.dtype == torch.float64:
            return ordinary(network, W, into)
        used.append(len(W))
        return emulation.body(network.image, FILTERS, HIDDEN)

    monkeypatch.setattr(ConvolutionalNetwork, "_body", body)
    return used


@pytest.mark.slow
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("name", METHODS)
def test_runs(name, work, emulated):
    assert middle_error(name, work, "cpu") < 1e-6
    assert 2 in emulated


@pytest.mark.slow
def test_rates_may_differ_between_runs_of_a_stack(emulated):
    clients = federation()
    graph, schedule = fl.Graph.complete(clients.clients), {"rounds": 1, "batch": 5}
    trials = [
        Trial(fl.FedU(graph, lr=lr, local_steps=2), clients, fl.models.cnn(0.01), 3) for lr in (0.02, 0.05)
    ]
    ours = fit_all(trials, Schedule(dtype="float32", **schedule))
    for one, trial in zip(ours, trials, strict=True):
        alone = fl.fit(trial.algorithm, clients, trial.model, seed=3, dtype="float64", **schedule).models
        assert (one.models - alone).norm() < 1e-6 * alone.norm()
    assert 8 in emulated


def test_the_same_numbers_every_time():
    _, own, W, x, slope = problem((2, 9, 11), 6)
    assert torch.equal(own.gradient(W, x, slope), own.gradient(W, x, slope))


def test_the_first_of_equal_maxima_counts():
    exact, own, W, x, slope = problem((2, 9, 11), 3)
    W, x = W.clone(), torch.ones_like(x)
    tensors = views(W, own.shapes)
    for weight, bias in (tensors[:2], tensors[2:4]):
        weight.zero_()
        bias.abs_()
    gradient = exact.gradient(W.double(), x.double(), slope)
    assert (own.gradient(W, x, slope) - gradient).abs().max() < 1e-6 * gradient.abs().max()


def test_what_is_no_number_stays_none():
    _, own, W, x, _ = problem((2, 9, 11), 3)
    x[1, 2, 0, 4, 5] = torch.nan
    nan = own.scores(W, x).isnan()
    assert nan[1, 2].all()
    assert nan.sum() == LABELS


def test_no_samples():
    _, own, W, x, _ = problem((2, 9, 11), 3)
    assert own.scores(W, x[:, :0]).shape == (CLIENTS, 0, LABELS)


@pytest.mark.parametrize("image", [(5, 32, 32), (3, 400, 400)], ids=["five channels", "large"])
def test_what_they_are_not_made_for_is_not_compiled(image):
    with pytest.raises(emulation.NotMadeError):
        emulation.body(image, FILTERS, HIDDEN)


def test_where_nothing_can_be_compiled(monkeypatch):
    monkeypatch.setattr(kernels.compiling, "shared_memory", lambda device: 0)
    kernels.kernels_for.cache_clear()
    assert kernels.kernels_for((3, 32, 32), FILTERS, HIDDEN, torch.device("cuda", 0)) is None
    kernels.kernels_for.cache_clear()
