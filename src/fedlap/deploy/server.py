"""The server of a deployment: requests come in, the coordinator answers them, and polls wait for work."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fedlap.deploy.change_files import take_change_files
from fedlap.deploy.coordinator import Coordinator
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.failpoints import pass_point
from fedlap.deploy.roster_changes import RosterChange
from fedlap.deploy.run_state import Phase, Site
from fedlap.deploy.tasks import choose_task
from fedlap.deploy.transport import (
    HOLD_SECONDS,
    REMARK_INTERVAL,
    TICK_SECONDS,
    Request,
    ServerTransport,
)
from fedlap.deploy.wire import Message, encode_message
from fedlap.errors import InputError

AWAY_SECONDS: Final = 1.0  # A loop that takes longer was stopped, or busy: its clients were not silent.
MOST_REQUESTS: Final = 1_000  # that are handled before the coordinator looks at the clock
GOODBYE_SECONDS: Final = 5.0  # in which clients can ask for work after the last round, and hear that it ended


@dataclass
class HeldPoll:
    """A poll that waits for work."""

    request: Request
    site: Site
    until: float


class DeploymentServer:
    """The loop of the server's process: one thread, which owns the coordinator.

    stop: set by a signal; the loop then ends, and a server that is started again continues the run.
    on_tick: called about five times a second, with the time. say: shows a problem to the operator.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        transport: ServerTransport,
        log: Callable[..., None],
        stop: threading.Event | None = None,
        on_tick: Callable[[float], None] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Connect a coordinator with a transport."""
        self.coordinator, self.transport, self._log = coordinator, transport, log
        self._stop, self._on_tick, self._say = stop or threading.Event(), on_tick, say
        # A client that waits for work is not silent: it polls again well before the deadline.
        self._hold = min(HOLD_SECONDS, coordinator.plan.limits.deadline / 3)
        self._held: dict[str, HeldPoll] = {}  # by client; a newer poll replaces an older one
        self._answered = -1  # the state of the coordinator that held polls were last compared with
        self._remarked = self._ticked = 0.0
        self._stopped: set[str] = set()  # clients that know that the run has ended

    def run(self) -> None:
        """Serve until the run has ended, or until `stop` is set."""
        looked = time.monotonic()
        while not self._stop.is_set():
            now = self._handle_waiting()
            if now - looked > AWAY_SECONDS:
                self.coordinator.excuse_silence(looked, now)
            looked = now
            if now - self._ticked >= TICK_SECONDS:
                self._tick(now)
            self.coordinator.advance(now)
            self._release(now)
            if self.coordinator.phase is Phase.DONE:
                self._say_goodbye()
                return

    def _handle_waiting(self) -> float:
        """Handle the requests that wait, or wait a moment for one, and return the time.

        A client whose message is here is not silent, however long the queue is.
        """
        patience = TICK_SECONDS
        for _ in range(MOST_REQUESTS):
            request = self.transport.receive(patience)
            if request is None:
                break
            self._handle(request, time.monotonic())
            patience = 0.0
        return time.monotonic()

    def _handle(self, request: Request, now: float) -> None:
        """Answer a request, or hold a poll until there is work."""
        if request.is_too_long:
            message = self.coordinator.refuse_long(request.name, now)
        else:
            message = self.coordinator.handle(request.name, request.content, now)
        site = self.coordinator.sites.get(request.name)
        if message.kind == "wait" and site is not None:
            self._held[request.name] = HeldPoll(request, site, now + self._hold)
            return
        self._answer(request, message, site)

    def _answer(self, request: Request, message: Message, site: Site | None) -> None:
        is_task = message.kind in ("train", "score", "finish")
        if is_task:
            pass_point("server.task.sending")
        content = encode_message(message)
        request.answer(content)
        if site is not None:
            site.bytes_down += len(content)
        if is_task:
            pass_point("server.task.sent")
        elif message.kind == "ack":
            pass_point("server.reply.acknowledged")
        elif message.kind == "stop":
            self._stopped.add(request.name)

    def _release(self, now: float) -> None:
        """Answer held polls for which there is work now, or that have waited long enough."""
        is_same = self._answered == self.coordinator.changed
        for name, held in list(self._held.items()):
            if is_same and now < held.until:
                continue
            message = choose_task(self.coordinator, held.site)
            if message.kind != "wait" or now >= held.until:
                del self._held[name]
                self._answer(held.request, message, held.site)
        self._answered = self.coordinator.changed

    def _tick(self, now: float) -> None:
        """Look after everything that no request asks for."""
        self._ticked = now
        self._take_changes()
        if self._on_tick is not None:
            self._on_tick(now)
        if now - self._remarked >= REMARK_INTERVAL:
            self._remarked = now
            for name in self.coordinator.list_awaited(now):
                self._log("awaited", round=self.coordinator.round, name=name)

    def _take_changes(self) -> None:
        """Take over the changes of the roster that the operator has asked for."""
        coordinator = self.coordinator
        for values in take_change_files(coordinator.storage.folder):
            try:
                coordinator.request_change(RosterChange.parse(values))
            except InputError as error:
                coordinator.refused_change = f"the roster stays as it is: {error}"
                self._log("change-refused", round=coordinator.round, reason=EventReason.ROSTER)
                self._say(coordinator.refused_change)
            else:
                coordinator.refused_change = ""
                self.transport.allow(
                    [name for name, site in coordinator.sites.items() if not site.is_ejected]
                )

    def _say_goodbye(self) -> None:
        """Answer the polls of every client that has stored its model: the run has ended."""
        until = time.monotonic() + GOODBYE_SECONDS
        for held in self._held.values():
            self._answer(held.request, choose_task(self.coordinator, held.site), held.site)
        self._held.clear()
        while (now := time.monotonic()) < until and not self.coordinator.finished <= self._stopped:
            request = self.transport.receive(TICK_SECONDS)
            if request is not None:
                self._handle(request, now)
        self._stop.wait(TICK_SECONDS)  # for the last answers, which may still be on their way
        if self._on_tick is not None:
            self._on_tick(time.monotonic())
