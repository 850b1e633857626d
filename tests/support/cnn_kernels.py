"""The convolutional network by the kernels of a GPU: images, methods, and how far a round is from float64."""

import math

import pytest
import torch

import emulation
import fedlap as fl
from fedlap.models.convolutional import FILTERS, HIDDEN, ConvolutionalNetwork
from fedlap.models.parameters import view_parameters

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

    def _choose_hidden_layers(self, W, into):
        assert W.dtype == torch.float32
        return emulation.body(self.image, FILTERS, HIDDEN)


def problem(image, batch):
    """Networks, rows that are views of a larger tensor, a batch, and the slope ½ Σ (scores − y)² has."""
    g = torch.Generator().manual_seed(sum(image) + batch)
    exact, kernels = ConvolutionalNetwork(image, LABELS), ByKernels(image, LABELS)
    rows = torch.randn(2 * CLIENTS, kernels.size + 3, generator=g)[::2, 1:-2]
    rows.mul_(0.05)
    x = torch.randn(CLIENTS, batch, *image, generator=g)
    y = torch.randn(CLIENTS, LABELS, batch, generator=g)
    return exact, kernels, rows, x, lambda scores: scores - y.to(scores.dtype)


def close(network, one, other):
    """Every layer, relative to its largest number; no layer is left out."""
    for mine, theirs in zip(
        view_parameters(one, network.shapes), view_parameters(other, network.shapes), strict=True
    ):
        assert theirs.abs().max() > 1e-4
        assert (mine - theirs).abs().max() < 3e-6 * theirs.abs().max()


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
    """The median over five seeds of the distance between a round and the same round in float64.

    Where two values of a window are equal to the last digit, either may be the maximum, in PyTorch's float32,
    too, and what follows differs.
    """
    errors = []
    for seed in range(5):
        exact = run(name, work, device, seed, "float64")
        errors.append(float((run(name, work, device, seed) - exact).norm() / exact.norm()))
    return sorted(errors)[2]
