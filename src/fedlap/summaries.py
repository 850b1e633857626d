"""Summaries of objects on one line or as a small HTML table, without values of rows or targets."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

LONGEST_SUMMARY = 200  # characters
LONGEST_TEXT = 40  # characters of a text inside a summary
MOST_NAMES = 3  # names of clients in a summary
MOST_NUMBERS = 6  # numbers of a tuple in a summary

TABLE_STYLE = "text-align: left; padding: 0.1em 1.5em 0.1em 0"


def build_summary(kind: str, *parts: str) -> str:
    """Return "kind(part, part, …)" on one line of at most `LONGEST_SUMMARY` characters."""
    text = " ".join(f"{kind}({', '.join(part for part in parts if part)})".split())
    return text if len(text) <= LONGEST_SUMMARY else f"{text[: LONGEST_SUMMARY - 2]}…)"


def summarise_fields(instance: Any) -> str:
    """Return the class of a dataclass, and those fields that differ from their defaults, in short."""
    shown = []
    for field in fields(instance):
        value = getattr(instance, field.name)
        if field.repr and not _is_default(value, field.default):
            shown.append(f"{field.name}={summarise_value(value)}")
    return build_summary(type(instance).__name__, *shown)


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, bool | int | float | str) and value == default)


def summarise_value(value: Any) -> str:
    """Return a value in short: type and shape of an array, the number of names, a scalar as it is."""
    if isinstance(value, Tensor | np.ndarray):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    if isinstance(value, nn.Module):
        return type(value).__name__
    if isinstance(value, bool | int | float | None) or (is_dataclass(value) and not isinstance(value, type)):
        return repr(value)
    if isinstance(value, str):
        return repr(shorten_text(value))
    if isinstance(value, tuple | list | dict):
        numbers = isinstance(value, tuple | list) and all(isinstance(item, int | float) for item in value)
        return repr(value) if numbers and len(value) <= MOST_NUMBERS else f"{len(value)} items"
    return type(value).__name__


def summarise_names(names: Sequence[str], noun: str = "") -> str:
    """Return the number of names and the first of them, as in "20 clients ('a', 'b', 'c', …)".

    noun: a name's noun in the singular; without one, the number stands alone.
    """
    first = [repr(shorten_text(name, LONGEST_TEXT // 2)) for name in names[:MOST_NAMES]]
    dots = ["…"] if len(names) > MOST_NAMES else []
    number = count_nouns(len(names), noun) if noun else f"{len(names):,}"
    return f"{number} ({', '.join([*first, *dots])})"


def count_nouns(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is one."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shorten_text(text: str, longest: int = LONGEST_TEXT) -> str:
    """Cut a text that is too long."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def build_html_table(title: str, rows: Mapping[str, str]) -> str:
    """Return a small table for notebooks, with a heading and one line per fact; all texts are escaped."""
    heading = f'<tr><th colspan="2" style="{TABLE_STYLE}">{html.escape(title)}</th></tr>'
    lines = [
        f'<tr><td style="{TABLE_STYLE}">{html.escape(name)}</td>'
        f'<td style="{TABLE_STYLE}">{html.escape(value)}</td></tr>'
        for name, value in rows.items()
    ]
    return f"<table>{heading}{''.join(lines)}</table>"
