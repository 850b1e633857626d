"""Recipes: a table or figure of a paper as data, models, methods, tuning grids and the paper's numbers."""

import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from fedlap.errors import InputError, unknown_name_error
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.settings import Section, to_input_error
from fedlap.reproduce.recipe_schema import (
    SETTING,
    Claim,
    Quick,
    Reading,
    Reason,
    RecipeCell,
    RecipeRow,
    RecipeSection,
)
from fedlap.storage.files import describe_error, read_text

RECIPE_FOLDER = Path(__file__).parent / "recipes"


class Recipe(RecipeSection):
    """A table or a figure: cells times rows, each read in one or several ways, over seeds."""

    name: str
    source: str = ""  # path of its file
    title: str
    place: str  # in the paper's text
    order: int = 0  # position among the recipes, as in the paper
    shown: Literal["table", "strengths", "curves"] = "table"
    about: str = ""
    seeds: str = "0-9"
    folds: int = 5
    common: Section
    readings: dict[str, Reading]
    cells: dict[str, RecipeCell]
    rows: dict[str, RecipeRow]
    ladders: dict[str, list[Any]] = Field(default_factory=dict)  # rising values, beyond the grids
    claims: list[Claim] = Field(default_factory=list)
    remarks: list[str] = Field(default_factory=list)  # the outcome in words
    reasons: list[Reason] = Field(default_factory=list)
    quick: Quick

    @staticmethod
    def read(path: Path) -> "Recipe":
        """Read a recipe from a TOML file; an error names the field."""
        try:
            described = tomllib.loads(read_text(path))
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be read: {describe_error(error)}") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{str(path)!r} is not a TOML file: {error}") from error
        try:
            recipe = Recipe.model_validate({"name": path.stem, **described, "source": str(path)})
        except ValidationError as error:
            raise to_input_error(
                error, Recipe.model_fields, "a recipe", prefix=f"recipe {path.stem}: "
            ) from None
        recipe._check()
        return recipe

    def _check(self) -> None:
        """Raise InputError if a recipe refers to rows, cells or readings that it does not define."""
        for name, row in self.rows.items():
            for other in row.follows.values():
                if other not in self.rows or self.rows[other].follows:
                    where = f"recipe {self.name}: rows.{name}.follows"
                    raise InputError(
                        f"{where}: {other!r} does not name a row with its own tuning; use such a row"
                    )
        for name, cell in self.cells.items():
            self._check_names(f"cells.{name}", "row", (*cell.without, *cell.paper), self.rows)
            self._check_names(f"cells.{name}.tuning_rounds", "reading", cell.tuning_rounds, self.readings)
            self._check_names(f"cells.{name}.within", "reading", cell.within, self.readings)
        for name, ladder in self.ladders.items():
            if ladder != sorted(set(ladder)):
                raise InputError(
                    f"recipe {self.name}: ladders.{name} = {ladder}; expected rising values",
                    field=f"ladders.{name}",
                )
        for claim in self.claims:
            self._check_names("claims", "row", (claim.row, *claim.against), self.rows)
            self._check_names("claims", "cell", claim.cells, self.cells)

    def _check_names(self, where: str, what: str, names: Iterable[str], known: Mapping[str, Any]) -> None:
        for name in names:
            if name not in known:
                raise InputError(f"recipe {self.name}: {where}: {unknown_name_error(what, name, known)}")

    def units(self) -> Iterator["Unit"]:
        """Yield every method in every cell and reading; a row comes after the rows it follows."""
        for reading, cell in itertools.product(self.readings, self.cells):
            names = [name for name in self.rows if name not in self.cells[cell].without]
            for name in sorted(names, key=lambda name: bool(self.rows[name].follows)):
                yield Unit(self, cell, reading, name)

    def narrow(
        self, data: Sequence[str], cells: Sequence[str], readings: Sequence[str], rows: Sequence[str]
    ) -> "Recipe":
        """Return the recipe with selected data sets, cells, readings and rows; an empty selection means all.

        Rows that a selected row follows are included.
        """
        selected_cells = {
            name: cell
            for name, cell in self.cells.items()
            if (not data or cell.data["name"] in data) and (not cells or name in cells)
        }
        selected_readings = [name for name in readings if name in self.readings] or list(self.readings)
        selected = [name for name in rows if name in self.rows] or list(self.rows)
        selected += [other for name in selected for other in self.rows[name].follows.values()]
        return self.model_copy(
            update={
                "cells": selected_cells,
                "readings": {
                    name: self.readings[name] for name in self.readings if name in selected_readings
                },
                "rows": {name: row for name, row in self.rows.items() if name in selected},
            }
        )

    def leader_of(self, row: str) -> str:
        """Return the row that this row follows, or the row itself."""
        return next(iter(self.rows[row].follows.values()), row)

    def quick_form(self) -> "Recipe":
        """Return a small recipe that exercises every step; its numbers mean nothing."""
        quick = self.quick
        self._check_names("quick", "cell", quick.cells, self.cells)

        def shorten_grid(grid: Mapping[str, list[Any] | Literal["reading"]]) -> dict[str, Any]:
            return {k: v if isinstance(v, str) else v[: quick.values] for k, v in grid.items()}

        return self.model_copy(
            update={
                "title": f"{self.title} (quick form: its numbers mean nothing)",
                "seeds": quick.seeds,
                "folds": quick.folds,
                "ladders": {},
                "common": self.common | {"rounds": quick.rounds, "evaluate_every": 1},
                "readings": {
                    name: self.readings[name].model_copy(
                        update={"grid": shorten_grid(self.readings[name].grid)}
                    )
                    for name in quick.readings
                },
                "cells": {name: self.cells[name] for name in quick.cells},
                "rows": {
                    name: row.model_copy(update={"grid": shorten_grid(row.grid)})
                    for name, row in self.rows.items()
                },
            }
        )


