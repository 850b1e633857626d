"""Commands that tune proposes: to train with the selected values, and to compare methods fairly."""

import inspect
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from fedlap.algorithms import ALGORITHMS, BASELINES
from fedlap.cli.arguments import parse_assignment, parse_value
from fedlap.cli.options import CHECKPOINT_OPTIONS
from fedlap.cli.vary import parse_varied_field
from fedlap.errors import InputError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.fields import METHOD_SETTINGS, Combination
from fedlap.experiments.run_folder import read_experiment
from fedlap.experiments.settings import inspect_settings

# Options that only tune has, or whose values the proposed commands set themselves.
TUNE_ONLY = {"vary", "folds", "seeds", "algorithm", "json", *CHECKPOINT_OPTIONS}
TUNED_SETTINGS = ("lr", "strength")  # settings to be tuned per method
FREE_FIELDS = (
    "algorithm",
    "graph",
    "seed",
    "plugins",
)  # fields in which experiments of one comparison may differ


def propose_commands(
    context: typer.Context, best: Combination, chosen: Experiment, file: Path
) -> list[tuple[str, str]]:
    """Return purposes and commands to type.

    A fair comparison gives every method its tuned values. Hence one command tunes and compares all, others
    tune the baselines that are not tuned on these data yet, and the last compares the methods that are.
    """
    values = {field.path: value for field, value in zip(best.fields, best.values, strict=True)}
    name, seed = chosen.algorithm["name"], ["--seed", str(chosen.seed)] if chosen.seed else []
    covered = {key for path in values for key in (path, path.removeprefix("algorithm."))}
    assigned = [parse_assignment(text)[0] for text in context.params["set"] or []]
    words = [
        *_list_typed_options(context, lambda option: option not in TUNE_ONLY | covered),
        *_list_value_options(values, assigned),
    ]
    proposals = [
        ("to use it", shlex.join(["fedlap", "run", str(file)])),
        ("       or", shlex.join(["fedlap", "run", "--algorithm", name, *words, *seed])),
    ]
    tuned = {name: chosen} | _find_tuned_methods(file, chosen)
    if not set(BASELINES) <= set(tuned):
        proposals.append(("to tune and compare all", _format_compare_command(context, name, assigned)))
    for other in BASELINES:
        if other not in tuned:
            command = ["fedlap", "tune", "--algorithm", other, *_list_tune_options(context, name, other)]
            proposals.append((f"to compare it, tune {other} as well", shlex.join(command)))
    if len(tuned) > 1:
        purpose = f"to compare {', '.join(tuned)}, each with its tuned values"
        proposals.append((purpose, _format_sweep_command(context, tuned, values, assigned)))
    return proposals


def _format_compare_command(context: typer.Context, name: str, assigned: list[str]) -> str:
    """Return a comparison with the baselines that tunes every method, on the same data."""
    names = dict.fromkeys([name, *BASELINES])
    without = ("algorithm",) if "algorithm" in assigned else ()
    words = _list_typed_options(context, lambda option: option not in {*TUNE_ONLY, *TUNED_SETTINGS}, without)
    return shlex.join(["fedlap", "compare", "--tune", "--algorithms", ",".join(names), *words])


def _format_sweep_command(
    context: typer.Context, tuned: dict[str, Experiment], values: dict[str, Any], assigned: list[str]
) -> str:
    """Return a sweep over methods, each with the values that were selected for it."""
    common = {path: value for path, value in values.items() if path.split(".")[0] not in FREE_FIELDS}
    covered = TUNE_ONLY | set(METHOD_SETTINGS) | set(common) | {"graph"}
    words = [
        *_list_typed_options(context, lambda option: option not in covered, FREE_FIELDS),
        *_list_value_options(common, assigned),
    ]
    graph = next((experiment.graph for experiment in tuned.values() if experiment.graph), None)
    words += [] if graph is None else ["--set", f"graph={_format_toml(graph)}"]
    listed = ",".join(_format_toml(_drop_defaults(experiment.algorithm)) for experiment in tuned.values())
    return shlex.join(["fedlap", "sweep", *words, "--vary", f"algorithm={listed}", "--seeds", "0-4"])


