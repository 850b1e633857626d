"""A user's own files: CSV, Parquet or NPZ."""

from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Final

from fedlap.data.frames import Column, Frame, Origin, TaskName, of_frame, repeated
from fedlap.data.table import Table
from fedlap.data.user_npz import of_npz
from fedlap.errors import InputError
from fedlap.storage.files import check_room, checked_digest, read_checked, reason

FILES: Final = (".csv", ".parquet", ".npz")

MISSING: Final = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None")  # in a column of numbers


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
    if label is None and Path(path).suffix.lower() != ".npz":
        raise InputError(
            f"{path!r} needs the name of the column to predict; give it with --label", scope="data"
        )
    if test is not None and Path(test).suffix.lower() != Path(path).suffix.lower():
        raise InputError(f"{path!r} and {test!r} are of different kinds; give two of one kind", scope="data")
    kind = Path(path).suffix.lower()
    if kind not in FILES:
        raise InputError(f"{path!r} is none of {', '.join(FILES)}; save it as one of these", scope="data")
    chosen = None if features is None else tuple(features)
    if kind == ".npz":
        if drop:
            raise InputError(
                f"{path!r} has arrays, not columns to drop; choose one with features", scope="data"
            )
        return of_npz(path, client, label, test, chosen, task, sha256, test_sha256)
    contents = [checked_digest("data", path, sha256)]
    if test is not None:
        contents.append(checked_digest("data", test, test_sha256))
    return _table(path, client, str(label), test, chosen, tuple(drop or ()), task, tuple(contents))


@lru_cache(maxsize=1)  # comparisons ask for the same rows again and again; what is kept is never written to
def _table(
    path: str,
    client: str | None,
    label: str,
    test: str | None,
    features: tuple[str, ...] | None,
    drop: tuple[str, ...],
    task: TaskName,
    contents: tuple[str, ...],  # the files' SHA-256, so that a changed one is read again
) -> Table:
    import pandas

    where = [each for each in (path, test) if each is not None]
    frames = [frame_of(each, client, label, content) for each, content in zip(where, contents, strict=True)]
    if Path(path).suffix.lower() == ".csv" and all(label in frame.columns for frame in frames):
        # Judged together: what is text in one file is no number in the other.
        text = pandas.concat([frame[label] for frame in frames], ignore_index=True)
        typed = _typed(text, f"{path}, column {label!r}")
        frames[0][label] = typed[: len(frames[0])].to_numpy()
        if test is not None:
            frames[1][label] = typed[len(frames[0]) :].to_numpy()
    return of_frame(
        frames[0],
        client,
        label,
        test=None if test is None else frames[1],
        features=features,
        drop=drop,
        task=task,
        origin=Origin(path, 1),
        test_origin=Origin(str(test), 1),
    )


def frame_of(path: str, client: str | None, label: str, sha256: str = "") -> Frame:
    """A table with named columns, of this content; of a CSV file, clients and labels are still text."""
    import pandas

    file = BytesIO(read_checked("data", path, sha256))
    try:
        if Path(path).suffix.lower() == ".parquet":
            _check_parquet(file)
            return pandas.read_parquet(file)
        header = pandas.read_csv(file, header=None, nrows=1, dtype=object, keep_default_na=False)
        names = header.iloc[0].tolist()
        text = [name for name in names if name in (client, label)]
        file.seek(0)
        frame = pandas.read_csv(
            file,
            dtype=dict.fromkeys(text, str),
            keep_default_na=False,
            na_values=list(MISSING),
            low_memory=False,
            **exact_options(pandas.__version__),
        )
    except ImportError as error:
        raise InputError(
            "reading Parquet needs pyarrow; run pip install 'fedlap[parquet]'", scope="data"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RuntimeError, MemoryError) as error:
        raise InputError(f"{path!r} cannot be read ({reason(error)})", scope="data") from error
    for place in (place for place, name in enumerate(names, 1) if not name.strip()):
        raise InputError(f"{path}: column {place} has no name; name it, or save the file without an index")
    for name in repeated(names):
        raise InputError(f"{path}: column {name!r} appears twice; give every column its own name")
    if not isinstance(frame.index, pandas.RangeIndex):
        raise InputError(f"{path!r} has lines with more values than its header has names", scope="data")
    if text:
        # Words for missing numbers are names here. pandas can be told so per column, which takes long where
        # there are many columns; a second reading of two does not.
        file.seek(0)
        frame[text] = pandas.read_csv(file, usecols=text, dtype=str, na_filter=False)[text]
    if client in frame.columns and client != label:
        frame[client] = frame[client].str.strip().replace("", None)
    return frame


def _check_parquet(file: BytesIO) -> None:
    """Raise ValueError where a file says that it has far more values than it can hold."""
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

    about = ParquetFile(file).metadata
    check_room(8 * about.num_rows * max(about.num_columns, 1), len(file.getbuffer()))
    file.seek(0)


def exact_options(version: str) -> dict[str, str]:
    """The option by which pandas reads numbers to the last bit; none from 3.1 on, which always does."""
    major, minor = map(int, version.split(".")[:2])
    return {} if (major, minor) >= (3, 1) else {"float_precision": "round_trip"}


def _typed(text: Column, where: str) -> Column:
    """A column of text as numbers, or as true and false, where that is what it holds."""
    import pandas

    text = text.str.strip()
    filled = text.mask(text.isin(MISSING))
    if set(filled.dropna().str.lower()) <= {"true", "false"}:
        return filled.str.lower().map({"true": True, "false": False})
    numbers = pandas.to_numeric(filled, errors="coerce")
    words = filled[numbers.isna()].dropna()
    if words.empty and exact_options(pandas.__version__) and pandas.api.types.is_float_dtype(numbers):
        return filled.map(float, na_action="ignore").astype(float)  # each to the last bit
    if words.empty:
        return numbers
    if bool((numbers.dropna() % 1 != 0).any()):
        raise InputError(
            f"{where}: {words.iloc[0]!r} stands among real numbers; correct or leave out such rows"
        )
    return text.replace("", None)  # text may well be a class called "None"
