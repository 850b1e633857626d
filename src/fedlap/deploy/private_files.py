"""Folders and files of keys that their owner alone can use."""

import stat
from pathlib import Path

from fedlap.errors import InputError
from fedlap.storage.files import replace_file, unwritable_error


def check_private(path: Path) -> None:
    """Raise InputError if users other than the owner can read or change a file."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise InputError(
            f"private key {str(path)!r} has mode {mode:04o}, so that other users can use it; "
            f"run chmod 600 {path}, or request a certificate for a new key"
        )


def create_private_folder(folder: Path) -> None:
    """Create a folder that its owner alone can use; raise InputError if one exists that others can use."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise unwritable_error(folder, error) from error
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        raise InputError(
            f"folder {str(folder)!r} has mode {mode:04o}, so that other users can use it; "
            "choose another folder, or run chmod 700 on it"
        )


def write_private_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all, that its owner alone can read; a power cut does not lose it."""
    try:
        with replace_file(path, durable=True, private=True) as file:
            file.write(content)
    except OSError as error:
        raise unwritable_error(path, error) from error
