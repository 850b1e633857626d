"""What the machine can do, measured in the same run: the least time that a round could take.

A round needs at least its products, at the rate of one large product of matrices, and its bytes, at the rate
of copying memory: every sample that is used is read once, and every client's model read and written once.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch

import fedlap as fl

SIZE = 1536  # of the matrices, 9.4 MB each
COPIED = 64_000_000  # float32 numbers, beyond any cache


@dataclass(frozen=True)
class Machine:
    """Rates of this machine with these threads."""

    products: float  # floating-point operations a second
    bytes: float  # read or written a second

    @staticmethod
    def measured(repeats: int = 2) -> "Machine":
        """The best of a few tries."""
        a, b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
        one, other = torch.randn(COPIED), torch.empty(COPIED)
        product = min(_seconds(lambda: a @ b) for _ in range(repeats))
        copy = min(_seconds(lambda: other.copy_(one)) for _ in range(repeats))
        return Machine(2 * SIZE**3 / product, 2 * COPIED * 4 / copy)


@dataclass(frozen=True)
class Least:
    """What a round cannot do without."""

    products: float  # floating-point operations
    bytes: float

    def seconds(self, machine: Machine) -> tuple[float, str]:
        """The least time, and what limits it."""
        by_products, by_bytes = self.products / machine.products, self.bytes / machine.bytes
        return max((by_products, "products"), (by_bytes, "bytes"))


def least(federation: fl.Federation, widths: tuple[int, ...], samples: int, value_bytes: int = 4) -> Least:
    """Of a round on so many samples, with a dense network of these widths.

    Forward and by weights, two operations each for every weight and sample; by what enters a layer, for all
    but the first.
    """
    layers = [i * o for i, o in pairwise(widths)]
    operations = samples * (4 * sum(layers) + 2 * sum(layers[1:]))
    models = len(federation.clients) * (sum(layers) + sum(widths[1:]))
    return Least(operations, samples * widths[0] * value_bytes + 2 * 4 * models)


def _seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
