"""Build tables from the arrays of NPZ files.

A user's file may be overwritten while a run uses it, so it is not mapped: its content is read once into
memory, the arrays are views of that content, and an experiment's SHA-256 is that of the content in memory.
A file of n bytes takes n bytes of memory, whatever the number of runs.
"""

from dataclasses import replace
from hashlib import sha256 as digest
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from fedlap.data.labels import LearningTask, encode_labels
from fedlap.data.row_weights import convert_weights
from fedlap.data.table import Table, check_test_clients
from fedlap.errors import InputError, unknown_name_error
from fedlap.storage.array_files import DAMAGED_FILE_ERRORS, Array, Arrays, parse_npz
from fedlap.storage.files import check_digest, check_user_file, describe_error, read_buffer

_last_arrays: dict[str, tuple[str, Arrays]] = {}  # by path: the SHA-256 and the arrays of the last two files


def table_from_npz(
    path: str,
    client: str | None,
    label: str | None,
    test: str | None,
    features: tuple[str, ...] | None,
    task: LearningTask,
    sha256: str = "",
    test_sha256: str = "",
    weight: str | None = None,
) -> Table:
    """Build a table from arrays of features, labels and, optionally, clients and weights of training rows.

    The files' SHA-256 are checked.
    """
    if features is not None and len(features) != 1:
        raise InputError(
            f"features names {len(features)} arrays of {path!r}; expected one array, as in features = ['x']",
            scope="data",
        )
    paths = [name for name in (path, test) if name is not None]
    files = [read_npz(name, wanted) for name, wanted in zip(paths, (sha256, test_sha256), strict=False)]
    names = {"x": "x" if features is None else features[0], "y": label or "y"}
    if client is not None or "client" in files[0]:
        names["client"] = client or "client"
    for arrays, where in zip(files, paths, strict=True):
        _check_arrays(arrays, files[0], names, where)
    columns = {
        key: decode_text(
            files[0][name] if test is None else np.concatenate([arrays[name] for arrays in files]), path
        )
        for key, name in names.items()
    }
    rows = len(files[0][names["y"]])
    clients = _format_clients(columns["client"]) if "client" in columns else None
    if clients is not None:
        check_test_clients(clients[:rows], clients[rows:], path, str(test))
    y, labels = columns["y"], None
    if y.ndim == 1:
        y, labels = encode_labels(y, task, f"{path}, array {names['y']!r}")
    elif task == "classification":
        raise InputError(
            f"{path}, array {names['y']!r}: labels have shape {y.shape}; a classification needs one "
            "label per row: reshape them, or use task = regression"
        )
    is_test = None if test is None else torch.arange(len(y)) >= rows
    table = Table.of((columns["x"], y), clients, labels=labels, test=is_test, where=path)
    weights = _read_weights(files[0], weight, path, rows, len(y))
    return replace(table, target=names["y"], weight=weights)


def _read_weights(
    arrays: Arrays, name: str | None, path: str, training_rows: int, rows: int
) -> Float64[Tensor, "row"] | None:
    """Return the weights of training rows, if the file has any, and ones for separate test rows."""
    if name is None and "weight" not in arrays:
        return None
    if (found := name or "weight") not in arrays:
        raise unknown_name_error(f"array of {path}", found, arrays, field="weight")
    weights = convert_weights(f"{path}, array {found!r}", arrays[found], training_rows)
    return torch.cat([weights, torch.ones(rows - training_rows, dtype=torch.float64)])


def read_npz(path: str, sha256: str = "") -> Arrays:
    """Read all arrays of a file and check its SHA-256; the last two files stay in memory.

    The arrays are never written to.
    """
    if path in _last_arrays and check_user_file("data", path, sha256) == _last_arrays[path][0]:
        return _last_arrays[path][1]
    try:
        content = read_buffer(Path(path))
        content_digest = digest(content).hexdigest()
        check_digest("data", path, sha256, content_digest)
        arrays = parse_npz(content)
    except InputError:
        raise
    except DAMAGED_FILE_ERRORS as error:
        raise InputError(
            f"{path!r} cannot be read as arrays of numbers or text ({describe_error(error)})", scope="data"
        ) from error
    for name in (path, *list(_last_arrays)[:-1]):
        _last_arrays.pop(name, None)
    _last_arrays[path] = content_digest, arrays
    return arrays


def _check_arrays(arrays: Arrays, first: Arrays, names: dict[str, str], where: str) -> None:
    """Raise InputError unless arrays have one entry per row and the row shapes of the first file."""
    for name in names.values():
        if name not in arrays:
            raise unknown_name_error(f"array of {where}", name, arrays)
    x, y = arrays[names["x"]], arrays[names["y"]]
    if not x.ndim or not y.ndim or len(x) != len(y) or np.iscomplexobj(y):
        raise InputError(
            f"{where} has features of shape {x.shape} and labels of shape {y.shape}; "
            "expected real numbers, one entry per row"
        )
    for name in names.values():
        shape, first_shape = arrays[name].shape[1:], first[name].shape[1:]
        if shape != first_shape:
            raise InputError(
                f"{where}, array {name!r}: a row has shape {shape}; "
                f"expected {first_shape}, as in the training file"
            )
    if "client" not in names:
        return
    client = arrays[names["client"]]
    if client.shape != (len(x),):
        raise InputError(
            f"{where}: clients of shape {client.shape} for {len(x)} rows; expected one name per row"
        )
    missing = ~np.isfinite(client) if client.dtype.kind == "f" else client == client.dtype.type()
    if client.dtype.kind in "fSU" and missing.any():
        row = int(missing.nonzero()[0][0])
        raise InputError(f"{where}, row {row}: the client is missing; fill in or remove such rows")


def decode_text(array: Array, path: str) -> Array:
    """Decode an array of bytes to text; return other arrays unchanged."""
    try:
        return np.char.decode(array) if array.dtype.kind == "S" else array
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path!r} contains bytes that are not UTF-8 ({error}); save them as text", scope="data"
        ) from error


def _format_clients(client: Array) -> list[str]:
    if client.dtype.kind == "f" and bool((client == np.floor(client)).all()):
        client = client.astype(np.int64)
    return [str(name) for name in client.tolist()]
