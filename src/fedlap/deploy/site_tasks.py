"""A client's work: from a task to its answer, on the client's disk, without a connection to the server."""

from collections.abc import Callable
from typing import Any

from fedlap.algorithms import State
from fedlap.data.federation import Federation
from fedlap.deploy.client_storage import ClientStorage
from fedlap.deploy.data_plan import DataPlan
from fedlap.deploy.disk_errors import convert_disk_errors
from fedlap.deploy.failpoints import pass_point
from fedlap.deploy.moments import apply_constants, check_constants, compute_moments
from fedlap.deploy.plan import Plan
from fedlap.deploy.setup import STATE_TYPES, Setup
from fedlap.deploy.site_data import describe_site
from fedlap.deploy.site_model import write_site_model
from fedlap.deploy.transport import ExitCode, PermanentError
from fedlap.deploy.wire import ANSWERS, Message, decode_message, encode_message
from fedlap.errors import InputError
from fedlap.training.state import count_bytes
from fedlap.training.state_bytes import list_state_types
from fedlap.training.worker import Worker

LoadSite = Callable[[DataPlan, int], Federation]


class FullDiskError(Exception):
    """The disk cannot store what a task leaves there; the message states why."""


class SiteTasks:
    """The tasks of one client: it registers its rows, trains, sums its scores up and stores its model.

    load_site: reads the client's rows as the plan describes them. fetch_setup: asks the server for the setup
    in force and the constants of the run.
    """

    def __init__(
        self, name: str, load_site: LoadSite, storage: ClientStorage, fetch_setup: Callable[[], Message]
    ) -> None:
        """Prepare the folder."""
        self.name, self._load_site, self.storage, self._fetch_setup = name, load_site, storage, fetch_setup
        self._setup: Setup | None = None
        self._worker: Worker | None = None
        self._types: list[type[Any]] = list(STATE_TYPES)
        storage.prepare()

    def decode(self, content: bytes) -> Message:
        """Return a message of the server; PermanentError for a refusal that waiting does not cure."""
        answer = decode_message(content, ANSWERS, self._types)
        if answer.kind == "refused" and answer.facts["code"]:
            raise PermanentError(answer.facts["reason"], ExitCode(answer.facts["code"]))
        return answer

    def take_plan(self, answer: Message) -> None:
        """Store the plan; the plan of a folder never changes."""
        self.plan = Plan.of(answer.facts["plan"])
        if self.plan.digest != answer.facts["digest"]:
            raise PermanentError(
                "the digest of the server's plan does not match; install one version of fedlap on both",
                ExitCode.OTHER_VERSION,
            )
        known = self.storage.read_plan_digest()
        if known not in ("", self.plan.digest):
            raise PermanentError(
                f"{str(self.storage.folder)!r} belongs to plan {known[:16]}, and the server runs "
                f"{self.plan.digest[:16]}; use one plan, or another --folder at the client",
                ExitCode.OTHER_PLAN,
            )
        if not known:
            self.storage.write_plan(self.plan.digest, dict(answer.facts["plan"]))
        self._types = [*list_state_types(self.plan.method_class), *STATE_TYPES]

    def read_rows(self) -> None:
        """Read the rows as the plan describes them."""
        try:
            self._site = self._load_site(self.plan.data, self.plan.seed)
        except InputError as error:
            raise PermanentError(str(error), ExitCode.OTHER_PLAN) from error

    def describe_rows(self) -> Message:
        """Return the shapes of the rows and, if the plan needs them, their moments: the registration."""
        moments = compute_moments(self._site, self.plan.data.scale)
        return Message("register", {"shapes": describe_site(self._site)}, moments)

    def count_rows(self) -> int:
        """Return the number of training rows."""
        return int(self._site.train.count)

    def prepare_worker(self, task: Message) -> None:
        """Build the worker of the setup that a task is for, unless it is there."""
        if self._worker and self._setup and self._setup.version == task.facts["setup"]:
            return
        answer, plan = self._fetch_setup(), self.plan
        self._setup = Setup.parse(plan, answer.facts["description"])
        constants = check_constants(answer.state, plan.data)
        self._standardized = apply_constants(self._site, plan.data.scale, constants)
        self._worker = Worker(
            self._setup.algorithm, self._standardized, plan.build_architecture(), self._setup.roster,
            seed=plan.seed, batch=plan.batch, dtype=plan.dtype, fast=plan.task == "fast",
        )  # fmt: skip
        self.storage.load_worker(self._worker)

    # With a prepared worker.

    def train(self, task: Message, content: bytes) -> bytes:
        """Train a round, and store and return the reply; raise FullDiskError if it cannot be stored.

        content: the bytes of the task, by which it is recognised if it is repeated.
        """
        if problem := self.storage.explain_no_room(count_bytes(task.state)):
            raise FullDiskError(problem)
        round, worker = task.facts["round"], self._get_worker()
        up = self._run(worker.local, round, task.state, merged=task.facts["merged"])
        pass_point("client.trained")
        reply = encode_message(Message("reply", {"round": round, "setup": task.facts["setup"]}, up))
        try:
            self.storage.save_worker(worker)
            self.storage.write_reply(content, reply)
        except PermanentError as error:  # The disk has become full in the meantime.
            self._worker = None  # Its state after the round is not on disk.
            raise FullDiskError(str(error)) from error
        return reply

    def score(self, task: Message) -> Message:
        """Return sums over the rows of this client."""
        tally = self._run(self._get_worker().score, self._take_model(task))
        return Message("tally", {"round": task.facts["round"], "setup": task.facts["setup"]}, tally)

    def write_model(self, task: Message) -> None:
        """Store the client's model; raise FullDiskError if that fails, and the earlier one remains."""
        w = self._get_worker().adapt(self._take_model(task))
        assert self._setup is not None
        pass_point("client.model.writing")
        try:
            with convert_disk_errors(self.storage.folder):
                write_site_model(self.storage.model_path, w, self._standardized, self._setup.model)
        except PermanentError as error:
            raise FullDiskError(str(error)) from error
        pass_point("client.model.written")

    def _take_model(self, task: Message) -> Any:
        """Return the client's model, from the server or from its private state."""
        worker = self._get_worker()
        self._run(worker.confirm, task.facts["merged"])
        return task.state if task.facts["is_model"] else worker.personal_model(task.state)

    def _get_worker(self) -> Worker:
        assert self._worker is not None, "prepare_worker comes first"
        return self._worker

    def _run(self, verb: Callable[..., State], *values: Any, **named: Any) -> Any:
        """Run work; an error of the private state ends the client."""
        try:
            return verb(*values, **named)
        except InputError as error:
            raise PermanentError(
                f"client {self.name!r} cannot continue: {error}; restore {str(self.storage.folder)!r}",
                ExitCode.OTHER_PLAN,
            ) from error
