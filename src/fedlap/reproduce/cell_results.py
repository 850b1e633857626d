"""Findings: what reproductions came to, in small files that tables, figures and claims are made from."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from filelock import FileLock
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedlap.data.federation import Federation
from fedlap.errors import InputError
from fedlap.experiments.settings import one_line
from fedlap.reproduce.recipe import FOLDER, Recipe, Unit
from fedlap.storage.files import parse_json, read_file, reason, refuse_link, write_file

TUNED = FOLDER / "tuned"


Numbers = dict[str, list[float | None]]


class RowFile(BaseModel):
    """One row of a file, as far as tables, figures and claims read it."""

    model_config = ConfigDict(strict=True, extra="allow")

    signature: str
    seeds: list[int]
    last: list[dict[str, float | None] | None] = []
    diverged: dict[str, str] = {}
    refused: str | None = None
    refused_seeds: list[int] = []
    product: float | None = None
    choices: dict[str, dict[str, Any]] = {}
    curves: Numbers = {}
    clients: dict[str, float] = {}
    graph: list[Annotated[list[float], Field(min_length=3, max_length=3)]] = []
    grid: dict[str, list[Any]] = {}
    ladders: dict[str, list[Any]] = {}
    environment: dict[str, Any] = {}


class ClientCounts(BaseModel):
    """Whose rows of which labels a cell has."""

    model_config = ConfigDict(strict=True, extra="allow")

    names: list[str]
    labels: list[str]
    train: list[list[int]]
    test: list[int]


class CellFile(BaseModel):
    """A file of findings."""

    model_config = ConfigDict(strict=True, extra="allow")

    clients: ClientCounts
    rows: dict[str, RowFile]


@dataclass(frozen=True)
class Finding:
    """One row of a cell: a method's scores over seeds, or why there are none."""

    values: Mapping[str, Any]

    @property
    def seeds(self) -> list[int]:
        """Those that were run."""
        return [int(seed) for seed in self.values["seeds"]]

    @property
    def refused(self) -> str | None:
        """Why it was not run."""
        return self.values.get("refused")

    @property
    def diverged(self) -> dict[str, str]:
        """Seeds at which training diverged, and what was said."""
        return dict(self.values.get("diverged", {}))

    @property
    def product(self) -> float | None:
        """μRηρ, where the method mixes over a graph."""
        return self.values.get("product")

    @property
    def unstable(self) -> bool:
        """Whether it was refused since mixing does not settle."""
        return self.refused is not None and self.product is not None

    @property
    def finished(self) -> bool:
        """Whether every seed has a score."""
        return self.refused is None and not self.diverged and bool(self.values.get("last"))

    def last(self, field: str = "accuracy") -> np.ndarray:
        """A score after the last round, a value for each seed."""
        return np.array([each[field] for each in self.values["last"]], dtype=float)

    @property
    def accuracy(self) -> np.ndarray:
        """Pooled test accuracy in percent, seed by seed."""
        return 100 * self.last()

    @property
    def by_seed(self) -> dict[int, float]:
        """Pooled test accuracy in percent at the seeds at which training came to its end."""
        last = zip(self.seeds, self.values.get("last", []), strict=False)
        return {seed: 100.0 * each["accuracy"] for seed, each in last if each is not None}

    @property
    def choices(self) -> dict[str, dict[str, Any]]:
        """The values that were chosen, by seed."""
        return dict(self.values.get("choices", {}))