def _drop_defaults(settings: dict[str, Any]) -> dict[str, Any]:
    """Remove settings that have their default."""
    parameters = inspect.signature(ALGORITHMS[settings["name"]]).parameters
    return {
        key: value
        for key, value in settings.items()
        if key in ("name", *TUNED_SETTINGS) or key not in parameters or parameters[key].default != value
    }


def _list_tune_options(context: typer.Context, name: str, other: str) -> list[str]:
    """Return options that tune another method on the same data, over its default candidates."""
    settings = inspect_settings(ALGORITHMS[other], ("graph",))

    def applies(option: str) -> bool:
        if option in METHOD_SETTINGS:
            return option not in TUNED_SETTINGS and option in settings
        return option not in TUNE_ONLY or option in ("folds", "seeds")

    words = _list_typed_options(context, applies, ("algorithm",))
    for text in context.params["vary"] or []:
        section, _, setting = parse_varied_field(text, name).path.partition(".")
        if section != "algorithm" or setting in settings:
            words += ["--vary", text]
    return words


def _find_tuned_methods(file: Path, chosen: Experiment) -> dict[str, Experiment]:
    """Find other methods tuned in the same folder on the same data and graph; the newest wins."""
    wanted, graph, found = _select_fixed_fields(read_experiment(file)), chosen.graph, dict[str, Experiment]()
    others = sorted(file.parent.parent.glob(f"*-tune-*/{file.name}"), key=lambda path: path.stat().st_mtime)
    for path in others:
        try:
            other = read_experiment(path)
        except InputError:
            continue  # written by another version, or damaged, so that it cannot be proposed
        name = other.algorithm["name"]
        if _select_fixed_fields(other) == wanted and name != chosen.algorithm["name"]:
            graph = graph or other.graph
            found[name] = other
    return {name: other for name, other in found.items() if other.graph in ({}, graph)}


def _select_fixed_fields(experiment: Experiment) -> dict[str, Any]:
    return {key: value for key, value in experiment.describe().items() if key not in FREE_FIELDS}


def _list_typed_options(
    context: typer.Context, keep: Callable[[str], bool], without: Sequence[str] = ()
) -> list[str]:
    """Repeat the options that were typed; drop --set for the sections in `without`."""
    words: list[str] = []
    for name, value in context.params.items():
        if not str(context.get_parameter_source(name)).endswith("COMMANDLINE") or not keep(name):
            continue
        if name == "set":
            value = [text for text in value if parse_assignment(text)[0].split(".")[0] not in without]
        option = f"--{name.replace('_', '-')}"
        words += [option] if value is True else _repeat(option, value)
    return words


def _list_value_options(values: dict[str, Any], assigned: list[str]) -> Iterator[str]:
    """Return the selected values as options; names come first."""
    for path in sorted(values, key=lambda path: "." in path):
        setting, value = path.removeprefix("algorithm."), values[path]
        if setting in METHOD_SETTINGS and path not in assigned:
            yield from (f"--{setting.replace('_', '-')}", _format_toml(value))
        elif path == "graph" and isinstance(value, str):
            yield from ("--graph", value)
        elif path != "algorithm":
            yield from ("--set", f"{path}={_format_toml(value)}")


def _repeat(option: str, value: Any) -> list[str]:
    return [word for item in (value if isinstance(value, list) else [value]) for word in (option, str(item))]


def _format_toml(value: Any, inside: bool = False) -> str:
    """Format a value as TOML; plain text gets quotes only if it would be parsed as something else."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_format_toml(item, True)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(_format_toml(item, True) for item in value)}]"
    if isinstance(value, str) and not inside and parse_value(value) == value:
        return value
    return json.dumps(value)
