"""The score table of a recipe: our mean ± std and the paper's; the best is marked only if significant."""

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from fedlap.report.page.sections import Records, RecordValue, TableCell, TableSection
from fedlap.report.paired_tests import compare_leader
from fedlap.reproduce.cell_results import ResultFolder, RowResult
from fedlap.reproduce.recipe import Recipe, Unit

SCORE_LEGEND = (
    "Pooled test accuracy in percent after the last round, mean ± standard deviation over seeds; below it "
    "the paper's. Marked: better than every other row of its column by paired t-tests over seeds (two-sided, "
    "Holm-corrected p < 0.05, over all pairs); none in a column of which a row was not run, or diverged at "
    "some seeds."
)


def build_score_table(recipe: Recipe, results: ResultFolder, reading: str) -> TableSection | None:
    """Build the table: methods in rows, data and models in columns; None if nothing was run."""
    cells = results.read_cells(recipe, reading)
    if not cells:
        return None
    marked = {
        cell: find_best(rows) if _is_complete(recipe, cell, rows) else None for cell, rows in cells.items()
    }
    shown = [name for name in recipe.rows if any(name in rows for rows in cells.values())]
    lines = [
        [
            TableCell(recipe.rows[name].title, recipe.rows[name].note),
            *(
                build_score_cell(recipe, cell, name, rows, marked[cell] == name)
                for cell, rows in cells.items()
            ),
        ]
        for name in shown
    ]
    seeds = {cell: max(len(row.seeds) for row in rows.values()) for cell, rows in cells.items()}
    most = max(seeds.values())
    return TableSection(
        title=recipe.readings[reading].title,
        about="; ".join(filter(None, (_format_seed_count(most), recipe.readings[reading].note))) + ".",
        name=f"{recipe.name}-{reading}",
        columns=["method", *(_format_column_title(recipe, cell, seeds[cell], most) for cell in cells)],
        rows=lines,
        footer=SCORE_LEGEND,
        group=recipe.title,
        records=_build_score_records(recipe, cells, marked),
    )


def _build_score_records(
    recipe: Recipe, cells: Mapping[str, Mapping[str, RowResult]], marked: Mapping[str, str | None]
) -> Records:
    """Build the numbers of the table, one line per method and cell."""
    columns = ["method", "data_and_model", "seeds", "diverged", "stability_product"]
    columns += ["accuracy_percent_mean", "accuracy_percent_std", "paper_percent_mean", "paper_percent_std"]
    lines: list[list[RecordValue]] = []
    for cell, rows in cells.items():
        for name in recipe.rows:
            row, paper = rows.get(name), recipe.cells[cell].paper.get(name) or (None, None)
            if name in recipe.cells[cell].without or (row is None and paper[0] is None):
                continue
            line: list[RecordValue] = [recipe.rows[name].title, recipe.cells[cell].title]
            if row is None:
                line += [0, 0, None, None, None]
            else:
                values = row.accuracy if row.finished else np.full(0, np.nan)
                mean = float(values.mean()) if len(values) else None
                std = float(values.std(ddof=1)) if len(values) > 1 else None
                line += [len(row.seeds), len(row.diverged), row.product, mean, std]
            lines.append([*line, *paper, int(marked[cell] == name)])
    return Records([*columns, "shown_best"], lines)


def build_score_cell(
    recipe: Recipe, cell: str, name: str, rows: Mapping[str, RowResult], marked: bool
) -> TableCell:
    """Build the cell of one method: its score, or why it has none."""
    paper = recipe.cells[cell].paper.get(name)
    note = "" if paper is None else f"paper {paper[0]:.2f} ± {paper[1]:.2f}"
    if name in recipe.cells[cell].without:
        return TableCell("–", note, muted=True)
    if name not in rows:
        return TableCell("not run", note, muted=True)
    row = rows[name]
    if row.unstable:
        at = len(row.values["refused_seeds"])
        share = "" if at == len(row.seeds) else f" at {at} of {len(row.seeds)} seeds"
        return TableCell(f"unstable{share}, μRηρ = {row.product:.3g}", note, muted=True)
    if row.refused is not None:
        return TableCell("invalid settings", note, muted=True)
    if row.diverged:
        return TableCell(f"{len(row.diverged)} of {len(row.seeds)} diverged", note, muted=True)
    return TableCell(format_scores(row.accuracy), note, best=marked)


def format_scores(values: np.ndarray) -> str:
    """Format mean ± sample standard deviation, or a single value."""
    mean = f"{values.mean():.2f}"
    return f"{mean} ± {values.std(ddof=1):.2f}" if len(values) > 1 else mean