@dataclass(frozen=True)
class Unit:
    """One method in one cell and reading: tuned, trained and stored as one row."""

    recipe: Recipe
    cell: str
    reading: str
    row: str

    @property
    def place(self) -> str:
        """Recipe, cell and reading, as a path."""
        return f"{self.recipe.name}/{self.cell}-{self.reading}"

    def describe(self) -> dict[str, Any]:
        """Describe the experiment without its seed and its tuned values."""
        cell, row = self.recipe.cells[self.cell], self.recipe.rows[self.row]
        description: dict[str, Any] = {**self.recipe.common, "data": cell.data, "model": cell.model}
        description |= {"partition": cell.partition} if cell.partition else {}
        description |= {"scarce": cell.scarce} if cell.scarce is not None else {}
        description |= {"graph": row.graph} if row.graph else {}
        work = self.recipe.readings[self.reading].settings | row.readings.get(self.reading, {})
        return description | {"algorithm": {**row.algorithm, **work}}

    @property
    def tuning_rounds(self) -> int:
        """Number of rounds of the tuning runs."""
        all_ = int(self.recipe.common.get("rounds", Experiment.model_fields["rounds"].default))
        of_cell = self.recipe.cells[self.cell].tuning_rounds.get(self.reading)
        return min(of_cell or self.recipe.readings[self.reading].tuning_rounds or all_, all_)

    def build_experiment(self, values: Section) -> Experiment:
        """Build the experiment with these tuned values; without an interval, every round is scored."""
        description = {"evaluate_every": 1} | self.describe()
        return Experiment.of(description | {"algorithm": {**description["algorithm"], **values}})

    def grid(self) -> dict[str, list[Any]]:
        """Return the settings and the values to try."""
        of_reading = self.recipe.readings[self.reading].grid
        grid: dict[str, list[Any]] = {}
        for name, values in self.recipe.rows[self.row].grid.items():
            if values == SETTING and name not in of_reading:
                where = f"recipe {self.recipe.name}: rows.{self.row}.grid.{name}"
                raise InputError(f"{where}: the reading {self.reading!r} has no values for it; add them")
            grid[name] = of_reading[name] if isinstance(values, str) else values
        return grid

    def ladders(self) -> dict[str, list[Any]]:
        """Return the values to try beyond the grid, for settings with several values."""
        if self.reading in self.recipe.cells[self.cell].within:
            return {}
        known = self.recipe.ladders
        return {
            name: known[name] for name, values in self.grid().items() if len(values) > 1 and name in known
        }

    def list_candidates(self, followed: Section) -> list[Section]:
        """Return all combinations of the grid, with the values that follow another row."""
        grid = self.grid()
        return [
            {**dict(zip(grid, values, strict=True)), **followed}
            for values in itertools.product(*grid.values())
        ]

    def follows_same_row(self, other: "Unit") -> bool:
        """Return whether two rows of a cell use one method, have no grid, and follow the same third row."""
        rows = self.recipe.rows[self.row], other.recipe.rows[other.row]
        if self.place != other.place or self.row == other.row or any(row.grid for row in rows):
            return False
        first, second = ((row.algorithm["name"], row.follows) for row in rows)
        return bool(rows[0].follows) and first == second

    @property
    def signature(self) -> str:
        """Sixteen hex digits of everything that fixes the numbers, except seeds, device and tuned values."""
        row = self.recipe.rows[self.row]
        parts = [self.describe(), self.grid(), row.follows, self.recipe.folds, self.tuning_rounds]
        parts += [self.ladders()] if self.ladders() else []
        for other in sorted(row.follows.values()):
            parts.append(Unit(self.recipe, self.cell, self.reading, other).signature)
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def list_recipes() -> list[str]:
    """Return the names of the recipes that come with the library."""
    return sorted(path.stem for path in RECIPE_FOLDER.glob("*.toml"))


def find_recipe(name: str) -> Recipe:
    """Read a recipe of the library by its name, or a TOML file by its path."""
    if name.endswith(".toml"):
        return Recipe.read(Path(name))
    if name not in list_recipes():
        raise unknown_name_error("recipe", name, list_recipes())
    return Recipe.read(RECIPE_FOLDER / f"{name}.toml")
