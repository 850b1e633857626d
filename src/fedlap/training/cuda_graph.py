"""Rounds on a GPU that are captured once and then replayed without Python in between."""

import gc
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from fedlap.algorithms import State
from fedlap.training.cohorts import RoundCohort
from fedlap.training.engines import Engine, Stacked
from fedlap.training.stacking import ManyRuns
from fedlap.training.state import Traffic, apply_updates, copy_state, list_tensors

MIN_CAPTURED_ROUNDS = 4  # fewer rounds finish before a capture pays off

# From the stored state and the inputs of a round to the next state and an output.
StateFunction = Callable[[State, State], tuple[State, Any]]
Played = tuple[Sequence[State], list[Traffic]]
PlayRound = Callable[[ManyRuns, Engine, Sequence[State], int, Any], Played]


class CudaGraph:
    """A captured function of tensors; every replay overwrites the stored state in place."""

    def __init__(self, function: StateFunction, state: State, inputs: State) -> None:
        """Capture one round and take ownership of the state.

        The function must have run before, so that libraries are initialised.
        """
        self.state, self._inputs = state, copy_state(inputs)
        self._last_inputs = inputs
        # A graph refers to tensors by address, so those that the function holds must stay allocated.
        self._function = function
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        collects = gc.isenabled()
        gc.disable()  # The collector could destroy an older graph, which would end the capture.
        try:
            with torch.cuda.graph(self._graph):
                after, self.output = function(self.state, self._inputs)
                _overwrite(self.state, after, self.state)
        finally:
            if collects:
                gc.enable()

    def __call__(self, inputs: State) -> None:
        """Replay the round with other inputs of the same shapes."""
        _overwrite(self._inputs, inputs, self._last_inputs)
        self._last_inputs = inputs
        self._graph.replay()


def capture_rounds(play: PlayRound, engine: Engine, rounds: int) -> PlayRound:
    """Return `play` for this many rounds, of which all but the first are replayed where that is possible.

    A whole round is captured if every operation of it is static, else the merges of several runs.
    """
    if not isinstance(engine, Stacked) or rounds < MIN_CAPTURED_ROUNDS:
        return play
    if not (engine.can_capture_rounds or engine.can_capture_merges):
        return play
    graph: CudaGraph | None = None
    merging: ManyRuns | None = None
    played = 0

    def play_round(method: ManyRuns, engine: Any, server: Sequence[State], round: int, cohort: Any) -> Played:
        nonlocal graph, merging, played
        played += 1
        if played == 1:
            return play(method, engine, server, round, cohort)
        if engine.can_capture_rounds:
            graph = graph or capture_round(play, method, engine, server, cohort)
            graph(cohort.collect_tensors())
            engine.sampler.prepare(round + 1)  # The host draws the next round while the device computes.
            return graph.state[0], graph.output
        if list_tensors(tuple(server)):
            merging = merging or ManyRuns(method.runs, MergeGraph(method, engine))
            return play(merging, engine, server, round, cohort)
        return play(method, engine, server, round, cohort)

    return play_round


def capture_round(
    play: PlayRound, method: ManyRuns, engine: Stacked, server: Sequence[State], cohort: RoundCohort
) -> CudaGraph:
    """Capture a round; it replays with the tensors of another round's cohort."""

    def play_tensors(states: State, tensors: State) -> tuple[State, list[Traffic]]:
        before, engine.private = states
        after, traffic = play(method, engine, before, cohort.task.round, cohort.with_tensors(tensors))
        return (tuple(after), tuple(engine.private)), traffic

    states = engine.copy_states(server)
    graph = CudaGraph(play_tensors, states, cohort.collect_tensors())
    engine.private = graph.state[1]
    return graph


class MergeGraph:
    """The merges of several runs, replayed as one CUDA graph where their local work cannot be captured."""

    def __init__(self, method: ManyRuns, engine: Stacked) -> None:
        """Store the runs; the first call captures their merges."""
        self._method, self._engine = method, engine
        self._graph: CudaGraph | None = None

    def __call__(self, server: Sequence[State], ids: Sequence[Any], up: Sequence[State]) -> list[State]:
        """Return the next server state of each run."""
        inputs = (tuple(ids), tuple(up))
        if self._graph is None:
            servers, self._engine.private = self._engine.copy_states(server)
            self._graph = CudaGraph(partial(merge_tensors, self._method), servers, inputs)
        self._graph(inputs)
        return list(self._graph.state)


def merge_tensors(method: ManyRuns, server: State, inputs: State) -> tuple[State, None]:
    """Merge all runs, as a function that can be captured."""
    return tuple(apply_updates(server, method.merge(server, *inputs))), None


def _overwrite(old: State, new: State, unchanged: State) -> None:
    """Copy new values into the old tensors, except for those that are the very tensors in `unchanged`."""
    if isinstance(old, tuple):
        for parts in zip(old, new, unchanged, strict=True):
            _overwrite(*parts)
    elif old is not None and new is not unchanged:
        old.copy_(new)
