"""What the paper says, checked: which claims hold, by how much, and where not."""

from dataclasses import dataclass

from fedlap.findings import Findings
from fedlap.ingredients import Claim
from fedlap.recipe import Recipe
from fedlap.report.page.sections import Cell, TableSection
from fedlap.report.paired import LEVEL, holm, paired
from fedlap.report.reproduced.scores import common

MARGIN = 0.5  # points: less than this is no loss worth naming
ABOUT = (
    "Paired over seeds: the difference in points ± its standard error. Better and worse: a two-sided t-test "
    "shows it, p below 0.05 by Holm's rule over the tests of a claim in a cell. As good: it does not, and "
    f"the difference's 95 % interval stays above −{MARGIN:g}. Open: neither. A claim of being at least as "
    "good holds where all are better or as good, and does not where one is worse."
)


@dataclass(frozen=True)
class Against:
    """A row against another in one cell: the difference in points, and whether a test shows it."""

    other: str
    difference: float
    error: float | None
    least: float | None  # the lower end of the difference's 95 % interval
    p_value: float | None  # by Holm's rule over the claim's tests in this cell

    @property
    def verdict(self) -> str:
        """better or worse, where a test shows it; as good, where at most the margin may be lost; or open."""
        if self.p_value is not None and self.p_value < LEVEL:
            return "better" if self.difference > 0 else "worse"
        return "as good" if self.least is not None and self.least > -MARGIN else "open"


@dataclass(frozen=True)
class Checked:
    """A claim in one cell and reading."""

    claim: Claim
    reading: str
    cell: str
    against: list[Against]
    missing: bool  # whether some of those it is held against were not run

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
    """Every claim that names others, wherever there are numbers for it."""
    made = []
    for claim in recipe.claims:
        for reading in claim.readings or recipe.readings:
            cells = [
                cell for cell in claim.cells or recipe.cells if cell in recipe.cells
            ]  # of a narrowed one
            made += [_tested(recipe, findings, claim, cell, reading) for cell in cells]
    return [each for each in made if each is not None]


def _tested(recipe: Recipe, findings: Findings, claim: Claim, cell: str, reading: str) -> Checked | None:
    """A claim in one cell, where its tests count together."""
    rows = findings.rows(recipe, cell, reading)
    scores = common({name: rows[name] for name in (claim.row, *claim.against) if name in rows})
    others = [other for other in claim.against if claim.row in scores and other in scores]
    pairs = [paired(scores[claim.row], scores[other]) for other in others]
    adjusted = holm([1.0 if pair.p_value is None else pair.p_value for pair in pairs])
    against = [
        Against(
            other,
            pair.mean,
            pair.error,
            pair.mean if pair.same else None if pair.interval is None else pair.interval[0],
            None if pair.p_value is None else p,
        )
        for other, pair, p in zip(others, pairs, adjusted, strict=True)
    ]
    asked = [other for other in claim.against if other not in recipe.cells[cell].without]
    return Checked(claim, reading, cell, against, len(others) < len(asked)) if against else None


def tables(recipe: Recipe, findings: Findings) -> list[TableSection]:
    """A table for each claim: cells and readings in rows, those it is held against in columns."""
    every = checked(recipe, findings)
    made: list[TableSection] = []
    for place, claim in enumerate(recipe.claims, 1):
        own = [each for each in every if each.claim is claim]
        if own:
            others = [
                other for other in claim.against if any(other == a.other for e in own for a in e.against)
            ]
            made.append(
                TableSection(
                    title=f"{claim.text}?",
                    about=ABOUT if not made else "",
                    name=f"{recipe.name}-claim-{place}",
                    columns=[
                        "data and model",
                        "R",
                        "verdict",
                        *(recipe.rows[other].title for other in others),
                    ],
                    rows=[_line(recipe, each, others) for each in own],
                    group="What holds",
                )
            )
    return made


def _line(recipe: Recipe, each: Checked, others: list[str]) -> list[Cell]:
    known = {against.other: against for against in each.against}
    return [
        Cell(recipe.cells[each.cell].title),
        Cell(each.reading),
        Cell(each.verdict),
        *(_difference(known[other]) if other in known else Cell("–", muted=True) for other in others),
    ]


def _difference(against: Against) -> Cell:
    error = "" if against.error is None else f" ± {against.error:.2f}"
    return Cell(f"{against.difference:+z.2f}{error}", against.verdict, muted=against.verdict == "open")


def steadiness(recipe: Recipe, findings: Findings) -> list[str]:
    """Claims that a row is hardly affected by the cell: how far its accuracy goes, and that of others."""
    made = []
    for claim in recipe.claims:
        for reading in recipe.readings if not claim.against else []:
            for kind in dict.fromkeys(recipe.cells[cell].model["name"] for cell in recipe.cells):
                reached = _reached(recipe, findings, reading, kind)
                if claim.row in reached and len(reached[claim.row]) > 1:
                    made.append(f"{claim.text} ({reading}, {kind}): {_spans(recipe, claim.row, reached)}")
    return made


def _reached(recipe: Recipe, findings: Findings, reading: str, kind: str) -> dict[str, list[float]]:
    """Mean accuracies of each row over the cells of one kind of model."""
    made: dict[str, list[float]] = {}
    for cell, described in recipe.cells.items():
        if described.model["name"] == kind:
            for name, row in findings.rows(recipe, cell, reading).items():
                if row.finished:
                    made.setdefault(name, []).append(float(row.accuracy.mean()))
    return made


def _spans(recipe: Recipe, row: str, reached: dict[str, list[float]]) -> str:
    """The row's span first, then the others', narrowest first."""
    spans = {name: max(values) - min(values) for name, values in reached.items()}
    others = sorted((name for name in spans if name != row), key=spans.__getitem__)
    words = [
        f"{recipe.rows[name].title} {spans[name]:.2f} ({min(reached[name]):.2f} to {max(reached[name]):.2f})"
        for name in (row, *others)
    ]
    return "points between the lowest and the highest mean: " + ", ".join(words) + "."
