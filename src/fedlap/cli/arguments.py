"""What was typed on the command line, as the description of an experiment."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedlap.algorithms import ALGORITHMS
from fedlap.data import SOURCES
from fedlap.errors import InputError, unknown
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.settings import settings_of
from fedlap.graph import GRAPHS
from fedlap.graph.io import READ

FIELDS = ("rounds", "sample", "device", "seed")  # of an experiment, as they are given
MOST_SEEDS = 10_000
SETTINGS = ("lr", "local_steps", "local_epochs", "strength")  # of an algorithm


def description(given: dict[str, Any]) -> dict[str, Any]:
    """What was given of an experiment, before its algorithm."""
    made: dict[str, Any] = {field: given[field] for field in FIELDS if field in given}
    data, partition, graph = given["data"], given["partition"], given.get("graph")
    own = data not in SOURCES and Path(data).suffix != ""
    made["data"] = {"name": "file", "path": data} if own else {"name": data}
    for option in ("client", "label", "test", "drop"):
        if given[option] and not own:
            raise InputError(f"--{option} is for a file of your own; data {data!r} is not one")
        if given[option]:
            made["data"][option] = _listed(given[option]) if option == "drop" else given[option]
    made["partition"] = {} if partition is None else {"name": partition}
    if given["scarce"]:
        made["scarce"] = {}
    if graph is not None:
        made["graph"] = graph_section(graph)
    if "model" in given:
        made["model"] = {"name": given["model"]}
    if "batch" in given:
        made["batch"] = parsed(f"batch={given['batch']}")[1]
    return made


def graph_section(name: str) -> dict[str, Any]:
    """A graph by its name or by its file."""
    by_file = name not in GRAPHS and Path(name).suffix.lower() in READ
    return {"name": "file", "path": name} if by_file else {"name": name}


def _listed(words: list[str]) -> list[str]:
    """Names that were given one by one, or with commas between."""
    return [name.strip() for word in words for name in word.split(",") if name.strip()]


def algorithm_settings(given: dict[str, Any]) -> dict[str, Any]:
    """What was given of an algorithm's settings."""
    return {field: given[field] for field in SETTINGS if given[field] is not None}


def parsed(assignment: str) -> tuple[str, Any]:
    """A field's path and its value."""
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {assignment}: write field=value, as in algorithm.strength=0.02")
    return key.strip(), value_of(text)


def value_of(text: str) -> Any:
    """A value, read as TOML where it can be and as text otherwise."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, a number of thousands of digits, or nested too deep
        return text.strip()


def assign(description: dict[str, Any], assignment: str) -> None:
    """Put one field, given as path=value, into a description."""
    put(description, *parsed(assignment), f"--set {assignment}")


def put(description: dict[str, Any], path: str, value: Any, given: str) -> None:
    """Put one field into a description; `given` is how it was typed."""
    section, dot, field = path.partition(".")
    if section not in Experiment.model_fields:
        raise unknown("field of an experiment", section, Experiment.model_fields, field=section)
    if path == "scarce":
        if not isinstance(value, bool):
            raise InputError(f"{given}: write scarce=true or scarce=false, or one of its fields")
        description["scarce"] = {} if value else None
        return
    if section in ("partition", "scarce", "fold"):
        description[section] = description.get(section) or {}
    if not dot:
        if isinstance(description.get(section), dict) and not isinstance(value, dict):
            description[section]["name"] = value
        else:
            description[section] = value
    elif isinstance(description.get(section), dict):
        description[section][field] = value
    else:
        raise InputError(f"{given}: {section!r} has no fields of its own")


def algorithm_names(text: str) -> list[str]:
    """Known names from a list with commas, or all."""
    names = list(ALGORITHMS) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ALGORITHMS:
            raise unknown("algorithm", name, ALGORITHMS)
    return list(dict.fromkeys(names))


def shared_settings(names: list[str], settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each algorithm gets those settings that it has; one that nobody has is a mistake."""
    taken = {name: set(settings_of(ALGORITHMS[name], ("graph",))) for name in names}
    shared: dict[str, dict[str, Any]] = {name: {} for name in names}
    for field, value in settings.items():
        takers = [name for name in names if field in taken[name]]
        if not takers:
            raise unknown(f"setting of {', '.join(names)}", field, set().union(*taken.values()), field=field)
        for name in takers:
            shared[name][field] = value
    return shared


def seed_numbers(text: str) -> list[int]:
    """Whole numbers from a list of numbers and ranges."""
    try:
        seeds: list[int] = []
        for piece in text.split(","):
            first, dash, last = piece.partition("-")
            some = range(int(first), int(last if dash else first) + 1)
            seeds += some[: MOST_SEEDS + 1]
            if len(seeds) > MOST_SEEDS:
                raise InputError(f"--seeds {text}: these are too many; name at most {MOST_SEEDS:,} seeds")
    except InputError:
        raise
    except ValueError:
        raise InputError(f"--seeds {text}: write whole numbers, as in 0-4 or 0,3,7") from None
    if not seeds:
        raise InputError(f"--seeds {text}: this names no seed; write it as in 0-4")
    return list(dict.fromkeys(seeds))


def seeds_text(seeds: Sequence[int]) -> str:
    """The same list, short: "seed 3" or "seeds 0-4,7"."""
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    pieces = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs]
    return f"seed{'s' if len(seeds) > 1 else ''} {','.join(pieces)}"
