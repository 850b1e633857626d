"""Rows from the arrays of an NPZ file.

A user's file may be overwritten while a run uses it, so that it is not mapped: its content is read once into
memory, the arrays are views of that content, and an experiment's SHA-256 is that of the content in memory.
A file of n bytes takes n bytes of memory, whatever the number of runs on it.
"""

from dataclasses import replace
from hashlib import sha256 as digest
from pathlib import Path

import numpy as np
import torch

from fedlap.data.frames import TaskName, coded
from fedlap.data.table import Table, check_known
from fedlap.errors import InputError, unknown
from fedlap.storage.array_files import DAMAGED, Array, Arrays, arrays_in
from fedlap.storage.files import check_digest, checked_digest, read_buffer, reason

_last: dict[str, tuple[str, Arrays]] = {}  # by path: the SHA-256 and the arrays of the last two files


def of_npz(
    path: str,
    client: str | None,
    label: str | None,
    test: str | None,
    features: tuple[str, ...] | None,
    task: TaskName,
    sha256: str = "",
    test_sha256: str = "",
) -> Table:
    """Features, labels and, where there is one, an array of clients, from files of this content."""
    if features is not None and len(features) != 1:
        raise InputError(f"{path!r} needs one array of features; give features = ['x']", scope="data")
    where = [each for each in (path, test) if each is not None]
    given = [arrays_of(each, wanted) for each, wanted in zip(where, (sha256, test_sha256), strict=False)]
    names = {"x": "x" if features is None else features[0], "y": label or "y"}
    if client is not None or "client" in given[0]:
        names["client"] = client or "client"
    for arrays, origin in zip(given, where, strict=True):
        _check(arrays, given[0], names, origin)
    joined = {
        key: as_text(
            given[0][name] if test is None else np.concatenate([arrays[name] for arrays in given]), path
        )
        for key, name in names.items()
    }
    rows = len(given[0][names["y"]])
    own = _names(joined["client"]) if "client" in joined else None
    if own is not None:
        check_known(own[:rows], own[rows:], path, str(test))
    y, labels = joined["y"], None
    if y.ndim == 1:
        y, labels = coded(y, task, f"{path}, array {names['y']!r}")
    elif task == "classification":
        raise InputError(f"{path}, array {names['y']!r}: a classification needs one label a row")
    held = None if test is None else torch.arange(len(y)) >= rows
    made = Table.of((joined["x"], y), own, labels=labels, test=held, where=path)
    return replace(made, target=names["y"])


def arrays_of(path: str, sha256: str = "") -> Arrays:
    """All arrays of a file, which must have this content; comparisons ask for the same ones many times.

    The arrays are never written to.
    """
    if path in _last and checked_digest("data", path, sha256) == _last[path][0]:
        return _last[path][1]
    try:
        content = read_buffer(Path(path))
        found = digest(content).hexdigest()
        check_digest("data", path, sha256, found)
        made = arrays_in(content)
    except InputError:
        raise
    except DAMAGED as error:
        raise InputError(
            f"{path!r} cannot be read as arrays of numbers or text ({reason(error)})", scope="data"
        ) from error
    for name in (path, *list(_last)[:-1]):
        _last.pop(name, None)
    _last[path] = found, made
    return made


def _check(arrays: Arrays, first: Arrays, names: dict[str, str], origin: str) -> None:
    """Refuse arrays that do not stand for the same rows, or whose rows are unlike the first file's."""
    for name in names.values():
        if name not in arrays:
            raise unknown(f"array of {origin}", name, arrays)
    x, y = arrays[names["x"]], arrays[names["y"]]
    if not x.ndim or not y.ndim or len(x) != len(y) or np.iscomplexobj(y):
        raise InputError(
            f"{origin} has features of shape {x.shape} and labels of shape {y.shape}; both need one entry, "
            "real numbers, for each row"
        )
    for name in names.values():
        own, other = arrays[name].shape[1:], first[name].shape[1:]
        if own != other:
            raise InputError(
                f"{origin}, array {name!r}: a row has shape {own}, elsewhere {other}; make them alike"
            )
    if "client" not in names:
        return
    client = arrays[names["client"]]
    if client.shape != (len(x),):
        raise InputError(
            f"{origin}: clients of shape {client.shape} for {len(x)} rows; each row needs one name"
        )
    missing = ~np.isfinite(client) if client.dtype.kind == "f" else client == client.dtype.type()
    if client.dtype.kind in "fSU" and missing.any():
        row = int(missing.nonzero()[0][0])
        raise InputError(f"{origin}, row {row}: the client is missing; fill in or leave out such rows")


def as_text(array: Array, path: str) -> Array:
    """Bytes as the text that they spell."""
    try:
        return np.char.decode(array) if array.dtype.kind == "S" else array
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path!r} holds bytes that are no text ({error}); save them as text", scope="data"
        ) from error


def _names(client: Array) -> list[str]:
    if client.dtype.kind == "f" and bool((client == np.floor(client)).all()):
        client = client.astype(np.int64)
    return [str(name) for name in client.tolist()]
