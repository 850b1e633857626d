"""What trackers are told, in the form that their systems want, and the packages that these need."""

import importlib
import json
from collections.abc import Mapping
from typing import Any

from fedlap.errors import InputError
from fedlap.training.scores import Score


def values(score: Score) -> dict[str, float]:
    """What was measured, by name; the round is not among it, since it is the step."""
    return {name: value for name, value in score.as_dict().items() if name != "round" and value is not None}


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings one deep, as text: the lr of the algorithm is algorithm.lr."""
    made: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            made |= flat(value, f"{prefix}{name}.")
        else:
            made[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return made


def package(tracker: str, name: str, module: str | None = None) -> Any:
    """A package of a tracker's extra, or a module that needs it."""
    try:
        return importlib.import_module(module or name)
    except ImportError as error:
        raise InputError(
            f"--track {tracker} needs the package {name}; pip install 'fedlap[{tracker}]'"
        ) from error
