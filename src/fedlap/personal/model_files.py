"""Tensors in one file and what they mean in another beside it: both whole, and made for each other."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from fedlap.errors import InputError
from fedlap.storage.files import read_file, reason, refuse_link, signed, unwritable, verified, writing
from fedlap.storage.tensor_files import tensors_in, write_tensors

FORMAT = 1


def write_pair(
    tensors_at: Path, facts_at: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Write both to the disk before either is renamed; `read_pair` refuses one that a crash left alone."""
    try:
        with writing(facts_at, durable=True) as second, writing(tensors_at, durable=True) as first:
            _, checksum = write_tensors(first, tensors)
            second.write(signed({"format": FORMAT, **facts, "sha256": checksum}))
            for file in (first, second):  # where the disk is full, neither is renamed
                file.flush()
    except OSError as error:
        raise unwritable(tensors_at, error) from error


def read_pair(tensors_at: Path, facts_at: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Both, if they are whole and belong together; tensors are those whose checksum was compared."""
    try:
        for path in (tensors_at, facts_at):
            refuse_link(path)
        facts = verified(read_file(facts_at))
        if facts is None:
            raise InputError(
                f"{facts_at} is damaged or was changed by hand: its checksum differs; save the model again"
            )
        if type(facts.get("format")) is not int:
            raise damaged(facts_at, "format")
        if facts["format"] > FORMAT:
            raise InputError(f"{facts_at} was written by a newer version of fedlap; use that one")
        content = read_file(tensors_at)
        if sha256(content).hexdigest() != facts.get("sha256"):
            raise InputError(
                f"{tensors_at} is damaged, or not the one that {facts_at.name} belongs to; save both again"
            )
        return tensors_in(content), facts
    except OSError as error:
        raise InputError(
            f"{error.filename or tensors_at} cannot be read ({reason(error)}); a model is two files, "
            f"{tensors_at.name} and {facts_at.name}"
        ) from error
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{tensors_at} is no safetensors file ({error}); save the model again") from error


def damaged(path: Path, field: str) -> InputError:
    """For a file of facts one of whose fields is missing or of another type than was written."""
    return InputError(f"{path} is damaged: it has no valid {field!r}; save the model again")
