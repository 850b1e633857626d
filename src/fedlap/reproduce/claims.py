"""Claims of the paper, checked by paired tests: where they hold, where not, and by how much."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedlap.report.page.sections import Records, RecordValue, TableCell, TableSection
from fedlap.report.paired_tests import LEVEL, adjust_holm, compare_paired
from fedlap.reproduce.cell_results import ResultFolder, RowResult
from fedlap.reproduce.recipe import Recipe
from fedlap.reproduce.recipe_schema import Claim

LOSS_MARGIN = 0.5  # points: less than this is no loss worth naming
CLAIM_LEGEND = (
    "Paired over seeds: the difference in points ± its standard error. Better, worse: significant (two-sided "
    "paired t-test, Holm-corrected p < 0.05, over the tests of a claim in a cell). As good: not significant, "
    f"with a 95 % interval above −{LOSS_MARGIN:g}. Undecided: neither. A claim of being at least as good "
    "holds if all are better or as good, and does not hold if one is worse. Against a method that diverged "
    "at some seeds, only the other seeds are compared, and their number is given."
)
SPREAD_LEGEND = (
    "Spread: points between the lowest and the highest cell of a seed, mean over seeds. The row's spread is "
    "under the verdict, the others' under the difference. A positive difference means that the row varies "
    "less."
)


@dataclass(frozen=True)
class PairedDifference:
    """The paired difference between two rows of a cell, in points, and its test."""

    other: str
    difference: float
    error: float | None
    lower_end: float | None  # the lower end of the difference's 95 % interval
    p_value: float | None  # Holm-corrected over the claim's tests in this cell
    seeds: int | None = None  # the number of common seeds, if the row has more

    @property
    def verdict(self) -> str:
        """better or worse if significant; as good if the loss stays within the margin; else undecided."""
        if self.p_value is not None and self.p_value < LEVEL:
            return "better" if self.difference > 0 else "worse"
        return "as good" if self.lower_end is not None and self.lower_end > -LOSS_MARGIN else "undecided"


@dataclass(frozen=True)
class ClaimCheck:
    """The check of a claim in one cell and reading; a claim of steadiness covers all cells of a model.

    spreads: points between the lowest and the highest cell, per row, mean over seeds.
    """

    claim: Claim
    reading: str
    title: str
    against: list[PairedDifference]
    missing: bool  # True if rows of the comparison were not run
    spreads: dict[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The claim holds if the row is better or as good everywhere; one worse result refutes it."""
        kinds = {difference.verdict for difference in self.against}
        if "worse" in kinds:
            return "DOES NOT HOLD"
        if "undecided" in kinds:
            return "undecided"
        return "holds so far" if self.missing else "holds"


def check_claims(recipe: Recipe, results: ResultFolder) -> list[ClaimCheck]:
    """Check every claim in every cell that has results for it."""
    checks = []
    for claim in recipe.claims:
        for reading in claim.readings or recipe.readings:
            # A narrowed recipe lacks some of the cells that a claim names.
            cells = [cell for cell in claim.cells or recipe.cells if cell in recipe.cells]
            if claim.against:
                checks += [_check_in_cell(recipe, results, claim, cell, reading) for cell in cells]
            else:
                models = dict.fromkeys(str(recipe.cells[cell].model["name"]) for cell in cells)
                alike = [[c for c in cells if recipe.cells[c].model["name"] == model] for model in models]
                checks += [_check_steadiness(recipe, results, claim, group, reading) for group in alike]
    return [check for check in checks if check is not None]


def _check_in_cell(
    recipe: Recipe, results: ResultFolder, claim: Claim, cell: str, reading: str
) -> ClaimCheck | None:
    """Check a claim in one cell; Holm's rule covers all tests of the claim there."""
    rows = results.read_rows(recipe, cell, reading)
    if claim.row not in rows or not rows[claim.row].finished:
        return None
    scores = {name: row.by_seed for name, row in rows.items()}
    against = _compare_row(scores, claim.row, claim.against)
    asked = [other for other in claim.against if other not in recipe.cells[cell].without]
    title = recipe.cells[cell].title
    return ClaimCheck(claim, reading, title, against, len(against) < len(asked)) if against else None


def _check_steadiness(
    recipe: Recipe, results: ResultFolder, claim: Claim, cells: Sequence[str], reading: str
) -> ClaimCheck | None:
    """Check that a row varies less from cell to cell than the others; less variation counts as better."""
    measured = {cell: results.read_rows(recipe, cell, reading) for cell in cells}
    measured = {
        cell: rows for cell, rows in measured.items() if claim.row in rows and rows[claim.row].finished
    }
    if len(measured) < 2:
        return None
    spans = _find_spreads(list(measured.values()))
    steadiness = {name: {seed: -span for seed, span in by_seed.items()} for name, by_seed in spans.items()}
    against = _compare_row(steadiness, claim.row, recipe.rows)
    first, *_, last = (recipe.cells[cell].title for cell in measured)
    missing = len(measured) < len(cells) or len(spans) < len(recipe.rows)
    means = {name: float(np.mean(list(by_seed.values()))) for name, by_seed in spans.items()}
    return ClaimCheck(claim, reading, f"{first} to {last}", against, missing, means) if against else None


