"""Buffers for the models that clients train in a round."""

from functools import partial

import torch
from torch import Tensor

from fedlap.algorithms import GatheredRows, State
from fedlap.training.state import map_state


class BufferPool:
    """Buffers for a round's models; on a CPU they are reused in the next round.

    A CPU allocates large blocks page by page, which takes longer than filling them.
    """

    def __init__(self, device: torch.device) -> None:
        """Start without buffers, for states on this device."""
        self.device, self._reuses = device, device.type == "cpu"
        self._buffers: list[Tensor] = []
        self._used = 0

    def start_round(self) -> None:
        """Release the buffers of the round before; no stored state uses them (see `ManyRuns.merge`)."""
        self._used = 0

    def gather(self, inputs: State, in_place: bool = False) -> State:
        """Gather rows of tables; return other tensors unchanged.

        `in_place`: a table whose rows are all gathered, in their order, is returned itself.
        """
        return map_state(partial(self._gather_leaf, in_place), inputs)

    def copy(self, tensor: Tensor) -> Tensor:
        """Return a contiguous copy that may be overwritten."""
        return self._take_buffer(tuple(tensor.shape), tensor).copy_(tensor)

    def _gather_leaf(self, in_place: bool, leaf: GatheredRows | Tensor) -> Tensor:
        if not isinstance(leaf, GatheredRows):
            return leaf
        if in_place and len(leaf.ids) == len(leaf.table):
            return leaf.table
        shape = (len(leaf.ids), *leaf.table.shape[1:])
        return torch.index_select(leaf.table, 0, leaf.ids, out=self._take_buffer(shape, leaf.table))

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
