"""Rows of many clients, and the units their features are in."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor

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


@dataclass(frozen=True, eq=False)
class Scale:
    """x ← (x − shift) · factor, with one row of constants for all clients or one for each."""

    kind: Scaling
    shift: Float[Tensor, "constants ..."]
    factor: Float[Tensor, "constants ..."]

    def apply(
        self, x: Num[Tensor, "client batch *feature"], clients: Int64[Tensor, "client"], dtype: torch.dtype
    ) -> Float[Tensor, "client batch *feature"]:
        """Raw features of these clients in the units that models see."""
        if self.kind == "none":
            return x.to(dtype)
        at = clients if len(self.shift) > 1 else torch.zeros_like(clients[:1])
        shift, factor = (
            constants.to(x.device)[at].unsqueeze(1).to(dtype) for constants in (self.shift, self.factor)
        )
        return (x.to(dtype) - shift) * factor


UNSCALED = Scale("none", torch.zeros(1), torch.ones(1))
