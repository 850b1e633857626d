"""The coordinator: the server's side of a run as a state machine, without a clock, socket or thread."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import torch

from fedlap.deploy.event_words import EventReason
from fedlap.deploy.failpoints import pass_point
from fedlap.deploy.message_sizes import build_first_setup, measure_messages
from fedlap.deploy.moments import ScalingConstants, combine_moments
from fedlap.deploy.plan import Plan
from fedlap.deploy.requests import CHECK_REQUESTS, HANDLERS
from fedlap.deploy.roster_changes import RosterChange, move_server_state
from fedlap.deploy.roster_requests import accept_change, apply_changes
from fedlap.deploy.round_merge import merge_round
from fedlap.deploy.run_state import CURABLE, OpenRound, Phase, Site
from fedlap.deploy.run_storage import RunStorage, ServerCheckpoint
from fedlap.deploy.score_sums import add_tallies, compute_server_penalty, list_client_scores
from fedlap.deploy.setup import STATE_TYPES, Setup
from fedlap.deploy.transport import ExitCode, PermanentError
from fedlap.deploy.wire import REQUESTS, Message, WireError, decode_message, refuse
from fedlap.errors import InputError
from fedlap.training.scores import Score
from fedlap.training.state import gather_lazy_rows, map_state, split_state
from fedlap.training.state_bytes import list_state_types
from fedlap.training.worker import ClientTally

MOST_DAMAGED: Final = 3  # damaged messages of a client in a round, after which it is left out of the round


class Coordinator:
    """The state of a run at the server; `handle` takes a message, and `advance` moves the run on.

    plan, storage: the run. log: called with each event. now: the time, in seconds of any monotonic clock.
    on_score: called with each new score.
    """

    def __init__(
        self,
        plan: Plan,
        storage: RunStorage,
        log: Callable[..., None],
        now: float,
        on_score: Callable[[Score], None] | None = None,
    ) -> None:
        """Start a run, or load it where it was interrupted; raise InputError for a plan that cannot run."""
        self.sizes = measure_messages(build_first_setup(plan))
        self.plan, self.storage, self.log, self._on_score = plan, storage, log, on_score
        self.sites = {name: Site(name) for name in plan.clients}
        self.changes: list[RosterChange] = []
        self.refused_change = ""  # why the operator's last change of the roster was refused
        self.setups: list[Setup] = []
        self.constants = ScalingConstants(None, None)
        self.scores: list[Score] = []
        self.tallies: dict[str, ClientTally | None] = {}  # None is refused
        self.finished: set[str] = set()
        self.was_done = False  # The run has ended before; it waits for clients without their final model.
        self.phase, self.changed = Phase.GATHERING, 0
        self.open_round: OpenRound | None = None
        self._started = now
        self._types = [*list_state_types(plan.method_class), *STATE_TYPES]
        storage.prepare()
        stored = storage.read_setups(plan.digest, self._types)
        if stored is not None:
            self._load(*stored, now)

    # What is asked of it.

    @property
    def setup(self) -> Setup:
        """The setup in force."""
        return self.setups[-1]

    @property
    def has_ended(self) -> bool:
        """Return whether the run has ended, and nobody waits for a final model."""
        return self.phase is Phase.DONE

    @property
    def round(self) -> int:
        """The round in progress, or the last one."""
        if self.open_round is not None:
            return self.open_round.number
        return self.checkpoint.round if self.setups else 0

    def handle(self, name: str, content: bytes, now: float) -> Message:
        """Return the answer to a message of the client that the transport has identified as `name`."""
        site = self.sites.get(name)
        if site is None or site.is_ejected:
            self.log("stranger", reason=EventReason.NO_ACCESS)
            return refuse(f"client {name!r} is not part of this run", ExitCode.REFUSED)
        site.bytes_up += len(content)
        if len(content) > self.plan.limits.most_bytes:
            return self.refuse_long(name, now)
        try:
            message = decode_message(content, REQUESTS, self._types)
        except WireError as error:
            self._note_seen(site, now)
            self._note_damage(site, EventReason.MALFORMED)
            return refuse(str(error))
        except PermanentError as error:
            self.log("refused", name=name, reason=EventReason.from_code(error.code))
            return refuse(str(error), error.code)
        if message.kind not in CHECK_REQUESTS:
            self._note_seen(site, now)
        return HANDLERS[message.kind](self, site, message)

    def refuse_long(self, name: str, now: float) -> Message:
        """Refuse a message that is longer than the plan allows; its sender does not count in this round."""
        site = self.sites.get(name)
        if site is not None:
            self._note_seen(site, now)
            self._note_damage(site, EventReason.TOO_LONG)
        return refuse(f"the message is longer than {self.plan.limits.most_bytes:,} bytes")

    def advance(self, now: float) -> None:
        """Move the run on as far as the replies allow, and note who is late."""
        self._note_late(now)
        while self._advance_once(now):
            self.changed += 1

    def list_awaited(self, now: float) -> list[str]:
        """Return the clients that the run waits for."""
        if self.phase is Phase.GATHERING:
            return [name for name, site in self.sites.items() if site.rows is None]
        if self.open_round is not None:
            return [self.setup.clients[k] for k in self._find_needed(self.open_round, now)]
        if self.phase is Phase.SCORING:
            return self._list_unanswered(self.tallies, now)
        return self._list_unanswered(self.finished, now) if self.phase is Phase.FINISHING else []

    # Rounds.

    def _advance_once(self, now: float) -> bool:
        if self.phase is Phase.GATHERING:
            return self._start_run(now)
        if self.phase is Phase.TRAINING:
            return self._close_round(now)
        if self.phase is Phase.SCORING and not self._list_unanswered(self.tallies, now):
            return self._score(now)
        if self.phase is Phase.FINISHING and not self._list_unanswered(self.finished, now):
            self.phase = Phase.DONE
            self.note_finished()
            self.log("run-finished", round=self.checkpoint.round, clients=len(self.finished))
            return True
        return False

    def _start_run(self, now: float) -> bool:
        """Start the first round once every client of the plan has registered."""
        sites = [self.sites[name] for name in self.plan.clients]
        if any(site.rows is None for site in sites):
            return False
        clients, counts = self.plan.clients, [site.rows or 0 for site in sites]
        graph = self.plan.build_graph(clients)
        self.setups = [Setup.of(self.plan, clients, counts, graph, version=1, first_round=1)]
        self.constants = combine_moments({site.name: site.moments for site in sites}, clients)
        self.storage.write_plan(self.plan.describe())
        self.storage.write_setups(
            self.plan.digest, [setup.describe() for setup in self.setups], self.constants
        )
        server = self.setup.method.init_server(self.setup.build_start())
        self.checkpoint = ServerCheckpoint(0, server)
        self.log("run-started", clients=len(clients), rows=sum(counts))
        self._begin_round(now)
        return True

    def _begin_round(self, now: float) -> None:
        """Open the next round, under a new setup if the roster changes."""
        number = self.checkpoint.round + 1
        apply_changes(self, number)
        setup, server = self.setup, self.checkpoint.server
        ids = setup.draw_cohort(number)
        down = gather_lazy_rows(setup.method.send(server, ids))
        cohort = ids.tolist()
        # Merging writes into the server's table, and a message may be a view of it.
        messages = [map_state(torch.Tensor.clone, row) for row in split_state(down, [1] * len(cohort))]
        replies, damaged = self.storage.read_replies(number, self._types)
        counted = self.storage.read_cohort(number)
        self.open_round = OpenRound(
            number,
            cohort,
            dict(zip(cohort, messages, strict=True)),
            replies,
            counted=counted,
            opened=now,
            asked=now,
        )
        for place in sorted({*self.open_round.list_lost(), *damaged} & {*cohort}):
            self.log("reply-lost", name=setup.clients[place], round=number)
        self.phase = Phase.TRAINING
        for site in self.sites.values():
            site.damaged = 0

    def note_finished(self, name: str | None = None) -> None:
        """Note that a client has stored its final model, or that the run has ended."""
        self.finished |= {name} if name else set()
        self.was_done = self.was_done or self.phase is Phase.DONE
        self.storage.write_finished(self.finished, self.was_done)
        self.changed += 1

    def _find_waiting(self, opened: OpenRound, now: float) -> list[int]:
        """Return the places of the cohort that may still answer."""
        answered = {*opened.replies, *opened.missing}
        sites = self.sites
        return [
            k for k in opened.cohort
            if k not in answered and not self._is_silent(sites[self.setup.clients[k]], now)
        ]  # fmt: skip

    def _find_needed(self, opened: OpenRound, now: float) -> list[int]:
        """Return the places whose replies the round waits for, also those of silent clients it lacks."""
        if opened.counted is not None:
            return opened.list_lost()
        if waiting := self._find_waiting(opened, now):
            return waiting
        staying = self._find_staying(opened)
        lacking = [k for k in staying if k not in opened.replies]
        return lacking if len(opened.replies) < min(self.plan.limits.minimum, len(staying)) else []

    def _find_staying(self, opened: OpenRound) -> list[int]:
        """Return the places of the cohort without clients that leave for good or are ejected."""
        leaving = {change.name for change in self.changes if change.kind != "join"}
        return [k for k in opened.cohort if self.setup.clients[k] not in leaving]

    def _close_round(self, now: float) -> bool:
        """Merge the round if everybody who may still answer has answered."""
        opened = self.open_round
        assert opened is not None
        if self._find_needed(opened, now):
            is_waiting = opened.counted is None and bool(self._find_waiting(opened, now))
            return not is_waiting and opened.ask_again(now)
        if opened.counted is None:
            counted = [k for k in opened.cohort if k in opened.replies]
            self.storage.sync_replies(counted)
            self.decide(opened, counted)
        pass_point("server.merge.starting")
        self._merge(opened, now)
        self.open_round = None
        self.storage.write_checkpoint(self.checkpoint)
        self._choose_phase(now)
        return True

    def _merge(self, opened: OpenRound, now: float) -> None:
        """Merge the replies of the clients that count, in the order of the roster."""
        for name, place in opened.list_left_out(self.setup.clients):
            is_away = self.sites[name].is_away
            reason = opened.missing.get(place, EventReason.AWAY if is_away else EventReason.SILENT)
            self.log("left-out", name=name, round=opened.number, reason=reason)
        traffic = {site.name: [site.bytes_up, site.bytes_down] for site in self.sites.values()}
        self.checkpoint = merge_round(self.setup, self.checkpoint, opened, now, traffic)
        pass_point("server.merged")
        replies = len(opened.counted or ())
        event = "round-merged" if replies else "round-abandoned"
        self.log(event, round=opened.number, replies=replies, clients=len(opened.cohort))

    def _choose_phase(self, now: float) -> None:
        """Go to the scores of the last round, to the next round, or to the end."""
        round = self.checkpoint.round
        if (
            round
            and self.plan.schedule.is_scored(round)
            and round not in [score.round for score in self.scores]
        ):
            self.phase, self.tallies = Phase.SCORING, {}
        elif round < self.plan.rounds:
            self._begin_round(now)
        else:
            self.phase = Phase.FINISHING

    def _score(self, now: float) -> bool:
        """Compute the scores from the clients' sums."""
        known = {name: self.tallies.get(name) for name in self.setup.clients}
        tallies = {name: tally for name, tally in known.items() if tally is not None}
        if tallies:
            checkpoint, penalty = self.checkpoint, compute_server_penalty(self.setup, self.checkpoint.server)
            sent = checkpoint.bytes_up, checkpoint.bytes_down
            score = add_tallies(checkpoint.round, list(tallies.values()), penalty, sent, checkpoint.seconds)
            self.scores.append(score)
            self.storage.write_client_scores(score.round, list_client_scores(tallies))
            self.storage.write_scores(self.scores)
            values = {name: getattr(score, name) for name in ("loss", "accuracy", "rmse")}
            numbers = {name: value for name, value in values.items() if value is not None}
            self.log("scored", round=score.round, clients=len(tallies), **numbers)
            if self._on_score is not None:
                self._on_score(score)
        else:
            self.log("not-scored", round=self.checkpoint.round, reason=EventReason.SILENT)
        if self.checkpoint.round < self.plan.rounds:
            self._begin_round(now)
        else:
            self.phase = Phase.FINISHING
        return True

    def _note_damage(self, site: Site, reason: EventReason) -> None:
        """Count a message that cannot be read; a client that sends several is left out of the round."""
        site.damaged += 1
        self.log("refused", name=site.name, round=self.round, reason=reason)
        if reason is EventReason.TOO_LONG or site.damaged >= MOST_DAMAGED:
            self.leave_out(site.name, reason)

    def leave_out(self, name: str, reason: EventReason) -> None:
        """Count a client as missing in the round or scores in progress, unless it has answered."""
        if name not in (self.setup.clients if self.setups else ()):
            return
        self.changed += 1
        if self.phase is Phase.SCORING and reason not in CURABLE:
            self.tallies.setdefault(name, None)
        elif self.open_round is not None:
            self.open_round.leave_out(self.setup.clients.index(name), reason)

    # Silence.

    def _note_seen(self, site: Site, now: float) -> None:
        """Note that the process of a client is alive and connected."""
        if site.last_seen is None or site.is_away or site.is_late:
            self.log("connected" if site.last_seen is None else "returned", name=site.name, round=self.round)
        site.last_seen, site.is_away, site.is_late = now, False, False

    def excuse_silence(self, since: float, now: float) -> None:
        """Count the time since then as no silence of any client: the server could not hear them."""
        self._started = min(self._started + now - since, now)
        for site in self.sites.values():
            if site.last_seen is not None:
                site.last_seen = min(site.last_seen + now - since, now)

    def _is_silent(self, site: Site, now: float) -> bool:
        seen = self._started if site.last_seen is None else site.last_seen
        return site.is_away or now - seen > self.plan.limits.deadline

    def _list_unanswered(self, answered: Any, now: float) -> list[str]:
        """Return the clients of the roster that have not answered and are not silent."""
        names = [name for name in self.setup.clients if name not in answered]
        return [name for name in names if not self._is_silent(self.sites[name], now)]

    def _note_late(self, now: float) -> None:
        for site in self.sites.values():
            if not site.is_late and not site.is_away and self.setups and self._is_silent(site, now):
                site.is_late = True
                self.changed += 1
                self.log("late", name=site.name, round=self.round, reason=EventReason.SILENT)

    # The roster, and the start from disk.

    def request_change(self, change: RosterChange) -> None:
        """Change the roster from the next round on; raise InputError if the graph or method forbids it."""
        accept_change(self, change)

    def decide(self, opened: OpenRound, counted: list[int]) -> None:
        """Store who counts in a round; the merge of a restarted server uses the same list."""
        self.storage.write_cohort(opened.number, counted)
        opened.counted = counted

    def adopt(self, setup: Setup) -> None:
        """Move the server's state to a new setup, which is in force from the next round on."""
        server = move_server_state(self.checkpoint.server, self.setup, setup)
        self.checkpoint.server, self.checkpoint.setup = server, setup.version
        self.setups.append(setup)
        self.sizes = measure_messages(setup)

    def _load(self, descriptions: Sequence[dict[str, Any]], constants: ScalingConstants, now: float) -> None:
        """Load a run that was started before."""
        first = descriptions[0]
        names, counts = first["clients"], first["counts"]
        graph = self.plan.build_graph(names)
        setups = [Setup.of(self.plan, names, counts, graph, version=1, first_round=1)]
        setups += [Setup.parse(self.plan, values) for values in descriptions[1:]]
        self.constants = constants
        stored = self.storage.read_checkpoint(self._types)
        self.setups = setups[: stored.setup if stored else 1]
        server = self.setup.method.init_server(self.setup.build_start())
        self.checkpoint = stored or ServerCheckpoint(0, server)
        for setup in setups[self.checkpoint.setup :]:  # The server ended before the next checkpoint.
            self.adopt(setup)
        for name, rows in zip(self.setup.clients, self.setup.counts, strict=True):
            self.sites.setdefault(name, Site(name)).rows = rows
        for name in set(self.sites) - set(self.setup.clients):
            del self.sites[name]
        for site in self.sites.values():
            site.bytes_up, site.bytes_down = self.checkpoint.traffic.get(site.name, (0, 0))
        self.scores = self.storage.read_scores(self.checkpoint.round)
        self.finished, self.was_done = self.storage.read_finished()
        leaving = {values["name"] for values in self.storage.read_pending() if values["kind"] != "join"}
        if self.was_done and self.finished | leaving >= {*self.setup.clients}:
            self.phase = Phase.DONE
            return
        self.log("run-resumed", round=self.checkpoint.round)
        self._choose_phase(now)
        for values in self.storage.read_pending():  # The round in progress has the roster that it began with.
            with suppress(InputError):  # The change is in force: the server ended before it noted that.
                self.request_change(RosterChange.parse(values))
