"""The layers of a convolutional network below its last, by PyTorch's operations, some clients at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.models.convolution import KERNEL, Images, Layer, Way, convolved, derivatives
from fedlap.models.dense import subtraction
from fedlap.models.model import Keep, Stack
from fedlap.models.parameters import Shapes, views

Batches = Float[Tensor, "client batch *feature"]
Features = Float[Tensor, "client batch flat"]  # channel by channel
Hidden = Float[Tensor, "client hidden batch"]


@runtime_checkable
class Body(Protocol):
    """Two convolutions with 2×2 maxima and ReLU and a full layer with ReLU, and what is learned of them."""

    def hidden(self, W: Stack, x: Batches) -> Hidden:
        """What leaves them."""
        ...

    def forward(self, W: Stack, x: Batches) -> tuple[Hidden, Any]:
        """The same, and what the derivative will need."""
        ...

    def subtract(self, into: Stack, W: Stack, seen: Any, delta: Hidden, lr: float, keep: Keep) -> None:
        """into ← keep·into − lr·gradient at W, of these layers, from the derivative by what leaves them.

        It is zero where ReLU is. The two may be one: W is read before it is changed.
        """
        ...


Piece = tuple[list[Tensor], tuple[Layer, Layer]]


@dataclass(frozen=True, eq=False)
class InPieces:
    """So many clients and samples at a time that what is held inside stays within the way's piece."""

    way: Way
    image: tuple[int, int, int]
    shapes: Shapes

    def hidden(self, W: Stack, x: Batches) -> Hidden:
        """What leaves them, by operations that autograd knows."""
        tensors = views(W, self.shapes)
        rows = max(1, self.way.piece // (self._together(x) * self._inside))
        out = [
            torch.cat([self._layers(some, part)[-1].out for part in images.split(rows, 1)], 1)
            for some, images in self._pieces(tensors, x)
        ]
        return full(tensors[4], tensors[5], _flat(torch.cat(out)))

    def forward(self, W: Stack, x: Batches) -> tuple[Hidden, tuple[Features, list[Piece]]]:
        """All samples of a client at once."""
        tensors = views(W, self.shapes)
        made = [(some, self._layers(some, images)) for some, images in self._pieces(tensors, x)]
        features = _flat(torch.cat([second.out for _, (_, second) in made]))
        return full(tensors[4], tensors[5], features), (features, made)

    def subtract(
        self,
        into: Stack,
        W: Stack,
        seen: tuple[Features, list[Piece]],
        delta: Hidden,
        lr: float,
        keep: Keep,
    ) -> None:
        """Piece by piece."""
        places, weights, (features, made) = views(into, self.shapes), views(W, self.shapes)[4], seen
        below = torch.bmm(delta.mT, weights).unflatten(2, (*self.shapes[3], -1))
        parts = list(self._by_filters(made, below))
        for place, part in zip(places, zip(*parts, strict=True), strict=False):
            kept(place, keep).sub_(torch.cat(part), alpha=lr)
        full_subtract(places[4], places[5], features, delta, lr, keep)

    def _by_filters(
        self, made: list[Piece], below: Float[Tensor, "client batch channel place"]
    ) -> Iterator[tuple[Tensor, ...]]:
        """The derivatives of some clients by filters and biases, in their order."""
        height, width = self.image[1] // 4, self.image[2] // 4
        deltas = below.unflatten(3, (height, width)).permute(0, 1, 3, 4, 2).contiguous()
        place = 0
        for some, (first, second) in made:
            own = deltas[place : place + len(some[0])]
            place += len(own)
            w2, b2, between = derivatives(self.way, second, own, some[2])
            w1, b1, _ = derivatives(self.way, first, between, some[0], images=False)
            yield w1, b1, w2, b2

    @property
    def _inside(self) -> int:
        """The most values of one sample inside a convolution: its raised windows or products."""
        (_, height, width), first, second = self.image, self.shapes[0], self.shapes[2]
        return 2 * max(
            height * width * max(KERNEL * first[1], first[0]),
            (height // 2) * (width // 2) * max(KERNEL * second[1], second[0]),
        )

    def _together(self, x: Tensor) -> int:
        """How many clients are convolved at once."""
        return min(self.way.clients, max(1, self.way.piece // (max(1, x.shape[1]) * self._inside)))

    def _pieces(self, tensors: Sequence[Tensor], x: Tensor) -> Iterator[tuple[list[Tensor], Images]]:
        """Filters and biases of some clients at a time, and their images, channels last."""
        images = x.reshape(*x.shape[:2], *self.image).permute(0, 1, 3, 4, 2)
        # Not `contiguous`, which leaves a single channel a stride by which PyTorch takes it to lie first.
        images = images.flatten().view(images.shape)
        clients = self._together(x)
        for place in range(0, len(x), clients):
            some = slice(place, place + clients)
            yield [tensor[some] for tensor in tensors[:4]], images[some]

    def _layers(self, tensors: list[Tensor], images: Images) -> tuple[Layer, Layer]:
        w1, b1, w2, b2 = tensors
        first = convolved(self.way, images, w1, b1)
        return first, convolved(self.way, first.out, w2, b2)


def full(w: Float[Tensor, "client hidden flat"], b: Float[Tensor, "client hidden"], x: Features) -> Hidden:
    """A full layer with ReLU."""
    return torch.bmm(w, x.mT).add_(b.unsqueeze(-1)).relu_()


def full_subtract(w: Tensor, b: Tensor, x: Tensor, delta: Tensor, lr: float, keep: Keep) -> None:
    """w, b ← keep·w, b − lr·gradient, of a full layer that was given x and has this derivative."""
    subtraction(kept(w, keep))(delta, x, lr)
    kept(b, keep).sub_(delta.sum(-1), alpha=lr)


def kept(place: Tensor, keep: Keep) -> Tensor:
    """So much of it, in place."""
    if isinstance(keep, float):
        return place if keep == 1.0 else place.mul_(keep)
    return place.mul_(keep.view(-1, *[1] * (place.dim() - 1)))


def _flat(out: Images) -> Features:
    return out.permute(0, 1, 4, 2, 3).flatten(2)
