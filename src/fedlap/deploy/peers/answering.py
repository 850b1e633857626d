"""Answers to the questions of neighbours, one function per kind of question."""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor

from fedlap.deploy.event_words import EventReason
from fedlap.deploy.peers.asking import build_greeting, take_greeting
from fedlap.deploy.peers.changes import check_removal
from fedlap.deploy.peers.edges import start_edge
from fedlap.deploy.peers.messages import QUESTIONS, compare_greetings, is_turn
from fedlap.deploy.peers.neighbours import START, Turn
from fedlap.deploy.transport import ExitCode, PermanentError
from fedlap.deploy.wire import ACK, Message, WireError, decode_message, refuse
from fedlap.errors import InputError

if TYPE_CHECKING:
    from fedlap.deploy.peers.run import PeerRun

WAIT: Final = Message("wait")
SKIPPED: Final = Message("skipped")


def answer_question(run: "PeerRun", name: str, content: bytes, now: float) -> tuple[Message, Message]:
    """Return a neighbour's question and the answer to it; `wait` if there is nothing to answer yet."""
    link = run.links.get(name)
    if link is None:
        run.note_stranger(now)
        return ACK, refuse(f"{name!r} is no neighbour of {run.name!r}", ExitCode.REFUSED)
    try:
        question = decode_message(content, QUESTIONS, run.state_types, run.plan.limits.most_bytes)
    except WireError as error:
        _log_refusal(run, name, EventReason.MALFORMED, now)
        return ACK, refuse(str(error))
    except PermanentError as error:
        _log_refusal(run, name, EventReason.from_code(error.code), now)
        return ACK, refuse(str(error), error.code)
    link.note_question(now)
    if run.is_removed(name) and question.kind != "change":
        link.next_ask = min(link.next_ask, now)  # It gets the signed statement next.
        return question, refuse(f"{run.name!r} has removed its edge to {name!r}", ExitCode.REFUSED)
    return question, QUESTION_HANDLERS[question.kind](run, name, question, now)


def _log_refusal(run: "PeerRun", name: str, reason: EventReason, now: float) -> None:
    """Log that a neighbour's question is refused, unless the log has it from a moment ago."""
    if run.links[name].is_worth_logging(reason, now):
        run.log("refused", name=name, round=run.round, reason=reason)


def greet_neighbour(run: "PeerRun", name: str, question: Message, now: float) -> Message:
    """Compare versions, plans and edges, and greet in return."""
    problem = take_greeting(run, name, question.facts, now)
    run.changed += 1
    if problem is not None:
        return refuse(*problem)
    return Message("greeting", build_greeting(run, name))


def exchange_records(run: "PeerRun", name: str, question: Message, now: float) -> Message:
    """Take over the neighbour's records, and return all that are here."""
    try:
        for record in question.facts["records"]:
            run.changed += run.records.add(record)
    except InputError as error:
        _log_refusal(run, name, EventReason.DATA, now)
        return refuse(str(error))
    return Message("records", {"records": run.records.list_all()})


def send_setup(run: "PeerRun", name: str, question: Message, now: float) -> Message:
    """Return the setup that all peers agreed on, and the constants of the scaling."""
    if run.agreed is None:
        return refuse("the run has not started; ask for records")
    return Message("setup", {"description": run.agreed.describe()}, run.constants)


def answer_model(run: "PeerRun", name: str, question: Message, now: float) -> Message:
    """Return the model that the neighbour wants, a newer one, or `wait`.

    With staleness 0 a neighbour that has this peer's newest model can want one that this peer has skipped,
    since it has lost its disk: the newest one stands in.
    """
    facts = question.facts
    numbers = facts["round"], facts["exchange"], facts["newest_round"], facts["newest_exchange"]
    if not (is_turn(*numbers[:2]) and is_turn(*numbers[2:])):
        return refuse("a question for a model has no valid turn")
    peer = run.peer
    if peer is None or name not in peer.neighbours or run.is_removed(name) or not start_edge(run, name, now):
        return WAIT
    newest = Turn(*numbers[2:])
    peer.note_received(name, newest)
    found = peer.find_answer(name, Turn(*numbers[:2]), newest if facts["has_newest"] else None)
    if found is None:
        return SKIPPED if peer.has_skipped(Turn(*numbers[:2])) else WAIT
    turn, base, state = found
    described = {
        "round": turn.round,
        "exchange": turn.exchange,
        "first_round": peer.neighbours[name].first_round,
    }
    described |= {"base_round": base.round, "base_exchange": base.exchange}
    return Message("model", described, state)


def note_neighbour_finished(run: "PeerRun", name: str, question: Message, now: float) -> Message:
    """Note that a neighbour has done its last round."""
    if run.peer is None:
        return refuse("this peer has not started yet; ask again")
    neighbour = run.peer.neighbours[name]
    if not neighbour.has_finished:
        neighbour.has_finished = True
        if run.settings.most_age == 0:  # It needed every message.
            run.peer.note_received(name, max(run.peer.sent, default=START))
        if not run.save_change(now):  # The neighbour may be gone when this peer is restarted.
            neighbour.has_finished = False
            return refuse("the disk is full; ask again")
        run.log("neighbour-finished", name=name, round=run.round)
        run.changed += 1
    return ACK


def note_away(run: "PeerRun", name: str, question: Message, now: float) -> Message:
    """Note that a neighbour is stopped for now, so that rounds need not wait until the deadline."""
    if run.peer is not None and name in run.peer.neighbours:
        run.peer.neighbours[name].is_late = True
        run.log("away", name=name, round=run.round)
        run.changed += 1
    return ACK


def take_change(run: "PeerRun", name: str, question: Message, now: float) -> Message:
    """Remove the edge to a neighbour that leaves for good, or that has removed its edge to this peer."""
    try:
        change = check_removal(
            name, question.facts["statement"], dict(question.facts["proof"]), run.plan, run.signer
        )
    except InputError as error:
        if run.links[name].is_worth_logging(EventReason.ROSTER, now):
            run.log("not-changed", name=name, reason=EventReason.ROSTER)
        return refuse(str(error), ExitCode.REFUSED)
    run.request_change(change)
    return ACK if run.save(now) else refuse("the disk is full; ask again")


def return_probe(run: "PeerRun", name: str, question: Message, now: float) -> Message:
    """Answer the check of a neighbour, which has not started yet: nothing is noted."""
    return answer_probe(name, build_greeting(run, name), question, is_check=False)


def answer_probe(name: str, greeting: Mapping[str, Any], question: Message, is_check: bool) -> Message:
    """Compare greetings; return a message of the question's size, and this peer's clock.

    is_check: this peer checks its edges, and does not run.
    """
    problem = compare_greetings(name, greeting, question.facts)
    if problem is not None:
        return refuse(*problem)
    if not isinstance(question.state, Tensor | None):  # A tuple can take more bytes in the answer.
        return refuse("a probe has another state than one tensor; install one version of fedlap on both")
    return Message("probe", {"utc": time.time(), "is_check": is_check}, question.state)


QUESTION_HANDLERS: Final[dict[str, Callable[..., Message]]] = {
    "greet": greet_neighbour,
    "records": exchange_records,
    "setup": send_setup,
    "model": answer_model,
    "finished": note_neighbour_finished,
    "leave": note_away,
    "change": take_change,
    "probe": return_probe,
}
