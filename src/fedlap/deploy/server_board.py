"""The server's status while it runs, observed at the coordinator."""

from fedlap.deploy.coordinator import Coordinator
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.run_state import Phase, Site
from fedlap.deploy.status import ClientState, ClientStatus, Status
from fedlap.deploy.status_board import SHOWN_SCORES, StatusBoard


class ServerBoard(StatusBoard[Coordinator]):
    """Status of a coordinator."""

    def observe(self, now: float) -> Status:
        """Return the status of the run."""
        run = self._run
        merged = run.checkpoint.merged if run.setups else {}
        clients = {
            name: ClientStatus(
                state=(state := choose_state(run, site)),
                since=self.note_state(name, (state, run.round), now),
                round=merged.get(name, 0),
                rows=site.rows or 0,
                bytes_up=site.bytes_up,
                bytes_down=site.bytes_down,
                last_seen=site.last_seen,
            )
            for name, site in run.sites.items()
        }
        last = run.scores[-1] if run.scores else None
        scores = {key: value for key in SHOWN_SCORES if (value := getattr(last, key, None)) is not None}
        return Status(
            run=run.plan.name,
            round=run.round,
            rounds=run.plan.rounds,
            phase=Phase.DONE.value if run.was_done else run.phase.value,
            since=self.note_state(None, (run.phase, run.round), now),
            clients=clients,
            awaited=tuple(run.list_awaited(now)),
            scores=scores,
            scored_round=None if last is None else last.round,
            problem=run.refused_change,
        )


def choose_state(run: Coordinator, site: Site) -> ClientState:
    """Return the state of a client."""
    if site.is_ejected:
        return "left"
    if site.is_late:
        return "late"
    if site.is_away or site.last_seen is None:
        return "absent"
    if not run.setups or site.name not in run.setup.clients:
        return "idle"
    if run.open_round is not None:
        return _choose_round_state(run, run.setup.clients.index(site.name))
    if run.phase is Phase.SCORING:
        return "answered" if site.name in run.tallies else "scoring"
    if run.phase is Phase.FINISHING:
        return "answered" if site.name in run.finished else "finishing"
    return "idle"


def _choose_round_state(run: Coordinator, place: int) -> ClientState:
    """Return the state of a client, by its place in the roster, in the round in progress."""
    opened = run.open_round
    if opened is None or place not in opened.cohort:
        return "idle"
    if place in opened.replies:
        return "answered"
    if place not in opened.missing:
        return "training"
    return "declined" if opened.missing[place] is EventReason.DECLINED else "refused"