def _is_complete(recipe: Recipe, cell: str, rows: Mapping[str, RowResult]) -> bool:
    """Return whether every method of a cell was run and has a score at all seeds or at none."""
    wanted_rows = set(recipe.rows) - set(recipe.cells[cell].without)
    return wanted_rows <= set(rows) and all(row.finished or not row.by_seed for row in rows.values())


def find_best(rows: Mapping[str, RowResult]) -> str | None:
    """Return the row that is significantly better than every other, if there is one."""
    scores = align_seeds(rows)
    if len(scores) < 2:
        return None
    leader = max(scores, key=lambda name: float(scores[name].mean()))
    return leader if all(lead.significant for lead in compare_leader(scores, leader)) else None


def align_seeds(rows: Mapping[str, RowResult]) -> dict[str, np.ndarray]:
    """Return accuracies at the seeds that all finished rows share."""
    finished = {name: row for name, row in rows.items() if row.finished}
    seeds = set.intersection(*(set(row.seeds) for row in finished.values())) if finished else set()
    return {
        name: np.array([value for seed, value in zip(row.seeds, row.accuracy, strict=True) if seed in seeds])
        for name, row in finished.items()
        if seeds
    }


def build_choices_table(recipe: Recipe, results: ResultFolder, reading: str) -> TableSection | None:
    """Build the table of the values chosen most often for each method, and how often."""
    cells = results.read_cells(recipe, reading)
    if not cells:
        return None
    lines = [
        [
            TableCell(recipe.rows[name].title),
            *(
                TableCell(_format_usual_choice(rows[name])) if name in rows else TableCell("–", muted=True)
                for rows in cells.values()
            ),
        ]
        for name in recipe.rows
        if any(name in rows for rows in cells.values())
    ]
    return TableSection(
        title=f"Chosen values: {recipe.readings[reading].title}",
        about=f"Tuned by {recipe.folds}-fold cross-validation on each seed's training rows, "
        f"{_describe_rounds(recipe, reading, cells)}. The values chosen most often, and for how many seeds. "
        "* marks a value at an end of the search range.",
        name=f"{recipe.name}-{reading}-chosen",
        columns=["method", *(recipe.cells[cell].title for cell in cells)],
        rows=lines,
        records=Records(
            ["method", "data_and_model", "seed", "setting", "value"],
            [
                [recipe.rows[name].title, recipe.cells[cell].title, int(seed), setting, value]
                for cell, rows in cells.items()
                for name, row in rows.items()
                for seed, choice in row.choices.items()
                for setting, value in choice["values"].items()
            ],
        ),
    )


def _describe_rounds(recipe: Recipe, reading: str, cells: Iterable[str]) -> str:
    """Describe the number of rounds of the tuning runs; cells are named if they differ."""
    row, titles = next(iter(recipe.rows)), dict[int, list[str]]()
    for cell in cells:
        rounds = Unit(recipe, cell, reading, row).tuning_rounds
        titles.setdefault(rounds, []).append(recipe.cells[cell].title)
    if len(titles) == 1:
        return f"{next(iter(titles))} rounds"
    return ", ".join(f"{rounds} rounds for {' and '.join(cells)}" for rounds, cells in titles.items())


def _format_usual_choice(row: RowResult) -> str:
    """Format the values chosen most often, and how often."""
    if not row.choices:
        return "invalid settings"
    grid = {**row.values.get("grid", {}), **row.values.get("ladders", {})}
    descriptions = []
    for choice in row.choices.values():
        words = [
            f"{name} {value:g}{_mark_end(grid.get(name), value)}" for name, value in choice["values"].items()
        ]
        descriptions.append(", ".join(words) or "no settings tuned")
    usual, times = Counter(descriptions).most_common(1)[0]
    return f"{usual} ({times}/{len(descriptions)})"


def find_usual_ends(row: RowResult) -> list[str]:
    """Return the settings whose chosen value is at an end of its range for more than half of the seeds."""
    grid = {**row.values.get("grid", {}), **row.values.get("ladders", {})}
    counts = Counter(
        name
        for choice in row.choices.values()
        for name, value in choice["values"].items()
        if _mark_end(grid.get(name), value)
    )
    return [name for name in grid if 2 * counts[name] > len(row.choices)]


def _mark_end(values: list[float] | None, value: float) -> str:
    return "*" if values and len(values) > 1 and value in (values[0], values[-1]) else ""


def _format_column_title(recipe: Recipe, cell: str, seeds: int, most: int) -> str:
    """Return a column's title, with the number of seeds if other columns have more."""
    title = recipe.cells[cell].title
    return title if seeds == most else f"{title} ({_format_seed_count(seeds)})"


def _format_seed_count(number: int) -> str:
    return f"{number} seed{'s' if number > 1 else ''}"
