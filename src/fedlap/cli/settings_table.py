"""Settings and summaries for the tables of algorithms, data sets and partitions."""

import inspect
from collections.abc import Callable
from typing import Any

from fedlap.experiments.settings import inspect_settings


def list_settings(make: Callable[..., Any], leave: str = "") -> list[str]:
    """Return names and defaults of settings; a name alone if it has no fixed default."""
    return [
        key if p.default in (None, inspect.Parameter.empty, "") else f"{key} = {p.default}"
        for key, p in inspect_settings(make, (leave,)).items()
    ]


def summarise_docstring(make: Callable[..., Any]) -> str:
    """Return the first paragraph of a docstring as one line."""
    return (inspect.getdoc(make) or "").split("\n\n")[0].replace("\n", " ")
