"""Rows of many clients, and the units their features are in."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor

from fedlap.errors import InputError

Scaling = Literal["none", "pooled", "client"]


@dataclass(frozen=True, eq=False)
class Part:
    """The training or the test rows of all clients, one client after another."""

    x: Num[Tensor, "row *feature"]
    y: Num[Tensor, "row *output"]
    count: Int64[Tensor, "client"]

    @cached_property
    def first(self) -> Int64[Tensor, "client"]:
        """Where each client's rows begin."""
        return self.count.cumsum(0) - self.count

    def client(self, place: int) -> tuple[Tensor, Tensor]:
        """Features and labels of one client."""
        begin, end = int(self.first[place]), int(self.first[place] + self.count[place])
        return self.x[begin:end], self.y[begin:end]

    def owner(self) -> Int64[Tensor, "row"]:
        """The place of each row's client."""
        return torch.repeat_interleave(torch.arange(len(self.count), device=self.count.device), self.count)

    def reordered(self, places: Sequence[int]) -> "Part":
        """The same rows with clients in another order."""
        rows = [self.client(place) for place in places]
        x, y = (torch.cat(tensors) for tensors in zip(*rows, strict=True))
        return Part(x, y, self.count[list(places)])

    def moved(self, x: Num[Tensor, "row *feature"], device: torch.device, dtype: torch.dtype) -> "Part":
        """These features with the same labels, on a device; real targets in this precision."""
        y = self.y.to(device, dtype) if self.y.is_floating_point() else self.y.to(device)
        return Part(x.to(device), y, self.count)


@dataclass(frozen=True, eq=False)
class Scale:
    """x ← (x − shift) · factor, with one row of constants for all clients or one for each."""

    kind: Scaling
    shift: Float[Tensor, "constants ..."]
    factor: Float[Tensor, "constants ..."]

    @staticmethod
    def of(kind: Scaling, train: Part) -> "Scale":
        """Constants that standardise training rows: a pair for each feature, or for each channel of images.

        Images are bytes of shape (channel, height, width), or (height, width) for one channel. What never
        changes is only shifted.
        """
        if kind == "none":
            return UNSCALED
        if kind not in ("pooled", "client"):
            raise InputError(f"data: scale = {kind!r}; it must be none, pooled or client")
        shape = train.x.shape
        image = train.x.dtype == torch.uint8 and len(shape) > 2
        over = [0, *range(1 if len(shape) == 3 else 2, len(shape))] if image else [0]
        places = range(len(train.count))
        groups = [train.x] if kind == "pooled" else [train.client(place)[0] for place in places]
        pairs = [torch.std_mean(x.double(), dim=over, correction=0, keepdim=True) for x in groups]
        std, mean = (torch.cat(constants) for constants in zip(*pairs, strict=True))
        return Scale(kind, mean, torch.where(std > 0, 1 / std, 1.0))

    def moved(self, device: torch.device, dtype: torch.dtype) -> "Scale":
        """The same constants where they are used for every batch."""
        return Scale(self.kind, self.shift.to(device, dtype), self.factor.to(device, dtype))

    def reordered(self, places: Sequence[int]) -> "Scale":
        """The same constants with clients in another order."""
        if self.kind != "client":
            return self
        return Scale(self.kind, self.shift[list(places)], self.factor[list(places)])

    def apply(
        self, x: Num[Tensor, "client batch *feature"], clients: Int64[Tensor, "client"], dtype: torch.dtype
    ) -> Float[Tensor, "client batch *feature"]:
        """Raw features of these clients in the units that models see."""
        if self.kind == "none":
            return x.to(dtype)
        # Bytes are exact in any precision; other values lose digits unless shifted before they are rounded.
        wide = dtype if x.dtype == torch.uint8 else torch.float64
        at = clients if self.kind == "client" else torch.zeros_like(clients[:1])
        shift, factor = (c.to(x.device)[at].unsqueeze(1).to(wide) for c in (self.shift, self.factor))
        return ((x.to(wide) - shift) * factor).to(dtype)


UNSCALED = Scale("none", torch.zeros(1), torch.ones(1))
