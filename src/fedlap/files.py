"""Files: by their content, and written whole or not at all."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlap.errors import InputError

UNSIGNED = "0" * 64


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(what: str, path: str) -> str:
    """The SHA-256 of a file that a user named for this."""
    try:
        return sha256_of(Path(path))
    except OSError as error:
        raise InputError(f"{what}: {path!r} cannot be read: {error.strerror}") from error


def checked_digest(what: str, path: str, sha256: str) -> str:
    """The SHA-256 of a file, which must be this; an empty one stands for any."""
    found = digest_of(what, path)
    if sha256 and sha256 != found:
        raise InputError(
            f"{what}: {path!r} is not the file that this experiment was made with; its SHA-256 differs"
        )
    return found


def beside(path: Path) -> Path:
    """Another name in the same folder, of this process alone."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def write_file(path: Path, content: bytes) -> None:
    """Write a whole file or none: under another name first, then renamed."""
    temporary = beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: Exception) -> InputError:
    """For a file that a system does not let us write."""
    return InputError(f"{path} cannot be written ({reason(error)}); choose another place, or make room there")


def reason(error: Exception) -> str:
    """What the system says, on one line."""
    return getattr(error, "strerror", None) or " ".join(str(error).split())


def synced(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def signed(facts: Mapping[str, Any]) -> bytes:
    """As JSON, with a checksum of itself as it is with zeros in the place of that."""
    text = json.dumps({**facts, "signature": UNSIGNED}, indent=1)
    return text.replace(UNSIGNED, hashlib.sha256(text.encode()).hexdigest()).encode()


def verified(content: bytes) -> dict[str, Any] | None:
    """What was signed; nothing where a single bit is another now."""
    try:
        facts: dict[str, Any] = json.loads(content)
        signature = facts["signature"]
        unsigned = content.replace(signature.encode(), UNSIGNED.encode())
        return facts if hashlib.sha256(unsigned).hexdigest() == signature else None
    except (ValueError, KeyError, TypeError, AttributeError):  # it is not even what it was
        return None
