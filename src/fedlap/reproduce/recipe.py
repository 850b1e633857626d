"""Recipes: a table or figure of a paper as data, models, methods, what is tuned, and the paper's numbers."""

import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from fedlap.errors import InputError, unknown
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.settings import Section, one_line
from fedlap.reproduce.recipe_schema import SETTING, Cell, Claim, Part, Quick, Reading, Reason, Row
from fedlap.storage.files import read_text, reason

FOLDER = Path(__file__).parent / "recipes"


class Recipe(Part):
    """A table or a figure: cells times rows, each read in one or several ways, over seeds."""

    name: str
    source: str = ""  # its file
    title: str
    place: str  # in the paper's text
    order: int = 0  # among the recipes, as the paper has them
    shown: Literal["table", "strengths", "curves"] = "table"
    about: str = ""
    seeds: str = "0-9"
    folds: int = 5
    common: Section
    readings: dict[str, Reading]
    cells: dict[str, Cell]
    rows: dict[str, Row]
    ladders: dict[str, list[Any]] = Field(default_factory=dict)  # rising values, beyond the grids
    claims: list[Claim] = Field(default_factory=list)
    remarks: list[str] = Field(default_factory=list)  # what came out, in words
    reasons: list[Reason] = Field(default_factory=list)
    quick: Quick

    @staticmethod
    def read(path: Path) -> "Recipe":
        """From a file; a mistake is one line that names the field."""
        try:
            described = tomllib.loads(read_text(path))
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be read: {reason(error)}") from error
        except (ValueError, RecursionError) as error:
            raise InputError(f"{str(path)!r} is not a TOML file: {error}") from error
        try:
            made = Recipe.model_validate({"name": path.stem, **described, "source": str(path)})
        except ValidationError as error:
            raise one_line(error, Recipe.model_fields, "a recipe", prefix=f"recipe {path.stem}: ") from None
        made._check()
        return made

    def _check(self) -> None:
        """Names that a recipe uses of its own."""
        for name, row in self.rows.items():
            for other in row.follows.values():
                if other not in self.rows or self.rows[other].follows:
                    where = f"recipe {self.name}: rows.{name}.follows"
                    raise InputError(
                        f"{where}: {other!r} is no row that is tuned by itself; name one that is"
                    )
        for name, cell in self.cells.items():
            self._known(f"cells.{name}", "row", (*cell.without, *cell.paper), self.rows)
            self._known(f"cells.{name}.tuning_rounds", "reading", cell.tuning_rounds, self.readings)
            self._known(f"cells.{name}.within", "reading", cell.within, self.readings)
        for name, ladder in self.ladders.items():
            if ladder != sorted(set(ladder)):
                raise InputError(
                    f"recipe {self.name}: ladders.{name} = {ladder}; give rising values",
                    field=f"ladders.{name}",
                )
        for claim in self.claims:
            self._known("claims", "row", (claim.row, *claim.against), self.rows)
            self._known("claims", "cell", claim.cells, self.cells)

    def _known(self, where: str, what: str, names: Iterable[str], known: Mapping[str, Any]) -> None:
        for name in names:
            if name not in known:
                raise InputError(f"recipe {self.name}: {where}: {unknown(what, name, known)}")

    def units(self) -> Iterator["Unit"]:
        """Everything that is asked for, one method in one cell at a time; a row after those it follows."""
        for reading, cell in itertools.product(self.readings, self.cells):
            names = [name for name in self.rows if name not in self.cells[cell].without]
            for name in sorted(names, key=lambda name: bool(self.rows[name].follows)):
                yield Unit(self, cell, reading, name)

    def narrowed(
        self, data: Sequence[str], cells: Sequence[str], readings: Sequence[str], rows: Sequence[str]
    ) -> "Recipe":
        """Some data sets, cells, readings, rows (and those that these follow); all where none are named."""
        left = {
            name: cell
            for name, cell in self.cells.items()
            if (not data or cell.data["name"] in data) and (not cells or name in cells)
        }
        kept = [name for name in readings if name in self.readings] or list(self.readings)
        own = [name for name in rows if name in self.rows] or list(self.rows)
        own += [other for name in own for other in self.rows[name].follows.values()]
        return self.model_copy(
            update={
                "cells": left,
                "readings": {name: self.readings[name] for name in self.readings if name in kept},
                "rows": {name: row for name, row in self.rows.items() if name in own},
            }
        )

    def led(self, row: str) -> str:
        """The row that it follows, or else itself."""
        return next(iter(self.rows[row].follows.values()), row)

    def smaller(self) -> "Recipe":
        """Its quick form, which exercises everything and shows nothing."""
        quick = self.quick
        self._known("quick", "cell", quick.cells, self.cells)

        def fewer(grid: Mapping[str, list[Any] | Literal["reading"]]) -> dict[str, Any]:
            return {k: v if isinstance(v, str) else v[: quick.values] for k, v in grid.items()}

        return self.model_copy(
            update={
                "title": f"{self.title} (quick form: its numbers mean nothing)",
                "seeds": quick.seeds,
                "folds": quick.folds,
                "ladders": {},
                "common": self.common | {"rounds": quick.rounds, "evaluate_every": 1},
                "readings": {
                    name: self.readings[name].model_copy(update={"grid": fewer(self.readings[name].grid)})
                    for name in quick.readings
                },
                "cells": {name: self.cells[name] for name in quick.cells},
                "rows": {
                    name: row.model_copy(update={"grid": fewer(row.grid)}) for name, row in self.rows.items()
                },
            }
        )


