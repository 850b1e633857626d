"""Find the files of data sets, or download and check them; an incomplete or wrong file is never used."""

import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from fedlap.errors import InputError
from fedlap.storage.cache_folder import get_cache_folder
from fedlap.storage.files import (
    check_writable,
    describe_error,
    hash_file,
    open_append,
    read_file,
    refuse_link,
)

BYTES_PER_READ = 1 << 20
ATTEMPTS_PER_ADDRESS = 3  # Each attempt resumes where the last one broke off.
SECONDS_WITHOUT_DATA = 60.0  # The connection times out after this long without a byte.

DownloadProgress = Callable[[int], None]  # It is called with the number of bytes received.


class IncompleteDownloadError(Exception):
    """A download broke off; the bytes received stay on disk."""


@dataclass(frozen=True)
class OfficialFile:
    """A file of a data set's official distribution.

    name: the file's name in the set's folder.
    addresses: its official URLs, tried in turn.
    check: raises InputError if the content is not the official one.
    """

    name: str
    addresses: tuple[str, ...]
    check: Callable[[Path], None]


def get_data_folders() -> list[Path]:
    """Return the folders searched for data sets: those of $FEDLAP_DATA, then the cache folder."""
    named = [_expand_home(folder) for folder in os.environ.get("FEDLAP_DATA", "").split(os.pathsep) if folder]
    return [*named, get_cache_folder()]


def _expand_home(folder: str) -> Path:
    """Expand ~ in a path; the folder of an unknown user stays unexpanded, and is not found."""
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        return Path(folder)


def is_file(path: Path) -> bool:
    """Return whether a file exists and may be accessed."""
    try:
        return path.is_file()
    except OSError:
        return False


def find_file(name: str, file: str) -> Path | None:
    """Return the path of a data set's file, or None if no folder has it."""
    paths = (folder / name / file for folder in get_data_folders())
    return next((path for path in paths if is_file(path)), None)


def fetch_file(name: str, official_file: OfficialFile) -> Path:
    """Find a file, or download and check it into the first writable folder."""
    found = find_file(name, official_file.name)
    if found is not None:
        return found
    folder = _find_writable_folder([folder / name for folder in get_data_folders()])
    refuse_link(folder / f".{official_file.name}.lock")
    with FileLock(folder / f".{official_file.name}.lock"):
        found = find_file(name, official_file.name)  # Another process may have downloaded it meanwhile.
        return found or _download(official_file, folder / official_file.name)


def _find_writable_folder(folders: list[Path]) -> Path:
    """Return the first of the folders that can be created and written to."""
    reasons = []
    for folder in folders:
        try:
            check_writable(folder)
            return folder
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
    raise InputError(
        f"no folder to download to ({'; '.join(reasons)}); set FEDLAP_DATA to a writable folder",
        scope="data",
    )


def _download(official_file: OfficialFile, target: Path) -> Path:
    """Download a file from the first address that serves the official one."""
    partial = target.with_name(target.name + ".part")
    refuse_link(partial)
    failures = []
    for address in official_file.addresses:
        try:
            _download_and_check(official_file, address, partial)
            partial.replace(target)
            return target
        except IncompleteDownloadError as error:
            failures.append(f"{address}: {error}; run the command again to resume")
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            failures.append(f"{address}: {_describe_url_error(error)}")
        except InputError as error:
            failures.append(f"{address} does not serve the official file: {error}")
        except OSError as error:
            raise InputError(
                f"{str(partial)!r} cannot be written ({error.strerror}); "
                "free some space, or set FEDLAP_DATA to another folder",
                scope="data",
            ) from error
    raise InputError(
        f"{official_file.name!r} could not be downloaded ({'; '.join(failures)}); "
        f"retry, or copy it to {target.parent}",
        scope="data",
    )


def _download_and_check(official_file: OfficialFile, address: str, partial: Path) -> None:
    """Download a file and check its content; delete it if it is not the official one."""
    resumed = partial.exists()
    _resume_download(address, partial, official_file.name)
    try:
        official_file.check(partial)
    except InputError:
        partial.unlink()
        if not resumed:
            raise
        # The bytes of the earlier attempt may belong to another file, so the download starts again.
        _download_and_check(official_file, address, partial)


def _resume_download(address: str, partial: Path, name: str) -> None:
    """Download a file, resuming from the bytes of an earlier attempt."""
    state = "sent nothing"
    for _ in range(ATTEMPTS_PER_ADDRESS):
        received = partial.stat().st_size if partial.exists() else 0
        request = urllib.request.Request(address, headers={"User-Agent": "fedlap"})
        if received:
            request.add_header("Range", f"bytes={received}-")
        try:
            with urllib.request.urlopen(request, timeout=SECONDS_WITHOUT_DATA) as response:
                resumed = response.status == http.client.PARTIAL_CONTENT
                received = received if resumed else 0
                length = response.headers.get("Content-Length")
                total = received + int(length) if length is not None and length.isdecimal() else None
                got = _append_body(response, partial, name, received, total)
        except urllib.error.HTTPError as error:
            if not received or error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            partial.unlink()  # No bytes follow: the file is complete already, or is another file.
            continue
        if total is None or got == total:
            return
        state = f"broke off after {got:,} of {total:,} bytes"
    raise IncompleteDownloadError(state)


def _append_body(
    response: http.client.HTTPResponse, partial: Path, name: str, received: int, total: int | None
) -> int:
    """Append the body of a response to the file and return the file's size."""
    with (
        open_append(partial, truncate=not received) as file,
        _show_progress(name, received, total) as report,
    ):
        while True:
            try:
                chunk = response.read1(BYTES_PER_READ)
            except (http.client.HTTPException, OSError):
                break  # The bytes received are valid, and the next attempt resumes after them.
            if not chunk:
                break
            left = memoryview(chunk)
            while left:
                left = left[file.write(left) :]
            received += len(chunk)
            report(received)
    return received


@contextmanager
def _show_progress(name: str, received: int, total: int | None) -> Iterator[DownloadProgress]:
    """Show a progress bar on a terminal, or print one line elsewhere."""
    if not sys.stderr.isatty():
        size = "" if total is None else f" ({total / 1e6:.1f} MB)"
        print(f"downloading {name}{size}", file=sys.stderr, flush=True)
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, completed=received)
        yield lambda done: bar.update(task, completed=done)


def _describe_url_error(error: Exception) -> str:
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(inner) or type(inner).__name__


def compute_sha256(content: bytes) -> str:
    """Compute the SHA-256 of bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def require_sha256(digest: str) -> Callable[[Path], None]:
    """Build a check that raises InputError unless a file has this SHA-256."""

    def check(path: Path) -> None:
        try:
            found = hash_file(path)
        except OSError as error:
            raise InputError(f"{path.name} cannot be read: {describe_error(error)}") from error
        _check_sha256(path, found, digest)

    return check


def read_official(path: Path, digest: str) -> bytes:
    """Read a file, which must have this SHA-256."""
    try:
        content = read_file(path)
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {describe_error(error)}") from error
    _check_sha256(path, compute_sha256(content), digest)
    return content


def _check_sha256(path: Path, found: str, digest: str) -> None:
    if found != digest:
        raise InputError(f"{path.name} has SHA-256 {found}, expected {digest}")
