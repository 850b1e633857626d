"""A block of clients: one stack, which trains and is scored by itself, whatever the other blocks do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlap.algorithms import Algorithm, State
from fedlap.algorithms.local_work import BatchSize, LocalWork
from fedlap.algorithms.server_state import Ids
from fedlap.data.federation import Federation
from fedlap.models import Model
from fedlap.models.model import Stack
from fedlap.training.client_sampling import StackedRun
from fedlap.training.engines import Stacked, Tallies
from fedlap.training.placement import PlacedClients
from fedlap.training.plain_task import HOST
from fedlap.training.schedule import DtypeName, Schedule
from fedlap.training.stacking import ManyRuns
from fedlap.training.state import gather_rows, map_state, to_device
from fedlap.training.task import StackTask


@dataclass(frozen=True, eq=False)
class LocalSettings:
    """Everything that the local work of a block depends on, except its rows.

    algorithm: the method, bound to all clients, without its graph if local work does not use one.
    """

    algorithm: Algorithm
    model: Model
    work: LocalWork
    seed: int
    batch: BatchSize
    dtype: DtypeName
    device: str


class ClientBlock:
    """The rows of a block where it computes; its state is passed in and out, and stored on the host."""

    def __init__(self, settings: LocalSettings, federation: Federation) -> None:
        """Place the rows on the device."""
        schedule = Schedule(dtype=settings.dtype, device=settings.device)
        device, dtype = schedule.resolve_device(), schedule.torch_dtype
        placed = federation.to_device(device, dtype)
        clients = PlacedClients.of([placed], [settings.seed], settings.model, settings.batch, device, dtype)
        run = StackedRun(settings.algorithm, federation, settings.seed, 0, len(federation.clients))
        self._settings, self._method = settings, ManyRuns([run])
        self._stack = Stacked(self._method, clients, clients, settings.work, HOST, 0)

    @property
    def counts(self) -> Int64[Tensor, "client"]:
        """The number of training rows of each client."""
        return self._stack.clients.train.count

    def train(self, ids: Ids, private: State, down: State, round: int) -> tuple[State, State]:
        """Run the local work of clients `ids` of this block, and return their private state and uploads.

        The states have one row per client of `ids`. Both stay unchanged.
        """
        algorithm: Any = self._settings.algorithm
        clients = self._stack.clients
        order = clients.train.count[ids].argsort(descending=True, stable=True)
        overwrites = not algorithm.traits.reads_old_rows
        cohort = clients.build_cohort(ids[order])
        task = StackTask(clients, cohort, round, self._settings.work, in_place=overwrites)
        inputs = to_device((gather_rows(private, order), _gather_copies(down, order)), clients.device)
        outputs = to_device(algorithm.local(*inputs, task), HOST)
        after, up = gather_rows(outputs, order.argsort())
        return after, up

    def compute_models(self, private: State, server: State) -> Stack:
        """Return the models that the clients are scored with, from server state that all clients share."""
        self._stack.private = [private]
        (models,) = self._stack.models(self._method, [server])
        return models

    def adapt(self, models: Stack) -> Stack:
        """Return the models that the clients are scored with, from their personal models."""
        (adapted,) = self._stack.adapt(self._method, [models])
        return adapted

    def tally(self, private: State, models: Stack, training: bool) -> Tallies:
        """Tally the clients' rows with these models, without the method's penalty."""
        self._stack.private = [private]
        (tallies,) = self._stack.tally(self._method, [models], training)
        return tallies


def _gather_copies(state: State, order: Ids) -> State:
    """Return a copy of the rows in another order; a row that is repeated by a stride of 0 is not copied."""

    def gather(rows: Tensor) -> Tensor:
        return rows if rows.stride(0) == 0 else rows.index_select(0, order)

    return map_state(gather, state)


def concatenate_tallies(tallies: Sequence[Tallies]) -> Tallies:
    """Return the tallies of all blocks as one."""
    first = tallies[0]
    train = (
        None if first.train is None else type(first.train).concatenate([t.train for t in tallies if t.train])
    )
    test = type(first.test).concatenate([t.test for t in tallies])
    ridge: Any = None if first.ridge is None else torch.cat([t.ridge for t in tallies if t.ridge is not None])
    gap = None if first.gap is None else sum(t.gap for t in tallies if t.gap is not None)
    return Tallies(train, test, torch.cat([t.is_finite for t in tallies]), ridge, None, gap)