@dataclass(frozen=True)
class Unit:
    """One method in one cell, read in one way: what is tuned, trained and written as one row."""

    recipe: Recipe
    cell: str
    reading: str
    row: str

    @property
    def place(self) -> str:
        """Where it belongs."""
        return f"{self.recipe.name}/{self.cell}-{self.reading}"

    def description(self) -> dict[str, Any]:
        """The experiment, but for the seed and what is tuned."""
        cell, row = self.recipe.cells[self.cell], self.recipe.rows[self.row]
        made: dict[str, Any] = {**self.recipe.common, "data": cell.data, "model": cell.model}
        made |= {"partition": cell.partition} if cell.partition else {}
        made |= {"scarce": cell.scarce} if cell.scarce is not None else {}
        made |= {"graph": row.graph} if row.graph else {}
        work = self.recipe.readings[self.reading].settings | row.readings.get(self.reading, {})
        return made | {"algorithm": {**row.algorithm, **work}}

    @property
    def tuning_rounds(self) -> int:
        """Rounds of the runs that values are chosen by."""
        all_ = int(self.recipe.common.get("rounds", Experiment.model_fields["rounds"].default))
        own = self.recipe.cells[self.cell].tuning_rounds.get(self.reading)
        return min(own or self.recipe.readings[self.reading].tuning_rounds or all_, all_)

    def experiment(self, values: Section) -> Experiment:
        """With these values of what is tuned."""
        made = self.description()
        return Experiment.of(made | {"algorithm": {**made["algorithm"], **values}})

    def grid(self) -> dict[str, list[Any]]:
        """Settings and the values to try."""
        given = self.recipe.readings[self.reading].grid
        made: dict[str, list[Any]] = {}
        for name, values in self.recipe.rows[self.row].grid.items():
            if values == SETTING and name not in given:
                where = f"recipe {self.recipe.name}: rows.{self.row}.grid.{name}"
                raise InputError(f"{where}: the reading {self.reading!r} has no values for it; give some")
            made[name] = given[name] if isinstance(values, str) else values
        return made

    def ladders(self) -> dict[str, list[Any]]:
        """Of settings with several values, those to go on to."""
        if self.reading in self.recipe.cells[self.cell].within:
            return {}
        known = self.recipe.ladders
        return {
            name: known[name] for name, values in self.grid().items() if len(values) > 1 and name in known
        }

    def candidates(self, followed: Section) -> list[Section]:
        """All combinations of values, beside those that follow another row."""
        grid = self.grid()
        return [
            {**dict(zip(grid, values, strict=True)), **followed}
            for values in itertools.product(*grid.values())
        ]

    def alike(self, other: "Unit") -> bool:
        """Whether both are rows of one method in one cell, with values that a third row was tuned to."""
        rows = self.recipe.rows[self.row], other.recipe.rows[other.row]
        if self.place != other.place or self.row == other.row or any(each.grid for each in rows):
            return False
        said = [(each.algorithm["name"], each.follows) for each in rows]
        return bool(rows[0].follows) and said[0] == said[1]

    @property
    def signature(self) -> str:
        """Sixteen hexadecimal digits of all that fixes its numbers, but for seeds, device and kept values."""
        row = self.recipe.rows[self.row]
        said = [self.description(), self.grid(), row.follows, self.recipe.folds, self.tuning_rounds]
        said += [self.ladders()] if self.ladders() else []
        for other in sorted(row.follows.values()):
            said.append(Unit(self.recipe, self.cell, self.reading, other).signature)
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def known_recipes() -> list[str]:
    """Names of those that come with the library."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def recipe(name: str) -> Recipe:
    """One that comes with the library, by its name, or a file of one's own."""
    if name.endswith(".toml"):
        return Recipe.read(Path(name))
    if name not in known_recipes():
        raise unknown("recipe", name, known_recipes())
    return Recipe.read(FOLDER / f"{name}.toml")
