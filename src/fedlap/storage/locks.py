"""Locks of run folders: one process at a time trains a run."""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fedlap.errors import InputError
from fedlap.storage.files import read_file, refuse_links, unwritable_error, write_file

LOCK_FILE, CLAIM_FILE = ".lock", ".claim"


@contextmanager
def lock_folders(folders: Sequence[Path]) -> Iterator[None]:
    """Prevent other processes from training these runs, with one open file for any number of runs.

    The first folder stays locked. Each folder gets a claim, a file with the name of the first folder and a
    token. A claim is valid while the first folder has the same claim and is locked, so a killed process
    leaves nothing locked. All folders must have the same parent.
    """
    claim = f"{folders[0].name} {secrets.token_hex(8)}"
    with ExitStack() as until_end:
        for place, folder in enumerate(folders):
            with ExitStack() as until_claimed:
                (until_claimed if place else until_end).enter_context(_lock(folder))
                if _is_claimed(folder):
                    raise _busy_error(folder)
                write_file(folder / CLAIM_FILE, os.fsencode(claim))
                until_end.callback(_remove_claim, folder)
        yield


def raise_if_locked(folder: Path) -> None:
    """Raise InputError if another process is training the run in this folder now."""
    try:
        with FileLock(folder / LOCK_FILE, timeout=0):
            busy = _is_claimed(folder)
    except Timeout:
        busy = True
    except OSError:  # no process can train in a folder that cannot be locked
        busy = False
    if busy:
        raise _busy_error(folder)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / LOCK_FILE, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links(folder)
        lock.acquire()
    except Timeout:
        raise _busy_error(folder) from None
    except OSError as error:
        raise unwritable_error(folder, error) from error
    try:
        yield
    finally:
        lock.release()


def _is_claimed(folder: Path) -> bool:
    """Return whether the claim in a locked folder belongs to a process that is still training."""
    claim = _read_claim(folder)
    first = folder.with_name(Path(claim.rpartition(" ")[0]).name or folder.name)
    if first == folder or _read_claim(first) != claim:
        return False
    try:
        with FileLock(first / LOCK_FILE, timeout=0):
            return False
    except Timeout:
        return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unwritable_error(first, error) from error


def _remove_claim(folder: Path) -> None:
    """Remove the claim; if the disk has become read-only, one that nobody holds may stay."""
    with suppress(OSError):
        (folder / CLAIM_FILE).unlink(missing_ok=True)


def _read_claim(folder: Path) -> str:
    """Return the text of a folder's claim; empty if there is no regular file of this name."""
    try:
        return os.fsdecode(read_file(folder / CLAIM_FILE))
    except OSError:
        return ""


def _busy_error(folder: Path) -> InputError:
    return InputError(f"another process is training {str(folder)!r}; wait until it has finished")
