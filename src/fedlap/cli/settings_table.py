"""Tables of what there is to choose from."""

import inspect
from collections.abc import Callable
from typing import Any

from fedlap.experiments.settings import settings_of


def settings(make: Callable[..., Any], leave: str = "") -> list[str]:
    """Names and defaults of settings; a name alone where the default is not a fixed value."""
    return [
        key if p.default in (None, inspect.Parameter.empty, "") else f"{key} = {p.default}"
        for key, p in settings_of(make, (leave,)).items()
    ]


def first_line(make: Callable[..., Any]) -> str:
    """What a maker's docstring says first."""
    return (inspect.getdoc(make) or "").split("\n\n")[0].replace("\n", " ")
