"""The conversation with a neighbour: whether it was greeted, how far it is, and when to ask again."""

from dataclasses import dataclass, field
from typing import Final

from fedlap.deploy.event_words import EventReason
from fedlap.deploy.transport import REMARK_INTERVAL

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds between attempts; each pause doubles the last
LASTING_PAUSE: Final = 5.0  # seconds after an error that waiting does not cure, such as another plan
GATHER_PAUSE: Final = 0.1  # seconds between questions for records


@dataclass(eq=False)
class Link:
    """A conversation. Times are those of any monotonic clock.

    setup: the digest of the neighbour's setup; empty before it has one. has_started: it trains, or has a
    checkpoint. round: its last finished round; before it has started, the last round that it knows of.
    """

    name: str
    is_greeted: bool = False
    setup: str = ""
    has_started: bool = False
    round: int = 0
    has_given: bool = False  # all records that it has
    knows_end: bool = False  # It knows that this peer has done its last round.
    heard_at: float | None = None
    asked: str = ""  # the kind of the last question to it
    problem: str = ""  # the reason why it could not be asked
    code: int = 0  # of a problem that waiting does not cure
    pause: float = 0.0
    next_ask: float = 0.0
    logged: dict[EventReason, float] = field(default_factory=dict)  # when its questions were refused

    @property
    def is_lasting(self) -> bool:
        """Return whether waiting does not cure the problem."""
        return self.code != 0

    def note_answer(self, now: float) -> None:
        """Note that the neighbour answers."""
        self.heard_at, self.problem, self.code, self.pause = now, "", 0, 0.0

    def note_question(self, now: float) -> None:
        """Note that the neighbour asks, so that it can be asked, too."""
        self.heard_at = now
        if self.problem and not self.is_lasting:
            self.next_ask = min(self.next_ask, now)

    def note_failure(self, problem: str, now: float, code: int) -> bool:
        """Note that the neighbour could not be asked; return whether the problem is new.

        code: that of a lasting problem, or 0.
        """
        is_new, self.problem, self.code = problem != self.problem, problem, code
        doubled = min(max(2 * self.pause, FIRST_PAUSE), LONGEST_PAUSE)
        self.is_greeted, self.pause = False, LASTING_PAUSE if code else doubled
        self.next_ask = now + self.pause
        return is_new

    def is_worth_logging(self, reason: EventReason, now: float) -> bool:
        """Return whether a refused question is to be logged: not if the same was logged a moment ago."""
        if now - self.logged.get(reason, -REMARK_INTERVAL) < REMARK_INTERVAL:
            return False
        self.logged[reason] = now
        return True
