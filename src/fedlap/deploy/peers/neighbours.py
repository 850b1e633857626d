"""A neighbour as a peer sees it: the models that it has sent, and whether it is late."""

from dataclasses import dataclass, field
from typing import NamedTuple

from fedlap.algorithms import State
from fedlap.deploy.event_words import EventReason
from fedlap.models.model import Stack


class Turn(NamedTuple):
    """An exchange of a round; turns are ordered. Rounds count from 1, exchanges from 0."""

    round: int
    exchange: int


START = Turn(0, 0)  # The start models, which all peers know, are the messages of this turn.


class Sent(NamedTuple):
    """A message of a peer. public: the model that neighbours know after it.

    base: the turn whose public model the message is a difference to; its own turn if it is the model itself.
    """

    public: Stack
    message: State
    base: Turn


@dataclass(eq=False)
class Neighbour:
    """A neighbour: the weight of the edge, and the models that a peer can still need.

    models: by turn. A neighbour without any model, such as a newcomer before its first one, does not pull.
    first_round: the first round in which the edge counts; None until a newcomer asks for a model.
    is_removed: the edge does not count any more, and the neighbour is to be informed.
    """

    name: str
    weight: float
    models: dict[Turn, Stack]
    first_round: int | None = 1
    is_removed: bool = False
    is_late: bool = False  # A round has timed out on it, and it has not caught up since.
    has_finished: bool = False  # It has done its last round, and needs no model any more.
    turn_sent: Turn = START  # the newest turn in which this peer answered it
    rounds_late: int = 0  # rounds in which an older model stood in
    refused: EventReason | None = None  # why its last model was refused, for the log
    bytes_up: int = 0  # of models, as the simulation counts them
    bytes_down: int = 0
    sizes: dict[Turn, int] = field(default_factory=dict)  # bytes of the messages with these models

    @property
    def newest(self) -> Turn:
        """The newest turn of which a model is here; START before the first one."""
        return max(self.models, default=START)

    def is_active(self, turn: Turn) -> bool:
        """Return whether the edge counts in a turn."""
        has_begun = self.first_round is not None and self.first_round <= turn.round
        return has_begun and not self.is_removed

    def store(self, turn: Turn, model: Stack, wanted: Turn) -> None:
        """Store a model. wanted: the exchange in progress, or the next one.

        A neighbour that answers with a later turn than the wanted one does not have that one any more, since
        it has lost its disk and continues in another round: the later model stands in.
        """
        self.models[turn] = model
        if turn > wanted:
            self.models.setdefault(wanted, model)
        self.drop_before(wanted)

    def skip(self, wanted: Turn) -> None:
        """Use the newest model in an earlier turn, of which the neighbour has none."""
        if self.newest > wanted:
            self.models.setdefault(wanted, self.models[self.newest])

    def choose(self, turn: Turn) -> Stack:
        """Return the model of a turn, or else the newest one."""
        return self.models[turn if turn in self.models else self.newest]

    def count_age(self, turn: Turn) -> int:
        """Return how many rounds older than a turn the newest model is; 0 if it is not older."""
        if self.newest >= turn:
            return 0
        return turn.round - max(self.newest.round, (self.first_round or 1) - 1)

    def drop_before(self, turn: Turn) -> None:
        """Forget models of earlier turns, and of rounds after the next one, except for the newest one."""
        newest = self.newest
        self.models = {
            known: model
            for known, model in self.models.items()
            if known == newest or (known >= turn and known.round <= turn.round + 1)
        }

    def note_greeting(self, round: int) -> None:
        """Note the last round that the neighbour has finished, by its own account.

        If it has lost its disk, its models of earlier rounds than those that are here are new ones.
        """
        if self.models and round + 1 < self.newest.round:
            self.models = {Turn(round, 0): self.models[self.newest]}
