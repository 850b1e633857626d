"""A client of a deployment: it asks the server for work, trains on its own rows, and answers."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from fedlap.algorithms import State
from fedlap.data.federation import Federation
from fedlap.deploy.client_storage import ClientStorage
from fedlap.deploy.coordinator import STATE_TYPES
from fedlap.deploy.data_plan import DataPlan
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.expiry_watch import ExpiryWatch
from fedlap.deploy.failpoints import pass_point
from fedlap.deploy.moments import apply_constants, check_constants, compute_moments
from fedlap.deploy.plan import Plan
from fedlap.deploy.setup import Setup
from fedlap.deploy.site_data import describe_site
from fedlap.deploy.site_model import write_site_model
from fedlap.deploy.transport import (
    REMARK_INTERVAL,
    ClientTransport,
    ExitCode,
    PermanentError,
    UnreachableError,
)
from fedlap.deploy.wire import ANSWERS, FEDLAP_VERSION, Message, WireError, decode_message, encode_message
from fedlap.errors import InputError
from fedlap.training.state import count_bytes
from fedlap.training.state_bytes import list_state_types
from fedlap.training.worker import Worker

ANSWER_TIMEOUT: Final = 60.0  # seconds; the server answers a poll within HOLD_SECONDS (server.py)
FIRST_DELAY, LONGEST_DELAY = 0.1, 30.0  # seconds between attempts to reach the server
HEARTBEAT_INTERVAL: Final = 5.0  # seconds, at most; a fifth of the deadline if that is less
LEAVE_TIMEOUT: Final = 2.0  # seconds
FINISH_PATIENCE: Final = 20.0  # seconds in which a client with its final model tries to reach the server


class StopRequestedError(Exception):
    """The operator has asked the client to stop."""


class SiteClient:
    """One client: its rows, its private state, and its conversation with the server.

    load_site: reads the client's rows as the plan describes them. log: called with each event. stop: set by a
    signal; the client then finishes its round, leaves, and `run` returns. say: shows a problem to its user.
    watch: looks at the client's certificate.
    """

    def __init__(
        self,
        name: str,
        load_site: Callable[[DataPlan, int], Federation],
        transport: ClientTransport,
        storage: ClientStorage,
        log: Callable[..., None],
        stop: threading.Event | None = None,
        say: Callable[[str], None] = lambda text: None,
        watch: ExpiryWatch | None = None,
    ) -> None:
        """Prepare the folder; nothing is sent yet."""
        self.name, self._load_site, self._transport = name, load_site, transport
        self._storage, self._log, self._stop, self._say = storage, log, stop or threading.Event(), say
        self._watch = watch
        self._setup: Setup | None = None
        self._worker: Worker | None = None
        self._types: list[type[Any]] = list(STATE_TYPES)
        self._silent_since: float | None = None
        self._remarked = 0.0
        self._patience = math.inf  # seconds; finite once the server knows that the final model is stored
        storage.prepare()

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
        known = self._storage.read_plan()
        expected = known["digest"] if known else ""
        answer = self._ask(Message("hello", {"version": FEDLAP_VERSION, "plan": expected}))
        self._register(answer)

    def _register(self, answer: Message) -> None:
        """Read the rows as the plan describes them, and send their shapes and, if needed, their moments."""
        self.plan = Plan.of(answer.facts["plan"])
        if self.plan.digest != answer.facts["digest"]:
            raise PermanentError(
                "the digest of the server's plan does not match; install one version of fedlap on both",
                ExitCode.OTHER_VERSION,
            )
        self._storage.write_plan(self.plan.digest, dict(answer.facts["plan"]))
        self._types = [*list_state_types(self.plan.method_class), *STATE_TYPES]
        self._site = self._load_site(self.plan.data, self.plan.seed)
        moments = compute_moments(self._site, self.plan.data.scale)
        self._ask(Message("register", {"shapes": describe_site(self._site)}, moments))
        pass_point("client.registered")
        self._log("registered", name=self.name, rows=int(self._site.train.count))

    def _work(self) -> bool:
        """Ask for a task and do it; return False at the end of the run."""
        if self._watch is not None:
            self._watch.look(time.monotonic())
        try:
            content = self._ask_bytes(encode_message(Message("poll")))
        except UnreachableError:  # The server has ended after this client's last message.
            self._log("run-finished")
            return False
        task = self._decode(content)
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
        round = task.facts["round"]
        reply = self._storage.read_reply(content)
        if reply is None:
            worker = self._prepare_worker(task)
            if problem := self._storage.find_problem(count_bytes(task.state)):
                self._decline(round, problem)
                return
            with self._send_heartbeats():
                up = self._run_worker(worker.local, round, task.state, merged=task.facts["merged"])
            pass_point("client.trained")
            reply = encode_message(Message("reply", {"round": round, "setup": task.facts["setup"]}, up))
            try:
                self._storage.save_worker(worker)
                self._storage.write_reply(content, reply)
            except (InputError, PermanentError) as error:  # The disk has become full.
                self._decline(round, str(error))
                return
        pass_point("client.reply.sending")
        answer = self._decode(self._ask_bytes(reply))
        pass_point("client.reply.sent")
        if answer.kind == "ack":
            self._log("sent", round=round, bytes=len(reply))
        else:
            self._log("refused", round=round, name=self.name)

    def _decline(self, round: int, problem: str) -> None:
        """Decline a round, and wait until the next attempt can succeed."""
        self._say(problem)
        self._log("round-declined", round=round, reason=EventReason.STORAGE)
        self._worker = None  # Its state after the round is not on disk.
        self._ask(Message("decline", {"round": round, "reason": "the disk cannot be written"}))
        self._pause(FIRST_DELAY)

    def _score(self, task: Message) -> None:
        """Send sums over the rows of this client."""
        worker = self._prepare_worker(task)
        with self._send_heartbeats():
            w = self._take_model(worker, task)
            tally = self._run_worker(worker.score, w)
        self._write_model(worker, w)
        facts = {"round": task.facts["round"], "setup": task.facts["setup"]}
        pass_point("client.tally.sending")
        self._ask(Message("tally", facts, tally))
        pass_point("client.tally.sent")

    def _finish(self, task: Message) -> None:
        """Store the final model."""
        worker = self._prepare_worker(task)
        self._write_model(worker, self._take_model(worker, task))
        self._ask(Message("finished"))
        self._patience = FINISH_PATIENCE
        self._log("model-written", round=task.facts["round"])

    def _take_model(self, worker: Worker, task: Message) -> Any:
        """Return the client's model, from the server or from its private state."""
        self._run_worker(worker.confirm, task.facts["merged"])
        return task.state if task.facts["is_model"] else worker.personal_model(task.state)

    def _write_model(self, worker: Worker, w: Any) -> None:
        pass_point("client.model.writing")
        assert self._setup is not None
        write_site_model(self._storage.model_path, worker.adapt(w), self._standardized, self._setup.model)
        pass_point("client.model.written")

    def _prepare_worker(self, task: Message) -> Worker:
        """Return the worker of the setup that a task is for."""
        if self._worker is None or self._setup is None or self._setup.version != task.facts["setup"]:
            answer = self._ask(Message("setup"))
            plan = self.plan
            self._setup = Setup.parse(plan, answer.facts["description"])
            federation = apply_constants(
                self._site, plan.data.scale, check_constants(answer.state, plan.data)
            )
            self._standardized = federation
            self._worker = Worker(
                self._setup.algorithm, federation, plan.build_architecture(), self._setup.roster,
                seed=plan.seed, batch=plan.batch, dtype=plan.dtype, fast=plan.task == "fast",
            )  # fmt: skip
            self._storage.load_worker(self._worker)
        return self._worker

    def _run_worker(self, verb: Callable[..., State], *values: Any, **named: Any) -> Any:
        try:
            return verb(*values, **named)
        except InputError as error:
            raise PermanentError(
                f"client {self.name!r} cannot continue: {error}; restore {str(self._storage.folder)!r}",
                ExitCode.OTHER_PLAN,
            ) from error

    # Asking.

    def _ask(self, message: Message) -> Message:
        return self._decode(self._ask_bytes(encode_message(message)))

    def _decode(self, content: bytes) -> Message:
        answer = decode_message(content, ANSWERS, self._types)
        if answer.kind == "refused" and answer.facts["code"]:
            raise PermanentError(answer.facts["reason"], ExitCode(answer.facts["code"]))
        return answer

    def _ask_bytes(self, content: bytes) -> bytes:
        """Ask until there is an answer that can be read, with growing pauses.

        UnreachableError: a client that has finished got no answer any more.
        """
        delay, end = FIRST_DELAY, time.monotonic() + self._patience
        while True:
            try:
                answer = self._transport.ask(content, ANSWER_TIMEOUT)
                self._decode(answer)
            except (UnreachableError, WireError) as error:
                if self._stop.is_set():
                    raise StopRequestedError from error
                if time.monotonic() > end:
                    raise UnreachableError(str(error)) from error
                self._remark(str(error))
                self._pause(delay)
                delay = min(2 * delay, LONGEST_DELAY)
            else:
                if self._silent_since is not None:
                    self._log("dialled")
                self._silent_since = None
                return answer

    def _remark(self, reason: str) -> None:
        """Say once a minute what the client waits for."""
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since, self._remarked = now, now
            self._say(reason)
            self._log("unreachable", reason=EventReason.UNREACHABLE)
        elif now - self._remarked >= REMARK_INTERVAL:
            self._remarked = now
            self._say(reason)
            self._log("waiting", reason=EventReason.UNREACHABLE, seconds=round(now - self._silent_since))

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise StopRequestedError

    @contextmanager
    def _send_heartbeats(self) -> Iterator[None]:
        """Tell the server from time to time that this client is alive, while it computes."""
        done = threading.Event()
        interval = min(HEARTBEAT_INTERVAL, self.plan.limits.deadline / 5)
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
