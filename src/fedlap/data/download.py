"""Where files of data are kept, and how they get there: whole, checked, or not at all."""

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
from fedlap.storage.cache_folder import cache_folder
from fedlap.storage.files import appending, check_writable, read_file, reason, refuse_link, sha256_of

CHUNK = 1 << 20
ATTEMPTS = 3  # at one address, each going on from where the last broke off
TIMEOUT = 60.0  # seconds without a byte

Progress = Callable[[int], None]  # told how many bytes have come


class BrokenOffError(Exception):
    """A download ended before its end; what came is kept."""


@dataclass(frozen=True)
class Original:
    """A file of a data set's official distribution.

    name: what it is called in the set's folder.
    addresses: where it officially is; each is tried in turn.
    check: raises InputError where the content is not the official one.
    """

    name: str
    addresses: tuple[str, ...]
    check: Callable[[Path], None]


def data_folders() -> list[Path]:
    """Where files of data are looked for: each folder of $FEDLAP_DATA, then the cache folder."""
    named = [_home(folder) for folder in os.environ.get("FEDLAP_DATA", "").split(os.pathsep) if folder]
    return [*named, cache_folder()]


def _home(folder: str) -> Path:
    """The folder, with ~ understood; one of an unknown user stays as it is, and is not found."""
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        return Path(folder)


def is_file(path: Path) -> bool:
    """Whether there is such a file that one may look at."""
    try:
        return path.is_file()
    except OSError:
        return False


def located(name: str, file: str) -> Path | None:
    """This file of a data set where it lies already."""
    places = (folder / name / file for folder in data_folders())
    return next((place for place in places if is_file(place)), None)


def obtained(name: str, original: Original) -> Path:
    """The file where it lies, or downloaded, checked, into the first folder that can be written."""
    found = located(name, original.name)
    if found is not None:
        return found
    folder = _writable([folder / name for folder in data_folders()])
    refuse_link(folder / f".{original.name}.lock")
    with FileLock(folder / f".{original.name}.lock"):
        found = located(name, original.name)  # another process may have brought it meanwhile
        return found or _downloaded(original, folder / original.name)


def _writable(folders: list[Path]) -> Path:
    """The first of these folders that can be made and written to."""
    reasons = []
    for folder in folders:
        try:
            check_writable(folder)
            return folder
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
    raise InputError(
        f"no folder to download to ({'; '.join(reasons)}); set FEDLAP_DATA to one that can be written",
        scope="data",
    )


def _downloaded(original: Original, target: Path) -> Path:
    """The file from the first address that gives the official one."""
    part = target.with_name(target.name + ".part")
    refuse_link(part)
    failures = []
    for address in original.addresses:
        try:
            _checked(original, address, part)
            part.replace(target)
            return target
        except BrokenOffError as error:
            failures.append(f"{address}: {error}; run it again to go on from there")
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            failures.append(f"{address}: {_reason(error)}")
        except InputError as error:
            failures.append(f"{address} does not give the official file: {error}")
        except OSError as error:
            raise InputError(
                f"{str(part)!r} cannot be written ({error.strerror}); "
                "free some space, or set FEDLAP_DATA to another folder",
                scope="data",
            ) from error
    raise InputError(
        f"{original.name!r} could not be downloaded ({'; '.join(failures)}); or put it into {target.parent}",
        scope="data",
    )


def _checked(original: Original, address: str, part: Path) -> None:
    """Bring a file and see that it is the official one; nothing that is not stays."""
    resumed = part.exists()
    _fetch(address, part, original.name)
    try:
        original.check(part)
    except InputError:
        part.unlink()
        if not resumed:
            raise
        _checked(
            original, address, part
        )  # from the beginning: what was there may have been of something else


def _fetch(address: str, part: Path, name: str) -> None:
    """Bring a file, going on from what an earlier attempt has left."""
    state = "gave nothing"
    for _ in range(ATTEMPTS):
        have = part.stat().st_size if part.exists() else 0
        request = urllib.request.Request(address, headers={"User-Agent": "fedlap"})
        if have:
            request.add_header("Range", f"bytes={have}-")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                resumed = answer.status == http.client.PARTIAL_CONTENT
                have = have if resumed else 0
                length = answer.headers.get("Content-Length")
                total = have + int(length) if length is not None and length.isdecimal() else None
                got = _received(answer, part, name, have, total)
        except urllib.error.HTTPError as error:
            if not have or error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            part.unlink()  # nothing comes after what is there: it is whole, or not what it seems
            continue
        if total is None or got == total:
            return
        state = f"broke off after {got:,} of {total:,} bytes"
    raise BrokenOffError(state)


def _received(answer: http.client.HTTPResponse, part: Path, name: str, have: int, total: int | None) -> int:
    """Write what comes behind what is there; how much there is then."""
    with appending(part, anew=not have) as file, _bar(name, have, total) as advance:
        while True:
            try:
                chunk = answer.read1(CHUNK)
            except (http.client.HTTPException, OSError):
                break  # what came so far is good, and is gone on from
            if not chunk:
                break
            left = memoryview(chunk)
            while left:
                left = left[file.write(left) :]
            have += len(chunk)
            advance(have)
    return have


@contextmanager
def _bar(name: str, have: int, total: int | None) -> Iterator[Progress]:
    """A moving bar on a terminal; one line elsewhere."""
    if not sys.stderr.isatty():
        size = "" if total is None else f" ({total / 1e6:.1f} MB)"
        print(f"downloading {name}{size}", file=sys.stderr, flush=True)
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, completed=have)
        yield lambda done: bar.update(task, completed=done)


def _reason(error: Exception) -> str:
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(inner) or type(inner).__name__


def sha256(content: bytes) -> str:
    """The SHA-256 of some bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def official(digest: str) -> Callable[[Path], None]:
    """A check that a file has this SHA-256."""

    def check(path: Path) -> None:
        try:
            found = sha256_of(path)
        except OSError as error:
            raise InputError(f"{path.name} cannot be read: {reason(error)}") from error
        _check_official(path, found, digest)

    return check


def official_content(path: Path, digest: str) -> bytes:
    """The content of a file, which must have this SHA-256."""
    try:
        content = read_file(path)
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {reason(error)}") from error
    _check_official(path, sha256(content), digest)
    return content


def _check_official(path: Path, found: str, digest: str) -> None:
    if found != digest:
        raise InputError(f"{path.name} has SHA-256 {found}, the official file {digest}")
