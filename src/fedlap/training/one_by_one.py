"""The plain engine: one client after another, autograd, a Python loop. Every other engine is held to it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from fedlap.algorithms import Certified, State, adapt_models, is_adapting
from fedlap.algorithms.local_work import LocalWork
from fedlap.algorithms.server_state import Ids
from fedlap.data.client_rows import ClientRows
from fedlap.models import CrossEntropy
from fedlap.training.client_sampling import ClientSampler
from fedlap.training.engines import (
    Replies,
    Tallies,
    compute_penalty,
    compute_ridge,
    count_exchanged,
    find_finite_models,
)
from fedlap.training.placement import PlacedClients, check_models
from fedlap.training.plain_task import PlainTask, draw_client_batches
from fedlap.training.scores import Tally
from fedlap.training.stacking import ManyRuns
from fedlap.training.state import (
    Traffic,
    concatenate_states,
    gather_lazy_rows,
    map_state,
    rebuild_tuple,
    to_device,
)


@dataclass(frozen=True, eq=False)
class PlainCohort:
    """The clients of each run that are sampled in a round, in the order of its federation."""

    ids: list[Any]  # of Ids, whose numbers differ


@dataclass(frozen=True, eq=False)
class PlainSampler:
    """Draws cohorts round by round."""

    sampler: ClientSampler
    sizes: list[int]
    home: torch.device

    def draw(self, round: int) -> PlainCohort:
        """Return the cohort of a round."""
        drawn = self.sampler.draw(range(round, round + 1), torch.device("cpu"))[0].to(self.home)
        return PlainCohort(list(drawn.split(self.sizes)))


class OneByOne:
    """Every client trains by itself, as it would on a separate machine."""

    def __init__(
        self,
        method: ManyRuns,
        clients: PlacedClients,
        scored: PlacedClients,
        work: LocalWork,
        home: torch.device,
        last: int,
    ) -> None:
        """Store the clients; `load` sets the private state."""
        self.clients, self.scored, self.work, self.home = clients, scored, work, home
        self.private: Sequence[State] = ()
        sizes = [run.cohort_size for run in method.runs]
        self.sampler = PlainSampler(ClientSampler.of(method.runs), sizes, home)
        self._method = method

    def load(self, server: Sequence[State], private: Sequence[State]) -> Sequence[State]:
        """Store the private state of each run and return the server states."""
        self.private = list(private)
        return server

    def local(
        self, method: ManyRuns, round: int, cohort: PlainCohort, down: Sequence[State] | None
    ) -> Replies:
        """Run the local work of one client after another."""
        uploads, after = [], []
        for number, (run, ids) in enumerate(zip(method.runs, cohort.ids, strict=True)):
            sent = None if down is None else gather_lazy_rows(down[number])
            results = []
            for place, k in enumerate(ids.tolist()):
                inputs = take_row(self.private[number], k), take_row(sent, place)
                private, received = to_device(inputs, self.clients.device)
                task = self._make_task(run.seed, round, run.offset + k)
                results.append(run.algorithm.local(private, received, task))
            private_rows, up = to_device(concatenate_states(results), self.home)
            uploads.append(up)
            after.append(replace_rows(self.private[number], ids, private_rows))
        self.private = after
        return Replies(cohort.ids, uploads)

    def _make_task(self, seed: int, round: int, k: int) -> PlainTask:
        """Return the task of client k, counted over all runs."""
        clients, digest = self.clients, self.clients.digests[k : k + 1]
        x, y = self._read_rows(clients, clients.train, k)
        batches = draw_client_batches(seed, round, digest, x.shape[1], self.work, clients.batch)
        weight = clients.train.get_client_weight(k)
        return PlainTask(clients.model, x, y, [rows.to(x.device) for rows in batches], weight)

    def mix(self, method: ManyRuns, round: int, up: Sequence[State]) -> list[Traffic]:
        """Mix peer by peer, from the public models of its neighbours alone."""
        self.private = [
            _mix_peers(run.algorithm, private, run.size)
            for run, private in zip(method.runs, self.private, strict=True)
        ]
        return count_exchanged(method, up)

    def models(self, method: ManyRuns, server: Sequence[State]) -> list[Tensor]:
        """Return the models that clients are scored with, run by run, adapted where the method does so."""
        models = method.personal_models(server, self.private, self._sizes)
        for number, (run, W) in enumerate(zip(method.runs, models, strict=True)):
            name = type(run.algorithm).__name__
            expected = self._sizes[number], self.clients.model, self.clients.dtype
            check_models(f"the return value of {name}.personal_models", W, *expected)
            if is_adapting(run.algorithm):
                tasks = self._scoring_tasks(number)
                at_clients = W.to(self.clients.device)
                adapted = [
                    adapt_models(run.algorithm, take_row(at_clients, k), task) for k, task in enumerate(tasks)
                ]
                models[number] = torch.cat(adapted).to(self.home)
                check_models(f"the return value of {name}.adapt", models[number], *expected)
        return models

    def score(self, method: ManyRuns, server: Sequence[State], training: bool) -> list[Tallies]:
        """Tally client by client."""
        tallies = []
        for number, (run, W) in enumerate(zip(method.runs, self.models(method, server), strict=True)):
            test, finite = self._tally(W, self.scored.test, number), find_finite_models(W)
            if not training:
                tallies.append(Tallies(None, test, finite, None, None, None))
                continue
            train = self._tally(W, self.scored.train, number)
            algorithm, private, gap = run.algorithm, self.private[number], None
            if isinstance(algorithm, Certified):
                private_there, W_there = to_device((private, W), self.clients.device)
                tasks = enumerate(self._scoring_tasks(number))
                parts = [
                    algorithm.gap(take_row(private_there, k), take_row(W_there, k), task) for k, task in tasks
                ]
                gap = float(torch.cat(parts).double().sum())
            penalty = compute_penalty(algorithm, server[number], private)
            tallies.append(Tallies(train, test, finite, compute_ridge(self.clients.model, W), penalty, gap))
        return tallies

    def gather_states(self, server: Sequence[State]) -> tuple[Sequence[State], Sequence[State]]:
        """Return the server state and the private state of each run."""
        return server, self.private

    def close(self) -> None:
        """Return at once: the engine has no other processes."""

    def wait(self) -> None:
        """Wait until all work on a device has finished."""
        if self.clients.device.type == "cuda":
            torch.cuda.synchronize(self.clients.device)

    @cached_property
    def _sizes(self) -> list[int]:
        """The number of scored clients of each run."""
        return torch.bincount(self.scored.run, minlength=len(self._method.runs)).tolist()

    def _scoring_tasks(self, number: int) -> Iterator[PlainTask]:
        """Yield a task without mini-batches for each scored client of a run."""
        first, train = sum(self._sizes[:number]), self.scored.train
        for k in range(first, first + self._sizes[number]):
            rows, weight = self._read_rows(self.scored, train, k), train.get_client_weight(k)
            yield PlainTask(self.clients.model, *rows, [], weight)

    def _tally(self, W: Tensor, client_rows: ClientRows, number: int) -> Tally:
        """Sum losses and correct predictions, or errors, over each client's rows."""
        model, first = self.clients.model, sum(self._sizes[:number])
        sums = []
        for place in range(len(W)):
            k, w = first + place, take_row(W, place)
            x, y = self._read_rows(self.scored, client_rows, k)
            weight = client_rows.get_client_weight(k)
            scores = model.scores(
                w.to(x.device), x, torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
            )
            if isinstance(model.loss_function, CrossEntropy):
                hits = (scores.argmax(-1) == y).double().sum()
                loss = _weigh(model.loss_function.values(scores, y).double().squeeze(0), weight).sum()
                sums.append(torch.stack((loss, hits)).cpu())
            else:
                error = (scores - y).double().squeeze(0)
                terms = (_weigh(values, weight) for values in (error.square(), error.abs()))
                sums.append(torch.stack([values.sum(0) for values in terms]).cpu())
        if not isinstance(model.loss_function, CrossEntropy):
            return Tally.of_errors(torch.stack(sums), client_rows, torch.arange(first, first + len(W)))
        loss, hits = torch.stack(sums).unbind(1)
        return Tally(loss, hits, client_rows.count[first : first + len(W)])

    def _read_rows(self, clients: PlacedClients, client_rows: ClientRows, k: int) -> tuple[Tensor, Tensor]:
        """Return the standardised features and the labels of all rows of a client."""
        first, count = int(client_rows.first[k]), int(client_rows.count[k])
        rows = torch.arange(first, first + count).unsqueeze(0)
        return clients.take(client_rows, torch.tensor([k], device=clients.device), rows.to(clients.device))


