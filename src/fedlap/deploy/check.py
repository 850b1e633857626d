"""Checks of a client before the first round: each finding names what is wrong and what to do."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import torch

from fedlap.data.federation import Federation
from fedlap.deploy.client_storage import MODELS_PER_ROUND, SPARE_BYTES
from fedlap.deploy.data_plan import DataPlan
from fedlap.deploy.plan import Plan
from fedlap.deploy.site_data import describe_site
from fedlap.deploy.transport import ClientTransport, ExitCode, PermanentError, UnreachableError
from fedlap.deploy.wire import ANSWERS, FEDLAP_VERSION, Message, WireError, decode_message, encode_message
from fedlap.errors import InputError
from fedlap.storage.files import check_writable
from fedlap.training.state import count_bytes

MOST_SKEW: Final = 60.0  # seconds between the clocks; certificates are judged by them
CHECK_TIMEOUT: Final = 20.0  # seconds


class Finding(NamedTuple):
    """The outcome of one check: a problem, or an empty text and the details."""

    subject: str
    problem: str
    detail: str = ""
    code: int = 0  # exit code for a problem that waiting does not cure


class ConnectionChecker:
    """Checks the connection, the versions, the clock, and the time that a round's messages take."""

    def __init__(self, transport: ClientTransport) -> None:
        """Remember the transport; nothing is sent yet."""
        self._transport = transport
        self.plan: Plan | None = None

    def check(self) -> Iterator[Finding]:
        """Yield findings until one of them is a problem that the next ones depend on."""
        try:
            answer = self._ask(Message("hello", {"version": FEDLAP_VERSION, "plan": ""}))
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
        yield from self._check_size(self.plan)

    def _check_size(self, plan: Plan) -> Iterator[Finding]:
        """Send one message of the true size, and compare the clocks."""
        size = plan.count_parameters()
        message = Message("probe", {}, torch.zeros(1, size, dtype=plan.schedule.torch_dtype))
        begin, sent = time.monotonic(), time.time()
        try:
            answer = self._ask(message)
        except (UnreachableError, PermanentError) as error:
            yield Finding("message", f"one of {count_bytes(message.state):,} bytes fails: {error}")
            return
        seconds = time.monotonic() - begin
        skew = abs(answer.facts["utc"] - (sent + seconds / 2))
        problem = f"differs from the server's by {skew:.0f} s; set it" if skew > MOST_SKEW else ""
        yield Finding("clock", problem, f"differs from the server's by {skew:.1f} s")
        up = len(encode_message(message))
        yield Finding(
            "round",
            "",
            f"{up:,} bytes each way in {seconds:.3f} s, and {plan.rounds} rounds; without training",
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


def check_disk(plan: Plan, folder: Path) -> Finding:
    """Check that a client's folder can be written and has room for a round."""
    needed = MODELS_PER_ROUND * plan.count_parameters() * 8 + SPARE_BYTES
    try:
        check_writable(folder)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(
            "disk", f"{str(folder)!r} cannot be written ({error.strerror})", code=int(ExitCode.STORAGE)
        )
    if free < needed:
        return Finding(
            "disk", f"{free:,} bytes are free; a round needs {needed:,}", code=int(ExitCode.STORAGE)
        )
    return Finding("disk", "", f"{free:,} bytes are free")
