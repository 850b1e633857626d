"""Scores and settings as tracking systems expect them, and the import of their packages."""

import importlib
import json
from collections.abc import Mapping
from typing import Any

from fedlap.errors import InputError
from fedlap.training.scores import Score


def list_metrics(score: Score) -> dict[str, float]:
    """Return the measured values by name, without the round, which trackers take as the step."""
    return {name: value for name, value in score.as_dict().items() if name != "round" and value is not None}


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested settings into text by dotted name: the lr of the algorithm is algorithm.lr."""
    flattened: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flattened |= flatten_settings(value, f"{prefix}{name}.")
        else:
            flattened[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flattened


def import_package(tracker: str, name: str, module: str | None = None) -> Any:
    """Import a package of a tracker's extra, or a module that needs it."""
    try:
        return importlib.import_module(module or name)
    except ImportError as error:
        raise InputError(
            f"--track {tracker} needs the package {name}; run pip install 'fedlap[{tracker}]'"
        ) from error
