"""A client of a deployment: it asks the server for work, trains on its own rows, and answers."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from fedlap.deploy.client_storage import ClientStorage
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.expiry_watch import ExpiryWatch
from fedlap.deploy.failpoints import pass_point
from fedlap.deploy.plan import Plan
from fedlap.deploy.site_tasks import FullDiskError, LoadSite, SiteTasks
from fedlap.deploy.transport import (
    ANSWER_TIMEOUT,
    LEAVE_TIMEOUT,
    REMARK_INTERVAL,
    ClientTransport,
    ExitCode,
    PermanentError,
    UnreachableError,
)
from fedlap.deploy.wire import FEDLAP_VERSION, Message, WireError, encode_message

FIRST_DELAY, LONGEST_DELAY = 0.1, 30.0  # seconds between attempts to reach the server
HEARTBEAT_INTERVAL: Final = 5.0  # seconds, at most; a fifth of the deadline if that is less
FINISH_PATIENCE: Final = 20.0  # seconds in which a client with its final model tries to reach the server


class StopRequestedError(Exception):
    """The operator has asked the client to stop."""


class SiteClient:
    """One client: its rows, its private state, and its conversation with the server.

    load_site: reads the client's rows as the plan describes them. log: called with each event. stop: set by a
    signal; the client then finishes its round, leaves, and `run` returns. say: shows a problem to its user.
    watch: looks at the client's certificate. patience: seconds without an answer of the server, after which
    the client gives up. on_plan: called with the plan of the server, before the rows are read.
    """

    def __init__(
        self,
        name: str,
        load_site: LoadSite,
        transport: ClientTransport,
        storage: ClientStorage,
        log: Callable[..., None],
        stop: threading.Event | None = None,
        say: Callable[[str], None] = lambda text: None,
        watch: ExpiryWatch | None = None,
        patience: float = math.inf,
        on_plan: Callable[[Plan], None] = lambda plan: None,
    ) -> None:
        """Prepare the folder; nothing is sent yet."""
        self.name, self._transport, self._log = name, transport, log
        self._stop, self._say, self._watch = stop or threading.Event(), say, watch
        self._on_plan = on_plan
        self._tasks = SiteTasks(name, load_site, storage, lambda: self._ask(Message("setup")))
        self._silent_since: float | None = None
        self._remarked = 0.0
        self._patience = patience
        self._has_finished = False  # The server knows that the final model is stored.

    def run(self) -> None:
        """Take part in the run until it ends, or until `stop` is set."""
        try:
            self._greet()
            while not self._stop.is_set() and self._work():
                pass
        except StopRequestedError:
            pass
        if self._stop.is_set():
            self.leave(for_good=False)

    def leave(self, for_good: bool) -> None:
        """Tell the server that this client leaves, for now or for good.

        The server may not hear of the first, but must agree to the second: PermanentError if it does not.
        """
        message = Message("leave", {"for_good": for_good})
        try:
            if for_good:
                self._ask(message)
            else:
                self._transport.ask(encode_message(message), LEAVE_TIMEOUT)
        except (UnreachableError, PermanentError) as error:
            if for_good:
                raise
            self._log("unreachable", reason=EventReason.UNREACHABLE)
            self._say(str(error))
        except StopRequestedError:
            return
        self._log("left" if for_good else "away", name=self.name)

    # The conversation.

    def _greet(self) -> None:
        """Compare versions and plans, and register the shapes of the rows."""
        expected = self._tasks.storage.read_plan_digest()
        self._register(self._ask(Message("hello", {"version": FEDLAP_VERSION, "plan": expected})))

    def _register(self, answer: Message) -> None:
        """Read the rows as the plan describes them, and send their shapes and, if needed, their moments."""
        self._tasks.take_plan(answer)
        self._on_plan(self._tasks.plan)
        self._tasks.read_rows()
        self._ask(self._tasks.describe_rows())
        pass_point("client.registered")
        self._log("registered", name=self.name, rows=self._tasks.count_rows())

    def _work(self) -> bool:
        """Ask for a task and do it; return False at the end of the run."""
        if self._watch is not None:
            self._watch.look(time.monotonic())
        try:
            content, task = self._exchange(encode_message(Message("poll")))
        except UnreachableError:  # The server has ended after this client's last message.
            self._log("run-finished")
            return False
        if task.kind == "train":
            self._train(task, content)
        elif task.kind == "score":
            self._score(task)
        elif task.kind == "finish":
            self._finish(task)
        elif task.kind == "plan":
            self._register(task)
        elif task.kind == "stop":
            self._log("run-finished")
            return False
        return True

    def _train(self, task: Message, content: bytes) -> None:
        """Train a round and send the reply; a task that was answered already gets the same reply."""
        pass_point("client.task.received")
        round, tasks = task.facts["round"], self._tasks
        reply = tasks.storage.read_reply(content)
        if reply is None:
            tasks.prepare_worker(task)
            try:
                with self._send_heartbeats():
                    reply = tasks.train(task, content)
            except FullDiskError as problem:
                self._decline(round, str(problem))
                return
        pass_point("client.reply.sending")
        _, answer = self._exchange(reply)
        pass_point("client.reply.sent")
        if answer.kind == "ack":
            self._log("sent", round=round, bytes=len(reply))
        else:
            self._log("refused", round=round, name=self.name)

    def _decline(self, round: int, problem: str) -> None:
        """Decline a round, and wait for a moment."""
        self._say(problem)
        self._log("round-declined", round=round, reason=EventReason.STORAGE)
        self._ask(Message("decline", {"round": round, "reason": "the disk cannot be written"}))
        self._pause(FIRST_DELAY)

    def _score(self, task: Message) -> None:
        """Store the model and send sums over the rows of this client; the sums need no room on the disk."""
        self._tasks.prepare_worker(task)
        with self._send_heartbeats():
            tally = self._tasks.score(task)
        self._write_model(task)
        pass_point("client.tally.sending")
        self._ask(tally)
        pass_point("client.tally.sent")

    def _finish(self, task: Message) -> None:
        """Store the final model; while the disk is full, the run waits for this client."""
        self._tasks.prepare_worker(task)
        if not self._write_model(task):
            self._pause(self._choose_interval())
            return
        self._ask(Message("finished"))
        self._patience, self._has_finished = FINISH_PATIENCE, True
        self._log("model-written", round=task.facts["round"])

    def _write_model(self, task: Message) -> bool:
        """Store the model of a round; return False if the disk has no room for it."""
        try:
            self._tasks.write_model(task)
        except FullDiskError as problem:
            self._say(str(problem))
            self._log("model-not-written", round=task.facts["round"], reason=EventReason.STORAGE)
            return False
        return True

    # Asking.

    def _ask(self, message: Message) -> Message:
        return self._exchange(encode_message(message))[1]

    def _exchange(self, content: bytes) -> tuple[bytes, Message]:
        """Ask until there is an answer that can be read, with growing pauses; return its bytes and message.

        When the client's patience ends, UnreachableError if it has finished, and PermanentError if not.
        """
        delay, end = FIRST_DELAY, time.monotonic() + self._patience
        while True:
            try:
                answer = self._transport.ask(content, ANSWER_TIMEOUT)
                message = self._tasks.decode(answer)
            except (UnreachableError, WireError) as error:
                if self._stop.is_set():
                    raise StopRequestedError from error
                if time.monotonic() > end:
                    self._give_up(error)
                self._remark(str(error))
                self._pause(delay)
                delay = min(2 * delay, LONGEST_DELAY)
            else:
                if self._silent_since is not None:
                    self._log("dialled")
                self._silent_since = None
                return answer, message

    def _give_up(self, error: Exception) -> NoReturn:
        """Raise the error of a client whose patience has ended."""
        if self._has_finished:
            raise UnreachableError(str(error)) from error
        raise PermanentError(
            f"{error}; the client gives up after {self._patience:g} seconds without an answer (--patience); "
            "start it again when the server runs",
            ExitCode.NO_ANSWER,
        ) from error

    def _remark(self, reason: str) -> None:
        """Say once a minute what the client waits for."""
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since, self._remarked = now, now
            self._say(reason)
            self._log("unreachable", reason=EventReason.UNREACHABLE)
        elif now - self._remarked >= REMARK_INTERVAL:
            self._remarked = now
            self._say(f"{reason}; still waiting, as long as --patience allows (Ctrl-C ends it)")
            self._log("waiting", reason=EventReason.UNREACHABLE, seconds=round(now - self._silent_since))

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise StopRequestedError

    def _choose_interval(self) -> float:
        """Return the seconds between two signs of life, long before the deadline."""
        return min(HEARTBEAT_INTERVAL, self._tasks.plan.limits.deadline / 5)

    @contextmanager
    def _send_heartbeats(self) -> Iterator[None]:
        """Tell the server from time to time that this client is alive, while it computes."""
        done = threading.Event()
        interval = self._choose_interval()
        content = encode_message(Message("heartbeat"))

        def beat() -> None:
            while not done.wait(interval):
                try:
                    self._transport.ask(content, interval)
                except (UnreachableError, PermanentError):
                    continue  # The reply will find out.

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