def _find_spreads(cells: Sequence[Mapping[str, RowResult]]) -> dict[str, dict[int, float]]:
    """Return the points between the lowest and the highest cell, per seed, of rows that all cells have."""
    spreads = {}
    for name in cells[0]:
        scores = [rows[name].by_seed for rows in cells if name in rows]
        seeds = sorted(set.intersection(*map(set, scores)))
        if len(scores) == len(cells) and seeds:
            spreads[name] = {seed: float(np.ptp([by_seed[seed] for by_seed in scores])) for seed in seeds}
    return spreads


def _compare_row(
    scores: Mapping[str, Mapping[int, float]], row: str, others: Iterable[str]
) -> list[PairedDifference]:
    """Compare a row with others at their common seeds; Holm's rule covers all of the tests."""
    scores_of_row, compared, pairs, seeds = scores[row], [], [], []
    for other in others:
        both = [seed for seed in scores_of_row if seed in scores.get(other, {})]
        if both and other != row:
            compared.append(other)
            seeds.append(len(both))
            pairs.append(
                compare_paired([scores_of_row[seed] for seed in both], [scores[other][seed] for seed in both])
            )
    adjusted = adjust_holm([1.0 if pair.p_value is None else pair.p_value for pair in pairs])
    return [
        PairedDifference(
            other,
            pair.mean,
            pair.error,
            pair.mean if pair.identical else None if pair.interval is None else pair.interval[0],
            None if pair.p_value is None else p,
            number if number < len(scores_of_row) else None,
        )
        for other, pair, p, number in zip(compared, pairs, adjusted, seeds, strict=True)
    ]


def build_claim_tables(recipe: Recipe, results: ResultFolder) -> list[TableSection]:
    """Build one table per claim: cells and readings in rows, the compared methods in columns."""
    checks = check_claims(recipe, results)
    sections: list[TableSection] = []
    for place, claim in enumerate(recipe.claims, 1):
        checks_of_claim = [check for check in checks if check.claim is claim]
        if checks_of_claim:
            others = [
                other
                for other in recipe.rows
                if any(other == a.other for e in checks_of_claim for a in e.against)
            ]
            sections.append(
                TableSection(
                    title=f"{claim.text}?",
                    about=" ".join(
                        filter(
                            None,
                            (CLAIM_LEGEND if not sections else "", "" if claim.against else SPREAD_LEGEND),
                        )
                    ),
                    name=f"{recipe.name}-claim-{place}",
                    columns=[
                        "data and model",
                        "R",
                        "verdict",
                        *(recipe.rows[other].title for other in others),
                    ],
                    rows=[_build_row(recipe, check, others) for check in checks_of_claim],
                    group="Claims",
                    records=_build_records(recipe, checks_of_claim),
                )
            )
    return sections


def _build_records(recipe: Recipe, checks: Sequence[ClaimCheck]) -> Records:
    """Build the numbers of a claim's table, one line per compared method."""
    names = ["data_and_model", "reading", "against", "verdict"]
    numbers = ["difference_points", "standard_error_points", "lower_end_points", "p_adjusted"]
    lines: list[list[RecordValue]] = []
    for check in checks:
        for against in check.against:
            titles = check.title, check.reading, recipe.rows[against.other].title, against.verdict
            lines.append([*titles, against.difference, against.error, against.lower_end, against.p_value])
    return Records(names + numbers, lines)


def _build_row(recipe: Recipe, check: ClaimCheck, others: list[str]) -> list[TableCell]:
    by_method = {against.other: against for against in check.against}
    spread = f"{check.spreads[check.claim.row]:.2f} points" if check.spreads else ""
    return [
        TableCell(check.title),
        TableCell(check.reading),
        TableCell(check.verdict, spread),
        *(
            _build_difference_cell(by_method[o], check.spreads.get(o))
            if o in by_method
            else TableCell("–", muted=True)
            for o in others
        ),
    ]


def _build_difference_cell(against: PairedDifference, span: float | None) -> TableCell:
    error = "" if against.error is None else f" ± {against.error:.2f}"
    note = against.verdict if span is None else f"{against.verdict}, {span:.2f} points"
    note += "" if against.seeds is None else f", {against.seeds} seeds"
    return TableCell(f"{against.difference:+z.2f}{error}", note, muted=against.verdict == "undecided")
