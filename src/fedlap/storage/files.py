"""Reading of regular files and atomic writing, used by the whole library.

Writing. New content goes into a temporary file in the same folder, which is created exclusively under a
random name (`O_EXCL`, `O_NOFOLLOW`) with the permissions of the umask, and is then renamed. The name
identifies the process and the host, so that files of killed processes are recognised and removed.

Reading. `read_file` refuses FIFOs, devices, sockets and folders before it opens them. A user's file is read
into memory once, and its SHA-256 is that of the bytes in memory: later changes of the file have no effect.
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

BLANK_CHECKSUM = "0" * 64
PRIVATE_MODE = 0o600  # of files that only their owner may read

# Content is refused by its header if it exceeds both this number of bytes and this multiple of its file's
# size: numbers compress by a small factor, a hostile archive by a factor of a thousand.
ALWAYS_ALLOWED_BYTES, LARGEST_EXPANSION = 1 << 28, 100

TEMPORARY_NAME = re.compile(r"\.fedlap-([0-9a-f]{8})-([0-9]{1,9})-[0-9a-f]{16}-")
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# Opening a FIFO would otherwise block until its other end is opened.
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)

_cleaned_folders: set[tuple[int, int]] = set()  # device and inode of folders that were cleaned


def read_file(path: Path) -> bytes:
    """Return the content of a regular file; raise OSError for anything else, before it is opened."""
    with _open_regular(path) as file:
        _check_fits(path, file)
        return file.readall()


def read_buffer(path: Path) -> bytearray:
    """Return the content of a regular file in writable memory."""
    with _open_regular(path) as file:
        content, done = bytearray(_check_fits(path, file)), 0
        with memoryview(content) as view:
            while more := file.readinto(view[done:]):
                done += more
        del content[done:]  # the file may have become shorter in the meantime
    return content


def _check_fits(path: Path, file: FileIO) -> int:
    """Return the size of an open file; raise OSError if it exceeds the free memory."""
    size = os.fstat(file.fileno()).st_size
    if size > measure_free_memory():
        raise OSError(None, f"it has {size:,} bytes, more than the free memory", str(path))
    return size


def read_last_bytes(path: Path, count: int) -> bytes:
    """Return at most the last `count` bytes of a regular file."""
    with _open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - count))
        return file.read(count) or b""


def read_text(path: Path) -> str:
    """Return the text of a regular file in UTF-8."""
    return read_file(path).decode("utf-8")


@contextmanager
def _open_regular(path: Path) -> Iterator[FileIO]:
    """Open a regular file for reading; it is checked before and, since it may be replaced, after opening."""
    _check_regular(path, path.stat().st_mode)
    with os.fdopen(os.open(path, os.O_RDONLY | _NO_WAITING), "rb", buffering=0) as file:
        _check_regular(path, os.fstat(file.fileno()).st_mode)
        yield file


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kinds = {"directory": stat.S_ISDIR, "FIFO": stat.S_ISFIFO, "socket": stat.S_ISSOCK}
        kind = next((name for name, is_kind in kinds.items() if is_kind(mode)), "device")
        raise OSError(None, f"it is a {kind}; use a regular file", str(path))


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a regular file, in hexadecimal digits."""
    with _open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_user_file(scope: str, path: str) -> str:
    """Return the SHA-256 of a user's file; raise InputError with this scope if it cannot be read."""
    try:
        return hash_file(Path(path))
    except OSError as error:
        raise InputError(f"{path!r} cannot be read: {describe_error(error)}", scope=scope) from error


def check_user_file(scope: str, path: str, sha256: str) -> str:
    """Return the SHA-256 of a user's file, after comparing it with `sha256` unless that is empty."""
    found = hash_user_file(scope, path)
    check_digest(scope, path, sha256, found)
    return found


def check_digest(scope: str, path: str, sha256: str, found: str) -> None:
    """Raise InputError if the SHA-256 differs from the expected one; an empty one matches any."""
    if sha256 and sha256 != found:
        raise InputError(
            f"{path!r} has another SHA-256 than the file of this experiment; use the original file",
            scope=scope,
        )


def read_user_file(scope: str, path: str, sha256: str) -> bytes:
    """Return the content of a user's file, after comparing its SHA-256 unless `sha256` is empty."""
    try:
        content = read_file(Path(path))
    except OSError as error:
        raise InputError(f"{path!r} cannot be read: {describe_error(error)}", scope=scope) from error
    if sha256:
        check_digest(scope, path, sha256, hashlib.sha256(content).hexdigest())
    return content


def check_claimed_size(needed: int, size: int) -> None:
    """Raise ValueError if content claims far more memory than a file of this size can describe.

    The limits are 256 MB and 100 times the file's size, both exceeded, or the free memory.
    """
    if needed > ALWAYS_ALLOWED_BYTES and needed > LARGEST_EXPANSION * size:
        raise ValueError(f"it claims {needed:,} bytes of content in a file of {size:,}; save it uncompressed")
    if needed > measure_free_memory():
        raise ValueError(f"it claims {needed:,} bytes of content, more than the free memory")


