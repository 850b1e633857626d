"""Engines own the clients: their rows, their private state, the sampler, and where they run.

`Stacked` runs all clients of a cohort at once. `OneByOne` in `one_by_one.py` is the plain reference, and
tests hold `Stacked` to it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from fedlap.algorithms import (
    Algorithm,
    Certified,
    GatheredRows,
    PartlyStatic,
    Penalised,
    State,
    Task,
    adapt_models,
    is_adapting,
)
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.server_state import Ids
from fedlap.data.client_rows import ClientRows
from fedlap.training.branches import is_capturing, run_in_branches
from fedlap.training.buffers import BufferPool
from fedlap.training.cohorts import CohortDraws, CohortPlanner, RoundCohort
from fedlap.training.placement import PlacedClients, check_models
from fedlap.training.run_tables import CohortIndex, RunTables
from fedlap.training.scores import Tally
from fedlap.training.stacking import ManyRuns
from fedlap.training.state import (
    Traffic,
    concatenate_states,
    count_bytes,
    gather_rows,
    map_state,
    split_state,
    to_device,
)
from fedlap.training.task import StackTask

MAX_CAPTURED_STEPS = 4_000  # per round


@dataclass(frozen=True, eq=False)
class Replies:
    """The clients of each run that have answered, and their uploads."""

    ids: list[Any]  # of Ids, whose numbers differ
    up: list[State]


@dataclass(frozen=True, eq=False)
class Tallies:
    """Everything that the scores of a run are computed from; sums over rows, never rows."""

    train: Tally | None  # None if the training rows were not scored
    test: Tally
    is_finite: Bool[Tensor, "client"]  # whether all parameters of each client's model are finite
    ridge: Float64[Tensor, "client"] | None  # the L2 term of each client's model; None without `train`
    penalty: float | None  # the term that the method adds to J(W); None without `train`
    gap: float | None  # the duality gap, if the method computes it; None without `train`


@runtime_checkable
class SampledClients(Protocol):
    """The cohort of a round."""

    @property
    def ids(self) -> list[Any]:
        """The sampled clients (Ids) of each run."""
        ...


@runtime_checkable
class Sampler(Protocol):
    """Draws the cohort of each round."""

    def draw(self, round: int) -> SampledClients:
        """Return the cohort of a round: a pure function of seed and round."""
        ...


@runtime_checkable
class Engine(Protocol):
    """Executes the work of clients; methods know nothing of devices or processes."""

    @property
    def sampler(self) -> Sampler:
        """The sampler of the clients."""
        ...

    def local(self, method: ManyRuns, round: int, cohort: Any, down: Sequence[State] | None) -> Replies:
        """Run the local work of a cohort, which has received `down`."""
        ...

    def mix(self, method: ManyRuns, round: int, up: Sequence[State]) -> list[Traffic]:
        """Run all exchanges between peers in a round, whose first messages are `up`."""
        ...

    def score(self, method: ManyRuns, server: Sequence[State], training: bool) -> list[Tallies]:
        """Tally every client's model on its test rows and, if `training`, on its training rows, per run."""
        ...

    def models(self, method: ManyRuns, server: Sequence[State]) -> list[Tensor]:
        """Return the models that the clients of each run are scored with."""
        ...

    def gather_states(self, server: Sequence[State]) -> tuple[Sequence[State], Sequence[State]]:
        """Return the server state and the private state of each run, with the rows of all clients."""
        ...

    def wait(self) -> None:
        """Wait until all work on a device has finished."""
        ...

    def close(self) -> None:
        """Release all that the engine has in other processes."""
        ...


@runtime_checkable
class LeadingEngine(Engine, Protocol):
    """An engine that plays rounds itself, as its clients merge where they are."""

    def play(
        self, method: ManyRuns, engine: Engine, server: Sequence[State], round: int, cohort: Any, /
    ) -> tuple[Sequence[State], list[Traffic]]:
        """Play one round and return the new server state and the traffic of each run."""
        ...


