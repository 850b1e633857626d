"""A peer's run, without a clock, socket or thread: it greets, gathers, trains, and serves its neighbours.

A checkpoint follows every round and every change of an edge. While the disk is full, the peer waits.
"""

import math
from collections.abc import Callable
from typing import Final

from fedlap.algorithms import State
from fedlap.data.federation import Federation
from fedlap.deploy.data_plan import DataPlan
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.failpoints import pass_point
from fedlap.deploy.moments import ScalingConstants
from fedlap.deploy.peers.changes import EdgeChange, JoinRequest
from fedlap.deploy.peers.edges import change_edge, find_edges, forget_silent
from fedlap.deploy.peers.links import Link
from fedlap.deploy.peers.messages import list_message_types
from fedlap.deploy.peers.peer import Peer
from fedlap.deploy.peers.records import RecordBook, write_record
from fedlap.deploy.peers.signatures import Signer
from fedlap.deploy.peers.stages import Stage
from fedlap.deploy.peers.starting import collect, gather, restore_setup
from fedlap.deploy.peers.storage import PeerStorage, ScoredRound
from fedlap.deploy.plan import Plan
from fedlap.deploy.setup import Setup
from fedlap.deploy.site_model import write_site_model
from fedlap.deploy.transport import REMARK_INTERVAL, ExitCode, PermanentError
from fedlap.errors import InputError
from fedlap.training.worker import ClientTally, Worker

LONG_SILENCE: Final = 10  # deadlines
STORAGE_PAUSE: Final = 1.0  # seconds between attempts to write to a disk that is full


