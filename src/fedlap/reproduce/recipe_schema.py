"""Sections of a recipe: readings of R, cells, rows, claims, and reasons for deviations from the paper."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator

from fedlap.experiments.settings import Section

SETTING = "reading"  # in a grid: the values that the reading of R gives for this setting

Grid = dict[str, list[Any] | Literal["reading"]]


class RecipeSection(BaseModel):
    """Base of all sections: frozen, and without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Reading(RecipeSection):
    """One way to read "R local steps": settings of every method, and the learning rates to try with them."""

    title: str
    note: str = ""
    settings: Section
    grid: dict[str, list[Any]] = {}
    tuning_rounds: int | None = None  # of the tuning runs, if fewer than those of the final run


class RecipeCell(RecipeSection):
    """Data, their partition and scaling, a model, and the paper's mean and std for each row."""

    title: str
    data: Section
    model: Section
    partition: Section = {}
    scarce: Section | None = None
    without: list[str] = []  # rows that do not apply to this cell
    tuning_rounds: dict[str, int] = {}  # by reading, if they differ from the reading's
    within: list[str] = []  # readings in which the search stays within the grids
    paper: dict[str, list[float]] = {}

    @field_validator("paper")
    @classmethod
    def _check_paper(cls, paper: dict[str, list[float]]) -> dict[str, list[float]]:
        for name, values in paper.items():
            if len(values) != 2:
                raise ValueError(f"{name} = {values}; expected the mean and the standard deviation")
        return paper


class RecipeRow(RecipeSection):
    """A method and the settings that are tuned.

    grid: settings and the values to try, in all combinations; "reading" takes those of the reading.
    follows: settings that take the values another row was tuned to, seed by seed.
    readings: settings of the method that another reading changes.
    """

    title: str
    algorithm: Section
    graph: Section = {}
    grid: Grid = {}
    follows: dict[str, str] = {}
    readings: dict[str, Section] = {}
    note: str = ""


class Claim(RecipeSection):
    """A claim of the paper: a row is at least as good as others, or, without others, steady.

    A row is steady if its accuracy hardly changes between the cells of one model.

    note: a caution in Markdown, which every page with the claim's verdict shows.
    """

    text: str
    row: str
    against: list[str] = []
    cells: list[str] = []  # empty means all
    readings: list[str] = []
    note: str = ""


class Reason(RecipeSection):
    """A reason for deviations from the paper: the numbers that it explains, and their direction."""

    text: str
    readings: list[str] = []  # empty means all, as for cells and rows
    cells: list[str] = []
    rows: list[str] = []
    side: Literal["above", "below", "either"] = "either"


class Quick(RecipeSection):
    """Sizes of the quick form."""

    cells: list[str]
    readings: list[str] = ["steps"]
    seeds: str = "0-1"
    folds: int = 2
    rounds: int = 3
    values: int = 2  # of each grid's list