def measure_free_memory() -> int:
    """Return the bytes that can be allocated without swapping; 2⁶² if the system does not report them."""
    try:
        with open("/proc/meminfo", "rb") as lines:  # noqa: PTH123 — no Path is needed
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith(b"MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return 1 << 62


def write_file(path: Path, content: bytes, private: bool = False) -> None:
    """Write a file atomically: to a temporary name first, then renamed."""
    try:
        with replace_file(path, private=private) as file:
            file.write(content)
    except OSError as error:
        raise unwritable_error(path, error) from error


@contextmanager
def replace_file(path: Path, durable: bool = False, private: bool = False) -> Iterator[BufferedWriter]:
    """Open a new file that replaces `path` at the end of the block; `durable` waits for the disk.

    private: only the owner can read and write the file, whatever the umask.
    """
    with suppress(FileNotFoundError):
        _check_regular(path, path.stat().st_mode)  # a device must not be replaced by a file
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale_files(path.parent)
    temporary = choose_temporary_path(path)
    mode = PRIVATE_MODE if private else 0o666
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINKS, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            sync_to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """Create a new folder that replaces `path`, durably, at the end of the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale_files(path.parent)
    temporary, old = choose_temporary_path(path), choose_temporary_path(path)
    temporary.mkdir()
    try:
        yield temporary
        sync_to_disk(temporary)
        with suppress(FileNotFoundError):
            path.rename(old)
        temporary.rename(path)
        sync_to_disk(path.parent)
    finally:
        for folder in (temporary, old):
            shutil.rmtree(folder, ignore_errors=True)


def open_append(path: Path, truncate: bool = False, private: bool = False) -> FileIO:
    """Open a regular file for appending and reading, or create it; refuse a link.

    private: only the owner can read and write the file, also if it exists with other permissions.
    """
    refuse_link(path)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | _NO_LINKS | _NO_WAITING | (os.O_TRUNC if truncate else 0)
    file = os.fdopen(os.open(path, flags, PRIVATE_MODE if private else 0o666), "r+b", buffering=0)
    try:
        _check_regular(path, os.fstat(file.fileno()).st_mode)
        if private:
            path.chmod(PRIVATE_MODE)
    except OSError:
        file.close()
        raise
    return file


def check_writable(folder: Path) -> None:
    """Create a folder if it is missing; raise OSError if no file can be created in it."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = choose_temporary_path(folder / "writable")
    os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINKS, 0o666))
    temporary.unlink()


def choose_temporary_path(path: Path) -> Path:
    """Return a new name in the same folder that identifies this process and host."""
    return path.with_name(f".fedlap-{_identify_host()}-{os.getpid()}-{secrets.token_hex(8)}-{path.name[:32]}")


def remove_stale_files(folder: Path) -> None:
    """Remove temporary files and folders of dead processes of this host, once per process and folder."""
    status = folder.stat()
    if (status.st_dev, status.st_ino) in _cleaned_folders:
        return
    _cleaned_folders.add((status.st_dev, status.st_ino))
    try:
        names = os.listdir(folder)  # noqa: PTH208 — names are enough
    except OSError:  # a folder may be writable without being readable
        return
    for name in names:
        found = TEMPORARY_NAME.match(name)
        if found is None or found[1] != _identify_host() or _is_alive(int(found[2])):
            continue
        stale = folder / name
        if stale.is_dir() and not stale.is_symlink():
            shutil.rmtree(stale, ignore_errors=True)
        else:
            with suppress(OSError):  # another process may remove it first, or it belongs to another user
                stale.unlink()


@cache
def _identify_host() -> str:
    """Return eight hexadecimal digits that identify the host and its namespace of process numbers."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 — the link is not a path
    except OSError:
        namespace = ""
    name = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    return hashlib.sha256(f"{name} {namespace}".encode()).hexdigest()[:8]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process belongs to another user
        return True
    return True


def refuse_link(path: Path) -> None:
    """Raise InputError if this path is a symbolic link."""
    if path.is_symlink():
        raise InputError(f"{str(path)!r} is a link; remove it, or replace it by a copy of its target")


def refuse_links(folder: Path, inside: tuple[str, ...] = ()) -> None:
    """Raise InputError for a link among a folder's entries, or anywhere below those named by `inside`.

    The folder itself may be a link, since its user chose it.
    """
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                refuse_link(folder / entry.name)
        for name in inside:
            for parent, folders, files in os.walk(folder / name):
                for entry_name in (*folders, *files):
                    refuse_link(Path(parent, entry_name))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise InputError(f"{str(folder)!r} cannot be read: {describe_error(error)}") from error


def unwritable_error(path: Path, error: Exception) -> InputError:
    """Return the error for a file or folder that cannot be written."""
    return InputError(
        f"{path} cannot be written ({describe_error(error)}); use another folder, or make room there"
    )


def describe_error(error: Exception) -> str:
    """Return the system's message on one line."""
    return getattr(error, "strerror", None) or " ".join(str(error).split())


def sync_to_disk(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def parse_json(content: bytes) -> Any:
    """Parse JSON; raise ValueError for anything else, also if it is nested too deeply."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def encode_with_checksum(facts: Mapping[str, Any]) -> bytes:
    """Return JSON with an embedded checksum, computed with the checksum field zeroed."""
    text = json.dumps({**facts, "signature": BLANK_CHECKSUM}, indent=1)
    return text.replace(BLANK_CHECKSUM, hashlib.sha256(text.encode()).hexdigest()).encode()


def decode_with_checksum(content: bytes) -> dict[str, Any] | None:
    """Return the payload, or None if the checksum does not match."""
    try:
        facts: dict[str, Any] = parse_json(content)
        signature = facts["signature"]
        unsigned = content.replace(signature.encode(), BLANK_CHECKSUM.encode())
        return facts if hashlib.sha256(unsigned).hexdigest() == signature else None
    except (ValueError, KeyError, TypeError, AttributeError):  # not a JSON object with a checksum
        return None
