"""The reference of settings: type, default and meaning of every field of an experiment, from the builders."""

import inspect
import json
import types
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from docstrings import describe_settings
from fedlap.algorithms import ALGORITHMS
from fedlap.cli.settings_table import summarise_docstring
from fedlap.data import SOURCES, TEST_SHARE
from fedlap.data.federation import Federation
from fedlap.data.partition import NATURAL, PARTITIONS
from fedlap.data.standardize import Scaling
from fedlap.deploy.data_plan import DataPlan
from fedlap.deploy.peers.settings import PeerSettings
from fedlap.deploy.plan import Limits, Plan
from fedlap.experiments.experiment import KNOWN_GRAPH, SHUFFLED, Experiment
from fedlap.experiments.fit import fit
from fedlap.experiments.settings import format_value, inspect_settings
from fedlap.graph import BUILDER_INPUTS, GRAPHS
from fedlap.models import MODELS
from markdown_text import build_table, code, escape

REQUIRED = inspect.Parameter.empty
HEADS = ("setting", "type", "default", "meaning")
EVERY_GRAPH = "of every graph: permute its clients' names by the seed, as a control."
SCALE = 'of every data set: standardise features "pooled" over all clients, per "client", or "none".'
SHARE = "of every data set without fixed test rows: share of each client's rows that become test rows."
Setting = tuple[Any, Any, str]  # type, default and meaning


def list_settings(build: Callable[..., Any], skip: tuple[str, ...] = ()) -> dict[str, Setting]:
    """Return the settings of a builder; KeyError if its docstring leaves one out."""
    described = describe_settings(build)
    return {
        name: (p.annotation, p.default, described[name]) for name, p in inspect_settings(build, skip).items()
    }


def list_data_settings(name: str) -> dict[str, Setting]:
    """Return the settings of a data set."""
    source = SOURCES[name]
    settings = list_settings(source.make, ("seed",))
    settings["scale"] = (Scaling, source.scale, SCALE)
    if source.is_tabular:
        settings["test_share"] = (float, TEST_SHARE, SHARE)
    return settings


def list_experiment_settings() -> dict[str, Setting]:
    """Return the fields of an experiment that have no settings of their own."""
    described = describe_settings(fit) | describe_settings(Experiment)
    return {
        name: (field.annotation, field.default, described[name])
        for name, field in Experiment.model_fields.items()
    }


def list_sections() -> Iterator[tuple[str, str, str, dict[str, Setting]]]:
    """Yield section, name, description and settings of everything that an experiment can name."""
    for name, source in SOURCES.items():
        yield "data", name, source.about, list_data_settings(name)
    yield "partition", NATURAL, "Every row stays with the client that it came from.", {}
    for name, rule in PARTITIONS.items():
        yield "partition", name, summarise_docstring(rule), list_settings(rule)
    subset = ("self", "seed")
    yield "scarce", "", summarise_docstring(Federation.scarce), list_settings(Federation.scarce, subset)
    yield "fold", "", summarise_docstring(Federation.fold), list_settings(Federation.fold, subset)
    for name, graph in GRAPHS.items():
        yield "graph", name, summarise_docstring(graph), list_settings(graph, BUILDER_INPUTS)
    yield "graph", KNOWN_GRAPH, "The graph that comes with the data.", {}
    for name, model in MODELS.items():
        yield "model", name, summarise_docstring(model), list_settings(model)
    for name, method in ALGORITHMS.items():
        yield "algorithm", name, summarise_docstring(method), list_settings(method, ("graph",))


def format_type(annotation: Any) -> str:
    """Return a type in words that TOML has."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(code(f'"{value}"') for value in parts)
    if origin in (Union, types.UnionType):
        return " or ".join(format_type(part) for part in parts if part is not types.NoneType)
    if origin in (list, tuple) or getattr(origin, "__name__", "") == "Sequence":
        inner = [part for part in parts if part is not Ellipsis]
        return f"list of {format_type(inner[0])}"
    if origin is dict or getattr(origin, "__name__", "") == "Mapping":
        return "table"
    if is_dataclass(annotation):
        return "table"
    words = {bool: "true or false", int: "integer", float: "number", str: "text", Path: "path", dict: "table"}
    return words[annotation]


def format_default(value: Any) -> str:
    """Return a default as TOML has it."""
    if value is REQUIRED:
        return "required"
    if value is None or value in ("", ()):
        return "–"
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, str):
        return code(f'"{value}"')
    if isinstance(value, tuple | list):
        return code(json.dumps(value))
    if is_dataclass(value):
        return "–"
    if isinstance(value, dict):
        return code(f'"{value["name"]}"') if "name" in value else "–"
    return code(repr(value))


def format_table(prefix: str, settings: dict[str, Setting]) -> str:
    """Return a table of settings."""
    rows = [
        [code(f"{prefix}{name}"), format_type(annotation), format_default(default), escape(meaning)]
        for name, (annotation, default, meaning) in settings.items()
    ]
    return build_table(HEADS, rows) + "\n"


def describe_partition(name: str) -> str:
    """Return a sentence about the default partition of a data set."""
    default = SOURCES[name].partition
    if default is None:
        return ""
    rule = next(name for name, make in PARTITIONS.items() if isinstance(default, make))
    settings = ", ".join(f"{key} = {format_value(value)}" for key, value in vars(default).items())
    return f"By default its partition is {code(rule)} with {code(settings)}.\n\n"


def list_fields(kind: Any) -> dict[str, Setting]:
    """Return the fields of a dataclass."""
    described = describe_settings(kind)
    settings = {}
    for entry in fields(kind):
        default = entry.default if entry.default_factory is MISSING else entry.default_factory()
        settings[entry.name] = (
            entry.type,
            REQUIRED if default is MISSING else default,
            described[entry.name],
        )
    return settings


def build_plan() -> str:
    """Return the tables of the file of a deployment."""
    sections = {"": Plan, "data": DataPlan, "limits": Limits, "peers": PeerSettings}
    return "".join(
        (f"`[{name}]`\n\n" if name else "") + format_table("", list_fields(kind))
        for name, kind in sections.items()
    )


TITLES = {
    "data": "Data",
    "partition": "Partitions",
    "scarce": "Scarce clients",
    "fold": "Folds",
    "graph": "Graphs",
    "model": "Models",
    "algorithm": "Methods",
}


def build_page() -> str:
    """Return the tables of all settings."""
    text, begun = "## The experiment\n\n" + format_table("", list_experiment_settings()), ""
    for section, name, about, settings in list_sections():
        if section != begun:
            text, begun = f"{text}## {TITLES[section]}\n\n", section
            if section == "graph":
                text += format_table("graph.", {SHUFFLED: (bool, False, EVERY_GRAPH)})
        heading = f"### {section} {name}\n\n" if name else ""
        about = about[0].upper() + about[1:]
        text += f"{heading}{escape(about if about.endswith('.') else f'{about}.')}\n\n"
        if section == "data":
            text += describe_partition(name)
        if settings:
            text += format_table(f"{section}.", settings)
    return text
