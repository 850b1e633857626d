"""Arrays in NPZ and NPY files: mapped into memory from a file of our own, or from content held in memory.

A header is compared with the bytes that are there before memory is allocated; Python objects are refused.
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

from fedlap.storage.files import check_room

Array = Shaped[np.ndarray, "..."]
Arrays = dict[str, Array]

# What reading a damaged NPZ or NPY file may raise.
DAMAGED = (
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

_LOCAL_HEADER = 30  # bytes of a zip member's header before its name and extra field, whose lengths end it


class _Held(io.RawIOBase):
    """Content in memory as a file to read, without a copy."""

    def __init__(self, content: bytes | bytearray) -> None:
        self._view, self._at = memoryview(content), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._view)}[whence]
        if origin + offset < 0:
            raise OSError(f"there is no place {origin + offset}")
        self._at = origin + offset
        return self._at

    def readinto(self, into: Any) -> int:
        piece = self._view[self._at : self._at + len(into)]
        into[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


Placed = Callable[[np.dtype[Any], int, tuple[int, ...]], Array]  # an array of the file, that begins there


def map_arrays(path: Path) -> Arrays:
    """The arrays of an NPZ file: mapped (copy on write) where stored plainly, read where compressed.

    Only for files that nobody overwrites in place, as those of our cache: a mapping shows what a file holds
    when it is used, and a file that was cut off ends the process.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return _arrays(file, size, lambda kind, at, shape: np.memmap(file, kind, "c", at, shape))


def arrays_in(content: bytearray) -> Arrays:
    """The arrays of an NPZ file's content: views of it where stored plainly, without a second copy."""

    def view(kind: np.dtype[Any], at: int, shape: tuple[int, ...]) -> Array:
        return np.frombuffer(content, kind, math.prod(shape), at).reshape(shape)

    return _arrays(_Held(content), len(content), view)


def array_in(content: bytes) -> Array:
    """The array of an NPY file's content."""
    file = io.BytesIO(content)
    _header(file, len(content), "it")
    file.seek(0)
    return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _arrays(file: Any, size: int, placed: Placed) -> Arrays:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        packed = [info for info in members if info.compress_type != zipfile.ZIP_STORED]
        check_room(sum(info.file_size for info in packed), size)
        return {info.filename.removesuffix(".npy"): _array(archive, file, info, placed) for info in members}


def _array(archive: zipfile.ZipFile, file: Any, info: zipfile.ZipInfo, placed: Placed) -> Array:
    with archive.open(info) as member:  # compares the member's header with the directory
        if info.compress_type != zipfile.ZIP_STORED:
            _header(member, info.file_size, info.filename)
            member.seek(0)
            return np.asarray(np.lib.format.read_array(member, allow_pickle=False))
    file.seek(info.header_offset)
    name, extra = struct.unpack("<HH", file.read(_LOCAL_HEADER)[-4:])
    begin = info.header_offset + _LOCAL_HEADER + name + extra
    file.seek(begin)
    version, shape, fortran, kind = _header(file, begin + info.file_size, info.filename)
    if version == (3, 0):
        with archive.open(info) as member:
            return np.asarray(np.lib.format.read_array(member, allow_pickle=False))
    if math.prod(shape) * kind.itemsize == 0:
        return np.empty(shape, kind)
    array = placed(kind, file.tell(), shape[::-1] if fortran else shape)
    return np.ascontiguousarray(array.T) if fortran else array


def _header(file: Any, end: int, name: str) -> tuple[tuple[int, int], tuple[int, ...], bool, np.dtype[Any]]:
    """Version, shape, order and type of an array, which must reach to this end of the file."""
    version = np.lib.format.read_magic(file)
    # In version 3.0 names of fields are in another encoding than in 2.0, which changes no size.
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, kind = read(file)
    if kind.hasobject:
        raise ValueError(f"{name} holds Python objects")
    if any(length < 0 for length in shape) or file.tell() + math.prod(shape) * kind.itemsize != end:
        raise ValueError(f"{name} is not as long as its header says")
    return version, shape, fortran, kind
