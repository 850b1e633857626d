"""Members of archives, read where they are: nothing is unpacked, so no path can leave a folder."""

import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from fedlap.data.download import sha256
from fedlap.errors import InputError

LARGEST = 1 << 28  # no member that is read here comes near; a larger one is not what it seems

Members = dict[str, bytes]


def from_zip(archive: Path | io.BytesIO, wanted: Callable[[str], bool], where: str) -> Members:
    """Members of a zip file whose names are wanted."""
    try:
        with zipfile.ZipFile(archive) as opened:
            chosen = [info for info in opened.infolist() if wanted(info.filename)]
            for info in chosen:
                _check_size(where, info.filename, info.file_size)
            _check_size(where, "all that is read", sum(info.file_size for info in chosen))
            return {info.filename: opened.read(info) for info in chosen}
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{where} is not a whole zip file ({error})") from error


def from_tar(archive: Path, wanted: Callable[[str], bool]) -> Members:
    """Regular members of a compressed tar file whose names are wanted."""
    members: Members = {}
    total = 0
    try:
        with tarfile.open(archive, "r:gz") as opened:
            for info in opened:
                if info.isreg() and wanted(info.name):
                    total += info.size
                    _check_size(archive.name, info.name, total)
                    file = opened.extractfile(info)
                    members[info.name] = file.read() if file is not None else b""
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise InputError(f"{archive.name} is not a whole tar.gz file ({error})") from error
    return members


def check_members(members: Mapping[str, bytes], expected: Mapping[str, str], where: str) -> None:
    """Refuse members that are missing or whose SHA-256 is not the expected one."""
    for name, digest in expected.items():
        if name not in members:
            raise InputError(f"{where}: {name!r} is missing")
        if (found := sha256(members[name])) != digest:
            raise InputError(f"{where}: {name!r} has SHA-256 {found}, the official one {digest}")


def _check_size(where: str, name: str, size: int) -> None:
    if size > LARGEST:
        raise InputError(f"{where}: {name!r} is too large ({size:,} bytes)")
