"""A user's own files: CSV, Parquet or NPZ."""

import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import torch

from fedlap.data.fast import Arrays, mapped
from fedlap.errors import InputError, unknown
from fedlap.files import check_content, digest_of
from fedlap.frames import Column, Frame, Origin, TaskName, coded, of_frame
from fedlap.tables import Table, check_known

FILES: Final = (".csv", ".parquet", ".npz")

MISSING: Final = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")  # in a column of numbers


def file(
    path: str,
    client: str | None = None,
    label: str | None = None,
    test: str | None = None,
    features: list[str] | None = None,
    drop: list[str] | None = None,
    task: TaskName = "auto",
    sha256: str = "",
    test_sha256: str = "",
) -> Table:
    """Rows of one's own file: .csv or .parquet with a column for each feature, or .npz with an array of them.

    path: the file.
    client: the column (or array) that says whose row it is; for .npz, "client" where there is one.
    label: the column (or array) to predict; for .npz, "y".
    test: a file of test rows, instead of drawing them.
    features: the columns that models see; by default all others. For .npz one array, by default "x".
    drop: columns to leave out.
    task: classification or regression; by default real numbers are targets, all else classes.
    sha256, test_sha256: refuse other content than this; by default that of the file when first asked for.
    """
    given = [(path, sha256), *([] if test is None else [(test, test_sha256)])]
    for name, digest in given:
        check_content("data", name, digest)
    contents = tuple(digest_of("data", name) for name, _ in given)
    return _table(
        path, client, label, test, tuple(features) if features else None, tuple(drop or ()), task, contents
    )


@lru_cache(maxsize=1)  # comparisons ask for the same rows again and again; what is kept is never written to
def _table(
    path: str,
    client: str | None,
    label: str | None,
    test: str | None,
    features: tuple[str, ...] | None,
    drop: tuple[str, ...],
    task: TaskName,
    contents: tuple[str, ...],  # the files' SHA-256, so that a changed one is read again
) -> Table:
    kind = Path(path).suffix.lower()
    if kind not in FILES:
        raise InputError(f"data: {path!r} is none of {', '.join(FILES)}; save it as one of these")
    if test is not None and Path(test).suffix.lower() != kind:
        raise InputError(f"data: {path!r} and {test!r} are of different kinds; give two of one kind")
    if kind == ".npz":
        return _of_arrays(path, client, label, test, features, task)
    if label is None:
        raise InputError(f"data: {path!r} needs the name of the column to predict; give it with --label")
    frames = [None if each is None else _frame(each, client, label) for each in (path, test)]
    return of_frame(
        frames[0],
        client,
        label,
        test=frames[1],
        features=features,
        drop=drop,
        task=task,
        origin=Origin(path, 1),
        test_origin=Origin(str(test), 1),
    )


def _frame(path: str, client: str | None, label: str) -> Frame:
    """A table with named columns; names of clients stay text, as do labels that are not all numbers."""
    import pandas

    try:
        if Path(path).suffix.lower() == ".parquet":
            return pandas.read_parquet(path)
        text = {column: str for column in (client, label) if column is not None}
        frame = pandas.read_csv(path, converters=text)
    except ImportError as error:
        raise InputError("data: reading Parquet needs pyarrow; run pip install 'fedlap[parquet]'") from error
    except (OSError, ValueError, pandas.errors.ParserError) as error:
        raise InputError(f"data: {path!r} cannot be read ({' '.join(str(error).split())})") from error
    if client in frame.columns:
        frame[client] = frame[client].str.strip().replace("", None)
    if label in frame.columns:
        frame[label] = _typed(frame[label])
    return frame


def _typed(text: Column) -> Column:
    """A column of text as numbers, or as true and false, where that is what it holds."""
    import pandas

    text = text.str.strip()
    filled = text.mask(text.isin(MISSING))
    if set(filled.dropna().str.lower()) <= {"true", "false"}:
        return filled.str.lower().map({"true": True, "false": False})
    try:
        return pandas.to_numeric(filled)
    except ValueError:
        return text.replace("", None)  # text may well be a class called "None"


def _of_arrays(
    path: str,
    client: str | None,
    label: str | None,
    test: str | None,
    features: tuple[str, ...] | None,
    task: TaskName,
) -> Table:
    """Arrays of an NPZ file, mapped into memory where they can be."""
    if features is not None and len(features) != 1:
        raise InputError(f"data: {path!r} needs one array of features; give features = ['x']")
    where = [each for each in (path, test) if each is not None]
    given = [_arrays(each) for each in where]
    names = {"x": (features or ("x",))[0], "y": label or "y"}
    if client is not None or "client" in given[0]:
        names["client"] = client or "client"
    for arrays, origin in zip(given, where, strict=True):
        for name in names.values():
            if name not in arrays:
                raise unknown(f"array of {origin}", name, arrays)
    joined = {
        key: given[0][name] if test is None else np.concatenate([arrays[name] for arrays in given])
        for key, name in names.items()
    }
    own = joined.get("client")
    rows = len(given[0][names["y"]])
    if own is not None:
        check_known(own[:rows], own[rows:], path, str(test))
    y, labels = joined["y"], None
    if y.ndim == 1:
        y, labels = coded(y, task, f"{path}, array {names['y']!r}")
    held = None if test is None else torch.arange(len(y)) >= rows
    return Table.of((joined["x"], y), own, labels=labels, test=held, where=path)


def _arrays(path: str) -> Arrays:
    try:
        return mapped(Path(path))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"data: {path!r} cannot be read as arrays of numbers or text ({error})") from error
