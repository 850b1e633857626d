"""The state of a run in the server's memory: its phase, its clients, and the round in progress."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from fedlap.algorithms import State
from fedlap.deploy.event_words import EventReason

ASK_AGAIN_SECONDS: Final = 5.0
CURABLE: Final = (EventReason.DECLINED, EventReason.UNREACHABLE)


class Phase(StrEnum):
    """The phase of a run."""

    GATHERING = "gathering"
    TRAINING = "training"
    SCORING = "scoring"
    FINISHING = "finishing"
    DONE = "done"


@dataclass
class Site:
    """State of one client at the coordinator."""

    name: str
    rows: int | None = None  # training rows, after its registration
    test_rows: int | None = None  # after its registration with this process
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
    counted: list[int] | None = None  # the decision who counts, once it is on disk
    opened: float = 0.0
    asked: float = 0.0  # when clients were last asked to take part

    def list_lost(self) -> list[int]:
        """Return the places of clients that were counted, and whose stored replies are lost."""
        return [place for place in self.counted or () if place not in self.replies]

    def leave_out(self, place: int, reason: EventReason) -> None:
        """Count the client at this place as missing, unless it has answered."""
        if place in self.messages and place not in self.replies:
            self.missing.setdefault(place, reason)

    def list_left_out(self, clients: Sequence[str]) -> list[tuple[str, int]]:
        """Return names and places of the cohort's clients that do not count. clients: the roster."""
        return [(clients[place], place) for place in self.cohort if place not in (self.counted or ())]

    def ask_again(self, now: float) -> bool:
        """Ask clients once more, from time to time, that this round lacks and that may answer by now.

        A client that has declined may have room on its disk. Return whether there are any.
        """
        missing = [place for place, reason in self.missing.items() if reason in CURABLE]
        if not missing or now - self.asked < ASK_AGAIN_SECONDS:
            return False
        self.asked = now
        for place in missing:
            del self.missing[place]
        return True
