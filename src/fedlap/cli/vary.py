"""Fields over lists of values, as given by --vary."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fedlap.algorithms import ALGORITHMS
from fedlap.cli.arguments import METHOD_OPTIONS, parse_graph, parse_value, set_field
from fedlap.errors import InputError, unknown_name_error
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.settings import inspect_settings
from fedlap.report import format_value

VARY_EXAMPLE = "--vary strength=0,0.01,0.1"
MAX_COMBINATIONS = 10_000
BRACKETS = {"[": "]", "{": "}"}


@dataclass(frozen=True)
class VariedField:
    """A field and its list of values."""

    path: str  # as in an experiment
    values: list[Any]

    @property
    def name(self) -> str:
        """The name in tables: a setting of the algorithm drops the prefix "algorithm."."""
        setting = self.path.removeprefix("algorithm.")
        return self.path if setting in Experiment.model_fields else setting

    def set_value(self, description: dict[str, Any], value: Any) -> None:
        """Put a value of this field into a description."""
        if self.path == "graph" and isinstance(value, str):
            settings = {k: v for k, v in description["graph"].items() if k not in ("name", "path", "sha256")}
            description["graph"] = settings | parse_graph(value)
        else:
            set_field(description, self.path, value, f"--vary {self.name}={format_value(value)}")


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


def list_combinations(texts: Sequence[str], algorithm: str) -> list[Combination]:
    """Return all combinations of values, the last field changing fastest."""
    if not texts:
        raise InputError(f"sweep: no --vary option; add a field and its values, e.g. {VARY_EXAMPLE}")
    fields: list[VariedField] = []
    for text in texts:
        new = parse_varied_field(text, algorithm)
        if new.path in [field.path for field in fields]:
            raise InputError(f"--vary {text}: {new.name} is varied twice; put all its values in one list")
        fields.append(new)
    if math.prod(len(field.values) for field in fields) > MAX_COMBINATIONS:
        raise InputError(f"--vary: more than {MAX_COMBINATIONS:,} combinations; vary fewer values")
    return [Combination(tuple(fields), values) for values in product(*(field.values for field in fields))]


def parse_varied_field(text: str, algorithm: str) -> VariedField:
    """Parse field=value,value,…; a repeated value counts once."""
    key, equals, listed = text.partition("=")
    pieces = split_values(listed)
    if not equals or not key.strip() or not all(pieces):
        raise InputError(f"--vary {text}: expected field=value,value,…, e.g. {VARY_EXAMPLE}")
    path = find_path(key.strip().replace("-", "_"), text, algorithm)
    values = {format_value(value): value for value in map(parse_value, pieces)}
    return VariedField(path, list(values.values()))


def find_path(key: str, text: str, algorithm: str) -> str:
    """Return the path of a field in an experiment, from its path or from the name of a setting."""
    if key == "seed":
        raise InputError(f"--vary {text}: seeds cannot be varied; use --seeds, e.g. --seeds 0-4")
    if key in ("data", "data.name", "data.path"):
        raise InputError(
            f"--vary {text}: scores on different data cannot be ranked; sweep every --data separately"
        )
    section, dot, _ = key.partition(".")
    settings = {*METHOD_OPTIONS, *inspect_settings(ALGORITHMS[algorithm], ("graph",))}
    if section in Experiment.model_fields:
        return key.removesuffix(".name")
    if dot:
        raise unknown_name_error("field of an experiment", section, Experiment.model_fields, field=section)
    if key not in settings:
        known = {*Experiment.model_fields, *settings} - {"seed", "data"}
        raise unknown_name_error("field to vary", key, known, field=key)
    return f"algorithm.{key}"


def split_values(text: str) -> list[str]:
    """Split at commas that are outside brackets and quotes."""
    pieces, quote = [""], ""
    closing: list[str] = []
    for character in text:
        if character == "," and not closing and not quote:
            pieces.append("")
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in BRACKETS:
            closing.append(BRACKETS[character])
        elif closing and character == closing[-1]:
            closing.pop()
        pieces[-1] += character
    return [piece.strip() for piece in pieces]
