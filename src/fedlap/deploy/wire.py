"""Messages: a line that names the format, a line of JSON, and a state in safetensors; no pickle."""

import json
import math
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any, Final, NamedTuple

from fedlap.algorithms import State
from fedlap.deploy.transport import ExitCode, PermanentError
from fedlap.errors import InputError
from fedlap.storage.files import parse_json
from fedlap.training.state import list_tensors
from fedlap.training.state_bytes import decode_state, encode_state

FEDLAP_VERSION: Final = version("fedlap")  # Both sides must have the same one.
WIRE_FORMAT: Final = 1
MAGIC: Final = b"fedlap-wire "
LONGEST_HEADER: Final = 32_000_000  # bytes of a line of JSON; a setup lists every client and edge

# The facts of each kind of message and their types. Clients ask with the kinds of the first group, and the
# server answers with those of the second one.
REQUESTS: Final[dict[str, dict[str, type]]] = {
    "hello": {"version": str, "plan": str},
    "register": {"shapes": dict},
    "setup": {},
    "poll": {},
    "reply": {"round": int, "setup": int},
    "tally": {"round": int, "setup": int},
    "finished": {},
    "decline": {"round": int, "reason": str},
    "heartbeat": {},
    "check": {"version": str},
    "probe": {},
    "leave": {"for_good": bool},
}
ANSWERS: Final[dict[str, dict[str, type]]] = {
    "plan": {"plan": dict, "digest": str},
    "setup": {"setup": int, "description": dict},
    "wait": {"reason": str},
    "train": {"round": int, "setup": int, "merged": int},
    "score": {"round": int, "setup": int, "merged": int, "is_model": bool},
    "finish": {"round": int, "setup": int, "merged": int, "is_model": bool},
    "stop": {"reason": str},
    "ack": {},
    "overview": {"plan": dict, "digest": str, "up": int, "down": int},
    "probe": {"utc": float},
    "refused": {"reason": str, "code": int},
}


class Message(NamedTuple):
    """A message: its kind, facts that JSON can hold, and a state."""

    kind: str
    facts: Mapping[str, Any] = {}
    state: State = None


ACK: Final = Message("ack")


class WireError(InputError):
    """Bytes that are not a valid message."""


def encode_message(message: Message) -> bytes:
    """Return a message as bytes."""
    header = json.dumps({"kind": message.kind, **message.facts}, allow_nan=False).encode()
    return b"".join((MAGIC, b"%d\n" % WIRE_FORMAT, header, b"\n", encode_state(message.state)))


def decode_message(
    content: bytes,
    known: Mapping[str, Mapping[str, type]],
    types: Iterable[type[Any]] = (),
    most_bytes: int | None = None,
) -> Message:
    """Return the message with the facts of its kind and no others.

    Raise WireError for damaged bytes, and PermanentError for another format.

    known: the kinds that are expected, with their facts. types: NamedTuples that may occur in the state.
    most_bytes: the longest message; longer ones are refused before any memory is taken.
    """
    if most_bytes is not None and len(content) > most_bytes:
        raise WireError(f"a message has {len(content):,} bytes; expected at most {most_bytes:,}")
    first, _, rest = content.partition(b"\n")
    if not first.startswith(MAGIC) or not first[len(MAGIC) :].isdigit() or len(first) > 40:
        raise WireError("these bytes are no message of fedlap; connect fedlap with fedlap")
    if (found := int(first[len(MAGIC) :])) != WIRE_FORMAT:
        raise PermanentError(
            f"the other side speaks wire format {found}, and this one {WIRE_FORMAT}; install one version of "
            "fedlap on both",
            ExitCode.OTHER_VERSION,
        )
    line, end, body = rest.partition(b"\n")
    if not end or len(line) > LONGEST_HEADER:
        raise WireError("a message ends in its header; send it again")
    try:
        facts = parse_json(line)
        kind = facts.pop("kind")
        expected = known[kind]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WireError("the header of a message is damaged or of an unknown kind; send it again") from error
    for name, kind_of_fact in expected.items():
        value = facts.get(name)
        if type(value) is not kind_of_fact:
            raise WireError(f"a message {kind!r} has no valid {name!r}; send it again")
    try:
        state = decode_state(body, types)
    except InputError as error:
        raise WireError(f"the state of a message {kind!r} is damaged ({error}); send it again") from error
    return Message(kind, {name: facts[name] for name in expected}, state)


def measure_norm(state: State) -> float:
    """Return the Euclidean norm of all numbers of a state; NaN or infinity if one of them is not finite."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in list_tensors(state)))


def refuse(reason: str, code: int = 0) -> Message:
    """Return a refusal; a code other than 0 ends the client's process."""
    return Message("refused", {"reason": reason, "code": int(code)})
