"""The process of a peer: one thread owns the run, one trains, and one per neighbour asks it for models."""

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final

from fedlap.algorithms import State
from fedlap.deploy.peers.answering import answer_model, answer_question
from fedlap.deploy.peers.asking import choose_question, note_failure, take_content
from fedlap.deploy.peers.run import PeerRun
from fedlap.deploy.peers.stages import Stage
from fedlap.deploy.peers.transport import PeerTransport
from fedlap.deploy.transport import (
    ANSWER_TIMEOUT,
    HOLD_SECONDS,
    LEAVE_TIMEOUT,
    REMARK_INTERVAL,
    TICK_SECONDS,
    PermanentError,
    Request,
    UnreachableError,
)
from fedlap.deploy.wire import Message, encode_message
from fedlap.errors import InputError

# Seconds between the removal of an edge and the end of its link, in which the last answer is sent: the
# neighbour would otherwise repeat the statement that removes the edge.
LINK_GRACE: Final = 0.5


@dataclass
class HeldQuestion:
    """A question for a model that waits until there is one."""

    request: Request
    question: Message
    until: float


@dataclass(frozen=True)
class Answer:
    """A neighbour's answer, or the reason why there is none."""

    name: str
    content: bytes | None
    problem: str = ""
    code: int = 0


Arrival = Answer | Request | Future[State]


class Asker:
    """The thread that asks one neighbour, one question after another."""

    def __init__(self, name: str, transport: PeerTransport, put: Callable[[Answer], None]) -> None:
        """Start the thread. put: takes each answer."""
        self.is_asking = False
        self._name, self._transport, self._put = name, transport, put
        self._questions: SimpleQueue[tuple[bytes, float] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"asks {name}", daemon=True)
        self._thread.start()

    def ask(self, question: Message, timeout: float = ANSWER_TIMEOUT) -> None:
        """Ask; the answer comes through `put`."""
        self.is_asking = True
        self._questions.put((encode_message(question), timeout))

    def close(self) -> None:
        """End the thread after the question at hand, which the transport has interrupted."""
        self._questions.put(None)
        self._thread.join(LEAVE_TIMEOUT)

    def _run(self) -> None:
        while (item := self._questions.get()) is not None:
            try:
                answer = Answer(self._name, self._transport.ask(self._name, *item))
            except (UnreachableError, InputError) as error:  # such as a question that is too long
                answer = Answer(self._name, None, str(error))
            except PermanentError as error:
                answer = Answer(self._name, None, str(error), int(error.code))
            self._put(answer)


