"""Arrays in one file that is mapped into memory rather than read."""

import math
import os
import secrets
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from fedlap.data.storage import cache_folder, is_file

Array = Shaped[np.ndarray, "..."]
Arrays = dict[str, Array]

# What reading a damaged NPZ file may raise.
DAMAGED = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    KeyError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    tokenize.TokenError,
)

_LOCAL_HEADER = 30  # bytes of a zip member's header before its name and extra field, whose lengths end it


def mapped(path: Path) -> Arrays:
    """The arrays of an NPZ file: mapped (copy on write) where stored plainly, read where compressed."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        return {
            info.filename.removesuffix(".npy"): _mapped(archive, file, info) for info in archive.infolist()
        }


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    with archive.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _mapped(archive: zipfile.ZipFile, file: Any, info: zipfile.ZipInfo) -> Array:
    with archive.open(info):  # compares the member's header with the directory
        pass
    if info.compress_type != zipfile.ZIP_STORED:
        return _read(archive, info)
    file.seek(info.header_offset)
    name, extra = struct.unpack("<HH", file.read(_LOCAL_HEADER)[-4:])
    start = info.header_offset + _LOCAL_HEADER + name + extra
    file.seek(start)
    if np.lib.format.read_magic(file) != (1, 0):
        return _read(archive, info)
    shape, fortran, kind = np.lib.format.read_array_header_1_0(file)
    if kind.hasobject:
        raise ValueError(f"{info.filename} holds Python objects")
    size = math.prod(shape) * kind.itemsize
    if file.tell() + size != start + info.file_size:
        raise ValueError(f"{info.filename} is not as long as its header says")
    if size == 0:
        return np.empty(shape, kind)
    array = np.memmap(file, kind, "c", file.tell(), shape, "F" if fortran else "C")
    return np.ascontiguousarray(array) if fortran else array


def kept(name: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays that `make` gives, made once and kept under this name in the cache folder."""
    path = fast_form(name)
    if is_file(path):
        try:
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is None:
                    return mapped(path)
            print(f"note: {path} is damaged and is made again", file=sys.stderr)
        except DAMAGED:
            print(f"note: {path} is damaged and is made again", file=sys.stderr)
    arrays = make()
    try:
        _write(path, arrays)
        return mapped(path)
    except OSError as error:
        print(
            f"note: {path} cannot be written ({error.strerror}); {name} is read anew each time",
            file=sys.stderr,
        )
        return arrays


def fast_form(name: str) -> Path:
    """Where arrays of this name are kept."""
    return cache_folder() / "fast" / f"{name}.npz"


def _write(path: Path, arrays: Arrays) -> None:
    """The whole file or none, under its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
