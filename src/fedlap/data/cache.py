"""Cached arrays: one file per data set in the cache folder, memory-mapped rather than read."""

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedlap.data.download import is_file
from fedlap.storage.array_files import DAMAGED_FILE_ERRORS, Array, Arrays, map_npz
from fedlap.storage.cache_folder import get_cache_folder
from fedlap.storage.files import replace_file

__all__ = ["DAMAGED_FILE_ERRORS", "Array", "Arrays", "load_cached_arrays", "locate_cached_arrays", "map_npz"]


def load_cached_arrays(name: str, build: Callable[[], Arrays]) -> Arrays:
    """Map the cached arrays of this name; `build` and store them if there are none."""
    path = locate_cached_arrays(name)
    if is_file(path):
        try:
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is None:
                    return map_npz(path)
            print(f"note: {path} is damaged and is rebuilt", file=sys.stderr)
        except DAMAGED_FILE_ERRORS:
            print(f"note: {path} is damaged and is rebuilt", file=sys.stderr)
    arrays = build()
    try:
        _write(path, arrays)
        return map_npz(path)
    except OSError as error:
        print(
            f"note: {path} cannot be written ({error.strerror}); {name} is not cached",
            file=sys.stderr,
        )
        return arrays


def locate_cached_arrays(name: str) -> Path:
    """Return the path of the cached arrays of this name."""
    return get_cache_folder() / "fast" / f"{name}.npz"


def _write(path: Path, arrays: Arrays) -> None:
    """Write the file atomically."""
    with replace_file(path, durable=True) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
