"""Encode labels: classes by number, or real targets."""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
from jaxtyping import Num

from fedlap.data.columns import format_whole
from fedlap.errors import InputError

LearningTask = Literal["auto", "classification", "regression"]

EXACT_INTEGERS_BELOW = 2**53  # Integers below are exact as float64.
# Words that mark a missing value in a column of numbers.
MISSING_WORDS: Final = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None")
WHOLE_NUMBER = re.compile(r"[+-]?\d+(\.0*)?")
MAX_INFERRED_CLASSES = 100  # More distinct integers than this may well be quantities rather than classes.


def encode_labels(values: Any, task: str, where: str) -> tuple[Num[np.ndarray, "row"], list[str] | None]:
    """Encode labels as 0, 1, … with the names of the classes, or return real targets unchanged."""
    import pandas

    series = pandas.Series(values)
    if pandas.api.types.is_complex_dtype(series):
        raise InputError(f"{where}: labels are complex numbers; use real numbers or classes")
    numeric = pandas.api.types.is_numeric_dtype(series) and not pandas.api.types.is_bool_dtype(series)
    if numeric:
        real = series.to_numpy(dtype=np.float64)
        if not np.isfinite(real).all():
            row = int((~np.isfinite(real)).nonzero()[0][0])
            raise InputError(f"{where}, row {row}: a label is NaN or infinite; fill in or remove such rows")
        whole = bool((real == np.floor(real)).all())
        if task == "regression" or (task == "auto" and not whole):
            return real, None
        if not whole:
            raise InputError(
                f"{where}: labels are real numbers, not classes; use task = regression (--set data.task=…)"
            )
        if np.abs(real).max(initial=0) >= EXACT_INTEGERS_BELOW:
            raise InputError(f"{where}: labels are integers too large for classes; use task = regression")
        series = series.astype(np.int64)
        if task == "auto" and series.nunique() > MAX_INFERRED_CLASSES:
            raise InputError(
                f"{where}: {series.nunique()} distinct integers may be classes or quantities; set "
                "task = classification or task = regression (--set data.task=…)"
            )
    elif task == "regression":
        raise InputError(f"{where}: labels are no numbers; use numbers, or task = classification")
    if isinstance(series.dtype, pandas.CategoricalDtype):
        return series.cat.codes.to_numpy(np.int64), [str(name) for name in series.cat.categories]
    try:
        codes, classes = pandas.factorize(series, sort=True)
    except TypeError as error:
        raise InputError(
            f"{where}: labels have several types ({error}); use only text, only numbers or only booleans"
        ) from error
    return codes.astype(np.int64), [str(name) for name in classes]


def find_label(text: str, label_numbers: Mapping[str, int]) -> int | None:
    """Return the number of a label that is written as its name, as a number or as a boolean."""
    spellings = [text, text.capitalize() if text.lower() in ("true", "false") else text]
    if WHOLE_NUMBER.fullmatch(text):
        spellings.append(format_whole(float(text)))
    return next((label_numbers[spelling] for spelling in spellings if spelling in label_numbers), None)
