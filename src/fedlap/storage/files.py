"""Files: read whole and only if regular, written whole or not at all, by one writer for the whole library.

Writing. New content goes into a temporary file of the same folder, which is created exclusively under a
random name (`O_EXCL`, `O_NOFOLLOW`) with the permissions of the umask, and is then renamed. The name says
which process of which host wrote it, so that files of killed processes are recognised and removed.

Reading. `read_file` refuses FIFOs, devices, sockets and folders before it opens them. A user's file is read
into memory once, and its SHA-256 is that of the bytes in memory: a file that changes later changes nothing.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any

from fedlap.errors import InputError

UNSIGNED = "0" * 64

# Content that is larger than the first number of bytes, and than so many times its file, is refused by its
# header: compressed numbers take a few times less room than in memory, a hostile archive a thousand times.
ANYWAY, MOST_TIMES = 1 << 28, 100

TEMPORARY = re.compile(r"\.fedlap-([0-9a-f]{8})-([0-9]{1,9})-[0-9a-f]{16}-")
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)  # to open a FIFO would wait for its other end

_swept: set[tuple[int, int]] = set()  # folders, by device and number, where this process has looked


def read_file(path: Path) -> bytes:
    """Return the content of a regular file; raise OSError for anything else, before it is opened."""
    with _opened(path) as file:
        _check_fits(path, file)
        return file.readall()


def read_buffer(path: Path) -> bytearray:
    """Return the content of a regular file in memory that may be written to."""
    with _opened(path) as file:
        content, done = bytearray(_check_fits(path, file)), 0
        with memoryview(content) as view:
            while more := file.readinto(view[done:]):
                done += more
        del content[done:]  # a file that has become shorter meanwhile
    return content


def _check_fits(path: Path, file: FileIO) -> int:
    """The size of an open file, which must be below that of the free memory."""
    size = os.fstat(file.fileno()).st_size
    if size > available_memory():
        raise OSError(None, f"it has {size:,} bytes, more than the free memory", str(path))
    return size


def read_text(path: Path) -> str:
    """Return the text of a regular file in UTF-8."""
    return read_file(path).decode("utf-8")


@contextmanager
def _opened(path: Path) -> Iterator[FileIO]:
    """A regular file to read, looked at before it is opened and, as it may have been replaced, after."""
    _check_regular(path, path.stat().st_mode)
    with os.fdopen(os.open(path, os.O_RDONLY | _NO_WAITING), "rb", buffering=0) as file:
        _check_regular(path, os.fstat(file.fileno()).st_mode)
        yield file


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kinds = {"directory": stat.S_ISDIR, "FIFO": stat.S_ISFIFO, "socket": stat.S_ISSOCK}
        kind = next((name for name, is_kind in kinds.items() if is_kind(mode)), "device")
        raise OSError(None, f"it is a {kind}; give a regular file", str(path))


def sha256_of(path: Path) -> str:
    """The SHA-256 of a regular file, in hexadecimal digits."""
    with _opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(what: str, path: str) -> str:
    """The SHA-256 of a file that a user named for this."""
    try:
        return sha256_of(Path(path))
    except OSError as error:
        raise InputError(f"{path!r} cannot be read: {reason(error)}", scope=what) from error


def checked_digest(what: str, path: str, sha256: str) -> str:
    """The SHA-256 of a file, which must be this; an empty one stands for any."""
    found = digest_of(what, path)
    check_digest(what, path, sha256, found)
    return found


def check_digest(what: str, path: str, sha256: str, found: str) -> None:
    """Refuse content with another SHA-256 than the one given, if one is given."""
    if sha256 and sha256 != found:
        raise InputError(
            f"{path!r} is not the file that this experiment was made with; its SHA-256 differs", scope=what
        )


def read_checked(what: str, path: str, sha256: str) -> bytes:
    """The content of a user's file, whose SHA-256 must be this; an empty one stands for any."""
    try:
        content = read_file(Path(path))
    except OSError as error:
        raise InputError(f"{path!r} cannot be read: {reason(error)}", scope=what) from error
    if sha256:
        check_digest(what, path, sha256, hashlib.sha256(content).hexdigest())
    return content


def check_room(needed: int, size: int) -> None:
    """Raise ValueError where content needs far more memory than its file of this size could hold.

    Refused is what needs more than 256 MB and more than 100 times the file, or more than the free memory.
    """
    if needed > ANYWAY and needed > MOST_TIMES * size:
        raise ValueError(f"it claims {needed:,} bytes of content in a file of {size:,}; save it uncompressed")
    if needed > available_memory():
        raise ValueError(f"it claims {needed:,} bytes of content, more than the free memory")


