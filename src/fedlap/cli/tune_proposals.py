"""Commands that tune proposes: to train with the chosen values, and to compare methods fairly."""

import inspect
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from fedlap.algorithms import ALGORITHMS
from fedlap.cli.arguments import SETTINGS, parsed, value_of
from fedlap.cli.options import KEEPING
from fedlap.cli.vary import Combination, varied
from fedlap.errors import InputError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.run_folder import read_experiment
from fedlap.experiments.settings import settings_of

# Options of tune that other commands do not take, or get values of their own for.
OWN = {"vary", "folds", "seeds", "algorithm", "json", *KEEPING}
TUNED = ("lr", "strength")  # settings that every method needs values of its own for
BASELINES = ("local", "global")
APART = ("algorithm", "graph", "seed")  # fields in which experiments of one comparison may differ


def propose(
    context: typer.Context, best: Combination, chosen: Experiment, file: Path
) -> list[tuple[str, str]]:
    """Purposes and commands, as they would be typed.

    A comparison gives every method values of its own: methods that are not tuned on these data yet are to be
    tuned first; those that are can be compared.
    """
    values = {field.path: value for field, value in zip(best.fields, best.values, strict=True)}
    name, seed = chosen.algorithm["name"], ["--seed", str(chosen.seed)] if chosen.seed else []
    taken = {key for path in values for key in (path, path.removeprefix("algorithm."))}
    assigned = [parsed(text)[0] for text in context.params["set"] or []]
    words = [*_typed_words(context, lambda option: option not in OWN | taken), *_chosen(values, assigned)]
    made = [
        ("to use it", shlex.join(["fedlap", "run", str(file)])),
        ("       or", shlex.join(["fedlap", "run", "--algorithm", name, *words, *seed])),
    ]
    tuned = {name: chosen} | _tuned_beside(file, chosen)
    for other in BASELINES:
        if other not in tuned:
            command = ["fedlap", "tune", "--algorithm", other, *_tuning_words(context, name, other)]
            made.append((f"to compare it, tune {other} as well", shlex.join(command)))
    if len(tuned) > 1:
        purpose = f"to compare {', '.join(tuned)}, each with its own values"
        made.append((purpose, _comparison(context, tuned, values, assigned)))
    return made


def _comparison(
    context: typer.Context, tuned: dict[str, Experiment], values: dict[str, Any], assigned: list[str]
) -> str:
    """A sweep over methods, each with the values that were chosen for it."""
    common = {path: value for path, value in values.items() if path.split(".")[0] not in APART}
    taken = OWN | set(SETTINGS) | set(common) | {"graph"}
    words = [*_typed_words(context, lambda option: option not in taken, APART), *_chosen(common, assigned)]
    graph = next((each.graph for each in tuned.values() if each.graph), None)
    words += [] if graph is None else ["--set", f"graph={_toml(graph)}"]
    listed = ",".join(_toml(_own_settings(each.algorithm)) for each in tuned.values())
    return shlex.join(["fedlap", "sweep", *words, "--vary", f"algorithm={listed}", "--seeds", "0-4"])


def _own_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without those that have their default."""
    usual = inspect.signature(ALGORITHMS[settings["name"]]).parameters
    return {
        key: value
        for key, value in settings.items()
        if key in ("name", *TUNED) or key not in usual or usual[key].default != value
    }


def _tuning_words(context: typer.Context, name: str, other: str) -> list[str]:
    """Options that tune another method on the same data, over values of its own."""
    settings = settings_of(ALGORITHMS[other], ("graph",))

    def applies(option: str) -> bool:
        if option in SETTINGS:
            return option not in TUNED and option in settings
        return option not in OWN or option in ("folds", "seeds")

    words = _typed_words(context, applies, ("algorithm",))
    for text in context.params["vary"] or []:
        section, _, setting = varied(text, name).path.partition(".")
        if section != "algorithm" or setting in settings:
            words += ["--vary", text]
    return words


def _tuned_beside(file: Path, chosen: Experiment) -> dict[str, Experiment]:
    """Other methods that were tuned in the same folder on the same data and graph; the newest count."""
    wanted, graph, found = _apart(read_experiment(file)), chosen.graph, dict[str, Experiment]()
    others = sorted(file.parent.parent.glob(f"*-tune-*/{file.name}"), key=lambda path: path.stat().st_mtime)
    for path in others:
        try:
            other = read_experiment(path)
        except InputError:
            continue  # of another version, or not whole: nothing that could be proposed
        name = other.algorithm["name"]
        if _apart(other) == wanted and name != chosen.algorithm["name"]:
            graph = graph or other.graph
            found[name] = other
    return {name: other for name, other in found.items() if other.graph in ({}, graph)}


def _apart(experiment: Experiment) -> dict[str, Any]:
    return {key: value for key, value in experiment.described().items() if key not in APART}


def _typed_words(
    context: typer.Context, keep: Callable[[str], bool], without: Sequence[str] = ()
) -> list[str]:
    """Options as they were typed, of --set those that are not of these sections."""
    words: list[str] = []
    for name, value in context.params.items():
        if not str(context.get_parameter_source(name)).endswith("COMMANDLINE") or not keep(name):
            continue
        if name == "set":
            value = [text for text in value if parsed(text)[0].split(".")[0] not in without]
        option = f"--{name.replace('_', '-')}"
        words += [option] if value is True else _repeat(option, value)
    return words


def _chosen(values: dict[str, Any], assigned: list[str]) -> Iterator[str]:
    """Chosen values as options; names first."""
    for path in sorted(values, key=lambda path: "." in path):
        setting, value = path.removeprefix("algorithm."), values[path]
        if setting in SETTINGS and path not in assigned:
            yield from (f"--{setting.replace('_', '-')}", _toml(value))
        elif path == "graph" and isinstance(value, str):
            yield from ("--graph", value)
        elif path != "algorithm":
            yield from ("--set", f"{path}={_toml(value)}")


def _repeat(option: str, value: Any) -> list[str]:
    return [word for each in (value if isinstance(value, list) else [value]) for word in (option, str(each))]


def _toml(value: Any, inside: bool = False) -> str:
    """A value as TOML; text alone needs no quotes unless it would be read as something else."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_toml(each, True)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(_toml(each, True) for each in value)}]"
    if isinstance(value, str) and not inside and value_of(value) == value:
        return value
    return json.dumps(value)
