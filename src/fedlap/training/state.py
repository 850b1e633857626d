"""Operations on state and messages: a tensor, a tuple of states (a NamedTuple stays one), or None."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlap.algorithms import GatheredRows, RowUpdate, State
from fedlap.training.branches import run_in_branches


def rebuild_tuple(like: tuple[Any, ...], parts: Iterable[Any]) -> Any:
    """Return the parts as a tuple of the type of `like`."""
    make: Callable[[Iterable[Any]], Any] = getattr(type(like), "_make", tuple)
    return make(parts)


def map_state(function: Callable[[Any], Any], state: State) -> State:
    """Apply a function to every leaf and return the results in the same structure."""
    if state is None:
        return None
    if isinstance(state, tuple):
        return rebuild_tuple(state, (map_state(function, part) for part in state))
    return function(state)


def describe_shapes(state: State) -> Any:
    """Return the structure, with the shape and dtype of every tensor."""
    return map_state(lambda tensor: (tuple(tensor.shape), str(tensor.dtype)), state)


def gather_rows(state: State, ids: Tensor) -> State:
    """Return a writable copy of the rows of clients `ids`."""
    return map_state(lambda tensor: tensor.index_select(0, ids), state)


def gather_lazy_rows(state: State) -> State:
    """Gather the rows that `GatheredRows` leaves refer to; return other leaves unchanged."""
    return map_state(
        lambda leaf: leaf.table.index_select(0, leaf.ids) if isinstance(leaf, GatheredRows) else leaf, state
    )


def copy_state(state: State) -> State:
    """Return a writable, contiguous copy."""
    return map_state(_copy, state)


def list_leaves(state: State) -> list[Any]:
    """Return all leaves of a state: tensors, or rows to gather or to write."""
    if state is None:
        return []
    if isinstance(state, tuple):
        return [leaf for part in state for leaf in list_leaves(part)]
    return [state]


def list_tensors(state: State) -> list[Tensor]:
    """Return all tensors of a state that has no other leaves."""
    return list_leaves(state)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def concatenate_states(states: Sequence[State]) -> State:
    """Concatenate states along the client axis, padding shorter rows with zeros."""
    first = states[0]
    if first is None or len(states) == 1:
        return first
    if isinstance(first, tuple):
        return rebuild_tuple(first, (concatenate_states(parts) for parts in zip(*states, strict=True)))
    if len(row_shapes := {state.shape[1:] for state in states}) == 1:
        return torch.cat(list(states))
    longest = [max(lengths) for lengths in zip(*row_shapes, strict=True)]
    padded = first.new_zeros(sum(len(state) for state in states), *longest)
    for state, target in zip(states, padded.split([len(state) for state in states]), strict=True):
        trim_rows(target, state).copy_(state)
    return padded


def trim_rows(rows: Tensor, like: Tensor) -> Tensor:
    """Return each row without the padding that rows of `like` do not have."""
    return rows[(slice(None), *map(slice, like.shape[1:]))]


def match_types(state: State, other: State) -> State:
    """Return the state with the types of tuples that `other` has."""
    if isinstance(state, tuple):
        return rebuild_tuple(other, (match_types(s, o) for s, o in zip(state, other, strict=True)))
    return state


def match_devices(state: State, other: State) -> State:
    """Return the state with the types of tuples and the devices of tensors that `other` has."""
    if isinstance(state, tuple):
        return rebuild_tuple(other, (match_devices(s, o) for s, o in zip(state, other, strict=True)))
    return state if state is None else state.to(other.device)


def to_device(state: State, device: torch.device) -> State:
    """Return the state on a device; pinned tensors are copied asynchronously."""
    return map_state(lambda tensor: tensor.to(device, non_blocking=tensor.is_pinned()), state)


def split_state(state: State, sizes: Sequence[int]) -> list[State]:
    """Split a stack along the client axis into views of the given sizes."""
    if state is None:
        return [None] * len(sizes)
    if isinstance(state, tuple):
        parts_of_sizes = zip(*(split_state(part, sizes) for part in state), strict=True)
        return [rebuild_tuple(state, parts) for parts in parts_of_sizes]
    return list(state.split(list(sizes)))


def scatter_rows(old: State, new: State) -> State:
    """Return the new state; a `RowUpdate` is scattered into the old table, at the cost of its rows alone.

    Rows that clients updated in place need no copy.
    """
    if isinstance(new, RowUpdate):
        table = old.values
        if new.values.shape != table.shape or new.values.data_ptr() != table.data_ptr():
            table.index_copy_(0, new.ids, new.values)
        return old
    if isinstance(new, tuple):
        return rebuild_tuple(new, (scatter_rows(o, n) for o, n in zip(old, new, strict=True)))
    return new


def copy_aliases(state: State, messages: State) -> State:
    """Return the state with copies of the tensors that share memory with messages, which is reused."""
    leaves = [leaf for leaf in list_leaves(state) if isinstance(leaf, Tensor)]
    if not leaves:
        return state
    pointers = {tensor.untyped_storage().data_ptr() for tensor in list_tensors(messages)}
    if pointers.isdisjoint(leaf.untyped_storage().data_ptr() for leaf in leaves):
        return state

    def copy_alias(leaf: Any) -> Any:
        aliased = isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() in pointers
        return _copy(leaf) if aliased else leaf

    return map_state(copy_alias, state)


def apply_updates(old: Sequence[State], new: Sequence[State]) -> list[State]:
    """Return the new state of each run, with every `RowUpdate` written into its table."""
    if len(old) == 1:
        return [scatter_rows(old[0], new[0])]
    return run_in_branches([partial(scatter_rows, *states) for states in zip(old, new, strict=True)])


def count_bytes(state: State) -> int:
    """Return the bytes that sending a state takes."""
    if state is None:
        return 0
    if isinstance(state, tuple):
        return sum(count_bytes(part) for part in state)
    if isinstance(state, GatheredRows):
        return state.ids.numel() * math.prod(state.table.shape[1:]) * state.table.element_size()
    return int(state.numel() * state.element_size())


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
