"""Results of reproductions: one small file per cell, the source of tables, figures and claims."""

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
from fedlap.experiments.settings import to_input_error
from fedlap.reproduce.recipe import RECIPE_FOLDER, Recipe, Unit
from fedlap.storage.files import describe_error, parse_json, read_file, refuse_link, write_file

TUNED_FOLDER = RECIPE_FOLDER / "tuned"

Curves = dict[str, list[float | None]]


class RowFile(BaseModel):
    """One row of a cell's file; fields that no table, figure or claim reads are not checked."""

    model_config = ConfigDict(strict=True, extra="allow")

    signature: str
    seeds: list[int]
    last: list[dict[str, float | None] | None] = []
    diverged: dict[str, str] = {}
    refused: str | None = None
    refused_seeds: list[int] = []
    product: float | None = None
    choices: dict[str, dict[str, Any]] = {}
    curves: Curves = {}
    clients: dict[str, float] = {}
    graph: list[Annotated[list[float], Field(min_length=3, max_length=3)]] = []
    grid: dict[str, list[Any]] = {}
    ladders: dict[str, list[Any]] = {}
    environment: dict[str, Any] = {}


class ClientCounts(BaseModel):
    """Rows per client and label of a cell."""

    model_config = ConfigDict(strict=True, extra="allow")

    names: list[str]
    labels: list[str]
    train: list[list[int]]
    test: list[int]


class CellFile(BaseModel):
    """The file of one cell."""

    model_config = ConfigDict(strict=True, extra="allow")

    clients: ClientCounts
    rows: dict[str, RowFile]


@dataclass(frozen=True)
class RowResult:
    """One row of a cell: a method's scores over seeds, or why there are none."""

    values: Mapping[str, Any]

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs."""
        return [int(seed) for seed in self.values["seeds"]]

    @property
    def refused(self) -> str | None:
        """The reason why the row was not run, if it was refused."""
        return self.values.get("refused")

    @property
    def diverged(self) -> dict[str, str]:
        """Seeds at which training diverged, with the error message."""
        return dict(self.values.get("diverged", {}))

    @property
    def product(self) -> float | None:
        """μRηρ, where the method mixes over a graph."""
        return self.values.get("product")

    @property
    def unstable(self) -> bool:
        """True if the row was refused because mixing is unstable."""
        return self.refused is not None and self.product is not None

    @property
    def finished(self) -> bool:
        """True if every seed has a score."""
        return self.refused is None and not self.diverged and bool(self.values.get("last"))

    def last_scores(self, field: str = "accuracy") -> np.ndarray:
        """Return a score after the last round, one value per seed."""
        return np.array([score[field] for score in self.values["last"]], dtype=float)

    @property
    def accuracy(self) -> np.ndarray:
        """Pooled test accuracy in percent, one value per seed."""
        return 100 * self.last_scores()

    @property
    def by_seed(self) -> dict[int, float]:
        """Pooled test accuracy in percent, by seed; diverged seeds are left out."""
        last = zip(self.seeds, self.values.get("last", []), strict=False)
        return {seed: 100.0 * score["accuracy"] for seed, score in last if score is not None}

    @property
    def choices(self) -> dict[str, dict[str, Any]]:
        """The chosen values, by seed."""
        return dict(self.values.get("choices", {}))


class ResultFolder:
    """A folder of results: one file per cell and reading of a recipe."""

    def __init__(self, folder: Path) -> None:
        """Store the folder; no file is read yet."""
        self.folder = folder

    def path(self, recipe: str, cell: str, reading: str) -> Path:
        """Return the path of a cell's file."""
        return self.folder / recipe / f"{cell}-{reading}.json"

    def read(self, recipe: str, cell: str, reading: str) -> dict[str, Any]:
        """Read and check the file of a cell; return an empty dictionary if there is none."""
        path = self.path(recipe, cell, reading)
        try:
            cell_file = dict(parse_json(read_file(path)))
            CellFile.model_validate(cell_file)
        except FileNotFoundError:
            return {}
        except ValidationError as error:
            raise to_input_error(
                error, CellFile.model_fields, "a file", prefix=f"{str(path)!r} is damaged: "
            ) from None
        except (OSError, ValueError, TypeError) as error:
            raise InputError(
                f"{str(path)!r} is damaged ({describe_error(error)}); remove it and reproduce it again"
            ) from error
        return cell_file

    def read_rows(self, recipe: Recipe, cell: str, reading: str) -> dict[str, RowResult]:
        """Read the rows of a cell, in the recipe's order, without rows whose signature has changed."""
        known = self.read(recipe.name, cell, reading).get("rows", {})
        return {
            name: RowResult(known[name])
            for name in recipe.rows
            if name in known and known[name]["signature"] == Unit(recipe, cell, reading, name).signature
        }

    def read_cells(self, recipe: Recipe, reading: str) -> dict[str, dict[str, RowResult]]:
        """Read the rows of every cell that has any."""
        every = {cell: self.read_rows(recipe, cell, reading) for cell in recipe.cells}
        return {cell: rows for cell, rows in every.items() if rows}

    def has(self, unit: Unit, seeds: Sequence[int]) -> bool:
        """Return whether a row has results for at least these seeds."""
        known = self.read_rows(unit.recipe, unit.cell, unit.reading).get(unit.row)
        return known is not None and set(seeds) <= set(known.seeds)

    def write(self, unit: Unit, row: Mapping[str, Any], federation: Federation) -> None:
        """Add a row to the file of its cell, under a lock, since other processes write to it too."""
        path = self.path(unit.recipe.name, unit.cell, unit.reading)
        self.folder.mkdir(parents=True, exist_ok=True)
        refuse_link(self.folder / "findings.lock")
        with FileLock(self.folder / "findings.lock"):
            cell_file = self.read(unit.recipe.name, unit.cell, unit.reading)
            cell_file |= {"recipe": unit.recipe.name, "cell": unit.cell, "reading": unit.reading}
            cell_file["clients"] = count_labels(federation)
            # Rows that a narrowed recipe leaves out stay in the file.
            cell_file["rows"] = {**cell_file.get("rows", {}), unit.row: dict(row)}
            write_file(path, format_cell(cell_file).encode())

    def list_tuned_values(self, recipe: Recipe) -> dict[str, Any]:
        """Return the tuned values of every row, in the form that is stored with a recipe."""
        values_by_unit: dict[str, Any] = {}
        for reading in recipe.readings:
            for cell in recipe.cells:
                for name, row in self.read_rows(recipe, cell, reading).items():
                    unit = Unit(recipe, cell, reading, name)
                    if row.choices:
                        values = {seed: choice["values"] for seed, choice in row.choices.items()}
                        values_by_unit[f"{unit.place}/{name}"] = {
                            "signature": unit.signature,
                            "values": values,
                        }
        return values_by_unit


