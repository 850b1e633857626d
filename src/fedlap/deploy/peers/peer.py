"""A peer's rounds as a state machine, without a clock, socket or thread: Algorithm 2 with late neighbours.

In every round a peer trains, publishes its model, waits for its neighbours' models and mixes. A neighbour
that is late beyond the deadline is represented by its last model, if that is not too old; `staleness = 0`
waits for every model. The page on theory says when rounds with late models still converge to the same point.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from fedlap.algorithms import State
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.failpoints import pass_point
from fedlap.deploy.peers.neighbours import START, Neighbour, Sent, Turn
from fedlap.deploy.plan import Plan
from fedlap.deploy.wire import measure_norm
from fedlap.errors import InputError
from fedlap.models.model import Stack
from fedlap.training.state import count_bytes, describe_shapes, match_types
from fedlap.training.worker import Worker


class Peer:
    """A peer: its worker, its neighbours, and the exchange in progress.

    `begin` returns the local work of the next round, which the caller runs; `publish` takes its result. Then
    `mix` takes a step for every exchange, as soon as `is_ready`. log: called with each event.
    """

    def __init__(
        self,
        plan: Plan,
        worker: Worker,
        neighbours: Iterable[Neighbour],
        log: Callable[..., None],
        message_shapes: Any,
    ) -> None:
        """Stand before the first round."""
        self.plan, self.worker, self.log = plan, worker, log
        self.neighbours = {neighbour.name: neighbour for neighbour in neighbours}
        self.settings: Any = plan.peers
        self.round = 0  # the last finished one
        self.turn: Turn | None = None  # the exchange that waits for models; None while the peer trains
        self.sent: dict[Turn, Sent] = {}  # the messages of this round and of the last one
        self.public_turn: Turn | None = START  # of the public model; None if no neighbour knows it
        self.waits_since = -math.inf
        self.former_bytes = [0, 0]  # sent to and received from neighbours whose edges are removed
        method: Any = worker.method
        self._method, self._exchanges = method, int(method.exchanges)
        self._model_shapes = describe_shapes(method.public_models(worker.private))
        self._message_shapes = message_shapes

    # The round.

    @property
    def is_done(self) -> bool:
        """Return whether the last round is finished."""
        return self.round >= self.plan.rounds

    def begin(self) -> Callable[[], State]:
        """Return the local work of the next round."""
        return partial(self.worker.local, self.round + 1, None, merged=self.round)

    def publish(self, message: State, now: float) -> None:
        """Offer this peer's message to its neighbours, and wait for theirs from now on."""
        exchange = 0 if self.turn is None else self.turn.exchange + 1
        self.turn, self.waits_since = Turn(self.round + 1, exchange), now
        self.sent = {turn: sent for turn, sent in self.sent.items() if turn.round >= self.round}
        self.sent[self.turn] = self._describe_message(self.turn, message)
        for neighbour in self.neighbours.values():
            neighbour.drop_before(self.turn)

    def _describe_message(self, turn: Turn, message: State) -> Sent:
        """Return a message with its public model; only that of a first exchange can be a difference."""
        if turn.exchange:
            return Sent(message, message, turn)
        public = self._method.receive(self._method.public_models(self.worker.private), message)
        base, self.public_turn = self.public_turn, turn
        if public is message or base is None:
            return Sent(public, public, turn)
        return Sent(public, message, base)

    def list_active(self) -> list[Neighbour]:
        """Return the neighbours whose edges count in this turn."""
        turn = self.turn or Turn(self.round + 1, 0)
        return [neighbour for neighbour in self.neighbours.values() if neighbour.is_active(turn)]

    def list_awaited(self, now: float) -> list[str]:
        """Return the neighbours that the exchange in progress waits for."""
        if self.turn is None:
            return []
        return [
            neighbour.name for neighbour in self.list_active() if not self._is_represented(neighbour, now)
        ]

    def is_ready(self, now: float) -> bool:
        """Return whether every neighbour is represented in the exchange in progress."""
        return self.turn is not None and not self.list_awaited(now)

    def mix(self, now: float) -> bool:
        """Take the step of the exchange in progress; return whether it ends the round."""
        turn = self.turn
        assert turn is not None
        self._note_late(turn, self.list_active())
        active = [neighbour for neighbour in self.list_active() if neighbour.models]
        sent = self.sent[turn].public
        received = [self._clip(neighbour.choose(turn), sent) for neighbour in active]
        models = torch.cat(received or [sent[:0]]).unsqueeze(0)
        weights = torch.tensor([[neighbour.weight for neighbour in active]], dtype=torch.float64)
        pass_point("peer.mixing")
        model = self.worker.mix(turn.round, turn.exchange, models, weights)
        if turn.exchange + 1 < self._exchanges:
            self.publish(model, now)
            return False
        self.worker.confirm(turn.round)
        self.round, self.turn = turn.round, None
        pass_point("peer.mixed")
        return True

    def _is_represented(self, neighbour: Neighbour, now: float) -> bool:
        """Return whether the exchange in progress need not wait for the neighbour."""
        turn = self.turn
        if turn is None or turn in neighbour.models:
            return True
        if self.settings.most_age == 0:
            return False
        if neighbour.newest > turn:
            return True
        is_overdue = neighbour.is_late or now - self.waits_since > self.settings.deadline
        return bool(is_overdue and neighbour.count_age(turn) <= self.settings.most_age)

    def _note_late(self, turn: Turn, active: Sequence[Neighbour]) -> None:
        """Count and log the neighbours that an older model represents; the log has ages 1, 2, 4, 8, …"""
        for neighbour in active:
            age = neighbour.count_age(turn)
            neighbour.is_late = neighbour.newest < turn
            if neighbour.is_late and neighbour.models:
                neighbour.rounds_late += 1
                if age & (age - 1) == 0:
                    self.log("stands-in", name=neighbour.name, round=turn.round, rounds_behind=age)

    def _clip(self, model: Stack, center: Stack) -> Stack:
        """Return a neighbour's model, moved towards the peer's own if it is too far away."""
        if self.settings.clip is None:
            return model
        distance = float(torch.linalg.vector_norm((model - center).double()))
        return (
            model
            if distance <= self.settings.clip
            else center + (model - center) * (self.settings.clip / distance)
        )

    # Models of neighbours.

    def take(self, name: str, turn: Turn, message: State, base: Turn | None = None) -> EventReason | None:
        """Store the model of a neighbour's message; return why it is refused, or None.

        base: the turn whose model the message is a difference to; None if the message is the model.
        """
        neighbour = self.neighbours[name]
        found = self._read_message(neighbour, turn, message, turn if base is None else base)
        if isinstance(found, EventReason):
            if found is not neighbour.refused:
                neighbour.refused = found
                self.log("refused", name=name, round=self.next_turn.round, reason=found)
            return found
        neighbour.store(turn, found, self.next_turn)
        neighbour.refused = None
        size = count_bytes(message)
        neighbour.bytes_down += size
        neighbour.sizes = {known: neighbour.sizes.get(known, size) for known in neighbour.models}
        # Waiting for it is worth while again if it is in the same round, or just behind.
        if neighbour.is_late and neighbour.count_age(self.next_turn) <= 1:
            neighbour.is_late = False
            self.log("returned", name=name, round=turn.round)
        return None

    @property
    def next_turn(self) -> Turn:
        """The exchange in progress, or the first one of the next round."""
        return self.turn or Turn(self.round + 1, 0)

    def _read_message(
        self, neighbour: Neighbour, turn: Turn, message: State, base: Turn
    ) -> Stack | EventReason:
        """Return the model of a message, or why it is refused."""
        is_new = turn > neighbour.newest or (turn >= self.next_turn and turn not in neighbour.models)
        if not is_new:
            return EventReason.REPLAYED
        is_asked = turn.round <= self.plan.rounds and 0 <= turn.exchange < self._exchanges
        if not is_asked or (base != turn and base not in neighbour.models):
            return EventReason.UNASKED
        shapes = self._model_shapes if base == turn else self._message_shapes
        if describe_shapes(message) != shapes:
            return EventReason.SHAPE
        message = match_types(message, shapes)  # A plain tuple equals a NamedTuple of the same parts.
        try:
            model: Stack = message if base == turn else self._method.receive(neighbour.models[base], message)
        except InputError:  # such as places of parameters that do not exist
            return EventReason.MALFORMED
        norm = measure_norm(model)
        if not norm < math.inf:
            return EventReason.NOT_FINITE
        return EventReason.NORM if norm > self.plan.limits.most_norm else model

    def choose_wanted(self, name: str) -> Turn | None:
        """Return the turn of the model that is wanted from a neighbour; None if none is wanted yet."""
        neighbour, wanted = self.neighbours[name], self.next_turn
        while wanted in neighbour.models:  # It is ahead of others, so that a later one is asked for in time.
            is_last = wanted.exchange + 1 >= self._exchanges
            wanted = Turn(wanted.round + 1, 0) if is_last else Turn(wanted.round, wanted.exchange + 1)
        return None if wanted in neighbour.models or wanted.round > self.plan.rounds else wanted

    def find_answer(self, name: str, wanted: Turn, newest: Turn | None) -> tuple[Turn, Turn, State] | None:
        """Return the message that a neighbour wants, or a newer one than it has; None if there is none.

        newest: the newest turn of which the neighbour has a model, if it has any. The answer is a turn, the
        turn of the model that the message is a difference to, and the message.
        """
        turn = wanted if wanted in self.sent else max(self.sent, default=START)
        if turn not in self.sent or (turn != wanted and newest is not None and turn <= newest):
            return None
        public, message, base = self.sent[turn]
        if base not in (turn, newest):  # It does not know that model.
            message, base = public, turn
        self._count_sent(name, turn, count_bytes(message))
        return turn, base, message

    def count_received(self, round: int) -> int:
        """Return the bytes of all models of rounds up to `round` that this peer has received."""
        later = sum(
            size
            for neighbour in self.neighbours.values()
            for turn, size in neighbour.sizes.items()
            if turn.round > round
        )
        return self.former_bytes[1] + sum(one.bytes_down for one in self.neighbours.values()) - later

    def has_skipped(self, turn: Turn) -> bool:
        """Return whether the message of a turn will never come."""
        return bool(self.settings.most_age == 0 and turn < max(self.sent, default=START))

    def note_received(self, name: str, newest: Turn) -> None:
        """Count the messages up to a turn as sent, which the neighbour had before this peer was restarted."""
        for turn in sorted(turn for turn in self.sent if turn <= newest):
            self._count_sent(name, turn, count_bytes(self.sent[turn].message))

    def _count_sent(self, name: str, turn: Turn, size: int) -> None:
        """Count the message of a turn as sent, only once."""
        neighbour = self.neighbours[name]
        if turn > neighbour.turn_sent:
            neighbour.turn_sent = turn
            neighbour.bytes_up += size

    # Other rounds and other neighbours.

    def skip_to(self, round: int, model: Stack | None = None) -> None:
        """Continue after another round than the last one; with another model, if the state was lost."""
        self.worker.skip_to(round, model)
        self.round, self.turn = round, None
        if model is not None:
            self.public_turn = None

    def remove_neighbour(self, name: str) -> None:
        """Forget a neighbour whose edge is removed, except for its bytes."""
        neighbour = self.neighbours.pop(name)
        self.former_bytes[0] += neighbour.bytes_up
        self.former_bytes[1] += neighbour.bytes_down

    def list_forgotten(self) -> list[str]:
        """Return the neighbours that have been silent for more rounds than `forget` allows."""
        most, turn = self.settings.forget, self.next_turn
        if not most:
            return []
        return [
            neighbour.name
            for neighbour in self.list_active()
            if not neighbour.has_finished and neighbour.count_age(turn) > most
        ]
