"""Rounds on a GPU that are recorded once and then replayed, without Python in between."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from fedlap.algorithms import State
from fedlap.training.state import owned

# From what is kept and what is new in a round, to what is kept then, and something to remember.
Function = Callable[[State, State], tuple[State, Any]]


T = TypeVar("T")
BRANCHES = 8


class CudaGraph:
    """A function of tensors as a CUDA graph: what is kept is overwritten in place, round by round."""

    def __init__(self, function: Function, kept: State, inputs: State) -> None:
        """Record one round; what is kept is handed over.

        The function has run before, so that libraries have set themselves up.
        """
        self.kept, self._inputs = kept, owned(inputs)
        self._given = inputs
        self._function = function  # a recording knows tensors by address: those it holds must stay
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph):
            after, self.made = function(self.kept, self._inputs)
            _overwrite(self.kept, after, self.kept)

    def __call__(self, inputs: State) -> None:
        """Replay it with other inputs of the same shapes."""
        _overwrite(self._inputs, inputs, self._given)
        self._given = inputs
        self._graph.replay()


def side_by_side(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """What independent jobs give; while a GPU records, they become branches that run at the same time."""
    if len(jobs) == 1 or not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return [job() for job in jobs]
    here = torch.cuda.current_stream()
    branches = [torch.cuda.Stream() for _ in range(min(BRANCHES, len(jobs)))]
    made = []
    for branch in branches:
        branch.wait_stream(here)
    for place, job in enumerate(jobs):
        with torch.cuda.stream(branches[place % len(branches)]):
            made.append(job())
    for branch in branches:
        here.wait_stream(branch)
    return made


def _overwrite(old: State, new: State, known: State) -> None:
    """Copy the new values into the old tensors, but for those that are known to be there."""
    if isinstance(old, tuple):
        for each in zip(old, new, known, strict=True):
            _overwrite(*each)
    elif old is not None and new is not known:
        old.copy_(new)
