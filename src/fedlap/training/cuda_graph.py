"""Rounds on a GPU that are captured once and then replayed without Python in between."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from fedlap.algorithms import State
from fedlap.training.state import copy_state

# From the stored state and the inputs of a round to the next state and an output.
RoundFunction = Callable[[State, State], tuple[State, Any]]


T = TypeVar("T")
MAX_BRANCHES = 8  # parallel streams of a captured round


class CudaGraph:
    """A captured function of tensors; every replay overwrites the stored state in place."""

    def __init__(self, function: RoundFunction, state: State, inputs: State) -> None:
        """Capture one round and take ownership of the state.

        The function must have run before, so that libraries are initialised.
        """
        self.state, self._inputs = state, copy_state(inputs)
        self._last_inputs = inputs
        # A graph refers to tensors by address, so those that the function holds must stay allocated.
        self._function = function
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph):
            after, self.output = function(self.state, self._inputs)
            _overwrite(self.state, after, self.state)

    def __call__(self, inputs: State) -> None:
        """Replay the round with other inputs of the same shapes."""
        _overwrite(self._inputs, inputs, self._last_inputs)
        self._last_inputs = inputs
        self._graph.replay()


def run_in_branches(functions: Sequence[Callable[[], T]]) -> list[T]:
    """Run independent functions; during a capture they become branches that a GPU runs concurrently."""
    if len(functions) == 1 or not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return [function() for function in functions]
    here = torch.cuda.current_stream()
    branches = [torch.cuda.Stream() for _ in range(min(MAX_BRANCHES, len(functions)))]
    results = []
    for branch in branches:
        branch.wait_stream(here)
    for position, function in enumerate(functions):
        with torch.cuda.stream(branches[position % len(branches)]):
            results.append(function())
    for branch in branches:
        here.wait_stream(branch)
    return results


def _overwrite(old: State, new: State, unchanged: State) -> None:
    """Copy new values into the old tensors, except for those that are the very tensors in `unchanged`."""
    if isinstance(old, tuple):
        for parts in zip(old, new, unchanged, strict=True):
            _overwrite(*parts)
    elif old is not None and new is not unchanged:
        old.copy_(new)
