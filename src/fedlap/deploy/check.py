"""Checks of a client before the first round: each finding names what is wrong and what to do."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from fedlap.data.federation import Federation
from fedlap.deploy.client_storage import MODELS_PER_ROUND, ClientStorage
from fedlap.deploy.data_plan import DataPlan
from fedlap.deploy.message_sizes import fill_message
from fedlap.deploy.plan import Plan
from fedlap.deploy.site_data import describe_site
from fedlap.deploy.transport import ClientTransport, ExitCode, PermanentError, UnreachableError
from fedlap.deploy.wire import ANSWERS, FEDLAP_VERSION, Message, WireError, decode_message, encode_message
from fedlap.errors import InputError

MOST_SKEW: Final = 60.0  # seconds between the clocks; certificates are judged by them
CHECK_TIMEOUT: Final = 20.0  # seconds


class Finding(NamedTuple):
    """The outcome of one check: a problem, or an empty text and the details."""

    subject: str
    problem: str
    detail: str = ""
    code: int = 0  # exit code for a problem that waiting does not cure
    is_remark: bool = False  # The details name a disadvantage, which is no problem.


class ConnectionChecker:
    """Checks the connection, the versions, the clock, and the time that a round's messages take."""

    def __init__(self, transport: ClientTransport, on_plan: Callable[[Plan], None]) -> None:
        """Remember the transport; nothing is sent yet. on_plan: called with the plan of the server."""
        self._transport, self._on_plan = transport, on_plan
        self.plan: Plan | None = None

    def check(self) -> Iterator[Finding]:
        """Yield findings until one of them is a problem that the next ones depend on."""
        try:
            answer = self._ask(Message("check", {"version": FEDLAP_VERSION}))
        except UnreachableError as error:
            yield Finding("server", str(error))
            return
        except PermanentError as error:
            yield Finding("server", str(error), code=int(error.code))
            return
        yield Finding(
            "server", "", f"answers with plan {answer.facts['digest'][:16]}, version {FEDLAP_VERSION}"
        )
        self.plan = Plan.of(answer.facts["plan"])
        self._on_plan(self.plan)
        yield from self._check_size(self.plan, answer.facts["up"], answer.facts["down"])

    def _check_size(self, plan: Plan, up: int, down: int) -> Iterator[Finding]:
        """Exchange messages of the sizes of a reply and a task, and compare the clocks."""
        message = fill_message("probe", {}, up)
        begin, sent = time.monotonic(), time.time()
        try:
            answer = self._ask(message)
        except (UnreachableError, PermanentError) as error:
            yield Finding("message", f"one of {up:,} bytes up and {down:,} down fails: {error}")
            return
        seconds = time.monotonic() - begin
        skew = measure_skew(answer, sent, seconds)
        problem = f"differs from the server's by {skew:.0f} s; set it" if skew > MOST_SKEW else ""
        yield Finding("clock", problem, f"differs from the server's by {skew:.1f} s")
        yield Finding(
            "round",
            "",
            f"{up:,} bytes up and {down:,} down in {seconds:.3f} s, without training; {plan.rounds} rounds",
        )

    def _ask(self, message: Message) -> Message:
        try:
            answer = decode_message(self._transport.ask(encode_message(message), CHECK_TIMEOUT), ANSWERS)
        except WireError as error:
            raise UnreachableError(f"the server's answer is damaged: {error}") from error
        if answer.kind == "refused":
            code = answer.facts["code"] or ExitCode.REFUSED
            raise PermanentError(answer.facts["reason"], ExitCode(code))
        return answer


def check_data(plan: Plan, load_site: Callable[[DataPlan, int], Federation]) -> Finding:
    """Check a client's rows against the plan; only shapes would leave."""
    try:
        site = load_site(plan.data, plan.seed)
    except InputError as error:
        return Finding("data", str(error), code=int(ExitCode.OTHER_PLAN))
    shapes = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in describe_site(site).items())
    return Finding("data", "", f"fit the plan; these numbers leave: {shapes}")


def check_disk(plan: Plan, folder: Path, models: int = MODELS_PER_ROUND) -> Finding:
    """Check that a folder can be written and has room for the models that a round stores."""
    if problem := ClientStorage(folder).explain_no_room(8 * plan.count_parameters(), models):
        return Finding("disk", problem, code=int(ExitCode.STORAGE))
    return Finding("disk", "", f"{shutil.disk_usage(folder).free:,} bytes are free")


def measure_skew(answer: Message, sent: float, seconds: float) -> float:
    """Return by how many seconds the clock of an answer to a probe differs from this one.

    sent: when the probe was sent, by this clock. seconds: from then to the answer.
    """
    return float(abs(answer.facts["utc"] - (sent + seconds / 2)))
