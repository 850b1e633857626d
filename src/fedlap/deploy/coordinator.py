"""The coordinator: the server's side of a run as a state machine, without a clock, socket or thread."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import torch

from fedlap.algorithms import ClientTable
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.failpoints import pass_point
from fedlap.deploy.moments import CONSTANT_TYPES, MOMENT_TYPES, ScalingConstants, combine_moments
from fedlap.deploy.plan import Plan
from fedlap.deploy.requests import HANDLERS
from fedlap.deploy.roster_changes import RosterChange, change_setup, move_server_state
from fedlap.deploy.run_state import OpenRound, Phase, Site
from fedlap.deploy.run_storage import RunStorage, ServerCheckpoint
from fedlap.deploy.score_sums import add_tallies, list_client_scores
from fedlap.deploy.setup import Setup
from fedlap.deploy.transport import ExitCode, PermanentError
from fedlap.deploy.wire import REQUESTS, Message, WireError, decode_message, refuse
from fedlap.errors import InputError
from fedlap.training.scores import Score
from fedlap.training.state import (
    apply_updates,
    concatenate_states,
    count_bytes,
    gather_lazy_rows,
    map_state,
    split_state,
)
from fedlap.training.state_bytes import list_state_types
from fedlap.training.worker import ClientTally

MOST_DAMAGED: Final = 3  # damaged messages of a client in a round, after which it is left out of the round
# In messages and files, in addition to the types of the method.
STATE_TYPES: Final = (ClientTable, *MOMENT_TYPES, *CONSTANT_TYPES, ClientTally)


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
        """Start a run, or load it where it was interrupted."""
        self.plan, self.storage, self.log, self._on_score = plan, storage, log, on_score
        self.sites = {name: Site(name) for name in plan.clients}
        self.changes: list[RosterChange] = []
        self.setups: list[Setup] = []
        self.constants = ScalingConstants(None, None)
        self.scores: list[Score] = []
        self.tallies: dict[str, ClientTally | None] = {}  # None is refused
        self.finished: set[str] = set()
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
        if site.last_seen is None or site.is_away or site.is_late:
            self.log("connected" if site.last_seen is None else "returned", name=name, round=self.round)
        site.last_seen, site.is_away, site.is_late = now, False, False
        site.bytes_up += len(content)
        try:
            message = decode_message(content, REQUESTS, self._types, self.plan.limits.most_bytes)
        except WireError as error:
            self._note_damage(site)
            return refuse(str(error))
        except PermanentError as error:
            self.log("refused", name=name, reason=EventReason.from_code(error.code))
            return refuse(str(error), error.code)
        return HANDLERS[message.kind](self, site, message)

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
            return [self.setup.clients[k] for k in self._find_waiting(now)]
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
        self._change_roster(number)
        setup, server = self.setup, self.checkpoint.server
        ids = setup.draw_cohort(number)
        down = gather_lazy_rows(setup.method.send(server, ids))
        cohort = ids.tolist()
        # Merging writes into the server's table, and a message may be a view of it.
        messages = [map_state(torch.Tensor.clone, row) for row in split_state(down, [1] * len(cohort))]
        replies = self.storage.read_replies(number, self._types)
        counted = self.storage.read_cohort(number)
        self.open_round = OpenRound(
            number, cohort, dict(zip(cohort, messages, strict=True)), replies, counted=counted, opened=now
        )
        self.phase = Phase.TRAINING
        for site in self.sites.values():
            site.damaged = 0

    def _find_waiting(self, now: float) -> list[int]:
        """Return the places of the cohort that may still answer."""
        assert self.open_round is not None
        answered = {*self.open_round.replies, *self.open_round.missing}
        sites = self.sites
        return [
            k for k in self.open_round.cohort
            if k not in answered and not self._is_silent(sites[self.setup.clients[k]], now)
        ]  # fmt: skip

    def _close_round(self, now: float) -> bool:
        """Merge the round if everybody who may still answer has answered."""
        opened = self.open_round
        assert opened is not None
        counted = opened.counted
        if counted is None:
            least = min(self.plan.limits.minimum, len(opened.cohort))
            if self._find_waiting(now) or len(opened.replies) < least:
                return False
            counted = [k for k in opened.cohort if k in opened.replies]
            self.storage.write_cohort(opened.number, counted)
        elif any(k not in opened.replies for k in counted):  # lost in a power cut, and asked for again
            return False
        pass_point("server.merge.starting")
        self._merge(opened, counted, now)
        self.open_round = None
        self.storage.write_checkpoint(self.checkpoint)
        self._choose_phase(now)
        return True

    def _merge(self, opened: OpenRound, counted: Sequence[int], now: float) -> None:
        """Merge the replies of the clients that count, in the order of the roster."""
        setup, before = self.setup, self.checkpoint
        up = concatenate_states([opened.replies[k] for k in counted])
        merged = setup.method.merge(before.server, torch.tensor(counted), up)
        (server,) = apply_updates([before.server], [merged])
        names = [setup.clients[k] for k in counted]
        left_out = [setup.clients[k] for k in opened.cohort if k not in counted]
        for name in left_out:
            place = setup.clients.index(name)
            reason = opened.missing.get(place, EventReason.SILENT)
            self.log("left-out", name=name, round=opened.number, reason=reason)
        self.checkpoint = ServerCheckpoint(
            opened.number,
            server,
            setup.version,
            before.merged | dict.fromkeys(names, opened.number),
            before.left_out | {name: before.left_out.get(name, 0) + 1 for name in left_out},
            before.bytes_up + sum(count_bytes(opened.replies[k]) for k in counted),
            before.bytes_down + sum(count_bytes(opened.messages[k]) for k in opened.cohort),
            before.seconds + now - opened.opened,
            before.traffic | {site.name: [site.bytes_up, site.bytes_down] for site in self.sites.values()},
        )
        pass_point("server.merged")
        self.log("round-merged", round=opened.number, replies=len(counted), clients=len(opened.cohort))

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
            score = add_tallies(self.setup, self.checkpoint, list(tallies.values()))
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

    def _note_damage(self, site: Site) -> None:
        """Count a message that cannot be read; a client that sends several is left out of the round."""
        site.damaged += 1
        self.log("refused", name=site.name, round=self.round, reason=EventReason.MALFORMED)
        if site.damaged >= MOST_DAMAGED:
            self.leave_out(site.name, EventReason.MALFORMED)

    def leave_out(self, name: str, reason: EventReason) -> None:
        """Count a client as missing in the round in progress, unless it has answered."""
        opened = self.open_round
        if opened is None or name not in self.setup.clients:
            return
        place = self.setup.clients.index(name)
        if place in opened.messages and place not in opened.replies:
            opened.missing.setdefault(place, reason)
            self.changed += 1

    # Silence.

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
        if not self.setups:
            raise InputError("the run has not started; change the clients in the plan instead")
        if change in self.changes:
            return
        change_setup(self.setup, change, 1, self.checkpoint.round + 1)
        self.changes.append(change)
        self._write_pending()
        if change.kind == "join":
            self.sites[change.name] = Site(change.name)
        else:
            site = self.sites[change.name]
            site.is_away, site.is_ejected = True, change.kind == "eject"
        self.changed += 1

    def _change_roster(self, number: int) -> None:
        """Apply the pending changes of the roster whose newcomers have registered, from this round on."""
        ready = [c for c in self.changes if c.kind != "join" or self.sites[c.name].rows is not None]
        for change in ready:
            self.changes.remove(change)
            rows = self.sites[change.name].rows
            try:
                setup = change_setup(self.setup, change, rows, number)
            except InputError:  # An earlier change stands in its way, such as a neighbour that has left.
                self.log("not-changed", name=change.name, round=number, reason=EventReason.ROSTER)
                if change.kind == "join":
                    del self.sites[change.name]
                continue
            self._adopt(setup)
            self.setups.append(setup)
            self.storage.write_setups(
                self.plan.digest, [setup.describe() for setup in self.setups], self.constants
            )
            if change.kind != "join":
                del self.sites[change.name]
            event = {"join": "joined", "leave": "left", "eject": "ejected"}[change.kind]
            self.log(event, name=change.name, round=number)
            self.log("graph-changed", round=number, version=setup.version, clients=len(setup.clients))
        if ready:
            self._write_pending()

    def _write_pending(self) -> None:
        self.storage.write_pending([change.to_dict() for change in self.changes])

    def _adopt(self, setup: Setup) -> None:
        """Move the server's state to a new setup."""
        server = move_server_state(self.checkpoint.server, self.setup, setup)
        self.checkpoint.server, self.checkpoint.setup = server, setup.version

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
            self._adopt(setup)
            self.setups.append(setup)
        for name, rows in zip(self.setup.clients, self.setup.counts, strict=True):
            self.sites.setdefault(name, Site(name)).rows = rows
        for name in set(self.sites) - set(self.setup.clients):
            del self.sites[name]
        for site in self.sites.values():
            site.bytes_up, site.bytes_down = self.checkpoint.traffic.get(site.name, (0, 0))
        self.scores = self.storage.read_scores(self.checkpoint.round)
        self.log("run-resumed", round=self.checkpoint.round)
        self._choose_phase(now)
        for values in self.storage.read_pending():  # The round in progress has the roster that it began with.
            with suppress(InputError):  # The change is in force: the server ended before it noted that.
                self.request_change(RosterChange.parse(values))
