"""A worker: one client by itself, with its rows and its private state, as a remote client runs it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from fedlap.algorithms import (
    Algorithm,
    Binding,
    Certified,
    ClientTable,
    PeerAlgorithm,
    Pooling,
    Splitting,
    State,
    Task,
    adapt_models,
    is_adapting,
)
from fedlap.algorithms.local_work import BatchSize
from fedlap.data.federation import Federation
from fedlap.data.roster import Roster
from fedlap.errors import InputError, check_integer, unknown_name_error
from fedlap.models import Architecture, Model
from fedlap.models.model import Stack
from fedlap.training.engines import compute_ridge
from fedlap.training.jobs import check_single_rows, plan_local_work
from fedlap.training.placement import PlacedClients, check_models
from fedlap.training.plain_task import HOST, PlainTask, draw_client_batches
from fedlap.training.schedule import DtypeName, Schedule, build_start, check_algorithm_and_model
from fedlap.training.state import copy_aliases, describe_shapes, rebuild_tuple
from fedlap.training.state_bytes import list_state_types, read_state_file, write_state_file
from fedlap.training.task import StackTask

CLIENT = torch.tensor([0])  # the place of the one client

RowSums = tuple[
    Float64[Tensor, "1"],
    Float64[Tensor, "1"] | None,
    Int64[Tensor, "1"],
    Float64[Tensor, "1 4 output"] | None,
]


class ClientTally(NamedTuple):
    """Everything that a client adds to the scores of a run: sums over its rows, never rows.

    It is a state, so that it can be encoded. The server adds the penalty, which depends on other clients.
    """

    train: RowSums  # loss, hits, count and errors, as in `Tally`
    test: RowSums
    ridge: Float64[Tensor, "1"]  # the L2 term of the client's model
    gap: Float64[Tensor, "1"] | None  # its part of the duality gap, if the method computes it


class RoundState(NamedTuple):
    """The private state of the client after a round; round 0 is the start.

    exchange: for a peer, its state between the exchanges of the round. exchanges: their number so far.
    """

    round: int
    private: State
    exchange: tuple[State, ...] = ()
    exchanges: int = 0


class Worker:
    """One client that trains on a CPU: it receives and returns states of one row, and its rows stay here.

    A reply may be lost. A worker therefore stores its private state before and after its last round, and
    every message names the last round in which the server merged a reply of this client (0 if there is none).
    If that is the worker's last round, the new state becomes current; if not, the new state is discarded and
    the old one is used. A peer's round is merged when all peers have finished its exchanges.

    algorithm: the method, which is bound to the roster. federation: the rows of this client alone, with the
    standardisation of the run. roster: all clients, without rows. start: the client's start model, by default
    the model's start. fast: use kernels instead of the plain text of the method. Other arguments are those of
    `fit`; with equal ones a worker repeats the client of a simulation.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        federation: Federation,
        model: Architecture,
        roster: Roster,
        *,
        seed: int = 0,
        batch: BatchSize = 20,
        dtype: DtypeName = "float32",
        start: Any = None,
        fast: bool = False,
    ) -> None:
        """Check the client, bind the method, and start with the private state before the first round."""
        check_algorithm_and_model(algorithm, model)
        if isinstance(algorithm, Pooling):
            raise InputError(
                f"{type(algorithm).__name__} trains on the rows of all clients; a worker has the rows of one "
                "client, so use another method, such as fl.FedAvg()"
            )
        _check_client(federation, roster)
        self.client, self.position = federation.clients[0], roster.clients.index(federation.clients[0])
        self.model = Model(
            model.build(federation.inputs, federation.outputs), federation.loss, model.l2, model
        )
        self.method = algorithm.bind(roster, self.model) if isinstance(algorithm, Binding) else algorithm
        self.seed, self.work = check_integer("seed", seed), plan_local_work(algorithm, 1)
        kind = Schedule(batch=batch, dtype=dtype).torch_dtype
        check_single_rows(self.model, federation, federation, self.work, batch)
        placed = federation.to_device(HOST, kind)
        clients = PlacedClients.of([placed], [seed], self.model, batch, HOST, kind)
        rows = int(federation.train.count)
        self._clients = clients.prepare(self.work.count_steps(rows, batch)) if fast else clients
        self._fast, self._target_scale = fast, federation.target_scale
        w = build_start(start, self.model, 1, seed, HOST, kind)
        self._current = RoundState(0, self.method.init_clients(w, federation.train.count))
        self._pending: RoundState | None = None

    @property
    def private(self) -> State:
        """The private state after the last round that is known to be merged."""
        return self._current.private

    def confirm(self, merged: int) -> None:
        """Make the state after round `merged` current; discard the state of a reply that was lost."""
        if self.private is None:  # Without private state, client and server cannot part.
            return
        pending = self._pending
        if pending is not None and pending.round == merged and self._has_finished(pending):
            self._current = RoundState(pending.round, pending.private)
        elif merged != self._current.round:
            rounds = [state.round for state in (self._current, pending) if state is not None]
            raise InputError(
                f"merged = {merged}; expected a finished round of client {self.client!r}, one of {rounds}; "
                "load the worker's last saved state",
                field="merged",
            )
        self._pending = None

    @torch.no_grad()
    def local(self, round: int, down: State, *, merged: int) -> State:
        """Run the local work of a round on the message `down` and return the upload, both of one row."""
        self.confirm(merged)
        check_integer("round", round, self._current.round + 1)
        private, up = self.method.local(self.private, down, self._make_task(round))
        exchange = (private,) if isinstance(self.method, PeerAlgorithm) else ()
        self._pending = RoundState(round, private, exchange)
        return copy_aliases(up, (private, self.private))  # The receiver may overwrite the upload.

    @torch.no_grad()
    def mix(
        self,
        round: int,
        exchange: int,
        received: Float[Tensor, "1 heard param"],
        weights: Float[Tensor, "1 heard"],
    ) -> Stack:
        """Run an exchange of a round with the neighbours' public models, and return the next message.

        The upload of `local` is the message of the first exchange, and `receive` of the method turns messages
        into public models. The result of the last exchange is not sent.
        """
        method: Any = self.method
        pending = self._pending or self._current
        if (round, exchange) != (pending.round, pending.exchanges) or not pending.exchange:
            raise InputError(
                f"exchange {exchange} of round {round} is not next; client {self.client!r} is at exchange "
                f"{pending.exchanges} of round {pending.round}; repeat the round from its local work"
            )
        state = method.mix(exchange, pending.exchange, received, weights.to(received))
        self._pending = RoundState(round, state[0], state, exchange + 1)
        return copy_aliases(method.public_models(state[0]), state)  # type: ignore[no-any-return]

    @torch.no_grad()
    def personal_model(self, server: State) -> Stack:
        """Return the client's model from its private state and its part of the server's state.

        server: None for a method without a server. A server that `owns_models`, such as those of FedU and
        MOCHA, computes them itself and sends each client its row.
        """
        return self.method.personal_models(server, self.private, 1)

    @torch.no_grad()
    def adapt(self, w: Float[Tensor, "1 param"]) -> Float[Tensor, "1 param"]:
        """Return the model that the client is scored with: w, adapted to its rows if the method does so."""
        check_models("w", w, 1, self.model, self._clients.dtype)
        return adapt_models(self.method, w, self._make_task(0)) if is_adapting(self.method) else w

    @torch.no_grad()
    def score(self, w: Float[Tensor, "1 param"]) -> ClientTally:
        """Tally the client's personal model w on its training and test rows, after adapting it."""
        w, clients, method, gap = self.adapt(w), self._clients, self.method, None
        if isinstance(method, Certified):
            gap = method.gap(self.private, w, self._make_task(0)).double().flatten()
        scale = self._target_scale
        tallies = [
            clients.tally(w, rows, CLIENT).restore_unit(scale) for rows in (clients.train, clients.test)
        ]
        train, test = ((tally.loss, tally.hits, tally.count, tally.errors) for tally in tallies)
        return ClientTally(train, test, compute_ridge(self.model, w), gap)

    def save(self, path: str | Path) -> None:
        """Write the private state before and after the last round; call it before the reply is sent."""
        write_state_file(Path(path), *self.export_state())

    def load(self, path: str | Path) -> None:
        """Restore the state that a worker of this client with equal arguments saved."""
        self.import_state(*read_state_file(Path(path), list_state_types(self.method)), str(path))

    def export_state(self) -> tuple[dict[str, Any], State]:
        """Return facts and the private state before and after the last round, for a file."""
        pending = self._pending or RoundState(-1, None)
        rounds = [self._current.round, pending.round, pending.exchanges]
        facts = {"worker": self._describe(), "rounds": rounds}
        return facts, (self.private, pending.private, pending.exchange)

    def import_state(self, facts: Mapping[str, Any], states: State, where: str) -> None:
        """Restore the state that `export_state` returned; `where` names its file in errors."""
        if facts["worker"] != self._describe() or describe_shapes(states[0]) != describe_shapes(self.private):
            raise InputError(
                f"{where!r} is the state of {facts['worker']}; expected {self._describe()}; "
                "pass the arguments of the worker that saved it"
            )
        (current, private, exchange), (last, round, exchanges) = states, facts["rounds"]
        self._current = RoundState(last, current)
        self._pending = None if round < 0 else RoundState(round, private, exchange, exchanges)

    def skip_to(self, round: int, w: Stack | None = None) -> None:
        """Continue after another round, as a peer that returns late; with model w if the state is lost."""
        private = self.private
        if w is not None:
            check_models("w", w, 1, self.model, self._clients.dtype)
            private = self.method.init_clients(w, self._clients.train.count)
        self._current, self._pending = RoundState(check_integer("round", round), private), None

    def _describe(self) -> str:
        clients = self._clients
        settings = f"seed {self.seed}, batch {clients.batch}, {clients.dtype}"
        return f"client {self.client!r} with {type(self.method).__name__}, {settings}"

    def _has_finished(self, pending: RoundState) -> bool:
        return not isinstance(self.method, PeerAlgorithm) or pending.exchanges == self.method.exchanges

    def _make_task(self, round: int) -> Task:
        """Return the work of a round; its batches depend on seed, round and the client's name alone."""
        clients, work = self._clients, self.work
        if self._fast:
            return StackTask(clients, clients.build_cohort(CLIENT), round, work)
        rows = torch.arange(len(clients.train.row)).unsqueeze(0)
        x, y = clients.take(clients.train, CLIENT, rows)
        plan = draw_client_batches(self.seed, round, clients.digests, x.shape[1], work, clients.batch)
        return PlainTask(self.model, x, y, plan, clients.train.weight)