def available_memory() -> int:
    """Bytes that can be taken without swapping; a large number where the system does not say."""
    try:
        with open("/proc/meminfo", "rb") as lines:  # noqa: PTH123 — a Path would be made for nothing
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith(b"MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return 1 << 62


def write_file(path: Path, content: bytes) -> None:
    """Write a whole file or none: under another name first, then renamed."""
    try:
        with writing(path) as file:
            file.write(content)
    except OSError as error:
        raise unwritable(path, error) from error


@contextmanager
def writing(path: Path, durable: bool = False) -> Iterator[BufferedWriter]:
    """A new file that takes the place of `path` when the block has ended; `durable` waits for the disk."""
    with suppress(FileNotFoundError):
        _check_regular(path, path.stat().st_mode)  # a device is not to be replaced by a file
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    temporary = temporary_name(path)
    made = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINKS, 0o666)
    try:
        with os.fdopen(made, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            synced(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writing_folder(path: Path) -> Iterator[Path]:
    """A new folder that takes the place of `path`, on disk, when the block has ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    temporary, old = temporary_name(path), temporary_name(path)
    temporary.mkdir()
    try:
        yield temporary
        synced(temporary)
        with suppress(FileNotFoundError):
            path.rename(old)
        temporary.rename(path)
        synced(path.parent)
    finally:
        for left in (temporary, old):
            shutil.rmtree(left, ignore_errors=True)


def appending(path: Path, anew: bool = False) -> FileIO:
    """A regular file to append to and to read, created where it is missing; a link is refused."""
    refuse_link(path)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | _NO_LINKS | _NO_WAITING | (os.O_TRUNC if anew else 0)
    file = os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0)
    try:
        _check_regular(path, os.fstat(file.fileno()).st_mode)
    except OSError:
        file.close()
        raise
    return file


def check_writable(folder: Path) -> None:
    """Make a folder, and raise OSError where no file can be made in it."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(folder / "writable")
    os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINKS, 0o666))
    temporary.unlink()


def temporary_name(path: Path) -> Path:
    """A new name in the same folder that says which process of which host it belongs to."""
    return path.with_name(f".fedlap-{_host()}-{os.getpid()}-{secrets.token_hex(8)}-{path.name[:32]}")


def sweep(folder: Path) -> None:
    """Remove temporary files and folders of dead processes of this host, once per process and folder."""
    about = folder.stat()
    if (about.st_dev, about.st_ino) in _swept:
        return
    _swept.add((about.st_dev, about.st_ino))
    try:
        names = os.listdir(folder)  # noqa: PTH208 — names are enough
    except OSError:  # one may write into a folder without being allowed to look
        return
    for name in names:
        found = TEMPORARY.match(name)
        if found is None or found[1] != _host() or _is_alive(int(found[2])):
            continue
        left = folder / name
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            with suppress(OSError):  # another process may sweep, too, or the file may be another user's
                left.unlink()


@cache
def _host() -> str:
    """Eight hexadecimal digits of this host, and of the container whose process numbers these are."""
    try:
        numbers = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 — it leads to no path
    except OSError:
        numbers = ""
    name = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    return hashlib.sha256(f"{name} {numbers}".encode()).hexdigest()[:8]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


def refuse_link(path: Path) -> None:
    """Raise InputError where a symbolic link has this name."""
    if path.is_symlink():
        raise InputError(f"{str(path)!r} is a link; remove it, or copy what it leads to in its place")


def refuse_links(folder: Path, inside: tuple[str, ...] = ()) -> None:
    """Raise InputError for a link among a folder's entries, or anywhere in those named by `inside`.

    The folder itself may be a link, since its user chose it.
    """
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                refuse_link(folder / entry.name)
        for name in inside:
            for at, folders, files in os.walk(folder / name):
                for each in (*folders, *files):
                    refuse_link(Path(at, each))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise InputError(f"{str(folder)!r} cannot be read: {reason(error)}") from error


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


def parse_json(content: bytes) -> Any:
    """What JSON says; raise ValueError for anything else, also where it is nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def signed(facts: Mapping[str, Any]) -> bytes:
    """As JSON, with a checksum of itself as it is with zeros in the place of that."""
    text = json.dumps({**facts, "signature": UNSIGNED}, indent=1)
    return text.replace(UNSIGNED, hashlib.sha256(text.encode()).hexdigest()).encode()


def verified(content: bytes) -> dict[str, Any] | None:
    """What was signed; nothing where a single bit is another now."""
    try:
        facts: dict[str, Any] = parse_json(content)
        signature = facts["signature"]
        unsigned = content.replace(signature.encode(), UNSIGNED.encode())
        return facts if hashlib.sha256(unsigned).hexdigest() == signature else None
    except (ValueError, KeyError, TypeError, AttributeError):  # it is not even what it was
        return None
