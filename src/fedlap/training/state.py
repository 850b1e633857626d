"""Rows of what servers and clients keep: a tensor, a tuple of such, or None."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedlap.algorithms import Own, Rows, State


def mapped(function: Callable[[Any], Any], state: State) -> State:
    """The function of every leaf."""
    if state is None:
        return None
    if isinstance(state, tuple):
        return tuple(mapped(function, part) for part in state)
    return function(state)


def shapes(state: State) -> Any:
    """Its structure, with the shape and type of every tensor."""
    return mapped(lambda tensor: (tuple(tensor.shape), str(tensor.dtype)), state)


def rows(state: State, ids: Tensor) -> State:
    """Some clients' rows, as a copy that may be written to."""
    return mapped(lambda tensor: tensor.index_select(0, ids), state)


def read(state: State) -> State:
    """The same with `Own` rows read."""
    return mapped(lambda leaf: leaf.table.index_select(0, leaf.ids) if isinstance(leaf, Own) else leaf, state)


def owned(state: State) -> State:
    """A copy that may be written to."""
    return mapped(_copy, state)


def leaves(state: State) -> list[Tensor]:
    """All its tensors."""
    if state is None:
        return []
    if isinstance(state, tuple):
        return [tensor for part in state for tensor in leaves(part)]
    return [state]


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def joined(states: Sequence[State]) -> State:
    """Stacks one below the other; rows of unequal length are filled up with zeros."""
    first = states[0]
    if first is None or len(states) == 1:
        return first
    if isinstance(first, tuple):
        return tuple(joined(parts) for parts in zip(*states, strict=True))
    if len(shapes := {state.shape[1:] for state in states}) == 1:
        return torch.cat(list(states))
    longest = [max(lengths) for lengths in zip(*shapes, strict=True)]
    whole = first.new_zeros(sum(len(state) for state in states), *longest)
    for state, own in zip(states, whole.split([len(state) for state in states]), strict=True):
        cut(own, state).copy_(state)
    return whole


def cut(rows: Tensor, like: Tensor) -> Tensor:
    """As much of each of these rows as one of the others holds."""
    return rows[(slice(None), *map(slice, like.shape[1:]))]


def beside(state: State, other: State) -> State:
    """The same, each tensor on the device of the other's."""
    if isinstance(state, tuple):
        return tuple(beside(s, o) for s, o in zip(state, other, strict=True))
    return state if state is None else state.to(other.device)


def moved(state: State, device: torch.device) -> State:
    """The same on a device; from a host to a device without waiting for it."""
    return mapped(lambda tensor: tensor.to(device, non_blocking=tensor.is_pinned()), state)


def pieces(state: State, sizes: Sequence[int]) -> list[State]:
    """A stack cut into stacks of these sizes, which share its memory."""
    if state is None:
        return [None] * len(sizes)
    if isinstance(state, tuple):
        return [tuple(parts) for parts in zip(*(pieces(part, sizes) for part in state), strict=True)]
    return list(state.split(list(sizes)))


def written(old: State, new: State) -> State:
    """The new state; where it is `Rows`, they are written into the old one, so that cost goes with them.

    Rows of clients that worked in place are there already.
    """
    if isinstance(new, Rows):
        if new.values.shape == old.shape and new.values.data_ptr() == old.data_ptr():
            return old
        return old.index_copy_(0, new.ids, new.values)
    if isinstance(new, tuple):
        return tuple(written(o, n) for o, n in zip(old, new, strict=True))
    return new


def nbytes(state: State) -> int:
    """Bytes that sending it takes."""
    if state is None:
        return 0
    if isinstance(state, tuple):
        return sum(nbytes(part) for part in state)
    if isinstance(state, Own):
        return state.ids.numel() * math.prod(state.table.shape[1:]) * state.table.element_size()
    return int(state.numel() * state.element_size())
