"""Every network with a batch of rows, and modules of PyTorch to make networks of."""

import pytest
import torch
from torch import nn

import fedlap as fl
from fedlap.models import Batch, CrossEntropy, Model, SquaredError

CLIENTS, BATCH, LABELS = 3, 5, 3


class Conv(nn.Module):
    """A small net with a normalisation that keeps no statistics, and a constant."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.GroupNorm(2, 4)
        self.register_buffer("shift", torch.linspace(-1, 1, 4).view(4, 1, 1))
        self.head = nn.Linear(4 * 3 * 3, LABELS)

    def forward(self, x):
        return self.head((self.norm(self.conv(x)) + self.shift).relu().flatten(1))


def build_seeded(make):
    """Build a module whose start does not depend on which tests ran before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def sequential():
    return build_seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, LABELS)))


NETWORKS = {  # the architecture, and the shape of a row
    "linear": (fl.models.linear, (4,)),
    "linear on images": (fl.models.linear, (1, 3, 2)),
    "mlp": (fl.models.mlp, (4,)),
    "mlp-7-4": (lambda: fl.models.mlp((7, 4)), (2, 3)),
    "mlp-6-1-5": (lambda: fl.models.mlp((6, 1, 5)), (4,)),
    "mlp-0": (lambda: fl.models.mlp(()), (4,)),
    "cnn": (fl.models.cnn, (2, 8, 9)),
    "cnn on grey": (fl.models.cnn, (4, 4)),
    "sequential": (lambda: fl.models.module(sequential()), (4,)),
    "conv": (lambda: fl.models.module(build_seeded(Conv)), (2, 5, 5)),
}
every_network = pytest.mark.parametrize("name", NETWORKS)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def batch_for(inputs, real, seed=0):
    """Unequal weights; the second client's batch is short."""
    g = generator(seed)
    x = torch.randn(CLIENTS, BATCH, *inputs, generator=g, dtype=torch.float64)
    y = (
        torch.randn(CLIENTS, BATCH, LABELS, generator=g, dtype=torch.float64)
        if real
        else torch.randint(0, LABELS, (CLIENTS, BATCH), generator=g)
    )
    weight = 0.1 + torch.rand(CLIENTS, BATCH, generator=g, dtype=torch.float64)
    weight[1, 3:] = 0
    return Batch(x, y, weight / weight.sum(1, keepdim=True))


def problem(name, real, l2=0.1):
    architecture, inputs = NETWORKS[name]
    model = Model(architecture().build(inputs, LABELS), SquaredError() if real else CrossEntropy(), l2)
    noise = torch.randn(CLIENTS, model.size, generator=generator(1), dtype=torch.float64)
    return model, model.start(2) + 0.1 * noise, batch_for(inputs, real)


def close(one, other, bound=1e-10):
    assert one.shape == other.shape
    assert (one - other).abs().max() < bound
