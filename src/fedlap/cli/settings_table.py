"""Settings and summaries for the tables of algorithms, data sets and partitions."""

import inspect
from collections.abc import Callable
from typing import Any

from fedlap.experiments.settings import inspect_settings


def format_settings(build: Callable[..., Any], skip: str = "") -> list[str]:
    """Return the settings of a builder as "name = default", or the name alone without a fixed default."""
    return [
        key if p.default in (None, inspect.Parameter.empty, "") else f"{key} = {p.default}"
        for key, p in inspect_settings(build, (skip,)).items()
    ]


def summarise_docstring(documented: Callable[..., Any]) -> str:
    """Return the first paragraph of a docstring as one line."""
    return (inspect.getdoc(documented) or "").split("\n\n")[0].replace("\n", " ")
