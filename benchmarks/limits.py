"""Least time that a round needs on this machine, measured in the same process.

A round needs at least its arithmetic, at the rate of one large matrix product, and its memory traffic, at the
rate of a memory copy: every used sample is read once, and every client's model is read and written once.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch

import fedlap as fl

SIZE = 1536  # rows and columns of the matrices, 9.4 MB each
COPIED = 64_000_000  # float32 numbers, beyond any cache


@dataclass(frozen=True)
class Machine:
    """Rates of this machine with the current number of threads."""

    products: float  # floating-point operations per second
    bytes: float  # bytes read or written per second

    @staticmethod
    def measure(repeats: int = 2) -> "Machine":
        """Measure the rates; return the best of a few repeats."""
        a, b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
        one, other = torch.randn(COPIED), torch.empty(COPIED)
        product = min(_seconds(lambda: a @ b) for _ in range(repeats))
        copy = min(_seconds(lambda: other.copy_(one)) for _ in range(repeats))
        return Machine(2 * SIZE**3 / product, 2 * COPIED * 4 / copy)


@dataclass(frozen=True)
class Least:
    """Least work of a round."""

    products: float  # floating-point operations
    bytes: float

    def seconds(self, machine: Machine) -> tuple[float, str]:
        """Return the least time, and whether products or bytes limit it."""
        by_products, by_bytes = self.products / machine.products, self.bytes / machine.bytes
        return max((by_products, "products"), (by_bytes, "bytes"))


def least(federation: fl.Federation, widths: tuple[int, ...], samples: int, value_bytes: int = 4) -> Least:
    """Return the least work of a round on this number of samples, for a dense network with the given widths.

    The forward pass and the gradient by weights take two operations each per weight and sample; so does the
    gradient by inputs, in all layers but the first.
    """
    layers = [i * o for i, o in pairwise(widths)]
    operations = samples * (4 * sum(layers) + 2 * sum(layers[1:]))
    models = len(federation.clients) * (sum(layers) + sum(widths[1:]))
    return Least(operations, samples * widths[0] * value_bytes + 2 * 4 * models)


def _seconds(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began
