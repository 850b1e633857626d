"""Flat rows of parameters: initial values, views as tensors, and copies into modules."""

import math
from collections.abc import Iterable
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlap.errors import check_number
from fedlap.models.model import Stack
from fedlap.randomness import draws

Shapes = list[tuple[int, ...]]


def count_parameters(shapes: Shapes) -> int:
    """Number of parameters."""
    return sum(math.prod(shape) for shape in shapes)


def draw_uniform_start(seed: int, shapes: Shapes) -> Float[Tensor, "param"]:
    """Draw each tensor uniformly in ±1/√fan-in, a bias with its weight's fan-in, as PyTorch's layers do."""
    stream, pieces = draws(seed, "start"), []
    for place, shape in enumerate(shapes):
        fan_in = math.prod(shapes[place - place % 2][1:])
        pieces.append((2 * stream.uniform(0, place, math.prod(shape)) - 1) / math.sqrt(fan_in))
    return torch.cat(pieces)


def view_parameters(W: Stack, shapes: Shapes) -> list[Tensor]:
    """View flat rows as tensors with these shapes, client axis first, in shared memory."""
    pieces = torch.split_with_sizes(W, count_values(tuple(shapes)), 1)
    return [
        piece if len(shape) == 1 else piece.view(W.shape[0], *shape)
        for piece, shape in zip(pieces, shapes, strict=True)
    ]


@cache
def count_values(shapes: tuple[tuple[int, ...], ...]) -> list[int]:
    """Number of values of each tensor."""
    return [math.prod(shape) for shape in shapes]


def copy_row_into(parameters: Iterable[nn.Parameter], row: Float[Tensor, "param"]) -> None:
    """Copy a flat row into parameters, in their order."""
    parameters = list(parameters)
    shapes = [tuple(parameter.shape) for parameter in parameters]
    with torch.no_grad():
        for parameter, values in zip(parameters, view_parameters(row.unsqueeze(0), shapes), strict=True):
            parameter.copy_(values[0])


def build_sequential(layers: Iterable[nn.Module], row: Float[Tensor, "param"]) -> nn.Sequential:
    """Build a module from layers on the meta device, with a copy of this row as its parameters."""
    module = nn.Sequential(*layers).to_empty(device=row.device).to(row.dtype)
    copy_row_into(module.parameters(), row)
    return module


def check_l2(l2: float) -> None:
    """Raise InputError if the weight of the L2 term is negative or not finite."""
    check_number("l2", l2, zero=True, scope="model")
