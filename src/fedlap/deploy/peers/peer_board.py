"""A peer's status while it runs: itself, and its neighbours as it sees them."""

from collections.abc import Iterator
from dataclasses import replace

from fedlap.deploy.peers.run import PeerRun
from fedlap.deploy.peers.stages import Stage
from fedlap.deploy.score_sums import list_client_scores
from fedlap.deploy.status import ClientState, ClientStatus, Status
from fedlap.deploy.status_board import SHOWN_SCORES, StatusBoard


class PeerBoard(StatusBoard[PeerRun]):
    """Status of a peer's run. Bytes are those of models, as a simulation counts them."""

    def observe(self, now: float) -> Status:
        """Return the status of the peer."""
        run = self._run
        awaited = run.list_awaited(now)
        known = {run.name, *run.links}
        scored_round, scores = list_last_scores(run)
        return Status(
            run=run.plan.name,
            round=(round := count_round(run)),
            rounds=run.plan.rounds,
            phase=run.stage.value,
            since=self.note_state(None, (run.stage, round), now),
            clients=dict(self._list_clients(round, now)),
            awaited=tuple(name for name in awaited if name in known),
            scores=scores,
            scored_round=scored_round,
            peer=run.name,
            unheard=tuple(name for name in awaited if name not in known),
            former_bytes=(0, 0) if run.peer is None else (run.peer.former_bytes[0], run.peer.former_bytes[1]),
        )

    def _list_clients(self, round: int, now: float) -> Iterator[tuple[str, ClientStatus]]:
        """Yield this peer, its neighbours, and those to whom it had an edge."""
        run = self._run
        agreed = None if run.setup is None else run.agreed
        rows = {} if agreed is None else dict(zip(agreed.clients, agreed.counts, strict=True))
        state = choose_own_state(run)
        since = self.note_state(run.name, (state, round), now)
        yield run.name, ClientStatus(state, since, run.round, int(run.site.train.count))
        former = {change.name: None for change in run.changes if change.name not in run.links}
        for name in (*run.links, *former):
            state = choose_neighbour_state(run, name)
            since = self.note_state(name, (state, round), now)
            seen, problem = None, ""
            if name in run.links:
                seen, problem = run.links[name].heard_at, run.links[name].problem
            status = ClientStatus(state, since, rows=rows.get(name, 0), last_seen=seen, problem=problem)
            if run.peer is not None and name in run.peer.neighbours:
                neighbour = run.peer.neighbours[name]
                status = replace(
                    status,
                    round=neighbour.newest.round,
                    bytes_up=neighbour.bytes_up,
                    bytes_down=neighbour.bytes_down,
                    age=max(0, run.round - neighbour.newest.round),
                )
            yield name, status


def count_round(run: PeerRun) -> int:
    """Return the round in progress, or the last one."""
    return min(run.round + 1, run.plan.rounds) if run.stage is Stage.TRAINING else run.round


def choose_own_state(run: PeerRun) -> ClientState:
    """Return the state of the peer itself."""
    if run.stage is Stage.TRAINING:
        return "training" if run.peer is None or run.peer.turn is None else "waiting"
    if run.stage is Stage.FINISHING:
        return "finishing"
    return "done" if run.stage is Stage.DONE else "idle"


def choose_neighbour_state(run: PeerRun, name: str) -> ClientState:
    """Return the state of a neighbour, or of one to whom the edge is removed."""
    link, peer = run.links.get(name), run.peer
    if link is None or run.is_removed(name):
        last = [change.kind for change in run.changes if change.name == name][-1]
        return "left" if last == "leave" else "removed"
    neighbour = None if peer is None else peer.neighbours.get(name)
    if neighbour is not None and neighbour.has_finished:
        return "done"
    if link.code:
        return "refused"
    if neighbour is not None and neighbour.is_late:
        return "late"
    if link.problem or link.heard_at is None:
        return "absent"
    if peer is None or neighbour is None or run.stage is not Stage.TRAINING:
        return "idle"
    if neighbour.refused is not None:
        return "refused"
    return "answered" if neighbour.newest >= peer.next_turn else "training"


def list_last_scores(run: PeerRun) -> tuple[int | None, dict[str, float | None]]:
    """Return the last scored round, and the scores of the peer's own test rows in it."""
    if run.last_tally is None:
        return None, {}
    round, tally = run.last_tally
    scores = list_client_scores({run.name: tally})[run.name]
    return round, {key: scores[key] for key in SHOWN_SCORES if key in scores}