def _weigh(values: Float64[Tensor, "row ..."], weight: Float64[Tensor, "row"] | None) -> Tensor:
    """Return the values of each row times its weight."""
    return values if weight is None else values * weight.to(values).view(-1, *[1] * (values.dim() - 1))


def take_row(state: State, place: int) -> State:
    """Return a copy of the row of one client, as a stack of one.

    How products of matrices are rounded depends on how their memory is aligned, and a row within a table is
    aligned otherwise than the row that a client has on its own machine.
    """
    return map_state(lambda rows: rows[place : place + 1].clone(), state)


def replace_rows(table: State, ids: Ids, rows: State) -> State:
    """Return a private state with new rows of some clients."""
    if isinstance(table, tuple):
        parts = [replace_rows(t, ids, r) for t, r in zip(table, rows, strict=True)]
        return rebuild_tuple(rows, parts)
    return None if rows is None else table.index_copy(0, ids, rows)


def _mix_peers(peer: Any, private: State, clients: int) -> State:
    """Run all exchanges of a round, each peer from its private state and its neighbours' public models."""
    neighbours = [peer.in_neighbours(place) for place in range(clients)]
    states: list[tuple[State, ...]] = [(take_row(private, place),) for place in range(clients)]
    for exchange in range(peer.exchanges):
        known = torch.cat([peer.public_models(state[0]) for state in states])
        states = [
            peer.mix(exchange, state, known[ids.to(known.device)].unsqueeze(0), a.to(known).unsqueeze(0))
            for state, (ids, a) in zip(states, neighbours, strict=True)
        ]
    return concatenate_states([state[0] for state in states])
