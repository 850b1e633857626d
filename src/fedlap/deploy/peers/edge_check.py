"""Checks of a peer's edges before the first round: reached, admitted, one plan, clocks, and one true message.

Checks of several peers answer one another, so neighbours can check their edges at the same time, and a peer
that waits for its first round answers as well.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Final

import torch

from fedlap.deploy.check import CHECK_TIMEOUT, MOST_SKEW, Finding, measure_skew
from fedlap.deploy.peers.answering import answer_probe
from fedlap.deploy.peers.edges import find_edges
from fedlap.deploy.peers.messages import PEER_ANSWERS, PEER_STATE_TYPES, QUESTIONS, describe_greeting
from fedlap.deploy.peers.transport import PeerTransport
from fedlap.deploy.plan import Plan
from fedlap.deploy.transport import TICK_SECONDS, ExitCode, PermanentError, Request, UnreachableError
from fedlap.deploy.wire import Message, WireError, decode_message, encode_message, refuse

RETRY_SECONDS: Final = 0.5  # between attempts to reach a neighbour
ONLY_CHECKS: Final = refuse("this peer checks its edges, and does not take part in the run yet")


class EdgeChecker:
    """Checks every edge of a peer, in a thread per neighbour.

    addresses: where each neighbour is dialled, or None if it dials this peer.
    patience: seconds in which neighbours can get ready.
    """

    def __init__(
        self,
        plan: Plan,
        name: str,
        transport: PeerTransport,
        addresses: Mapping[str, str | None],
        patience: float,
    ) -> None:
        """Remember the edges; nothing is sent yet."""
        self._plan, self._transport, self._addresses = plan, transport, addresses
        self._weights = find_edges(plan, name, None)
        self._end = time.monotonic() + patience
        self._checking: set[str] = set()  # neighbours that check their edges, too
        self._served: set[str] = set()  # neighbours that are done with this edge
        self._ended = threading.Event()

    def check(self) -> Iterator[Finding]:
        """Yield a finding per edge, and then wait for neighbours that check this edge from their side."""
        answering = threading.Thread(target=self._answer, name="answers", daemon=True)
        answering.start()
        try:
            with ThreadPoolExecutor(max(1, len(self._weights))) as pool:
                for done in as_completed([pool.submit(self._check_edge, name) for name in self._weights]):
                    yield done.result()
            while self._checking - self._served and time.monotonic() < self._end:
                time.sleep(TICK_SECONDS)
        finally:
            self._ended.set()
            answering.join()

    # This peer's questions.

    def _check_edge(self, name: str) -> Finding:
        """Ask a neighbour until it answers, or time is up; then send a message of the true size."""
        while True:
            try:
                self._ask(name, None)
                break
            except UnreachableError as error:
                if time.monotonic() >= self._end:
                    return Finding(name, f"{error}; start fedlap peer or fedlap check there")
            except PermanentError as error:
                return Finding(name, str(error), code=int(error.code))
            time.sleep(RETRY_SECONDS)
        size = self._plan.count_parameters()
        begin, sent = time.monotonic(), time.time()
        try:
            answer, count = self._ask(name, torch.zeros(1, size, dtype=self._plan.schedule.torch_dtype))
        except (UnreachableError, PermanentError) as error:
            return Finding(name, f"it answers, but a message with a model fails: {error}")
        seconds = time.monotonic() - begin
        skew = measure_skew(answer, sent, seconds)
        if skew > MOST_SKEW:
            return Finding(name, f"the clock there differs by {skew:.0f} s, and certificates need it; set it")
        place = self._addresses[name] or "it dials this peer"
        return Finding(
            name, "", f"{place}; {count:,} bytes each way in {seconds:.3f} s; clocks: {skew:.1f} s"
        )

    def _ask(self, name: str, model: torch.Tensor | None) -> tuple[Message, int]:
        """Return the answer to a probe, and the bytes of the question; raise the reason of a refusal."""
        content = encode_message(Message("probe", self._greet(name), model))
        timeout = min(CHECK_TIMEOUT, max(TICK_SECONDS, self._end - time.monotonic()))
        most = self._plan.limits.most_bytes
        try:
            answer = decode_message(
                self._transport.ask(name, content, CHECK_TIMEOUT if model is not None else timeout),
                PEER_ANSWERS, PEER_STATE_TYPES, most,
            )  # fmt: skip
        except WireError as error:
            raise UnreachableError(f"the answer is damaged: {error}") from error
        if answer.kind == "refused":
            code = answer.facts["code"] or ExitCode.REFUSED
            self._checking.add(name)  # It needs the same answer before this peer ends.
            raise PermanentError(answer.facts["reason"], ExitCode(code))
        if answer.facts["is_check"] and model is None:
            self._checking.add(name)
        return answer, len(content)

    def _greet(self, name: str) -> dict[str, object]:
        return describe_greeting(self._plan, "", self._weights[name], False, 0)

    # Questions of neighbours.

    def _answer(self) -> None:
        """Answer neighbours until the check ends."""
        while not self._ended.is_set():
            request = self._transport.receive(TICK_SECONDS)
            if request is not None:
                request.answer(encode_message(self._choose_answer(request)))

    def _choose_answer(self, request: Request) -> Message:
        name = request.name
        if name not in self._weights:
            return refuse(f"{name!r} is no neighbour of this peer in its plan", ExitCode.OTHER_PLAN)
        try:
            most = self._plan.limits.most_bytes
            question = decode_message(request.content, QUESTIONS, PEER_STATE_TYPES, most)
        except WireError as error:
            return refuse(str(error))
        except PermanentError as error:
            return refuse(str(error), error.code)
        if question.kind != "probe":
            self._served.add(name)  # It runs, and does not check.
            return ONLY_CHECKS
        answer = answer_probe(name, self._greet(name), question, is_check=True)
        if question.state is not None or answer.kind == "refused":
            self._served.add(name)
        return answer
