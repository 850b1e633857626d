"""The convolutional network of McMahan et al. (2017), with gradients written by hand over the client axis."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlap.errors import InputError
from fedlap.kernels.cnn import kernels_for
from fedlap.models.cnn_layers import Body, Hidden, InPieces, full_subtract
from fedlap.models.convolution import KERNEL, way_for
from fedlap.models.dense import threshold_backward
from fedlap.models.model import InPlace, Keep, Memory, Scores, Slope, Stack
from fedlap.models.parameters import Shapes, assembled, check_l2, size_of, uniform_start

FILTERS = (32, 64)
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
        """The input, or what enters the first full layer: convolutions hold a piece of a stack at a time."""
        return max(math.prod(self.image), self.shapes[4][1])

    def start(self, seed: int) -> Float[Tensor, "param"]:
        """Uniform in ±1/√fan-in."""
        return uniform_start(seed, self.shapes)

    def scores(self, W: Stack, x: Float[Tensor, "client batch *feature"]) -> Scores:
        """What the network says of each sample."""
        return self._scored(W, self._body(W, W).hidden(W, x)).mT

    def gradient(self, W: Stack, x: Float[Tensor, "client batch *feature"], slope: Slope) -> Stack:
        """Back-propagation, for every client at once."""
        gradient = torch.zeros_like(W)
        self._subtract(gradient, W, x, slope, -1.0, 1.0)
        return gradient

    def hold(self, W: Stack, steps: int = 1, memory: Memory | None = None, wide: bool = False) -> InPlace:
        """As it is."""
        return InPlace(self._descend, W)

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

    def _body(self, W: Stack, into: Stack) -> Body:
        """By kernels, where they are made for it, or by operations that autograd knows."""
        single = W.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
        if W.is_cuda and single and not W.requires_grad and W.stride(1) == into.stride(1) == 1:
            made = kernels_for(self.image, FILTERS, HIDDEN, W.device)
            if made is not None:
                return made
        return InPieces(way_for(W.device), self.image, self.shapes)

    def _last(self, W: Stack) -> tuple[Tensor, Tensor]:
        """Weight and bias of the last layer."""
        end = self.size - self.outputs
        begin = end - self.outputs * HIDDEN
        return W[:, begin:end].unflatten(1, (self.outputs, HIDDEN)), W[:, end:]

    def _scored(self, W: Stack, hidden: Hidden) -> Float[Tensor, "client output batch"]:
        weight, bias = self._last(W)
        return torch.bmm(weight, hidden).add_(bias.unsqueeze(-1))

    def _descend(self, W: Stack, x: Tensor, slope: Slope, lr: float = 1.0, keep: Keep = 1.0) -> None:
        """W ← keep·W − lr·gradient, each layer where its weights are."""
        self._subtract(W, W, x, slope, lr, keep)

    def _subtract(
        self, into: Stack, W: Stack, x: Tensor, slope: Slope, lr: float = 1.0, keep: Keep = 1.0
    ) -> None:
        """into ← keep·into − lr·gradient at W. The two may be one: W is read before it is changed."""
        body = self._body(W, into)
        hidden, seen = body.forward(W, x)
        delta = slope(self._scored(W, hidden))
        above = threshold_backward(torch.bmm(self._last(W)[0].mT, delta), hidden, 0)
        body.subtract(into, W, seen, above, lr, keep)
        full_subtract(*self._last(into), hidden.mT, delta, lr, keep)


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
                f"features have shape {inputs}; it needs images (channel, height, width) of at least "
                "4×4 pixels — use model linear or mlp for plain features",
                scope="cnn",
            )
        return ConvolutionalNetwork((image[0], image[1], image[2]), outputs)


def cnn(l2: float = 0.0) -> Convolutional:
    """The convolutional network of McMahan et al. (2017)."""
    return Convolutional(l2)
