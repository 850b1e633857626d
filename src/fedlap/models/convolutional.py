"""The convolutional network of McMahan et al. (2017), all clients in one grouped convolution."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from fedlap.errors import InputError
from fedlap.models import autograd
from fedlap.models.layout import Shapes, assembled, check_l2, size_of, uniform_start, views
from fedlap.models.model import Scores, Slope, Stack

FILTERS = (32, 64)
KERNEL = 5
HIDDEN = 512


@dataclass(frozen=True)
class ConvolutionalNetwork:
    """5×5×32, pool, 5×5×64, pool (padding 2, ReLU), 512 units, labels: 1,663,370 parameters on 28×28×1."""

    image: tuple[int, int, int]  # channels, height, width
    outputs: int

    @cached_property
    def shapes(self) -> Shapes:
        """Shapes of weight and bias, layer by layer."""
        channels, height, width = self.image
        flat = FILTERS[1] * (height // 4) * (width // 4)
        weights: list[tuple[int, ...]] = [
            (FILTERS[0], channels, KERNEL, KERNEL),
            (FILTERS[1], FILTERS[0], KERNEL, KERNEL),
            (HIDDEN, flat),
            (self.outputs, HIDDEN),
        ]
        return [shape for weight in weights for shape in (weight, weight[:1])]

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return size_of(self.shapes)

    @property
    def widest(self) -> int:
        """What the first convolution gives."""
        return FILTERS[0] * self.image[1] * self.image[2]

    def start(self, seed: int) -> Float[Tensor, "param"]:
        """Uniform in ±1/√fan-in."""
        return uniform_start(seed, self.shapes)

    def scores(self, W: Stack, x: Float[Tensor, "client batch *feature"]) -> Scores:
        """What the network says of each sample."""
        w1, b1, w2, b2, w3, b3, w4, b4 = views(W, self.shapes)
        clients, batch = x.shape[:2]
        # Clients become groups of channels: (batch, client·channel, height, width).
        h = x.reshape(clients, batch, *self.image).transpose(0, 1).flatten(1, 2)
        for w, b in ((w1, b1), (w2, b2)):
            h = functional.conv2d(h, w.flatten(0, 1), b.flatten(), padding=KERNEL // 2, groups=clients)
            h = functional.max_pool2d(h.relu(), 2)
        h = h.unflatten(1, (clients, FILTERS[1])).transpose(0, 1).flatten(2)
        h = torch.baddbmm(b3.unsqueeze(1), h, w3.mT).relu()
        return torch.baddbmm(b4.unsqueeze(1), h, w4.mT)

    def gradient(self, W: Stack, x: Float[Tensor, "client batch *feature"], slope: Slope) -> Stack:
        """By automatic differentiation."""
        return autograd.gradient(self.scores, W, x, slope)

    def descend(
        self, W: Stack, x: Float[Tensor, "client batch *feature"], slope: Slope, lr: float, keep: float
    ) -> None:
        """W ← keep·W − lr·gradient, in place."""
        autograd.descend(self.scores, W, x, slope, lr, keep)

    def module(self, row: Float[Tensor, "param"]) -> nn.Module:
        """The same layers as an `nn.Sequential` that takes (batch, channel, height, width)."""
        (_, flat), channels = self.shapes[4], self.image[0]
        meta, half = torch.device("meta"), KERNEL // 2
        layers = [
            nn.Conv2d(channels, FILTERS[0], KERNEL, padding=half, device=meta),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(FILTERS[0], FILTERS[1], KERNEL, padding=half, device=meta),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(flat, HIDDEN, device=meta),
            nn.ReLU(),
            nn.Linear(HIDDEN, self.outputs, device=meta),
        ]
        return assembled(layers, row)


@dataclass(frozen=True)
class Convolutional:
    """A ConvolutionalNetwork whose image size and labels the data will say."""

    l2: float = 0.0

    def __post_init__(self) -> None:
        check_l2(self.l2)

    def build(self, inputs: tuple[int, ...], outputs: int) -> ConvolutionalNetwork:
        """The network for images of shape (channel, height, width), or (height, width) for one channel."""
        image = (1, *inputs) if len(inputs) == 2 else inputs
        if len(image) != 3 or min(image[1:]) < 4:
            raise InputError(
                f"cnn: features have shape {inputs}; it needs images (channel, height, width) of at least "
                "4×4 pixels — use model linear or mlp for plain features"
            )
        return ConvolutionalNetwork((image[0], image[1], image[2]), outputs)


def cnn(l2: float = 0.0) -> Convolutional:
    """The convolutional network of McMahan et al. (2017)."""
    return Convolutional(l2)
