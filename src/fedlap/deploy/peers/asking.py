"""Questions of a peer to its neighbours, and the use of their answers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fedlap.deploy.event_words import EventReason
from fedlap.deploy.failpoints import pass_point
from fedlap.deploy.moments import check_constants
from fedlap.deploy.peers.changes import describe_removal
from fedlap.deploy.peers.edges import drop_edge
from fedlap.deploy.peers.links import GATHER_PAUSE
from fedlap.deploy.peers.messages import (
    EXPECTED_ANSWERS,
    PEER_ANSWERS,
    clean_text,
    compare_greetings,
    describe_greeting,
)
from fedlap.deploy.peers.neighbours import START, Turn
from fedlap.deploy.peers.stages import Stage
from fedlap.deploy.peers.starting import check_setup, enter_run
from fedlap.deploy.transport import ExitCode, PermanentError, format_problem
from fedlap.deploy.wire import Message, WireError, decode_message
from fedlap.errors import InputError

if TYPE_CHECKING:
    from fedlap.deploy.peers.links import Link
    from fedlap.deploy.peers.run import PeerRun

REFUSED_PAUSE: Final = 1.0  # seconds before a neighbour whose model is refused is asked again


def choose_question(run: "PeerRun", name: str, now: float) -> Message | None:
    """Return what a neighbour is to be asked now, if anything."""
    question = _find_question(run, name, now)
    if question is not None:
        run.links[name].asked = question.kind
    return question


def _find_question(run: "PeerRun", name: str, now: float) -> Message | None:
    link = run.links[name]
    if now < link.next_ask:
        return None
    if run.is_removed(name):
        statement = describe_removal("exclude", run.name, run.plan)
        try:
            proof = run.signer.sign(statement)
        except InputError as error:  # such as a certificate that is not signed yet
            note_failure(run, name, str(error), 0, now)
            return None
        return Message("change", {"statement": statement, "proof": proof})
    if not link.is_greeted:
        return Message("greet", build_greeting(run, name))
    if run.setup is None:
        link.next_ask = now + GATHER_PAUSE
        # A peer that was restarted after all had agreed has no records any more.
        if link.setup and (link.has_given or run.join is not None):
            return Message("setup")
        return Message("records", {"records": run.records.list_all()})
    if not link.setup or (run.stage is Stage.COLLECTING and not link.has_started):
        link.next_ask = now + GATHER_PAUSE
        return Message("greet", build_greeting(run, name))
    if run.stage is Stage.FINISHING:
        return None if link.knows_end else Message("finished")
    if run.stage not in (Stage.TRAINING, Stage.COLLECTING):
        return None
    peer = run.require_peer()
    wanted, newest = peer.choose_wanted(name), peer.neighbours[name].newest
    if wanted is None or peer.neighbours[name].first_round is None:
        return None
    has_newest = bool(peer.neighbours[name].models)
    facts = {"round": wanted.round, "exchange": wanted.exchange, "has_newest": has_newest}
    return Message("model", {**facts, "newest_round": newest.round, "newest_exchange": newest.exchange})


def build_greeting(run: "PeerRun", name: str) -> dict[str, Any]:
    """Return the facts of a greeting to a neighbour."""
    setup = "" if run.agreed is None else run.agreed.digest
    round = run.round if run.has_started else max((link.round for link in run.links.values()), default=0)
    return describe_greeting(run.plan, setup, run.weights[name], run.has_started, round)


def take_content(run: "PeerRun", name: str, content: bytes, now: float) -> None:
    """Take over the bytes of a neighbour's answer, or note that they are no valid answer."""
    try:
        answer = decode_message(content, PEER_ANSWERS, run.state_types, run.plan.limits.most_bytes)
    except WireError as error:
        note_failure(run, name, str(error), 0, now)
    except PermanentError as error:
        note_failure(run, name, str(error), error.code, now)
    else:
        take_answer(run, name, answer, now)


