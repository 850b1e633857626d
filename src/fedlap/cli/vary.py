"""Fields over lists of values: what --vary means."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fedlap.algorithms import ALGORITHMS
from fedlap.cli.arguments import SETTINGS, graph_section, put, value_of
from fedlap.errors import InputError, unknown
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.settings import settings_of
from fedlap.report import shown

EXAMPLE = "--vary strength=0,0.01,0.1"
MOST = 10_000  # combinations
BRACKETS = {"[": "]", "{": "}"}


@dataclass(frozen=True)
class Varied:
    """A field and the values that it is given in turn."""

    path: str  # as in an experiment
    values: list[Any]

    @property
    def name(self) -> str:
        """What it is called in tables: settings of the algorithm go by their own names."""
        own = self.path.removeprefix("algorithm.")
        return self.path if own in Experiment.model_fields else own

    def put(self, description: dict[str, Any], value: Any) -> None:
        """Give it to a description."""
        if self.path == "graph" and isinstance(value, str):
            kept = {k: v for k, v in description["graph"].items() if k not in ("name", "path", "sha256")}
            description["graph"] = kept | graph_section(value)
        else:
            put(description, self.path, value, f"--vary {self.name}={shown(value)}")


@dataclass(frozen=True)
class Combination:
    """One value of each varied field."""

    fields: tuple[Varied, ...]
    values: tuple[Any, ...]

    @property
    def label(self) -> str:
        """In words."""
        each = zip(self.fields, self.values, strict=True)
        return ", ".join(f"{field.name} = {shown(value)}" for field, value in each)

    def experiment(self, common: dict[str, Any], seed: int) -> Experiment:
        """What is run; a mistake is said with the values that it was made with."""
        described = copy.deepcopy(common) | {"seed": seed}
        # Names first: what a name brings with it may be varied too.
        pairs = sorted(zip(self.fields, self.values, strict=True), key=lambda pair: "." in pair[0].path)
        try:
            for field, value in pairs:
                field.put(described, value)
            return Experiment.of(described)
        except InputError as error:
            raise self.refused(error) from None

    def refused(self, error: InputError) -> InputError:
        """The same mistake, with the values that it was made with."""
        return InputError(f"with {self.label}: {error}", field=error.field)


def combinations(texts: Sequence[str], algorithm: str) -> list[Combination]:
    """All combinations of what is varied, the last field changing fastest."""
    if not texts:
        raise InputError(f"sweep: nothing is varied; add a field and its values, as in {EXAMPLE}")
    fields: list[Varied] = []
    for text in texts:
        made = varied(text, algorithm)
        if made.path in [field.path for field in fields]:
            raise InputError(f"--vary {text}: {made.name} is varied twice; write all its values in one list")
        fields.append(made)
    if math.prod(len(field.values) for field in fields) > MOST:
        raise InputError(f"--vary: these fields have more than {MOST:,} combinations; vary fewer values")
    return [Combination(tuple(fields), values) for values in product(*(field.values for field in fields))]


def varied(text: str, algorithm: str) -> Varied:
    """A field and its values, from field=value,value; a value given twice counts once."""
    key, equals, listed = text.partition("=")
    pieces = split(listed)
    if not equals or not key.strip() or not all(pieces):
        raise InputError(f"--vary {text}: write field=value,value,…, as in {EXAMPLE}")
    path = path_of(key.strip().replace("-", "_"), text, algorithm)
    values = {shown(value): value for value in map(value_of, pieces)}
    return Varied(path, list(values.values()))


def path_of(key: str, text: str, algorithm: str) -> str:
    """Where an experiment has a field: by its path, or by its own name where that is an option's."""
    if key == "seed":
        raise InputError(f"--vary {text}: seeds are not varied but repeated; write them as in --seeds 0-4")
    if key in ("data", "data.name", "data.path"):
        raise InputError(f"--vary {text}: scores on other data cannot be ranked; sweep each --data by itself")
    section, dot, _ = key.partition(".")
    settings = {*SETTINGS, *settings_of(ALGORITHMS[algorithm], ("graph",))}
    if section in Experiment.model_fields:
        return key.removesuffix(".name")
    if dot:
        raise unknown("field of an experiment", section, Experiment.model_fields, field=section)
    if key not in settings:
        known = {*Experiment.model_fields, *settings} - {"seed", "data"}
        raise unknown("field to vary", key, known, field=key)
    return f"algorithm.{key}"


def split(text: str) -> list[str]:
    """Pieces between commas, but for commas within brackets or quotes."""
    pieces, quote = [""], ""
    closing: list[str] = []
    for sign in text:
        if sign == "," and not closing and not quote:
            pieces.append("")
            continue
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        elif sign in BRACKETS:
            closing.append(BRACKETS[sign])
        elif closing and sign == closing[-1]:
            closing.pop()
        pieces[-1] += sign
    return [piece.strip() for piece in pieces]
