"""Rows that clients may write to while they work."""

from functools import partial

import torch
from torch import Tensor

from fedlap.algorithms import Own, State
from fedlap.training.state import leaves, mapped


class BufferPool:
    """Where those rows lie; on a CPU, memory that is used again in the next round.

    A CPU gets large blocks of new memory page by page, which takes longer than to fill them.
    """

    def __init__(self, device: torch.device) -> None:
        """For states that are on this device."""
        self._again = device.type == "cpu"
        self._blocks: list[Tensor] = []
        self._lent = 0

    def filled(self, states: State, kept: State, in_place: bool = False) -> State:
        """A copy of what is still in what is kept; the rest, made for this round, as it is.

        What was filled in the round before is overwritten, but for what is kept by now. `in_place`: tables of
        which all rows are asked for, in their order, are handed over themselves.
        """
        taken = {tensor.untyped_storage().data_ptr() for tensor in leaves(kept)}
        self._blocks = [block for block in self._blocks if block.untyped_storage().data_ptr() not in taken]
        self._lent = 0
        return mapped(partial(self._own, taken, in_place), states)

    def _own(self, taken: set[int], in_place: bool, leaf: Own | Tensor) -> Tensor:
        if isinstance(leaf, Own):
            if in_place and len(leaf.ids) == len(leaf.table):
                return leaf.table
            shape = (len(leaf.ids), *leaf.table.shape[1:])
            return torch.index_select(leaf.table, 0, leaf.ids, out=self._block(shape, leaf.table))
        if leaf.is_contiguous() and leaf.untyped_storage().data_ptr() not in taken:
            return leaf
        return self._block(tuple(leaf.shape), leaf).copy_(leaf)

    def _block(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory that nobody else has."""
        if not self._again:
            return torch.empty(shape, dtype=like.dtype, device=like.device)
        for place in range(self._lent, len(self._blocks)):
            block = self._blocks[place]
            if block.shape == shape and block.dtype == like.dtype:
                self._blocks[place], self._blocks[self._lent] = self._blocks[self._lent], block
                break
        else:
            block = torch.empty(shape, dtype=like.dtype, device=like.device)
            self._blocks.insert(self._lent, block)
        self._lent += 1
        return block
