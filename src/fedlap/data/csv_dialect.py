"""Detect how a CSV file separates values and writes decimals."""

import csv
import re
from collections.abc import Collection, Sequence
from typing import Any

from fedlap.data.columns import COMMA_NUMBER, DataFrame, Series
from fedlap.errors import InputError

Dialect = tuple[str | None, str | None]  # separator and decimal sign of a CSV file; None to detect it

SEPARATORS = (",", ";", "\t", "|")
SEPARATOR_NAMES = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "pipe": "|"}
DECIMALS = (".", ",")
# Numbers of a file with decimal commas: no dots, since they may separate thousands.
PLAIN_COMMA_NUMBER = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
INTEGER_TEXT = re.compile(r"[+-]?\d+")
POINT_NUMBER = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")


def parse_separator(text: str) -> str:
    """Return a separator that is given as a character or by name, such as tab."""
    separator = SEPARATOR_NAMES.get(text, text)
    if len(separator) != 1 or separator in '"\r\n' or separator.isalnum():
        raise InputError(
            f"separator = {text!r}; expected one character, such as ; or tab", field="separator", scope="data"
        )
    return separator


def check_decimal(text: str) -> str:
    """Return a decimal sign; raise InputError unless it is a point or a comma."""
    if text not in DECIMALS:
        raise InputError(f"decimal = {text!r}; expected . or ,", field="decimal", scope="data")
    return text


def check_dialect(separator: str | None, decimal: str | None) -> Dialect:
    """Return the separator and the decimal sign; raise InputError for invalid signs."""
    return (
        None if separator is None else parse_separator(separator),
        None if decimal is None else check_decimal(decimal),
    )


def detect_separator(content: bytes, wanted: Sequence[str]) -> str:
    """Return the separator by which the header has all wanted names, or else the most names."""
    line = content[: content.find(b"\n") if b"\n" in content else len(content)]
    try:
        header = line.decode("utf-8-sig").rstrip("\r")
    except UnicodeDecodeError:
        return SEPARATORS[0]
    counts: dict[str, tuple[bool, int]] = {}
    for separator in SEPARATORS:
        try:
            names = next(csv.reader([header], delimiter=separator), [])
        except csv.Error:
            names = []
        counts[separator] = bool(wanted) and set(wanted) <= set(names), len(names)
    return max(SEPARATORS, key=lambda separator: counts[separator])  # the first of several, hence a comma


def has_decimal_commas(frame: DataFrame, skip: Collection[str | None]) -> bool:
    """Return whether the text in one of the columns consists of numbers with decimal commas."""
    return any(_has_form(frame[name], PLAIN_COMMA_NUMBER) for name in _list_text_columns(frame, skip))


def refuse_decimal_points(path: str, frame: DataFrame, skip: Collection[str | None]) -> None:
    """Raise InputError if a column has decimal points, although the file has decimal commas."""
    for name in _list_text_columns(frame, skip):
        if _has_form(frame[name], POINT_NUMBER):
            raise InputError(
                f"{path}: numbers have decimal commas, but those of column {name!r} have points; write all "
                "numbers with the same sign and without separators of thousands, or set decimal (--decimal)"
            )


def convert_decimal_commas(column: Series) -> Series:
    """Return text with points in numbers that have decimal commas."""
    cells = {cell: cell for cell in column.unique()}
    for cell in cells:
        if isinstance(cell, str) and PLAIN_COMMA_NUMBER.fullmatch(cell.strip()):
            cells[cell] = cell.replace(",", ".")
    return column.map(cells)


def has_only_comma_numbers(words: Series) -> bool:
    """Return whether all words are numbers with commas, which may be decimals or thousands."""
    return bool(len(words)) and bool(words.str.fullmatch(COMMA_NUMBER.pattern).all())


def _list_text_columns(frame: DataFrame, skip: Collection[str | None]) -> list[str]:
    """Return the columns that were not read as numbers."""
    is_text: dict[Any, bool] = {kind: kind.kind not in "fiub" for kind in frame.dtypes.unique()}
    if not any(is_text.values()):
        return []
    return [name for name, kind in frame.dtypes.items() if is_text[kind] and name not in skip]


def _has_form(column: Series, form: re.Pattern[str]) -> bool:
    """Return whether all cells are whole numbers or numbers of this form, at least one of this form."""
    cells = {cell.strip() for cell in column.dropna().unique() if isinstance(cell, str)} - {""}
    others = {cell for cell in cells if not INTEGER_TEXT.fullmatch(cell)}
    return bool(others) and all(form.fullmatch(cell) for cell in others)
