"""Bytes that cross the wire in a round."""

from collections.abc import Sequence
from typing import NamedTuple

from fedlap.algorithms import State
from fedlap.training.state import count_bytes


class Traffic(NamedTuple):
    """Bytes uploaded and downloaded by clients."""

    up: int
    down: int

    def add(self, other: "Traffic") -> "Traffic":
        """Return the sum of both."""
        return Traffic(self.up + other.up, self.down + other.down)


def count_traffic(down: Sequence[State], up: Sequence[State]) -> list[Traffic]:
    """Count the bytes of the messages to and from the clients of each run."""
    return [Traffic(count_bytes(u), count_bytes(d)) for d, u in zip(down, up, strict=True)]
