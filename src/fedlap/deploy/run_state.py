"""The state of a run in the server's memory: its phase, its clients, and the round in progress."""

from dataclasses import dataclass, field
from enum import StrEnum

from fedlap.algorithms import State
from fedlap.deploy.event_words import EventReason


class Phase(StrEnum):
    """The phase of a run."""

    GATHERING = "gathering"
    TRAINING = "training"
    SCORING = "scoring"
    FINISHING = "finishing"
    DONE = "done"


@dataclass
class Site:
    """Everything that the coordinator knows about a client."""

    name: str
    rows: int | None = None  # training rows, after its registration
    moments: State = None
    last_seen: float | None = None  # by the clock of the caller; None if it was not seen since the start
    is_away: bool = False  # it has announced that it leaves
    is_ejected: bool = False
    damaged: int = 0  # messages that could not be read, in this round
    is_late: bool = False  # the log says so already
    bytes_up: int = 0  # of messages
    bytes_down: int = 0


@dataclass
class OpenRound:
    """A round in progress: its cohort, the messages to it, and the replies so far, by place in the roster."""

    number: int
    cohort: list[int]
    messages: dict[int, State]
    replies: dict[int, State]
    missing: dict[int, EventReason] = field(default_factory=dict)  # the reason why a client does not count
    counted: list[int] | None = None  # decided before the server was restarted
    opened: float = 0.0