class Findings:
    """A folder of findings, one file for each cell of a recipe in each reading."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read yet."""
        self.folder = folder

    def path(self, recipe: str, cell: str, reading: str) -> Path:
        """Where a cell's rows are."""
        return self.folder / recipe / f"{cell}-{reading}.json"

    def read(self, recipe: str, cell: str, reading: str) -> dict[str, Any]:
        """A cell as it was written; empty where nothing was."""
        path = self.path(recipe, cell, reading)
        try:
            made = dict(parse_json(read_file(path)))
            CellFile.model_validate(made)
        except FileNotFoundError:
            return {}
        except ValidationError as error:
            raise one_line(
                error, CellFile.model_fields, "a file", prefix=f"{str(path)!r} is damaged: "
            ) from None
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"{str(path)!r} is damaged ({reason(error)}); remove it and reproduce it again"
            ) from error
        return made

    def rows(self, recipe: Recipe, cell: str, reading: str) -> dict[str, Finding]:
        """The rows of a cell that are there, in the recipe's order; not those of a changed one."""
        known = self.read(recipe.name, cell, reading).get("rows", {})
        return {
            name: Finding(known[name])
            for name in recipe.rows
            if name in known and known[name]["signature"] == Unit(recipe, cell, reading, name).signature
        }

    def cells(self, recipe: Recipe, reading: str) -> dict[str, dict[str, Finding]]:
        """The rows of all cells that have any."""
        every = {cell: self.rows(recipe, cell, reading) for cell in recipe.cells}
        return {cell: rows for cell, rows in every.items() if rows}

    def has(self, unit: Unit, seeds: Sequence[int]) -> bool:
        """Whether a row is there, for these seeds or more."""
        known = self.rows(unit.recipe, unit.cell, unit.reading).get(unit.row)
        return known is not None and set(seeds) <= set(known.seeds)

    def write(self, unit: Unit, row: Mapping[str, Any], federation: Federation) -> None:
        """Keep a row beside the others of its cell, which another process may be writing."""
        path = self.path(unit.recipe.name, unit.cell, unit.reading)
        self.folder.mkdir(parents=True, exist_ok=True)
        refuse_link(self.folder / "findings.lock")
        with FileLock(self.folder / "findings.lock"):
            made = self.read(unit.recipe.name, unit.cell, unit.reading)
            made |= {"recipe": unit.recipe.name, "cell": unit.cell, "reading": unit.reading}
            made["clients"] = label_counts(federation)
            made["rows"] = {**made.get("rows", {}), unit.row: dict(row)}  # of a narrowed recipe not all
            write_file(path, _lines(made).encode())

    def tuned(self, recipe: Recipe) -> dict[str, Any]:
        """The values that methods were tuned to, to be stored with a recipe."""
        made: dict[str, Any] = {}
        for reading in recipe.readings:
            for cell in recipe.cells:
                for name, row in self.rows(recipe, cell, reading).items():
                    unit = Unit(recipe, cell, reading, name)
                    if row.choices:
                        values = {seed: choice["values"] for seed, choice in row.choices.items()}
                        made[f"{unit.place}/{name}"] = {"signature": unit.signature, "values": values}
        return made


def stored(recipe: str) -> dict[str, Any]:
    """The values that come with a recipe, if any do."""
    path = TUNED / f"{recipe}.json"
    return dict(parse_json(read_file(path))) if path.is_file() else {}


def stored_for(unit: Unit, kept: Mapping[str, Any]) -> dict[str, Any]:
    """A unit's values by seed, of those that come with its recipe; none where it has changed since."""
    own = kept.get(f"{unit.place}/{unit.row}", {})
    return dict(own["values"]) if own.get("signature") == unit.signature else {}


def cells_of(recipe: Recipe, findings: Findings) -> Iterator[tuple[str, str, dict[str, Finding]]]:
    """Reading, cell and rows of everything of a recipe that is there."""
    for reading in recipe.readings:
        for cell, rows in findings.cells(recipe, reading).items():
            yield reading, cell, rows


def _lines(cell: Mapping[str, Any]) -> str:
    """JSON with a line for each row, so that a changed row is one changed line."""
    rows = ",\n".join(
        f"  {json.dumps(n)}: {json.dumps(r, ensure_ascii=False)}" for n, r in cell["rows"].items()
    )
    rest = [
        f" {json.dumps(key)}: {json.dumps(cell[key])}" for key in ("recipe", "cell", "reading", "clients")
    ]
    return "{\n" + ",\n".join([*rest, f' "rows": {{\n{rows}\n }}']) + "\n}\n"


def label_counts(federation: Federation) -> dict[str, Any]:
    """Who has how many training rows of each label."""
    assert federation.labels is not None  # recipes are of classes
    counts = torch.zeros(len(federation.clients), len(federation.labels), dtype=torch.int64)
    places = (federation.train.owner(), federation.train.y)
    counts.index_put_(places, torch.ones_like(places[0]), accumulate=True)
    return {
        "names": list(federation.clients),
        "labels": list(federation.labels),
        "train": counts.tolist(),
        "test": federation.test.count.tolist(),
    }
