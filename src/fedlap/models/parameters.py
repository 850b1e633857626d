"""Flat rows of parameters: their start, their tensors, and modules that hold them."""

import math
from collections.abc import Iterable
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlap.errors import real
from fedlap.models.model import Stack
from fedlap.randomness import draws

Shapes = list[tuple[int, ...]]


def size_of(shapes: Shapes) -> int:
    """Number of parameters."""
    return sum(math.prod(shape) for shape in shapes)


def uniform_start(seed: int, shapes: Shapes) -> Float[Tensor, "param"]:
    """Each tensor uniform in ±1/√fan-in, weights and their bias in pairs, as PyTorch's layers start."""
    stream, pieces = draws(seed, "start"), []
    for place, shape in enumerate(shapes):
        fan_in = math.prod(shapes[place - place % 2][1:])
        pieces.append((2 * stream.uniform(0, place, math.prod(shape)) - 1) / math.sqrt(fan_in))
    return torch.cat(pieces)


def views(W: Stack, shapes: Shapes) -> list[Tensor]:
    """The flat rows as tensors of these shapes, client axis first, sharing memory."""
    pieces = torch.split_with_sizes(W, sizes_of(tuple(shapes)), 1)
    return [
        piece if len(shape) == 1 else piece.view(W.shape[0], *shape)
        for piece, shape in zip(pieces, shapes, strict=True)
    ]


@cache
def sizes_of(shapes: tuple[tuple[int, ...], ...]) -> list[int]:
    """How many values each tensor has."""
    return [math.prod(shape) for shape in shapes]


def fill(parameters: Iterable[nn.Parameter], row: Float[Tensor, "param"]) -> None:
    """Copy a flat row into parameters, in their order."""
    parameters = list(parameters)
    shapes = [tuple(parameter.shape) for parameter in parameters]
    with torch.no_grad():
        for parameter, values in zip(parameters, views(row.unsqueeze(0), shapes), strict=True):
            parameter.copy_(values[0])


def assembled(layers: Iterable[nn.Module], row: Float[Tensor, "param"]) -> nn.Sequential:
    """Layers that were made on the meta device, where nothing is drawn, holding a copy of this row."""
    module = nn.Sequential(*layers).to_empty(device=row.device).to(row.dtype)
    fill(module.parameters(), row)
    return module


def check_l2(l2: float) -> None:
    """Refuse a weight of the L2 term that is negative or not finite."""
    real("l2", l2, zero=True, scope="model")
