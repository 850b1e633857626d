"""The convolutional network by the kernels of a GPU: what PyTorch's operations give, wherever they run."""

import pytest
import torch

import emulation
import fedlap as fl
from cnn_kernels import (
    CLIENTS,
    LABELS,
    METHODS,
    WORK,
    ByKernels,
    close,
    every_image,
    federation,
    middle_error,
    problem,
)
from fedlap.kernels import cnn
from fedlap.models.convolutional import FILTERS, HIDDEN, ConvolutionalNetwork
from fedlap.models.parameters import view_parameters
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.schedule import Schedule

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="no C++ compiler")


# For the largest the full layer has no kernels.
BATCHES = [pytest.param(1, marks=pytest.mark.slow), 7, pytest.param(33, marks=pytest.mark.slow)]


@every_image
@pytest.mark.parametrize("batch", BATCHES)
def test_scores_and_gradient(image, batch):
    exact, kernels, W, x, slope = problem(image, batch)
    scores = exact.scores(W.double(), x.double())
    assert (kernels.scores(W, x) - scores).abs().max() < 1e-5 * scores.abs().max()
    before = W.clone()
    close(kernels, kernels.gradient(W, x, slope), exact.gradient(W.double(), x.double(), slope))
    assert torch.equal(W, before)


def test_where_less_is_shared(monkeypatch):
    """As on an A100, whose blocks hold fewer filters at a time."""
    exact, kernels, W, x, slope = problem((3, 32, 32), 2)
    less = emulation.body((3, 32, 32), FILTERS, HIDDEN, 166_848)
    monkeypatch.setattr(ByKernels, "_choose_hidden_layers", lambda network, W, into: less)
    close(kernels, kernels.gradient(W, x, slope), exact.gradient(W.double(), x.double(), slope))


@pytest.mark.slow
@pytest.mark.parametrize("keep", [1.0, 0.9, torch.tensor([[0.9], [0.5], [0.0]])], ids=["all", "some", "each"])
@pytest.mark.parametrize("batch", [6, 33])
def test_descending(keep, batch):
    """In place, on rows of a larger tensor, of which nothing else is touched."""
    exact, kernels, W, x, slope = problem((2, 9, 11), batch)
    base = W._base
    around = base.clone()
    gradient = exact.gradient(W.double(), x.double(), slope)
    decay = keep if isinstance(keep, float) else keep.double()
    expected = decay * W.double() - 0.3 * gradient
    kernels.prepare_weights(W).step_for(CLIENTS)(x, slope, 0.3, keep)
    close(kernels, W, expected)
    around[::2, 1:-2] = W
    assert torch.equal(base, around)


@pytest.fixture
def emulated_kernels(monkeypatch):
    """Runs in float32 take the kernels, on a CPU; for how many clients is listed."""
    used, ordinary = [], ConvolutionalNetwork._choose_hidden_layers

    def body(network, W, into):
        if W.dtype == torch.float64:
            return ordinary(network, W, into)
        used.append(len(W))
        return emulation.body(network.image, FILTERS, HIDDEN)

    monkeypatch.setattr(ConvolutionalNetwork, "_choose_hidden_layers", body)
    return used


@pytest.mark.slow
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("name", METHODS)
def test_runs(name, work, emulated_kernels):
    assert middle_error(name, work, "cpu") < 1e-6
    assert 2 in emulated_kernels


@pytest.mark.slow
def test_rates_may_differ_between_runs_of_a_stack(emulated_kernels):
    clients = federation()
    graph, schedule = fl.Graph.complete(clients.clients), {"rounds": 1, "batch": 5}
    trials = [
        Job(fl.FedU(graph, lr=lr, local_steps=2), clients, fl.models.cnn(0.01), 3) for lr in (0.02, 0.05)
    ]
    ours = fit_all(trials, Schedule(dtype="float32", **schedule))
    for one, trial in zip(ours, trials, strict=True):
        alone = fl.fit(trial.algorithm, clients, trial.model, seed=3, dtype="float64", **schedule).models
        assert (one.models - alone).norm() < 1e-6 * alone.norm()
    assert 8 in emulated_kernels


def test_the_same_numbers_every_time():
    _, kernels, W, x, slope = problem((2, 9, 11), 6)
    assert torch.equal(kernels.gradient(W, x, slope), kernels.gradient(W, x, slope))


def test_the_first_of_equal_maxima_counts():
    exact, kernels, W, x, slope = problem((2, 9, 11), 3)
    W, x = W.clone(), torch.ones_like(x)
    tensors = view_parameters(W, kernels.shapes)
    for weight, bias in (tensors[:2], tensors[2:4]):
        weight.zero_()
        bias.abs_()
    gradient = exact.gradient(W.double(), x.double(), slope)
    assert (kernels.gradient(W, x, slope) - gradient).abs().max() < 1e-6 * gradient.abs().max()


def test_what_is_no_number_stays_none():
    _, kernels, W, x, _ = problem((2, 9, 11), 3)
    x[1, 2, 0, 4, 5] = torch.nan
    nan = kernels.scores(W, x).isnan()
    assert nan[1, 2].all()
    assert nan.sum() == LABELS


def test_no_samples():
    _, kernels, W, x, _ = problem((2, 9, 11), 3)
    assert kernels.scores(W, x[:, :0]).shape == (CLIENTS, 0, LABELS)


@pytest.mark.parametrize("image", [(5, 32, 32), (3, 400, 400)], ids=["five channels", "large"])
def test_what_they_are_not_made_for_is_not_compiled(image):
    with pytest.raises(emulation.UnsupportedKernelError):
        emulation.body(image, FILTERS, HIDDEN)


def test_where_nothing_can_be_compiled(monkeypatch):
    monkeypatch.setattr(cnn.nvrtc, "query_shared_memory", lambda device: 0)
    cnn.compile_cnn_kernels.cache_clear()
    assert cnn.compile_cnn_kernels((3, 32, 32), FILTERS, HIDDEN, torch.device("cuda", 0)) is None
    cnn.compile_cnn_kernels.cache_clear()
