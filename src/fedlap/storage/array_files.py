"""Arrays in NPZ and NPY files: mapped from a file of the cache, or parsed from content in memory.

Before memory is allocated, the size in a header is compared with the size of the file. Python objects are
refused.
"""

import io
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from fedlap.storage.files import check_claimed_size

Array = Shaped[np.ndarray, "..."]
Arrays = dict[str, Array]

# Exceptions that reading a damaged NPZ or NPY file may raise.
DAMAGED_FILE_ERRORS = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    KeyError,
    TypeError,
    OverflowError,
    MemoryError,
    RecursionError,
    SyntaxError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    tokenize.TokenError,
)

# Bytes of a zip member's header before its name; the last four are the lengths of name and extra field.
_LOCAL_HEADER = 30


class _MemoryFile(io.RawIOBase):
    """Content in memory as a readable file, without a copy."""

    def __init__(self, content: bytes | bytearray) -> None:
        self._view, self._at = memoryview(content), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._view)}[whence]
        if origin + offset < 0:
            raise OSError(f"cannot seek to {origin + offset}")
        self._at = origin + offset
        return self._at

    def readinto(self, into: Any) -> int:
        piece = self._view[self._at : self._at + len(into)]
        into[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


CreateArray = Callable[[np.dtype[Any], int, tuple[int, ...]], Array]  # from type, offset and shape


def map_npz(path: Path) -> Arrays:
    """Map the uncompressed arrays of an NPZ file (copy on write), and read the compressed ones.

    Use it only for files that nobody overwrites in place, as those of the cache: a mapping shows later
    changes of the file, and reading past the end of a truncated file kills the process.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return _read_members(file, size, lambda kind, at, shape: np.memmap(file, kind, "c", at, shape))


def map_npy(path: Path) -> Array:
    """Map the array of an NPY file, copy on write; see `map_npz` for the files that may be mapped."""
    with path.open("rb") as file:
        _, shape, fortran, kind = _read_header(file, os.fstat(file.fileno()).st_size, path.name)
        if fortran and len(shape) > 1:
            raise ValueError(f"{path.name} is stored column by column; store it row by row")
        if not math.prod(shape):
            return np.empty(shape, kind)
        return np.memmap(file, kind, "c", file.tell(), shape)


def parse_npz(content: bytearray) -> Arrays:
    """Parse the content of an NPZ file; uncompressed arrays are views of the content."""

    def view(kind: np.dtype[Any], at: int, shape: tuple[int, ...]) -> Array:
        return np.frombuffer(content, kind, math.prod(shape), at).reshape(shape)

    return _read_members(_MemoryFile(content), len(content), view)


def parse_npy(content: bytes) -> Array:
    """Parse the content of an NPY file."""
    file = io.BytesIO(content)
    _read_header(file, len(content), "it")
    file.seek(0)
    return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _read_members(file: Any, size: int, create: CreateArray) -> Arrays:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        compressed = [info for info in members if info.compress_type != zipfile.ZIP_STORED]
        check_claimed_size(sum(info.file_size for info in compressed), size)
        return {
            info.filename.removesuffix(".npy"): _read_member(archive, file, info, create) for info in members
        }


def _read_member(archive: zipfile.ZipFile, file: Any, info: zipfile.ZipInfo, create: CreateArray) -> Array:
    with archive.open(info) as member:  # compares the member's header with the directory
        if info.compress_type != zipfile.ZIP_STORED:
            _read_header(member, info.file_size, info.filename)
            member.seek(0)
            return np.asarray(np.lib.format.read_array(member, allow_pickle=False))
    file.seek(info.header_offset)
    name, extra = struct.unpack("<HH", file.read(_LOCAL_HEADER)[-4:])
    begin = info.header_offset + _LOCAL_HEADER + name + extra
    file.seek(begin)
    version, shape, fortran, kind = _read_header(file, begin + info.file_size, info.filename)
    if version == (3, 0):
        with archive.open(info) as member:
            return np.asarray(np.lib.format.read_array(member, allow_pickle=False))
    if math.prod(shape) * kind.itemsize == 0:
        return np.empty(shape, kind)
    array = create(kind, file.tell(), shape[::-1] if fortran else shape)
    return np.ascontiguousarray(array.T) if fortran else array


def _read_header(
    file: Any, end: int, name: str
) -> tuple[tuple[int, int], tuple[int, ...], bool, np.dtype[Any]]:
    """Read version, shape, order and type of an array; raise ValueError unless its data end at `end`."""
    version = np.lib.format.read_magic(file)
    # Version 3.0 differs from 2.0 only in the encoding of field names, which changes no size.
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, kind = read(file)
    if kind.hasobject:
        raise ValueError(f"{name} holds Python objects")
    if any(length < 0 for length in shape) or file.tell() + math.prod(shape) * kind.itemsize != end:
        raise ValueError(f"{name} does not have the size in its header")
    return version, shape, fortran, kind
