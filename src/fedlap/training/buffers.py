"""Buffers for the states that clients overwrite in a round."""

from functools import partial

import torch
from torch import Tensor

from fedlap.algorithms import GatheredRows, State
from fedlap.training.state import list_tensors, map_state


class BufferPool:
    """Buffers for a round's inputs; on a CPU they are reused in the next round.

    A CPU allocates large blocks page by page, which takes longer than filling them.
    """

    def __init__(self, device: torch.device) -> None:
        """Start without buffers, for states on this device."""
        self._reuses = device.type == "cpu"
        self._buffers: list[Tensor] = []
        self._used = 0

    def fill(self, inputs: State, stored: State, in_place: bool = False) -> State:
        """Copy tensors that alias stored state; return the others unchanged.

        Buffers of the round before are overwritten unless stored state uses them by now. `in_place`: a table
        whose rows are all gathered, in their order, is returned itself.
        """
        stored_pointers = {tensor.untyped_storage().data_ptr() for tensor in list_tensors(stored)}
        self._buffers = [b for b in self._buffers if b.untyped_storage().data_ptr() not in stored_pointers]
        self._used = 0
        return map_state(partial(self._fill_leaf, stored_pointers, in_place), inputs)

    def _fill_leaf(self, stored_pointers: set[int], in_place: bool, leaf: GatheredRows | Tensor) -> Tensor:
        if isinstance(leaf, GatheredRows):
            if in_place and len(leaf.ids) == len(leaf.table):
                return leaf.table
            shape = (len(leaf.ids), *leaf.table.shape[1:])
            return torch.index_select(leaf.table, 0, leaf.ids, out=self._take_buffer(shape, leaf.table))
        if leaf.is_contiguous() and leaf.untyped_storage().data_ptr() not in stored_pointers:
            return leaf
        return self._take_buffer(tuple(leaf.shape), leaf).copy_(leaf)

    def _take_buffer(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a buffer of this shape that is unused in this round."""
        if not self._reuses:
            return torch.empty(shape, dtype=like.dtype, device=like.device)
        # The first `_used` buffers are in use in this round.
        for position in range(self._used, len(self._buffers)):
            buffer = self._buffers[position]
            if buffer.shape == shape and buffer.dtype == like.dtype:
                self._buffers[position], self._buffers[self._used] = self._buffers[self._used], buffer
                break
        else:
            buffer = torch.empty(shape, dtype=like.dtype, device=like.device)
            self._buffers.insert(self._used, buffer)
        self._used += 1
        return buffer
