"""What recipes are made of: readings of R, cells, rows, claims, and why numbers differ from a paper's."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator

from fedlap.experiments.settings import Section

SETTING = "reading"  # in a grid: the values that the reading of R gives for this setting

Grid = dict[str, list[Any] | Literal["reading"]]


class Part(BaseModel):
    """What all parts of a recipe are."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Reading(Part):
    """One way to read "R local steps": settings of every method, and the rates that are tried with it."""

    title: str
    note: str = ""
    settings: Section
    grid: dict[str, list[Any]] = {}
    tuning_rounds: int | None = None  # of runs that values are chosen by, where these are fewer


class Cell(Part):
    """Data, their partition and scaling, and a model; and what the paper has for each row, mean and std."""

    title: str
    data: Section
    model: Section
    partition: Section = {}
    scarce: Section | None = None
    without: list[str] = []  # rows that do not go with it
    tuning_rounds: dict[str, int] = {}  # where they are others than the reading's
    within: list[str] = []  # readings in which values keep to the grids
    paper: dict[str, list[float]] = {}

    @field_validator("paper")
    @classmethod
    def _pairs(cls, paper: dict[str, list[float]]) -> dict[str, list[float]]:
        for name, values in paper.items():
            if len(values) != 2:
                raise ValueError(f"{name} = {values}; give the mean and the standard deviation")
        return paper


class Row(Part):
    """A method with what is tuned of it.

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


class Claim(Part):
    """What the paper says: one row is at least as good as others, or, of no others, that it is steady.

    A row is steady where its accuracy hardly changes from cell to cell of one model.
    """

    text: str
    row: str
    against: list[str] = []
    cells: list[str] = []  # all unless these
    readings: list[str] = []


class Reason(Part):
    """Why numbers differ much from the paper's: which, and in which direction."""

    text: str
    readings: list[str] = []  # all unless these, as for cells and rows
    cells: list[str] = []
    rows: list[str] = []
    side: Literal["above", "below", "either"] = "either"


class Quick(Part):
    """The small form: what is left of everything."""

    cells: list[str]
    readings: list[str] = ["steps"]
    seeds: str = "0-1"
    folds: int = 2
    rounds: int = 3
    values: int = 2  # of each grid's list
