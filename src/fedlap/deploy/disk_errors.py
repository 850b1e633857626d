"""Errors of a disk that is full, read-only or damaged: one line, and the exit code STORAGE."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fedlap.deploy.transport import ExitCode, PermanentError
from fedlap.errors import InputError

FULL_OR_READ_ONLY: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@contextmanager
def convert_disk_errors(folder: Path, only_full: bool = False) -> Iterator[None]:
    """Raise PermanentError if the block cannot write into a folder.

    only_full: convert the errors of a full or read-only disk alone; a wrong path remains an error of its own.
    """
    try:
        yield
    except (OSError, InputError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or (only_full and cause.errno not in FULL_OR_READ_ONLY):
            raise
        raise PermanentError(
            f"{str(folder)!r} cannot be written ({cause.strerror}); free the disk and start again",
            ExitCode.STORAGE,
        ) from error
