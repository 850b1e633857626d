"""Read members of archives in memory: nothing is extracted, so no path can leave a folder."""

import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from fedlap.data.download import compute_sha256
from fedlap.errors import InputError

LARGEST_MEMBER_BYTES = 1 << 28  # All official members are far smaller; a larger one is corrupt or malicious.

Members = dict[str, bytes]


def read_zip(archive: Path | io.BytesIO, is_wanted: Callable[[str], bool], where: str) -> Members:
    """Read the members of a zip file whose names are wanted."""
    try:
        with zipfile.ZipFile(archive) as opened:
            chosen = [info for info in opened.infolist() if is_wanted(info.filename)]
            for info in chosen:
                _check_size(where, info.filename, info.file_size)
            _check_size(where, "all members together", sum(info.file_size for info in chosen))
            return {info.filename: opened.read(info) for info in chosen}
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{where} is not a complete zip file ({error})") from error


def read_tar(archive: Path, is_wanted: Callable[[str], bool]) -> Members:
    """Read the regular members of a tar.gz file whose names are wanted."""
    members: Members = {}
    total = 0
    try:
        with tarfile.open(archive, "r:gz") as opened:
            for info in opened:
                if info.isreg() and is_wanted(info.name):
                    total += info.size
                    _check_size(archive.name, info.name, total)
                    file = opened.extractfile(info)
                    members[info.name] = file.read() if file is not None else b""
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise InputError(f"{archive.name} is not a complete tar.gz file ({error})") from error
    return members


def check_members(members: Mapping[str, bytes], expected: Mapping[str, str], where: str) -> None:
    """Raise InputError if a member is missing or does not have the expected SHA-256."""
    for name, digest in expected.items():
        if name not in members:
            raise InputError(f"{where}: {name!r} is missing")
        if (found := compute_sha256(members[name])) != digest:
            raise InputError(f"{where}: {name!r} has SHA-256 {found}, expected {digest}")


def _check_size(where: str, name: str, size: int) -> None:
    if size > LARGEST_MEMBER_BYTES:
        raise InputError(f"{where}: {name!r} has {size:,} bytes; expected at most {LARGEST_MEMBER_BYTES:,}")
