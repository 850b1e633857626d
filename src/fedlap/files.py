"""Files by their content."""

import hashlib
from pathlib import Path

from fedlap.errors import InputError


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
