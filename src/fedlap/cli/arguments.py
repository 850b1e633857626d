"""Parsers that turn options of the command line into the description of an experiment."""

import re
import tomllib
from pathlib import Path
from typing import Any

from fedlap.algorithms import ALGORITHMS
from fedlap.cli.table_options import TABLE_OPTIONS
from fedlap.data import SOURCES, FederationFolder
from fedlap.data.federation_folder import DESCRIPTION
from fedlap.errors import InputError, unknown_name_error
from fedlap.experiments.fields import METHOD_SETTINGS, parse_graph, set_field
from fedlap.experiments.settings import inspect_settings

# copied unchanged into an experiment
EXPERIMENT_OPTIONS = ("rounds", "sample", "score_training", "device", "seed", "engine")
FILE_OPTIONS = ("client", "label", "test", "drop", *TABLE_OPTIONS)  # settings of a user's file
MAX_SEEDS = 10_000


def describe_experiment(options: dict[str, Any]) -> dict[str, Any]:
    """Return the description of an experiment, still without its algorithm."""
    description: dict[str, Any] = {field: options[field] for field in EXPERIMENT_OPTIONS if field in options}
    data, partition, graph = options["data"], options["partition"], options.get("graph")
    is_folder = data not in SOURCES and Path(data).is_dir()
    is_file = not is_folder and data not in SOURCES and Path(data).suffix != ""
    if is_file or is_folder:
        description["data"] = {"name": "folder" if is_folder else "file", "path": data}
        if is_folder and (scale := find_stored_scale(Path(data))) != "none":
            description["data"]["scale"] = scale
    else:
        description["data"] = {"name": data}
    for option in FILE_OPTIONS:
        value = options.get(option)
        name = f"--{option.replace('_', '-')}"
        if value and not is_file:
            kind = "is a directory" if is_folder else "is not a file"
            raise InputError(f"{name}: data {data!r} {kind}; pass --data FILE or remove {name}")
        if value:
            description["data"][option] = split_names(value) if isinstance(value, list) else value
    columns = split_names([options.get("client") or ""])
    if len(columns) > 1:
        description["data"]["client"] = columns
    description["partition"] = {} if partition is None else {"name": partition}
    if options["scarce"]:
        description["scarce"] = {}
    if graph is not None:
        description["graph"] = parse_graph(graph)
    if "model" in options:
        description["model"] = {"name": options["model"]}
    for field in ("batch", "evaluate_every"):  # a number or a word
        if field in options:
            description[field] = parse_value(options[field])
    return description


def find_stored_scale(folder: Path) -> str:
    """Return how the data were scaled that a folder was written from."""
    return FederationFolder.of(folder).scale if (folder / DESCRIPTION).exists() else "none"


def split_names(words: list[str]) -> list[str]:
    """Split names that were passed one by one, or separated by commas."""
    return [name.strip() for word in words for name in word.split(",") if name.strip()]


def select_method_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of an algorithm that were passed as options."""
    settings = {field: options[field] for field in METHOD_SETTINGS if options[field] is not None}
    return settings | ({"strength": parse_strength(settings["strength"])} if "strength" in settings else {})


def parse_strength(text: str) -> Any:
    """Parse the value of --strength: a number, or else text such as auto, which is checked later."""
    try:
        return float(text)
    except ValueError:
        return text


def parse_assignment(assignment: str) -> tuple[str, Any]:
    """Parse path=value into the path of a field and its value."""
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set {assignment}: expected field=value, e.g. algorithm.strength=0.02")
    value = parse_value(text)
    if isinstance(value, str) and (list_text := _quote_items(value)):
        raise InputError(
            f"--set {assignment}: the shell removed the quotes of this list; "
            f"use --set '{key.strip()}={list_text}'"
        )
    return key.strip(), value


def _quote_items(text: str) -> str:
    """Return a list such as [floor] or [floor, 1] with its words in quotes; nothing for other texts."""
    items = [item.strip() for item in text[1:-1].split(",")]
    if not (text.startswith("[") and text.endswith("]")) or not all(
        map(re.compile(r"[\w. -]+").fullmatch, items)
    ):
        return ""
    quoted = (f'"{item}"' if isinstance(parse_value(item), str) else item for item in items)
    return f"[{','.join(quoted)}]"


def parse_value(text: str) -> Any:
    """Parse a value as TOML if possible; otherwise return it as text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, a number of thousands of digits, or nested too deep
        return text.strip()


def assign(description: dict[str, Any], assignment: str) -> None:
    """Put one field, written as path=value, into a description."""
    set_field(description, *parse_assignment(assignment), f"--set {assignment}")


def parse_algorithms(text: str) -> list[str]:
    """Parse comma-separated names of algorithms, or 'all'."""
    names = list(ALGORITHMS) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ALGORITHMS:
            raise unknown_name_error("algorithm", name, ALGORITHMS)
    return list(dict.fromkeys(names))


def distribute_settings(names: list[str], settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Give a setting to every algorithm that has it; raise if none has it."""
    known = {name: set(inspect_settings(ALGORITHMS[name], ("graph",))) for name in names}
    shared: dict[str, dict[str, Any]] = {name: {} for name in names}
    for field, value in settings.items():
        owners = [name for name in names if field in known[name]]
        if not owners:
            raise unknown_name_error(
                f"setting of {', '.join(names)}", field, set().union(*known.values()), field=field
            )
        for name in owners:
            shared[name][field] = value
    return shared


def parse_seeds(text: str) -> list[int]:
    """Parse a list of whole numbers and ranges, as in 0-4 or 0,3,7."""
    try:
        seeds: list[int] = []
        for piece in text.split(","):
            first, dash, last = piece.partition("-")
            numbers = range(int(first), int(last if dash else first) + 1)
            seeds += numbers[: MAX_SEEDS + 1]
            if len(seeds) > MAX_SEEDS:
                raise InputError(f"--seeds {text}: too many seeds; use at most {MAX_SEEDS:,}")
    except InputError:
        raise
    except ValueError:
        raise InputError(f"--seeds {text}: expected whole numbers, e.g. 0-4 or 0,3,7") from None
    if not seeds:
        raise InputError(f"--seeds {text}: the range is empty; write the smaller number first, e.g. 0-4")
    return list(dict.fromkeys(seeds))