class PeerProcess:
    """The loop of a peer's process.

    stop: set by a signal; the peer then tells its neighbours, and its checkpoint resumes the run later.
    find_address: returns the address at which a neighbour is dialled, or None if the neighbour dials.
    on_tick: called about five times a second, with the time.
    """

    def __init__(
        self,
        run: PeerRun,
        transport: PeerTransport,
        find_address: Callable[[str], str | None],
        stop: threading.Event | None = None,
        on_tick: Callable[[float], None] | None = None,
    ) -> None:
        """Connect a run with a transport."""
        self.peer_run, self.transport, self._find_address = run, transport, find_address
        self._stop, self._on_tick = stop or threading.Event(), on_tick
        self._events: SimpleQueue[Arrival] = SimpleQueue()
        self._askers: dict[str, Asker] = {}
        self._held: dict[str, HeldQuestion] = {}
        self._answered, self._ticked, self._remarked = -1, 0.0, time.monotonic()
        self._links_due = math.inf
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="trains")
        self._receiver = threading.Thread(target=self._receive, name="receives", daemon=True)
        self._has_ended = threading.Event()

    def run(self) -> None:
        """Take part in the run until it ends, or until `stop` is set."""
        self._receiver.start()
        try:
            while not self._stop.is_set() and self.peer_run.stage is not Stage.DONE:
                self._step()
            if self._stop.is_set():
                self._say_goodbye()
        finally:
            self._end_threads()

    def _end_threads(self) -> None:
        """Wait for all threads: the interpreter may abort if it ends while one is in foreign code."""
        self._has_ended.set()
        self.transport.interrupt()
        for asker in self._askers.values():
            asker.close()
        self._receiver.join(LEAVE_TIMEOUT)
        self._worker.shutdown(wait=True, cancel_futures=True)

    def wake(self) -> None:
        """End the waits of this process; a signal handler may call it."""
        self.transport.interrupt()
        self._events.put(Answer("", None))

    # One step.

    def _step(self) -> None:
        """Wait for an event, and do what follows from it."""
        run = self.peer_run
        try:
            self._handle(self._events.get(timeout=TICK_SECONDS))
            while True:
                self._handle(self._events.get_nowait())
        except Empty:
            pass
        now = time.monotonic()
        if now - self._ticked >= TICK_SECONDS:
            self._tick(now)
        run.advance(now)
        if run.links_changed:
            run.links_changed = False
            is_new = not set(run.links) <= set(self._askers)
            self._links_due = now if is_new else min(self._links_due, now + LINK_GRACE)
        if now >= self._links_due:
            self._change_links()
        if (work := run.take_work()) is not None:
            self._worker.submit(work).add_done_callback(self._events.put)
        self._release(now)
        self._ask(now)

    def _handle(self, event: Arrival) -> None:
        run, now = self.peer_run, time.monotonic()
        if isinstance(event, Future):
            run.finish_work(event.result(), now)
        elif isinstance(event, Answer):
            self._take_answer(event, now)
        else:
            question, answer = answer_question(run, event.name, event.content, now)
            if answer.kind == "wait":
                self._held[event.name] = HeldQuestion(event, question, now + HOLD_SECONDS)
            else:
                event.answer(encode_message(answer))

    def _take_answer(self, answer: Answer, now: float) -> None:
        run, asker = self.peer_run, self._askers.get(answer.name)
        if asker is None:
            return
        asker.is_asking = False
        if answer.content is None:
            note_failure(run, answer.name, answer.problem, answer.code, now)
            return
        take_content(run, answer.name, answer.content, now)

    def _release(self, now: float) -> None:
        """Answer questions that waited, if there is a model for them now, or if they have waited for long."""
        run = self.peer_run
        is_same, self._answered = self._answered == run.changed, run.changed
        for name, held in list(self._held.items()):
            if is_same and now < held.until:
                continue
            answer = answer_model(run, name, held.question, now)
            if answer.kind != "wait" or now >= held.until:
                del self._held[name]
                held.request.answer(encode_message(answer))

    def _ask(self, now: float) -> None:
        """Ask every neighbour that is not being asked."""
        run = self.peer_run
        for name in run.links:
            if name not in self._askers:
                self._askers[name] = Asker(name, self.transport, self._events.put)
            asker = self._askers[name]
            if not asker.is_asking and (question := choose_question(run, name, now)) is not None:
                asker.ask(question)

    def _change_links(self) -> None:
        """Restrict the transport to the neighbours of the changed edges."""
        run = self.peer_run
        self._links_due = math.inf
        for name in set(self._askers) - set(run.links):
            self._held.pop(name, None)
        self.transport.set_neighbours({name: self._find_address(name) for name in run.links})
        for name in set(self._askers) - set(run.links):
            self._askers.pop(name).close()

    def _tick(self, now: float) -> None:
        self._ticked = now
        if self._on_tick is not None:
            self._on_tick(now)
        if now - self._remarked >= REMARK_INTERVAL:
            self._remarked = now
            for name in self.peer_run.list_awaited(now):
                self.peer_run.log("awaited", round=self.peer_run.round, name=name)

    def _say_goodbye(self) -> None:
        """Tell the neighbours that this peer is away, as far as they can be reached."""
        self.transport.interrupt()
        until, waiting = time.monotonic() + LEAVE_TIMEOUT, set(self._askers)
        asked: set[str] = set()
        while waiting and time.monotonic() < until:
            for name in waiting - asked:
                if not self._askers[name].is_asking:
                    self._askers[name].ask(Message("leave"), LEAVE_TIMEOUT)
                    asked.add(name)
            try:
                event: Any = self._events.get(timeout=TICK_SECONDS)
            except Empty:
                continue
            if isinstance(event, Answer) and event.name in waiting:
                self._askers[event.name].is_asking = False
                waiting -= {event.name} & asked
        self.peer_run.log("run-stopped", round=self.peer_run.round)

    def _receive(self) -> None:
        """Put the neighbours' questions into the queue of events."""
        while not self._has_ended.is_set():
            request = self.transport.receive(TICK_SECONDS)
            if request is not None:
                self._events.put(request)