def owns_models(method: Algorithm, server: State, private: State) -> bool:
    """Return whether the server computes the clients' models itself: they do not depend on private state.

    server: its state. private: the private state of clients before the first round.
    """
    if isinstance(method, Splitting) and method.has_private_parameters:
        return False
    return has_client_tables(server) or private is None


def has_client_tables(server: State) -> bool:
    """Return whether the server state has a row per client."""
    return isinstance(server, tuple) and any(isinstance(part, ClientTable) for part in server)


def select_client(server: State, place: int) -> State:
    """Return a server state as one client may see it: of every table its own row."""
    if isinstance(server, ClientTable):
        return ClientTable(server.values[place : place + 1])
    if isinstance(server, tuple):
        return rebuild_tuple(server, (select_client(part, place) for part in server))
    return server


def _check_client(federation: Federation, roster: Roster) -> None:
    """Raise InputError unless the rows are those of one client of the roster."""
    if len(federation.clients) != 1:
        raise InputError(
            f"the federation has {len(federation.clients)} clients; expected one; "
            "pass the rows of the worker's client alone"
        )
    if (name := federation.clients[0]) not in roster.clients:
        raise unknown_name_error("client", name, roster.clients)
    rows, expected = int(federation.train.count), int(roster.counts[roster.clients.index(name)])
    if rows != expected:
        raise InputError(
            f"client {name!r} has {rows} training rows; expected {expected}, as in the roster; "
            "use the rows that the roster was built from"
        )
    if federation.labels != roster.labels:
        raise InputError(
            f"client {name!r} has labels {federation.labels}; expected {roster.labels}; "
            "pass the roster's labels to the federation"
        )
