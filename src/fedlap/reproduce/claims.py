"""What the paper says, checked: which claims hold, by how much, and where not."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedlap.report.page.sections import Cell, Records, TableSection, Value
from fedlap.report.paired_tests import LEVEL, holm, paired
from fedlap.reproduce.cell_results import Finding, Findings
from fedlap.reproduce.recipe import Recipe
from fedlap.reproduce.recipe_schema import Claim

MARGIN = 0.5  # points: less than this is no loss worth naming
ABOUT = (
    "Paired over seeds: the difference in points ± its standard error. Better and worse: a two-sided t-test "
    "shows it, p below 0.05 by Holm's rule over the tests of a claim in a cell. As good: it does not, and "
    f"the difference's 95 % interval stays above −{MARGIN:g}. Open: neither. A claim of being at least as "
    "good holds where all are better or as good, and does not where one is worse. Against a method that "
    "diverged at some seeds, the others count, and their number is said."
)
STEADY = (
    "Points are those between the lowest and the highest cell, seed by seed: the row's beneath the verdict, "
    "others' beneath the difference, which is above zero where the row changes less."
)


@dataclass(frozen=True)
class Against:
    """A row against another in one cell: the difference in points, and whether a test shows it."""

    other: str
    difference: float
    error: float | None
    least: float | None  # the lower end of the difference's 95 % interval
    p_value: float | None  # by Holm's rule over the claim's tests in this cell
    seeds: int | None = None  # that count, where the row has more

    @property
    def verdict(self) -> str:
        """better or worse, where a test shows it; as good, where at most the margin may be lost; or open."""
        if self.p_value is not None and self.p_value < LEVEL:
            return "better" if self.difference > 0 else "worse"
        return "as good" if self.least is not None and self.least > -MARGIN else "open"


@dataclass(frozen=True)
class Checked:
    """A claim in one cell and reading, or, that a row is steady, in all cells of one model.

    spans: of a steady row and others, points between the lowest and the highest cell, mean over seeds.
    """

    claim: Claim
    reading: str
    title: str
    against: list[Against]
    missing: bool  # whether some of those it is held against were not run
    spans: dict[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """It holds where the row is better or as good; one that is worse is enough against it."""
        kinds = {each.verdict for each in self.against}
        if "worse" in kinds:
            return "DOES NOT HOLD"
        if "open" in kinds:
            return "not shown"
        return "holds so far" if self.missing else "holds"


def checked(recipe: Recipe, findings: Findings) -> list[Checked]:
    """Every claim, wherever there are numbers for it."""
    made = []
    for claim in recipe.claims:
        for reading in claim.readings or recipe.readings:
            # A narrowed recipe has not all of those that a claim names.
            cells = [cell for cell in claim.cells or recipe.cells if cell in recipe.cells]
            if claim.against:
                made += [_tested(recipe, findings, claim, cell, reading) for cell in cells]
            else:
                models = dict.fromkeys(str(recipe.cells[cell].model["name"]) for cell in cells)
                alike = [[c for c in cells if recipe.cells[c].model["name"] == model] for model in models]
                made += [_steady(recipe, findings, claim, some, reading) for some in alike]
    return [each for each in made if each is not None]


def _tested(recipe: Recipe, findings: Findings, claim: Claim, cell: str, reading: str) -> Checked | None:
    """A claim in one cell, where its tests count together."""
    rows = findings.rows(recipe, cell, reading)
    if claim.row not in rows or not rows[claim.row].finished:
        return None
    scores = {name: row.by_seed for name, row in rows.items()}
    against = _held_against(scores, claim.row, claim.against)
    asked = [other for other in claim.against if other not in recipe.cells[cell].without]
    title = recipe.cells[cell].title
    return Checked(claim, reading, title, against, len(against) < len(asked)) if against else None


def _steady(
    recipe: Recipe, findings: Findings, claim: Claim, cells: Sequence[str], reading: str
) -> Checked | None:
    """Whether a row changes less from cell to cell than others do; to change less is to be better."""
    known = {cell: findings.rows(recipe, cell, reading) for cell in cells}
    known = {cell: rows for cell, rows in known.items() if claim.row in rows and rows[claim.row].finished}
    if len(known) < 2:
        return None
    spans = _spans(list(known.values()))
    steadiness = {name: {seed: -span for seed, span in own.items()} for name, own in spans.items()}
    against = _held_against(steadiness, claim.row, recipe.rows)
    first, *_, last = (recipe.cells[cell].title for cell in known)
    missing = len(known) < len(cells) or len(spans) < len(recipe.rows)
    means = {name: float(np.mean(list(own.values()))) for name, own in spans.items()}
    return Checked(claim, reading, f"{first} to {last}", against, missing, means) if against else None


def _spans(cells: Sequence[Mapping[str, Finding]]) -> dict[str, dict[int, float]]:
    """Of rows that all cells have, the points between the lowest and the highest, seed by seed."""
    made = {}
    for name in cells[0]:
        scores = [rows[name].by_seed for rows in cells if name in rows]
        seeds = sorted(set.intersection(*map(set, scores)))
        if len(scores) == len(cells) and seeds:
            made[name] = {seed: float(np.ptp([each[seed] for each in scores])) for seed in seeds}
    return made


def _held_against(
    scores: Mapping[str, Mapping[int, float]], row: str, others: Iterable[str]
) -> list[Against]:
    """A row against others, each at the seeds that both have, tested together."""
    own, there, pairs, seeds = scores[row], [], [], []
    for other in others:
        both = [seed for seed in own if seed in scores.get(other, {})]
        if both and other != row:
            there.append(other)
            seeds.append(len(both))
            pairs.append(paired([own[seed] for seed in both], [scores[other][seed] for seed in both]))
    adjusted = holm([1.0 if pair.p_value is None else pair.p_value for pair in pairs])
    return [
        Against(
            other,
            pair.mean,
            pair.error,
            pair.mean if pair.same else None if pair.interval is None else pair.interval[0],
            None if pair.p_value is None else p,
            number if number < len(own) else None,
        )
        for other, pair, p, number in zip(there, pairs, adjusted, seeds, strict=True)
    ]


def tables(recipe: Recipe, findings: Findings) -> list[TableSection]:
    """A table for each claim: cells and readings in rows, those it is held against in columns."""
    every = checked(recipe, findings)
    made: list[TableSection] = []
    for place, claim in enumerate(recipe.claims, 1):
        own = [each for each in every if each.claim is claim]
        if own:
            others = [other for other in recipe.rows if any(other == a.other for e in own for a in e.against)]
            made.append(
                TableSection(
                    title=f"{claim.text}?",
                    about=" ".join(
                        filter(None, (ABOUT if not made else "", "" if claim.against else STEADY))
                    ),
                    name=f"{recipe.name}-claim-{place}",
                    columns=[
                        "data and model",
                        "R",
                        "verdict",
                        *(recipe.rows[other].title for other in others),
                    ],
                    rows=[_line(recipe, each, others) for each in own],
                    group="What holds",
                    records=_records(recipe, own),
                )
            )
    return made


def _records(recipe: Recipe, own: Sequence[Checked]) -> Records:
    """The numbers of a claim's table: a line for each method that it is held against."""
    names = ["data_and_model", "reading", "against", "verdict"]
    numbers = ["difference_points", "standard_error_points", "lower_end_points", "p_adjusted"]
    lines: list[list[Value]] = []
    for each in own:
        for against in each.against:
            titles = each.title, each.reading, recipe.rows[against.other].title, against.verdict
            lines.append([*titles, against.difference, against.error, against.least, against.p_value])
    return Records(names + numbers, lines)


def _line(recipe: Recipe, each: Checked, others: list[str]) -> list[Cell]:
    known = {against.other: against for against in each.against}
    own = f"{each.spans[each.claim.row]:.2f} points" if each.spans else ""
    return [
        Cell(each.title),
        Cell(each.reading),
        Cell(each.verdict, own),
        *(_difference(known[o], each.spans.get(o)) if o in known else Cell("–", muted=True) for o in others),
    ]


def _difference(against: Against, span: float | None) -> Cell:
    error = "" if against.error is None else f" ± {against.error:.2f}"
    note = against.verdict if span is None else f"{against.verdict}, {span:.2f} points"
    note += "" if against.seeds is None else f", {against.seeds} seeds"
    return Cell(f"{against.difference:+z.2f}{error}", note, muted=against.verdict == "open")
