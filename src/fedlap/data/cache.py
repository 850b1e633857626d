"""Arrays in one file of the cache folder that is mapped into memory rather than read."""

import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedlap.data.download import is_file
from fedlap.storage.array_files import DAMAGED, Array, Arrays, map_arrays
from fedlap.storage.cache_folder import cache_folder
from fedlap.storage.files import writing

__all__ = ["DAMAGED", "Array", "Arrays", "fast_form", "kept", "map_arrays"]


def kept(name: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays that `make` gives, made once and kept under this name in the cache folder."""
    path = fast_form(name)
    if is_file(path):
        try:
            with zipfile.ZipFile(path) as archive:
                if archive.testzip() is None:
                    return map_arrays(path)
            print(f"note: {path} is damaged and is made again", file=sys.stderr)
        except DAMAGED:
            print(f"note: {path} is damaged and is made again", file=sys.stderr)
    arrays = make()
    try:
        _write(path, arrays)
        return map_arrays(path)
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
    with writing(path, durable=True) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
