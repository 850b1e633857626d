"""The messages between peers, and what both sides of a greeting compare."""

from collections.abc import Mapping
from typing import Any, Final

from fedlap.deploy.moments import CONSTANT_TYPES
from fedlap.deploy.plan import Plan
from fedlap.deploy.transport import ExitCode
from fedlap.deploy.wire import FEDLAP_VERSION
from fedlap.summaries import shorten_text
from fedlap.training.state_bytes import list_state_types

GREETING: Final[dict[str, type]] = {
    "version": str, "parts": dict, "setup": str, "weight": float,
    "has_started": bool, "round": int,
}  # fmt: skip
TURN: Final[dict[str, type]] = {"round": int, "exchange": int}

# Kinds of messages with their facts; see `deploy/wire.py`.
QUESTIONS: Final[dict[str, dict[str, type]]] = {
    "greet": GREETING,
    "records": {"records": list},
    "setup": {},
    "model": {**TURN, "newest_round": int, "newest_exchange": int, "has_newest": bool},
    "finished": {},
    "leave": {},
    "change": {"statement": dict, "proof": dict},
    "probe": GREETING,
}
PEER_ANSWERS: Final[dict[str, dict[str, type]]] = {
    "greeting": GREETING,
    "records": {"records": list},
    "setup": {"description": dict},
    "model": {**TURN, "base_round": int, "base_exchange": int, "first_round": int},
    "skipped": {},
    "wait": {},
    "ack": {},
    "probe": {"utc": float, "is_check": bool},
    "refused": {"reason": str, "code": int},
}
# The kinds of answers that a question can have, apart from a refusal.
EXPECTED_ANSWERS: Final[dict[str, tuple[str, ...]]] = {
    "greet": ("greeting",), "records": ("records",), "setup": ("setup",),
    "model": ("model", "skipped", "wait"), "finished": ("ack",), "change": ("ack",),
}  # fmt: skip
PEER_STATE_TYPES: Final = CONSTANT_TYPES
SHOWN_LETTERS: Final = 300  # of a neighbour's text


def list_message_types(plan: Plan) -> list[type[Any]]:
    """Return the NamedTuples that may occur in messages of a run: those of its method, and constants."""
    return [*PEER_STATE_TYPES, *list_state_types(plan.method_class)]


def describe_greeting(plan: Plan, setup: str, weight: float, has_started: bool, round: int) -> dict[str, Any]:
    """Return the facts of a greeting, as in `Link`. setup: its digest; empty before there is one."""
    return {
        "version": FEDLAP_VERSION,
        "parts": plan.part_digests,
        "setup": setup,
        "weight": float(weight),
        "has_started": has_started,
        "round": round,
    }


def compare_greetings(
    name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> tuple[str, ExitCode] | None:
    """Return why this peer and the neighbour `name` cannot train together, or None if they can."""
    if theirs["version"] != ours["version"]:
        problem = f"{name!r} has fedlap {theirs['version']}, and this peer {ours['version']}"
        return f"{problem}; install one version on both", ExitCode.OTHER_VERSION
    for part, digest in ours["parts"].items():
        found = str(theirs["parts"].get(part, "none"))
        if found != digest:
            what = "settings of the run" if part == "run" else f"section [{part}]"
            problem = f"the plan of {name!r} differs in the {what} ({found[:16]} there, {digest[:16]} here)"
            return f"{problem}; use one plan at all peers", ExitCode.OTHER_PLAN
    if theirs["weight"] != ours["weight"]:
        problem = f"the edge to {name!r} has weight {ours['weight']:g} here and {theirs['weight']:g} there"
        return f"{problem}; admit the newcomer with one weight", ExitCode.OTHER_PLAN
    if theirs["setup"] and ours["setup"] and theirs["setup"] != ours["setup"]:
        problem = (
            f"{name!r} started with other rows or clients ({theirs['setup'][:16]}, {ours['setup'][:16]} here)"
        )
        return f"{problem}; restore the folder of that run, or start all peers again", ExitCode.OTHER_PLAN
    return None


def clean_text(text: str) -> str:
    """Return a neighbour's text as it can be shown: one line, not too long, without control codes."""
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))
    return shorten_text(line, SHOWN_LETTERS)


def is_turn(round: int, exchange: int) -> bool:
    """Return whether numbers of a message can be those of a turn."""
    return 0 <= round < 2**53 and 0 <= exchange < 2**31
