"""States as bytes, for messages and files: a line of JSON with the structure, then the tensors; no pickle."""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from fedlap.algorithms import Algorithm, State
from fedlap.errors import InputError
from fedlap.storage.files import describe_error, parse_json, read_file, replace_file, unwritable_error
from fedlap.storage.tensor_files import parse_tensors, write_tensors
from fedlap.training.state import copy_state

STATE_FORMAT = 1  # of files


def encode_state(state: State) -> bytes:
    """Return a state as bytes; raise InputError for rows that are not gathered yet.

    In the structure a tensor is its number, a tuple is the name of its type (null if it has none) followed by
    its parts, and None is null: `["ScaffoldMessage", 0, 1]`.
    """
    tensors: list[Tensor] = []
    structure = _describe_structure(state, tensors)
    file = BytesIO()
    write_tensors(file, {str(number): tensor for number, tensor in enumerate(tensors)})
    return json.dumps(structure).encode() + b"\n" + file.getvalue()


def decode_state(content: bytes, types: Iterable[type[Any]] = ()) -> State:
    """Return the state that `encode_state` encoded; raise InputError if the bytes are damaged.

    types: the NamedTuples that may occur. Nothing is imported, so that a message cannot choose code to run.
    """
    structure, _, rest = content.partition(b"\n")
    known = {kind.__name__: kind for kind in types}
    try:
        return copy_state(_restore_structure(parse_json(structure), parse_tensors(rest), known))
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"these {len(content):,} bytes are not a state ({describe_error(error)}); "
            "pass bytes from encode_state, unchanged"
        ) from error


def write_state_file(path: Path, facts: Mapping[str, Any], state: State, durable: bool = True) -> None:
    """Write a state with facts about it atomically: a line with a checksum, a line of JSON, the state.

    durable: wait for the disk, so that a power cut does not lose the file.
    """
    payload = json.dumps({"format": STATE_FORMAT, **facts}).encode() + b"\n" + encode_state(state)
    try:
        with replace_file(path, durable) as file:
            file.write(hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)
    except OSError as error:
        raise unwritable_error(path, error) from error


def read_state_file(path: Path, types: Iterable[type[Any]] = ()) -> tuple[dict[str, Any], State]:
    """Return the facts and the state of a file; raise InputError if it is damaged or of another format."""
    facts, content = _read_parts(path)
    return facts, decode_state(content, types)


def read_state_facts(path: Path) -> dict[str, Any]:
    """Return the facts of a file without its state, whatever its types; raise InputError as above."""
    return _read_parts(path)[0]


def _read_parts(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return the facts of a file, and the bytes of its state."""
    try:
        checksum, _, payload = read_file(path).partition(b"\n")
        if hashlib.sha256(payload).hexdigest().encode() != checksum:
            raise ValueError("its checksum differs")
        line, _, content = payload.partition(b"\n")
        facts: dict[str, Any] = parse_json(line)
        if facts["format"] != STATE_FORMAT:
            raise ValueError(f"it has format {facts['format']}, not {STATE_FORMAT}")
    except (OSError, ValueError) as error:
        reason = describe_error(error)
        raise InputError(f"{str(path)!r} cannot be read ({reason}); use an undamaged copy") from error
    return facts, content


def list_state_types(method: Algorithm | type[Algorithm]) -> list[type[Any]]:
    """Return the NamedTuples at the top of the modules that define a method, alone or in a union."""
    defined = method if isinstance(method, type) else type(method)
    modules = [vars(sys.modules[kind.__module__]) for kind in defined.__mro__]
    entries = [part for names in modules for entry in names.values() for part in (entry, *get_args(entry))]
    return [entry for entry in entries if isinstance(entry, type) and hasattr(entry, "_make")]


def _describe_structure(state: State, tensors: list[Tensor]) -> Any:
    """Return the structure of a state with numbers instead of tensors, and collect the tensors."""
    if state is None:
        return None
    if isinstance(state, tuple):
        name = type(state).__name__ if hasattr(state, "_make") else None
        return [name, *(_describe_structure(part, tensors) for part in state)]
    if not isinstance(state, Tensor):
        raise InputError(
            f"a state contains {type(state).__name__}; expected tensors, tuples and None; "
            "call gather_lazy_rows before encode_state"
        )
    tensors.append(state)
    return len(tensors) - 1


def _restore_structure(structure: Any, tensors: dict[str, Tensor], known: dict[str, type[Any]]) -> State:
    if structure is None:
        return None
    if not isinstance(structure, list):
        return tensors.pop(str(structure))  # A tensor named twice would take memory twice.
    name, *parts = structure
    if name is not None and name not in known:
        raise InputError(
            f"a message contains a tuple of type {name!r}; expected one of {sorted(known)}; "
            "define it at the top of the method's module"
        )
    states = [_restore_structure(part, tensors, known) for part in parts]
    return tuple(states) if name is None else known[name]._make(states)