def take_answer(run: "PeerRun", name: str, answer: Message, now: float) -> None:
    """Take over a neighbour's answer."""
    link = run.links.get(name)
    if link is None:  # The edge was removed meanwhile.
        return
    if run.is_removed(name):
        _take_answer_to_removal(run, link, answer, now)
        return
    if answer.kind == "refused":
        note_failure(run, name, clean_text(answer.facts["reason"]), answer.facts["code"], now)
        return
    if answer.kind not in EXPECTED_ANSWERS.get(link.asked, ()):
        note_failure(run, name, f"it answers {answer.kind!r} to the question {link.asked!r}", 0, now)
        return
    link.note_answer(now)
    if answer.kind == "greeting":
        take_greeting(run, name, answer.facts, now)
    elif answer.kind == "records":
        _take_records(run, link, answer.facts["records"], now)
    elif answer.kind == "setup":
        _take_setup(run, link, answer, now)
    elif answer.kind == "model":
        _take_model(run, link, answer, now)
    elif answer.kind == "skipped":
        run.require_peer().neighbours[name].skip(run.require_peer().next_turn)
    elif link.asked == "finished":
        link.knows_end = True
    run.changed += 1


def _take_answer_to_removal(run: "PeerRun", link: "Link", answer: Message, now: float) -> None:
    """Close the link to a neighbour that has heard that its edge is removed.

    It may refuse to hear it. A refusal without a code asks for a repetition, and other answers are those to
    earlier questions.
    """
    if link.asked != "change":
        return
    if answer.kind == "refused" and not answer.facts["code"]:
        link.note_failure(clean_text(answer.facts["reason"]), now, 0)
        return
    drop_edge(run, link.name)
    run.save_change(now)


def take_greeting(run: "PeerRun", name: str, facts: Mapping[str, Any], now: float) -> tuple[str, int] | None:
    """Compare a neighbour's greeting with this peer's; return why it is refused, or None."""
    link = run.links[name]
    problem: tuple[str, int] | None = compare_greetings(name, build_greeting(run, name), facts)
    if problem is None and not 0 <= facts["round"] <= run.plan.rounds:
        problem = f"{name!r} is in round {facts['round']} of {run.plan.rounds}; restart it", 0
    if problem is not None:
        note_failure(run, name, *problem, now)
        return problem
    link.is_greeted, link.setup, link.round = True, facts["setup"], facts["round"]
    link.has_started = facts["has_started"]
    if run.peer is not None:
        run.peer.neighbours[name].note_greeting(link.round if link.has_started else 0)
    return None


def note_failure(run: "PeerRun", name: str, problem: str, code: int, now: float) -> None:
    """Note that a neighbour could not be asked, or does not fit."""
    link = run.links.get(name)
    if link is None:
        return
    known = ExitCode(code) if code in set(ExitCode) else None
    if run.is_removed(name):  # It is asked again until it hears so.
        link.note_failure(problem, now, 0 if known is None else known)
        return
    if link.note_failure(problem, now, 0 if known is None else known):
        run.say(format_problem(name, problem))
        reason = EventReason.UNREACHABLE if known is None else EventReason.from_code(known)
        run.log("lost" if known is None else "refused", name=name, round=run.round, reason=reason)
    if known in (ExitCode.OTHER_VERSION, ExitCode.OTHER_PLAN):
        run.mismatch = run.mismatch or (now, problem, known)


def _take_records(run: "PeerRun", link: "Link", records: list[Any], now: float) -> None:
    try:
        for record in records:
            run.records.add(record)
        link.has_given = bool(link.setup)
    except InputError as error:
        note_failure(run, link.name, str(error), 0, now)


def _take_setup(run: "PeerRun", link: "Link", answer: Message, now: float) -> None:
    if run.setup is not None or run.waits_for_disk(now):
        return
    try:
        agreed = check_setup(run, answer.facts["description"])
        constants = check_constants(answer.state, run.plan.data)
    except InputError as error:
        note_failure(run, link.name, str(error), 0, now)
    else:
        enter_run(run, agreed, constants, now)


def _take_model(run: "PeerRun", link: "Link", answer: Message, now: float) -> None:
    """Take a model; one that is refused is asked for again after a pause."""
    pass_point("peer.model.received")
    peer, facts = run.require_peer(), answer.facts
    turn, base = Turn(facts["round"], facts["exchange"]), Turn(facts["base_round"], facts["base_exchange"])
    neighbour = peer.neighbours[link.name]
    is_first = neighbour.newest == START
    if peer.take(link.name, turn, answer.state, base) is not None:
        link.next_ask = now + REFUSED_PAUSE
    elif is_first:
        neighbour.first_round = max(neighbour.first_round or 1, facts["first_round"])
