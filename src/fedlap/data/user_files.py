"""Load tables from users' files: CSV, Parquet or NPZ."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from fedlap.data.columns import DataFrame, FrameLocation, MissingRule, Series
from fedlap.data.csv_dialect import (
    Dialect,
    check_dialect,
    convert_decimal_commas,
    detect_separator,
    has_decimal_commas,
    has_only_comma_numbers,
    refuse_decimal_points,
)
from fedlap.data.frames import FrameSettings, find_repeated, table_from_frame
from fedlap.data.labels import MISSING_WORDS, LearningTask
from fedlap.data.splits import SplitName
from fedlap.data.table import Table
from fedlap.data.user_npz import table_from_npz
from fedlap.errors import InputError
from fedlap.storage.files import check_claimed_size, check_user_file, describe_error, read_user_file

USER_FILE_TYPES: Final = (".csv", ".parquet", ".npz")


def load_file(
    path: str,
    client: str | list[str] | None = None,
    label: str | None = None,
    test: str | None = None,
    features: list[str] | None = None,
    drop: list[str] | None = None,
    task: LearningTask = "auto",
    sha256: str = "",
    test_sha256: str = "",
    levels: list[str] | None = None,
    missing: MissingRule | None = None,
    split: SplitName | None = None,
    time: str | None = None,
    group: str | None = None,
    skip_empty: bool | None = None,
    separator: str | None = None,
    decimal: str | None = None,
    places: list[str] | None = None,
    weight: str | None = None,
) -> Table:
    """Load a .csv or .parquet file with one column per feature, or an .npz file with one array of features.

    path: the file.
    client: the column (or array) of clients, or several columns; for .npz, "client" by default, if present.
    label: the column (or array) to predict; for .npz, "y" by default.
    test: a file of test rows, instead of drawing them.
    features: the columns of features; by default all others. For .npz one array, by default "x".
    drop: columns to ignore.
    task: classification or regression; by default real numbers are targets, all else classes.
    sha256, test_sha256: the expected SHA-256 of the files; by default that of the first reading.
    levels: columns whose cells are names, even if they are numbers.
    missing: refuse missing cells (the default), drop their rows, or fill them (mean).
    split: random (the default), or time: the last rows of each client, by the column `time`, are test rows.
    time: the column of times, for split = time.
    group: a column; rows with equal cells are all training rows or all test rows.
    skip_empty: leave out clients without training rows.
    separator, decimal: the signs of a .csv file; detected by default.
    places: the columns of longitude and latitude in degrees and, optionally, height in metres, equal in all
        rows of a client; they are features only if listed there.
    weight: the column (or array) of sample weights of training rows, at least 0; for .npz, "weight" by
        default, if present.
    """
    if label is None and Path(path).suffix.lower() != ".npz":
        raise InputError(
            f"{path!r} needs the name of the column to predict; set it with --label", scope="data"
        )
    if test is not None and Path(test).suffix.lower() != Path(path).suffix.lower():
        raise InputError(f"{path!r} and {test!r} have different extensions; use one file type", scope="data")
    kind = Path(path).suffix.lower()
    if kind not in USER_FILE_TYPES:
        raise InputError(
            f"{path!r} has unsupported extension {kind!r}; use {', '.join(USER_FILE_TYPES)}", scope="data"
        )
    if kind == ".npz":
        options = {"drop": drop, "levels": levels, "missing": missing, "split": split, "time": time}
        options |= {"group": group, "separator": separator, "decimal": decimal, "places": places}
        for option in (name for name, value in options.items() if value):
            raise InputError(
                f"{path!r} has arrays, not columns; remove {option}, or choose an array with features",
                scope="data",
            )
        if isinstance(client, list):
            raise InputError(f"{path!r} has one array of clients; name one", field="client", scope="data")
        chosen = None if features is None else tuple(features)
        table = table_from_npz(path, client, label, test, chosen, task, sha256, test_sha256, weight)
        return replace(table, skip_empty=bool(skip_empty))
    settings = FrameSettings.of(
        client,
        label,
        features=features,
        drop=drop,
        levels=levels,
        task=task,
        missing=missing,
        split=split,
        time=time,
        group=group,
        skip_empty=skip_empty,
        places=places,
        weight=weight,
    )
    dialect = check_dialect(separator, decimal)
    digests = [check_user_file("data", path, sha256)]
    if test is not None:
        digests.append(check_user_file("data", test, test_sha256))
    return _load_table(path, test, settings, dialect, tuple(digests))


@lru_cache(maxsize=1)  # Comparisons load the same rows many times; the cached table is never written to.
def _load_table(
    path: str,
    test: str | None,
    settings: FrameSettings,
    dialect: Dialect,
    digests: tuple[str, ...],  # the files' SHA-256, so that a changed file is read again
) -> Table:
    label = settings.label
    paths = [name for name in (path, test) if name is not None]
    read = [
        read_frame(name, settings.client, label, digest, dialect=dialect, texts=settings.levels)
        for name, digest in zip(paths, digests, strict=True)
    ]
    frames = [frame for frame, _ in read]
    if Path(path).suffix.lower() == ".csv" and all(label in frame.columns for frame in frames):
        # The type is inferred from both files, since text in one means no numbers in the other.
        texts = [
            frame[label] if sign == "." else convert_decimal_commas(frame[label]) for frame, sign in read
        ]
        locations = [FrameLocation(name, 1) for name in paths]
        label_values = _infer_type(texts, locations, settings.task, is_plain=dialect[1] is not None)
        frames[0][label] = label_values[: len(frames[0])].to_numpy()
        if test is not None:
            frames[1][label] = label_values[len(frames[0]) :].to_numpy()
    return table_from_frame(
        frames[0],
        settings,
        test=None if test is None else frames[1],
        location=FrameLocation(path, 1),
        test_location=FrameLocation(str(test), 1),
    )


def read_frame(
    path: str,
    clients: Sequence[str],
    label: str,
    sha256: str = "",
    identifier: str | None = None,
    *,
    dialect: Dialect = (None, None),
    texts: Sequence[str] = (),
    wanted: Sequence[str] = (),
    private: bool = False,
) -> tuple[DataFrame, str]:
    """Read a data frame and check its SHA-256; also return the decimal sign of the file.

    In a CSV file, clients, labels and identifiers stay text, and so do `texts`, unless a cell is missing.
    dialect: separator and decimal sign of a CSV file; None to detect it. wanted: columns of the header.
    private: return the named columns alone, and quote no cell and no other column in errors. A header is
        checked first, since that of a file without one is a row.
    """
    import pandas

    used = list(dict.fromkeys(name for name in (*clients, label, *wanted) if name))
    content = read_user_file("data", path, sha256)
    file = BytesIO(content)
    try:
        if Path(path).suffix.lower() == ".parquet":
            _check_parquet(file)
            frame = pandas.read_parquet(file)
            if private:
                frame = frame.rename(columns=str)
                _check_header(path, used, list(frame.columns))
            return frame[used] if private else frame, "."
        separator = dialect[0] or detect_separator(content, used)
        header = pandas.read_csv(
            file, sep=separator, header=None, nrows=1, dtype=object, keep_default_na=False
        )
        names = header.iloc[0].tolist()
        if private:
            _check_header(path, used, names)
        text = [name for name in names if name in (*clients, label, identifier)]

        def read(decimal: str) -> DataFrame:
            file.seek(0)
            rows = pandas.read_csv(
                file,
                sep=separator,
                decimal=decimal,
                dtype=dict.fromkeys([*text, *(name for name in names if name in texts)], str),
                keep_default_na=False,
                na_values=list(MISSING_WORDS),
                low_memory=False,
                **get_exact_options(pandas.__version__),
            )
            return rows[used].copy() if private else rows

        decimal = dialect[1] or "."
        frame = read(decimal)
        names_only = (*clients, *texts, identifier)
        if dialect[1] is None and separator != "," and has_decimal_commas(frame, names_only):
            decimal = ","
            frame = read(decimal)
    except ImportError as error:
        raise InputError(
            "reading Parquet needs pyarrow; run pip install 'fedlap[parquet]'", scope="data"
        ) from error
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RuntimeError, MemoryError) as error:
        # A parser states lines and numbers of fields; other errors may quote a cell.
        is_public = not private or isinstance(error, pandas.errors.ParserError)
        reason = describe_error(error) if is_public else type(error).__name__
        raise InputError(f"{path!r} cannot be read ({reason})", scope="data") from (
            None if private else error
        )
    if private:
        names = used
    for number in (number for number, name in enumerate(names, 1) if not name.strip()):
        raise InputError(f"{path}: column {number} has no name; name it, or save the file without an index")
    for name in find_repeated(names):
        raise InputError(f"{path}: column {name!r} appears twice; use unique names")
    if not isinstance(frame.index, pandas.RangeIndex):
        raise InputError(
            f"{path!r} has lines with more values than its header; remove the extra values", scope="data"
        )
    if decimal == ",":
        refuse_decimal_points(path, frame, names_only)
    if text:
        # Words for missing numbers are names here. pandas has an option for this per column, which is slow
        # for many columns; reading a few columns again is not.
        file.seek(0)
        frame[text] = pandas.read_csv(file, sep=separator, usecols=text, dtype=str, na_filter=False)[text]
    for name in clients:
        if name in frame.columns and name != label:
            frame[name] = frame[name].str.strip().replace("", None)
    return frame, decimal


def _check_header(path: str, used: Sequence[str], names: Sequence[Any]) -> None:
    """Raise InputError if a column to use is missing or not unique; other columns are not named."""
    missing = [name for name in used if name not in names]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(f"{path} has no column {missing[0]!r}{more}; add it, with its name in the header")
    for name in find_repeated([name for name in names if name in used]):
        raise InputError(f"{path}: column {name!r} appears twice; use unique names")


def _check_parquet(file: BytesIO) -> None:
    """Raise ValueError if a file claims far more values than its size allows."""
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]

    metadata = ParquetFile(file).metadata
    check_claimed_size(8 * metadata.num_rows * max(metadata.num_columns, 1), len(file.getbuffer()))
    file.seek(0)


def get_exact_options(version: str) -> dict[str, str]:
    """Return the option with which pandas reads numbers to the last bit; pandas 3.1 and later need none."""
    major, minor = map(int, version.split(".")[:2])
    return {} if (major, minor) >= (3, 1) else {"float_precision": "round_trip"}


def _infer_type(
    texts: Sequence[Series], locations: Sequence[FrameLocation], task: str, is_plain: bool
) -> Series:
    """Convert a column of text, from one or two files, to numbers or booleans if it contains nothing else.

    is_plain: True if the user set the decimal sign, so that numbers with commas are text.
    """
    import pandas

    text = pandas.concat(texts, ignore_index=True).str.strip()
    present = text.mask(text.isin(MISSING_WORDS))
    if set(present.dropna().str.lower()) <= {"true", "false"}:
        return present.str.lower().map({"true": True, "false": False})
    numbers = pandas.to_numeric(present, errors="coerce")
    is_word = (numbers.isna() & present.notna()).to_numpy(bool)
    words = present[is_word]
    if words.empty and get_exact_options(pandas.__version__) and pandas.api.types.is_float_dtype(numbers):
        return present.map(float, na_action="ignore").astype(float)  # exact to the last bit
    if words.empty:
        return numbers
    problem = advice = ""
    if not is_plain and has_only_comma_numbers(words):
        problem = "may be numbers with a decimal comma, or text"
        advice = "set decimal = ',' or decimal = '.' (--decimal)"
    elif task == "regression" or bool((numbers.dropna() % 1 != 0).any()):
        problem, advice = "are no numbers, unlike the others", "correct or remove these rows"
    if problem:
        first = 0
        for column, location in zip(texts, locations, strict=True):
            wrong = is_word[first : first + len(column)]
            first += len(column)
            if wrong.any():
                raise location.describe_wrong(column, wrong, problem, advice)
    return text.replace("", None)  # A class may be called "None".