class Stacked:
    """All clients of a cohort, of all runs, are one stack: every operation runs over the client axis.

    method: the runs. clients: the clients that train. scored: the clients that are scored.
    home: where states are stored between rounds, the device or the host. last: the last round.
    """

    def __init__(
        self,
        method: ManyRuns,
        clients: PlacedClients,
        scored: PlacedClients,
        work: LocalWork,
        home: torch.device,
        last: int,
    ) -> None:
        """Prepare the kernels, the buffers and the sampler; `load` sets the private state."""
        steps = work.count_steps(int(clients.train.count.max()), clients.batch)
        same = scored is clients
        self.clients = clients.prepare(steps)
        self.scored = self.clients if same else scored
        self.home, self.work = home, work
        self.private: Sequence[State] = ()
        self._method, self._steps = method, steps
        self._buffers = BufferPool(home)
        how = {"on_device": self.can_capture_rounds, "in_place": self._trains_in_place}
        draws = CohortDraws(method.runs, self.clients, work, home, self._buffers, **how)
        self.sampler = CohortPlanner(draws, last)
        self._tables = RunTables([run.cohort_size for run in method.runs])
        self._shared: tuple[CohortIndex | None, Any] = (None, None)

    def load(self, server: Sequence[State], private: Sequence[State]) -> Sequence[State]:
        """Store the private state of each run and return the server states; several runs share tables."""
        self.private = private
        if len(private) > 1:
            server, self.private = self.copy_states(server)
        return server

    def copy_states(self, server: Sequence[State]) -> tuple[tuple[State, ...], tuple[State, ...]]:
        """Copy the server states and the private states of all runs into shared, writable tables."""
        states = self._tables.contiguous_copy(list(zip(server, self.private, strict=True)))
        servers, private = zip(*states, strict=True)
        return servers, private

    # The work of a round.

    def local(
        self, method: ManyRuns, round: int, cohort: RoundCohort, down: Sequence[State] | None
    ) -> Replies:
        """Gather the cohort's rows of all states, run its local work, and scatter its private state."""
        index = cohort.index
        private = [
            describe_rows(state, ids) for state, ids in zip(self.private, index.ids_per_run, strict=True)
        ]
        inputs = list(zip(private, down or [None] * len(private), strict=True))
        self._buffers.start_round()
        if len(inputs) == 1:
            rows = self._buffers.gather(inputs[0], self._trains_in_place)
        else:
            rows = self._tables.gather(inputs, index)
        shared = self._share_settings(method, index)
        outputs = to_device(shared.local(*to_device(rows, self.clients.device), cohort.task), self.home)
        private_rows, up = outputs if index.inverse is None else gather_rows(outputs, index.inverse)
        if self.clients.device.type == "cpu" or not is_capturing():
            self.sampler.prepare(round + 1)  # The host draws the next round while the device computes.
        if private_rows is not None:
            self.private = self._tables.scatter(self.private, index, private_rows)
        return Replies(index.ids_per_run, split_state(up, index.sizes))

    def mix(self, method: ManyRuns, round: int, up: Sequence[State]) -> list[Traffic]:
        """Mix all peers of a run by products with the Laplacian."""
        peers: Any = [run.algorithm for run in method.runs]
        mixes = [partial(peer.mix_all, private) for peer, private in zip(peers, self.private, strict=True)]
        self.private = tuple(run_in_branches(mixes))
        return count_exchanged(method, up)

    def _share_settings(self, method: ManyRuns, index: CohortIndex) -> Any:
        """Return the method of the cohort's local work; settings depend on the order of clients alone."""
        known, shared = self._shared
        if shared is None or known is None or known.order is not index.order or known.sizes != index.sizes:
            like = torch.empty(0, dtype=self.clients.dtype, device=self.home)
            shared = method.share_settings(index, like, self.clients.device)
            self._shared = index, shared
        return shared

    # Models and scores.

    def models(self, method: ManyRuns, server: Sequence[State]) -> list[Tensor]:
        """Return the models that clients are scored with, run by run, adapted where the method does so."""
        return self.adapt(method, method.personal_models(server, self.private, self._scored_sizes))

    def adapt(self, method: ManyRuns, models: list[Tensor]) -> list[Tensor]:
        """Return the models that clients are scored with, from the personal models of each run."""
        self._check_returned(models, "personal_models")
        if is_adapting(self._algorithm):
            models = list(self._map_scored(adapt_models, method, (_stack(models),)).split(self._scored_sizes))
            self._check_returned(models, "adapt")
        return models

    def score(self, method: ManyRuns, server: Sequence[State], training: bool) -> list[Tallies]:
        """Tally all clients in one call, or in blocks of clients and rows."""
        tallies = self.tally(method, self.models(method, server), training)
        if not training:
            return tallies
        penalties = [
            compute_penalty(run.algorithm, state, private)
            for run, state, private in zip(method.runs, server, self.private, strict=True)
        ]
        return [replace(sums, penalty=value) for sums, value in zip(tallies, penalties, strict=True)]

    def tally(self, method: ManyRuns, models: Sequence[Tensor], training: bool) -> list[Tallies]:
        """Tally the clients of each run with these models; without the penalty, which is no sum over rows."""
        W, sizes = _stack(models), self._scored_sizes
        test = self._tally(W, self.scored.test).split(sizes)
        finite = [find_finite_models(of_run) for of_run in models]
        if not training:
            return [Tallies(None, *sums, None, None, None) for sums in zip(test, finite, strict=True)]
        train = self._tally(W, self.scored.train).split(sizes)
        gaps: list[float | None] = [None] * len(sizes)
        if isinstance(self._algorithm, Certified):
            gap = self._map_scored(_compute_gap, method, (concatenate_states(self.private), W))
            gaps = [float(of_run.sum()) for of_run in gap.double().split(sizes)]
        ridges = [compute_ridge(self.clients.model, of_run) for of_run in models]
        nothing = [None] * len(sizes)
        return [Tallies(*sums) for sums in zip(train, test, finite, ridges, nothing, gaps, strict=True)]

    def gather_states(self, server: Sequence[State]) -> tuple[Sequence[State], Sequence[State]]:
        """Return the server state and the private state of each run."""
        return server, self.private

    def close(self) -> None:
        """Return at once: the engine has no other processes."""

    def wait(self) -> None:
        """Wait until all work on a device has finished."""
        if self.clients.device.type == "cuda":
            torch.cuda.synchronize(self.clients.device)

    @property
    def _algorithm(self) -> Any:
        return self._method.runs[0].algorithm

    @cached_property
    def _scored_sizes(self) -> list[int]:
        """The number of scored clients of each run."""
        return torch.bincount(self.scored.run, minlength=len(self._method.runs)).tolist()

    def _tally(self, W: Float[Tensor, "client param"], client_rows: ClientRows) -> Tally:
        fused = self.scored.fused
        tally = None if fused is None else fused.tally(W, client_rows)
        return self.scored.tally(W, client_rows, torch.arange(len(W))) if tally is None else tally

    def _map_scored(
        self, function: Callable[..., Tensor], method: ManyRuns, states: tuple[State, ...]
    ) -> Tensor:
        """Apply a function of method, states and task to all scored clients; keep their order.

        It draws nothing.
        """
        clients = self.scored
        ids = clients.sort_by_count(torch.arange(sum(self._scored_sizes)))
        on_device = clients.copy_to_device(ids)
        places = ids if on_device is clients else torch.arange(len(ids))
        task = StackTask(on_device, on_device.build_cohort(places), 0, LocalWork(1, False))
        at = ids.to(self.home)
        like = torch.empty(0, dtype=clients.dtype, device=self.home)
        index = CohortIndex(at, tuple(self._scored_sizes), at)
        shared = method.share_settings(index, like, clients.device)
        inputs = to_device(tuple(gather_rows(state, at) for state in states), clients.device)
        outputs: Tensor = to_device(function(shared, *inputs, task), self.home)
        return torch.empty_like(outputs).index_copy_(0, at, outputs)

    def _check_returned(self, models: Sequence[Tensor], ability: str) -> None:
        """Raise InputError unless a method has returned one model per client of each run."""
        name = f"the return value of {type(self._algorithm).__name__}.{ability}"
        for W, size in zip(models, self._scored_sizes, strict=True):
            check_models(name, W, size, self.clients.model, self.clients.dtype)

    # What is possible on this device.

    @cached_property
    def can_capture_rounds(self) -> bool:
        """Return whether every round is the same sequence of operations on tensors that stay on a GPU."""
        sampled = any(run.is_sampled for run in self._method.runs)
        resident = self.clients.train.store.device == self.home
        # Epochs of sampled clients, and batch norms, read sizes of batches on the host.
        static = not (self.work.epochs and sampled) and not self.clients.model.is_batch_dependent
        return self._is_capturable and resident and static and self._steps <= MAX_CAPTURED_STEPS

    @property
    def can_capture_merges(self) -> bool:
        """Return whether at least merging several runs is the same sequence of operations on a GPU."""
        several = len(self._method.runs) > 1 and self._method.has_server
        return self._is_capturable and not self.can_capture_rounds and several

    @property
    def _is_capturable(self) -> bool:
        runs = self._method.runs
        static = all(r.algorithm.is_static for r in runs if isinstance(r.algorithm, PartlyStatic))
        return self._method.traits.is_capturable and static and self.home.type == "cuda"

    @cached_property
    def _trains_in_place(self) -> bool:
        """Return whether clients on a CPU may overwrite the server's table.

        All clients then take equally many steps, in the order of the table.
        """
        runs = self._method.runs
        full = self.clients.train.store.device == self.clients.device and not runs[0].is_sampled
        on_host = self.clients.device.type == "cpu" and full and not self.work.epochs
        return on_host and len(runs) == 1 and not self._method.traits.reads_old_rows


