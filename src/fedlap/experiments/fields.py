"""Fields of an experiment by their paths, such as "algorithm.lr", and lists of values to vary."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from fedlap.algorithms import ALGORITHMS
from fedlap.data import SOURCES
from fedlap.errors import InputError, unknown_name_error
from fedlap.experiments.experiment import SHUFFLED, Experiment
from fedlap.experiments.settings import format_value, inspect_settings
from fedlap.graph import GRAPHS
from fedlap.graph.io import READABLE_EXTENSIONS

METHOD_SETTINGS = ("lr", "local_steps", "local_epochs", "strength")  # have options of the command line
MAX_COMBINATIONS = 10_000


def split_graphs(text: str) -> list[str]:
    """Split comma-separated names of graphs; the path of a file may contain commas."""
    return [text] if Path(text).is_file() else [name.strip() for name in text.split(",")]


def parse_graph(text: str) -> dict[str, Any]:
    """Return the section of one graph, given by name or by file."""
    names = split_graphs(text)
    if len(names) > 1:
        advice = "; for the shuffled graph, use --set graph.shuffled=true" if SHUFFLED in names else ""
        raise InputError(f"--graph {text}: expected one graph{advice}")
    if names == [SHUFFLED]:
        raise InputError(
            f"--graph {text}: 'shuffled' follows the graph to shuffle, as in --graph known,shuffled"
        )
    is_file = text not in GRAPHS and Path(text).suffix.lower() in READABLE_EXTENSIONS
    if not is_file and Path(text).suffix and Path(text).is_file():
        extensions = ", ".join(READABLE_EXTENSIONS)
        raise InputError(f"--graph {text}: unsupported extension; use {extensions}", field="graph")
    return {"name": "file", "path": text} if is_file else {"name": names[0]}


def set_field(description: dict[str, Any], path: str, value: Any, option: str) -> None:
    """Put one field into a description; error messages begin with the option as typed."""
    section, dot, field = path.partition(".")
    if section not in Experiment.model_fields:
        raise unknown_name_error("field of an experiment", section, Experiment.model_fields, field=section)
    if path == "scarce":
        if not isinstance(value, bool):
            raise InputError(
                f"{option}: expected scarce=true or scarce=false, or one of its fields, e.g. scarce.keep=0.5"
            )
        description["scarce"] = {} if value else None
        return
    if path in ("data.places", "graph.places"):
        value = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if path == "graph.places":  # Places are columns of the data, and the graph compares them.
        source = SOURCES.get(description["data"]["name"])
        if source is not None and "places" not in inspect_settings(source.make):
            raise InputError(
                f"{option}: data {description['data']['name']!r} has no columns of places to choose; set "
                "graph.by=places to use the places that come with the data",
                field=path,
            )
        set_field(description, "data.places", value, option)
        field, value = "by", "places"
    if section in ("partition", "scarce", "fold"):
        description[section] = description.get(section) or {}
    if not dot:
        if isinstance(description.get(section), dict) and not isinstance(value, dict):
            description[section]["name"] = value
        else:
            description[section] = value
    elif path.startswith("algorithm.strength."):  # of a block of parameters, whose name may have dots
        blocks = description[section].get("strength")
        block = path.removeprefix("algorithm.strength.")
        description[section]["strength"] = {**(blocks if isinstance(blocks, dict) else {}), block: value}
    elif isinstance(description.get(section), dict):
        description[section][field] = value
    else:
        raise InputError(f"{option}: {section!r} has no fields; set {section}=…")


@dataclass(frozen=True)
class VariedField:
    """A field and its list of values.

    path: as in an experiment. option: names the list in error messages.
    sections: descriptions of graphs by value, where a value is not the name of a graph.
    controls: values that are the shuffled form of another value, with that value.
    """

    path: str
    values: list[Any]
    option: str = "vary"
    sections: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    controls: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name in tables: a setting of the algorithm drops the prefix "algorithm."."""
        setting = self.path.removeprefix("algorithm.")
        return self.path if setting in Experiment.model_fields else setting

    def set_value(self, description: dict[str, Any], value: Any) -> None:
        """Put a value of this field into a description."""
        if self.path == "graph" and isinstance(value, str):
            settings = {k: v for k, v in description["graph"].items() if k not in ("name", "path", "sha256")}
            chosen = self.sections[value] if value in self.sections else parse_graph(value)
            description["graph"] = settings | chosen
        else:
            set_field(description, self.path, value, f"{self.option} {self.name}={format_value(value)}")


@dataclass(frozen=True)
class Combination:
    """One value for every varied field."""

    fields: tuple[VariedField, ...]
    values: tuple[Any, ...]

    @property
    def label(self) -> str:
        """The fields and values as text, e.g. "lr = 0.1, strength = 0"."""
        pairs = zip(self.fields, self.values, strict=True)
        return ", ".join(f"{field.name} = {format_value(value)}" for field, value in pairs)

    def build_experiment(self, common: dict[str, Any], seed: int) -> Experiment:
        """Build the experiment with these values; an error names them."""
        description = copy.deepcopy(common) | {"seed": seed}
        # Names come first, since a name brings fields that may be varied too.
        pairs = sorted(zip(self.fields, self.values, strict=True), key=lambda pair: "." in pair[0].path)
        try:
            for field, value in pairs:
                field.set_value(description, value)
            return Experiment.of(description)
        except InputError as error:
            raise self.locate_error(error) from None

    def locate_error(self, error: InputError) -> InputError:
        """Return the error, preceded by the values that caused it."""
        return InputError(f"with {self.label}: {error}", field=error.field)


def combine_values(fields: Sequence[VariedField]) -> list[Combination]:
    """Return all combinations of values, the last field changing fastest."""
    if math.prod(len(field.values) for field in fields) > MAX_COMBINATIONS:
        raise InputError(
            f"{fields[0].option}: more than {MAX_COMBINATIONS:,} combinations; vary fewer values"
        )
    return [Combination(tuple(fields), values) for values in product(*(field.values for field in fields))]


def find_path(key: str, option: str, algorithm: str) -> str:
    """Return the path of a field in an experiment, from its path or from the name of a setting.

    Error messages begin with the option as typed.
    """
    if key == "seed":
        raise InputError(f"{option}: seeds cannot be varied; use --seeds, e.g. --seeds 0-4")
    if key in ("data", "data.name", "data.path"):
        raise InputError(
            f"{option}: scores on different data cannot be ranked; sweep every --data separately"
        )
    section, dot, _ = key.partition(".")
    settings = {*METHOD_SETTINGS, *inspect_settings(ALGORITHMS[algorithm], ("graph",))}
    if section in Experiment.model_fields:
        return key.removesuffix(".name")
    if dot:
        raise unknown_name_error("field of an experiment", section, Experiment.model_fields, field=section)
    if key not in settings:
        known = {*Experiment.model_fields, *settings} - {"seed", "data"}
        raise unknown_name_error("field to vary", key, known, field=key)
    return f"algorithm.{key}"
