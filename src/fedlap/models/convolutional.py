"""The convolutional network of McMahan et al. (2017), with gradients written by hand over the client axis."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlap.errors import InputError
from fedlap.models.convolution import KERNEL, Images, Layer, Way, convolved, derivatives, way_for
from fedlap.models.dense import subtraction, threshold_backward
from fedlap.models.layout import Shapes, assembled, check_l2, size_of, uniform_start, views
from fedlap.models.model import InPlace, Keep, Memory, Scores, Slope, Stack

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
        tensors, way = views(W, self.shapes), self._way(W.device)
        rows = max(1, way.piece // (self._together(way, x) * self._inside))
        out = [
            torch.cat([self._convolved(way, some, part)[-1].out for part in images.split(rows, 1)], 1)
            for some, images in self._pieces(way, tensors, x)
        ]
        return self._full(tensors, torch.cat(out))[-1].mT

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

    def _way(self, device: torch.device) -> Way:
        return way_for(device)

    @cached_property
    def _inside(self) -> int:
        """The most values of one sample inside a convolution: its raised windows or products."""
        (_, height, width), first, second = self.image, self.shapes[0], self.shapes[2]
        return 2 * max(
            height * width * max(KERNEL * first[1], first[0]),
            (height // 2) * (width // 2) * max(KERNEL * second[1], second[0]),
        )

    def _together(self, way: Way, x: Tensor) -> int:
        """How many clients are convolved at once."""
        return min(way.clients, max(1, way.piece // (max(1, x.shape[1]) * self._inside)))

    def _pieces(self, way: Way, tensors: list[Tensor], x: Tensor) -> Iterator[tuple[list[Tensor], Images]]:
        """Filters and biases of some clients at a time, and their images, channels last."""
        images = x.reshape(*x.shape[:2], *self.image).permute(0, 1, 3, 4, 2)
        # Not `contiguous`, which leaves a single channel a stride by which PyTorch takes it to lie first.
        images = images.flatten().view(images.shape)
        clients = self._together(way, x)
        for place in range(0, len(x), clients):
            some = slice(place, place + clients)
            yield [tensor[some] for tensor in tensors[:4]], images[some]

    def _convolved(self, way: Way, tensors: list[Tensor], images: Images) -> tuple[Layer, Layer]:
        w1, b1, w2, b2 = tensors
        first = convolved(way, images, w1, b1)
        return first, convolved(way, first.out, w2, b2)

    def _full(self, tensors: list[Tensor], out: Images) -> tuple[Tensor, Tensor, Tensor]:
        """What enters the two full layers, and the scores, samples along the last axis."""
        w3, b3, w4, b4 = tensors[4:]
        features = out.permute(0, 1, 4, 2, 3).flatten(2).mT
        hidden = torch.bmm(w3, features).add_(b3.unsqueeze(-1)).relu_()
        return features, hidden, torch.bmm(w4, hidden).add_(b4.unsqueeze(-1))

    def _descend(self, W: Stack, x: Tensor, slope: Slope, lr: float = 1.0, keep: Keep = 1.0) -> None:
        """W ← keep·W − lr·gradient, each layer where its weights are."""
        self._subtract(W, W, x, slope, lr, keep)

    def _subtract(
        self, into: Stack, W: Stack, x: Tensor, slope: Slope, lr: float = 1.0, keep: Keep = 1.0
    ) -> None:
        """into ← keep·into − lr·gradient at W. The two may be one: W is read before it is changed."""
        way, tensors, places = self._way(W.device), views(W, self.shapes), views(into, self.shapes)
        pieces = [
            (some, self._convolved(way, some, images)) for some, images in self._pieces(way, tensors, x)
        ]
        out = torch.cat([second.out for _, (_, second) in pieces])
        features, hidden, scores = self._full(tensors, out)
        delta = slope(scores)
        above = threshold_backward(torch.bmm(tensors[6].mT, delta), hidden, 0)
        by_features = torch.bmm(tensors[4].mT, above).mT.unflatten(2, (FILTERS[1], *out.shape[2:4]))
        deltas = by_features.permute(0, 1, 3, 4, 2).contiguous().split(self._together(way, x))
        parts = [self._by_filters(way, *piece, part) for piece, part in zip(pieces, deltas, strict=True)]
        if not isinstance(keep, float) or keep != 1.0:
            into.mul_(keep)
        for place, part in zip(places[:4], zip(*parts, strict=True), strict=True):
            place.sub_(torch.cat(part), alpha=lr)
        for at, d, h in ((4, above, features), (6, delta, hidden)):
            subtraction(places[at])(d, h.mT, lr)
            places[at + 1].sub_(d.sum(-1), alpha=lr)

    def _by_filters(
        self, way: Way, tensors: list[Tensor], layers: tuple[Layer, Layer], delta: Images
    ) -> tuple[Tensor, ...]:
        """The derivatives of some clients by filters and biases, in their order."""
        w2, b2, below = derivatives(way, layers[1], delta, tensors[2])
        w1, b1, _ = derivatives(way, layers[0], below, tensors[0], images=False)
        return w1, b1, w2, b2


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