class PeerRun:
    """One peer of a run.

    load_site: reads the peer's rows as the plan describes them. log: called with each event. say: shows a
    problem to the operator. join: the request with which a newcomer, which the plan does not name, joins.
    patience: seconds in which no neighbour is heard of, after which the peer waits no longer. It is no
    shorter than the plan's deadline.
    """

    def __init__(
        self,
        plan: Plan,
        name: str,
        load_site: Callable[[DataPlan, int], Federation],
        storage: PeerStorage,
        signer: Signer,
        log: Callable[..., None],
        now: float,
        say: Callable[[str], None] = lambda text: None,
        join: JoinRequest | None = None,
        patience: float = math.inf,
    ) -> None:
        """Read rows, setup and checkpoint; nothing is sent yet."""
        self.plan, self.name, self.storage, self.signer, self.log = plan, name, storage, signer, log
        self.say, self.join, self._started = say, join, now
        assert plan.peers is not None
        self.settings = plan.peers
        self.patience = max(patience, self.settings.deadline)
        self.state_types = list_message_types(plan)
        self.stage, self.stage_since = Stage.GATHERING, now
        self.changed, self.links_changed = 0, False
        self.changes: list[EdgeChange] = []  # without a round until the newcomer comes
        self.pending: list[EdgeChange] = []  # until there is a setup
        self.setup: Setup | None = None  # that all agreed on, with this peer if it has joined later
        self.agreed: Setup | None = None
        self.federation: Federation | None = None
        self.constants: ScalingConstants | None = None
        self.peer: Peer | None = None
        self.last_tally: tuple[int, ClientTally] | None = None  # of the last scored round, for the status
        # The first one, with its time; None while a neighbour fits.
        self.mismatch: tuple[float, str, ExitCode] | None = None
        self.has_checkpoint = False
        self._is_busy = self._is_unsaved = False
        self._now, self._moved_at, self._next_save, self._storage_problem, self._work_problem = (
            now,
            now,
            now,
            "",
            "",
        )
        self._stranger_logged = -math.inf
        self.weights = find_edges(plan, name, join)
        self.links = {neighbour: Link(neighbour) for neighbour in self.weights}
        storage.prepare()
        self._check_plan()
        self.site = load_site(plan.data, plan.seed)
        self.records = RecordBook(plan, signer)
        if not restore_setup(self) and join is None:
            self.records.add(write_record(plan, name, self.site, signer))

    def _check_plan(self) -> None:
        """Store the plan, and refuse a folder of another one."""
        known = self.storage.site.read_plan()
        if known is not None and known["digest"] != self.plan.digest:
            raise PermanentError(
                f"{str(self.storage.folder)!r} belongs to plan {known['digest'][:16]}, and this is "
                f"{self.plan.digest[:16]}; restore the plan, or set another --folder",
                ExitCode.OTHER_PLAN,
            )
        self.storage.site.write_plan(self.plan.digest, self.plan.describe())

    # Time.

    def advance(self, now: float) -> None:
        """Move the run on as far as the neighbours' models allow."""
        self._now = now
        self.save(now)
        while self._advance_once(now):
            self.changed, self._moved_at = self.changed + 1, now
        if self._is_alone(now) and self.stage is not Stage.FINISHING and (names := self.list_awaited(now)):
            raise PermanentError(
                f"{self.name} waits for {', '.join(names)}, and has heard of no neighbour for "
                f"{self.patience:g} seconds (--patience); start it again when they run",
                ExitCode.NO_ANSWER,
            )

    def enter_stage(self, stage: Stage, now: float) -> None:
        """Enter another stage; the peer's state in the first round of training is stored."""
        self.stage, self.stage_since = stage, now
        self._is_unsaved |= stage is Stage.TRAINING
        self.changed += 1

    def _advance_once(self, now: float) -> bool:
        if self.stage is Stage.GATHERING:
            return gather(self, now)
        if self.stage is Stage.COLLECTING:
            return collect(self, now)
        if self.stage is Stage.TRAINING:
            return self._continue_round(now)
        if self.stage is Stage.FINISHING and self._can_end(now):
            self._is_unsaved = True  # with the bytes of the last answers
            self.save(now)
            self.enter_stage(Stage.DONE, now)
            self.log("run-finished")
            return True
        return False

    def _continue_round(self, now: float) -> bool:
        """Mix if the models are here; store a checkpoint after each round."""
        peer = self.require_peer()
        if peer.turn is not None:
            if not peer.is_ready(now):
                return False
            if peer.mix(now):
                self.log("round-finished", round=peer.round)
                self._storage_problem = ""
                forget_silent(self)
                self._is_unsaved = True
            return True
        if self._is_busy or not self.save(now):
            return False
        return peer.is_done and self._finish(now)

    # The disk.

    def save(self, now: float) -> bool:
        """Store a checkpoint if one is due; return whether it is stored. A full disk is tried again."""
        if not self._is_unsaved:
            return True
        if not (self.has_checkpoint or self.stage in (Stage.TRAINING, Stage.FINISHING)):
            return True  # Nothing has been trained, and the start would look like a restart.
        if self.waits_for_disk(now):
            return False
        changes = [change.to_dict() for change in self.changes]
        try:
            self.storage.write_checkpoint(self.require_peer(), changes)
        except InputError as error:
            self.note_full_disk(str(error), now)
            return False
        self._is_unsaved, self.has_checkpoint = False, True
        return True

    def save_change(self, now: float) -> bool:
        """Store a change at once, in the middle of a round; return whether it is stored.

        The checkpoint still holds the last finished round, and the messages of the round in progress.
        """
        self._is_unsaved = True
        return self.save(now)

    def waits_for_disk(self, now: float) -> bool:
        """Return whether the disk was full a moment ago."""
        return now < self._next_save

    def note_full_disk(self, problem: str, now: float) -> None:
        """Try again later; say so once per round."""
        self._next_save = now + STORAGE_PAUSE
        if problem != self._storage_problem:
            self._storage_problem = problem
            self.say(problem)
            self.log("round-declined", round=self.round + 1, reason=EventReason.STORAGE)

    # The peer's own work, which the caller may run in another thread.

    def take_work(self) -> Callable[[], State | None] | None:
        """Return the work to do now, if there is any: scores of the last round, then training.

        The work returns None if the scores cannot be stored.
        """
        peer = self.peer
        if self.stage is not Stage.TRAINING or peer is None or peer.turn is not None:
            return None
        if self._is_busy or self._is_unsaved or peer.is_done or self.waits_for_disk(self._now):
            return None
        self._is_busy = True
        train, worker, received = peer.begin(), peer.worker, peer.count_received(peer.round)

        def work() -> State | None:
            try:
                self._score(worker, peer.round, received)
            except InputError as error:
                self._work_problem = str(error)
                return None
            model = train()
            pass_point("peer.trained")
            return model

        return work

    def finish_work(self, model: State | None, now: float) -> None:
        """Publish the model of the work that is done, or try again later if the disk is full."""
        self._is_busy, self._moved_at = False, now
        if model is None:
            self.note_full_disk(self._work_problem, now)
            return
        self.require_peer().publish(model, now)
        pass_point("peer.published")
        self.changed += 1

    def _score(self, worker: Worker, round: int, received: int) -> None:
        """Store the sums for the scores of a finished round, if the plan asks for them.

        received: bytes of the models of all rounds up to this one.
        """
        if round and self.plan.schedule.is_scored(round) and not self.storage.has_tally(round):
            tally = worker.score(worker.personal_model(None))
            self.storage.write_tally(round, ScoredRound(tally, received))
            self.last_tally = round, tally
            self._write_model(worker)

    def _write_model(self, worker: Worker) -> None:
        assert self.setup is not None
        assert self.federation is not None
        pass_point("peer.model.writing")
        w = worker.adapt(worker.personal_model(None))
        write_site_model(self.storage.site.model_path, w, self.federation, self.setup.model)
        pass_point("peer.model.written")

    def _finish(self, now: float) -> bool:
        """Score and store the final model, and serve neighbours that have not finished."""
        if self.waits_for_disk(now):
            return False
        peer = self.require_peer()
        try:
            self._score(peer.worker, peer.round, peer.count_received(peer.round))
            self._write_model(peer.worker)
        except InputError as error:
            self.note_full_disk(str(error), now)
            return False
        self.log("model-written", round=peer.round)
        self.enter_stage(Stage.FINISHING, now)
        return True

    def _can_end(self, now: float) -> bool:
        """Return whether no neighbour needs this peer any more.

        A neighbour that is silent for longer than the deadline can continue with the last model that it has;
        with staleness 0 it cannot. A neighbour that has done its last round has probably ended if it is
        silent; with staleness 0 it waits until it knows that this peer has done so, too.
        """
        peer = self.require_peer()
        if self._is_alone(now):
            return True
        for link in self.links.values():
            neighbour = peer.neighbours[link.name]
            if neighbour.is_removed or neighbour.first_round is None:
                continue
            heard = self._started if link.heard_at is None else link.heard_at
            silence = 0.0 if link.is_greeted else now - heard
            if neighbour.has_finished and (link.knows_end or silence > self._farewell_time):
                continue
            if silence <= self.settings.deadline or self.settings.most_age == 0:
                return False
        return True

    def _is_alone(self, now: float) -> bool:
        """Return whether no neighbour has been heard of for as long as the peer may wait."""
        if self._is_busy or any(link.is_greeted for link in self.links.values()):
            return False
        heard = [link.heard_at for link in self.links.values() if link.heard_at is not None]
        return now - max([self._moved_at, *heard]) > self.patience

    @property
    def _farewell_time(self) -> float:
        """Seconds in which a neighbour that has done its last round can hear that this peer has done so."""
        return float(self.settings.deadline * (1 if self.settings.most_age else LONG_SILENCE))

    @property
    def round(self) -> int:
        """The last finished round."""
        return 0 if self.peer is None else self.peer.round

    def list_awaited(self, now: float) -> list[str]:
        """Return the peers that the run waits for."""
        if self.stage is Stage.GATHERING:
            missing = [
                name
                for name, link in self.links.items()
                if not (link.is_greeted and link.setup) and not self.is_removed(name)
            ]
            if self.setup is not None or self.join is not None:  # Records are not needed any more.
                return missing
            return sorted({*missing, *self.records.list_missing()})
        if self.stage is Stage.TRAINING:
            return self.require_peer().list_awaited(now)
        if self.stage is Stage.FINISHING:
            neighbours = self.require_peer().neighbours
            return [one.name for one in neighbours.values() if not (one.has_finished or one.is_removed)]
        return []

    def require_peer(self) -> Peer:
        """Return the peer's rounds, which there are as soon as it has a setup."""
        assert self.peer is not None
        return self.peer

    @property
    def has_started(self) -> bool:
        """Return whether this peer trains, or continues from a checkpoint."""
        return self.has_checkpoint or self.stage in (Stage.TRAINING, Stage.FINISHING, Stage.DONE)

    def note_stranger(self, now: float) -> None:
        """Log a question of a peer that is no neighbour, at most once per minute."""
        if now - self._stranger_logged >= REMARK_INTERVAL:
            self._stranger_logged = now
            self.log("stranger", reason=EventReason.NO_ACCESS)

    # Edges.

    def is_removed(self, name: str) -> bool:
        """Return whether the edge to a neighbour does not count any more, but its link is still there."""
        return (
            self.peer is not None and name in self.peer.neighbours and self.peer.neighbours[name].is_removed
        )

    def request_change(self, change: EdgeChange) -> None:
        """Add or remove an edge; raise InputError if mixing could diverge with it.

        Before there is a setup, the change waits.
        """
        if self.peer is None:
            self.pending += [] if change in self.pending else [change]
            return
        change_edge(self, change)
        self.changed += 1
        self.save_change(self._now)
