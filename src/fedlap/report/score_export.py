"""Export of scores as CSV or Parquet."""

from collections.abc import Sequence
from dataclasses import fields
from io import BytesIO
from pathlib import Path

from fedlap.errors import InputError
from fedlap.storage.files import write_file
from fedlap.training.scores import Score


def write_scores(scores: Sequence[Score], to: Path) -> None:
    """Write one row per score and one column per field, at full precision; missing values are empty.

    Optional metrics that no score has get no column.

    The extension of `to` selects the format: .csv or .parquet.
    """
    write_file(to, _encode_scores(scores, to))


def _encode_scores(scores: Sequence[Score], to: Path) -> bytes:
    import pandas  # imported here because no other part of a report needs it

    lines = [score.as_dict() for score in scores]
    known = [field for field in fields(Score) if not lines or any(field.name in line for line in lines)]
    kinds = {field.name: "int64" if field.type is int else "float64" for field in known}
    frame = pandas.DataFrame(lines, columns=list(kinds)).astype(kinds)
    match to.suffix.lower():
        case ".csv":
            return bytes(frame.to_csv(index=False, lineterminator="\n").encode())
        case ".parquet":
            file = BytesIO()
            try:
                frame.to_parquet(file, index=False)
            except ImportError as error:
                raise InputError(
                    f"{str(to)!r}: Parquet needs pyarrow; run pip install 'fedlap[parquet]', or use .csv"
                ) from error
            return file.getvalue()
        case _:
            raise InputError(f"{str(to)!r}: unsupported extension {to.suffix!r}; use .csv or .parquet")