def read_tuned_values(recipe: str) -> dict[str, Any]:
    """Read the tuned values that are stored with a recipe; empty if there are none."""
    path = TUNED_FOLDER / f"{recipe}.json"
    return dict(parse_json(read_file(path))) if path.is_file() else {}


def select_tuned_values(unit: Unit, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tuned values of a unit by seed; none if the unit has changed since they were stored."""
    entry = stored.get(f"{unit.place}/{unit.row}", {})
    return dict(entry["values"]) if entry.get("signature") == unit.signature else {}


def iterate_cells(recipe: Recipe, results: ResultFolder) -> Iterator[tuple[str, str, dict[str, RowResult]]]:
    """Yield reading, cell and rows of every cell of a recipe that has results."""
    for reading in recipe.readings:
        for cell, rows in results.read_cells(recipe, reading).items():
            yield reading, cell, rows


def format_cell(cell: Mapping[str, Any]) -> str:
    """Format a cell as JSON with one line per row, so that a changed row is one changed line."""
    rows = ",\n".join(
        f"  {json.dumps(n)}: {json.dumps(r, ensure_ascii=False)}" for n, r in cell["rows"].items()
    )
    rest = [
        f" {json.dumps(key)}: {json.dumps(cell[key])}" for key in ("recipe", "cell", "reading", "clients")
    ]
    return "{\n" + ",\n".join([*rest, f' "rows": {{\n{rows}\n }}']) + "\n}\n"


def count_labels(federation: Federation) -> dict[str, Any]:
    """Count the training rows per client and label, and the test rows per client."""
    assert federation.labels is not None  # recipes use classification data
    counts = torch.zeros(len(federation.clients), len(federation.labels), dtype=torch.int64)
    places = (federation.train.find_owners(), federation.train.y)
    counts.index_put_(places, torch.ones_like(places[0]), accumulate=True)
    return {
        "names": list(federation.clients),
        "labels": list(federation.labels),
        "train": counts.tolist(),
        "test": federation.test.count.tolist(),
    }