def count_exchanged(method: ManyRuns, up: Sequence[State]) -> list[Traffic]:
    """Count the bytes that the peers of each run exchange in a round, from their first messages.

    Every message is sent by a client and to a client, and all have the same size.
    """
    peers: Any = [run.algorithm for run in method.runs]
    sizes = [count_bytes(messages) // run.size for run, messages in zip(method.runs, up, strict=True)]
    sent = [peer.count_messages() * size for peer, size in zip(peers, sizes, strict=True)]
    return [Traffic(number, number) for number in sent]


def compute_penalty(algorithm: Algorithm, server: State, private: State) -> float:
    """Return the term that the method adds to J(W)."""
    return float(algorithm.penalty(server, private)) if isinstance(algorithm, Penalised) else 0.0


def compute_ridge(model: Any, W: Float[Tensor, "client param"]) -> Float64[Tensor, "client"]:
    """Return the L2 term of each client's model."""
    return model.ridge(W.double()).cpu() if model.l2 else torch.zeros(len(W)).double()


def find_finite_models(W: Float[Tensor, "client param"]) -> Bool[Tensor, "client"]:
    """Return whether all parameters of each client's model are finite."""
    return W.sum(1).isfinite().cpu()  # needs no copy; a sum overflows only if the models diverge anyway


def describe_rows(state: State, ids: Ids) -> State:
    """Return the rows `ids` of a state, to be gathered."""
    return map_state(lambda table: GatheredRows(table, ids), state)


def _compute_gap(algorithm: Certified, private: State, w: Tensor, task: Task) -> Tensor:
    """Return each client's part of the duality gap."""
    return algorithm.gap(private, w, task)


def _stack(models: Sequence[Tensor]) -> Tensor:
    return models[0] if len(models) == 1 else torch.cat(list(models))
