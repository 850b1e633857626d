"""The page of a recipe: everything that was found, and how to find it again."""

from collections.abc import Iterator
from pathlib import Path

from fedlap.report.comparison import bytes_text
from fedlap.report.page import Cell, FactsSection, Page, Records, Section, TableSection
from fedlap.report.page import write as write_page
from fedlap.reproduce import claims, figures, score_table
from fedlap.reproduce.cell_results import Finding, Findings, cells_of
from fedlap.reproduce.recipe import Recipe


def write(recipe: Recipe, findings: Findings, command: str) -> Path:
    """Write the page and the other forms of its tables and figures beside the findings."""
    return write_page(made(recipe, findings, command), findings.folder / recipe.name)


def made(recipe: Recipe, findings: Findings, command: str) -> Page:
    """The page."""
    return Page(
        title=recipe.title,
        lead=f"{recipe.place}. {' '.join(recipe.about.split())}",
        sections=list(_sections(recipe, findings)),
        command=command,
    )


def _sections(recipe: Recipe, findings: Findings) -> Iterator[Section]:
    for reading in recipe.readings:
        table = score_table.table(recipe, findings, reading)
        if table is not None:
            yield table
    yield from claims.tables(recipe, findings)
    for reading in recipe.readings:
        if recipe.shown == "strengths":
            figure = figures.strengths(recipe, findings, reading)
            if figure is not None:
                yield figure
        yield from figures.curves(recipe, findings, reading)
    for reading in recipe.readings:
        yield from figures.gains(recipe, findings, reading)
    yield from figures.label_pictures(recipe, findings)
    for reading in recipe.readings:
        yield from figures.learned_graphs(recipe, findings, reading)
    for reading in recipe.readings:
        for table in (score_table.choices(recipe, findings, reading), sent(recipe, findings, reading)):
            if table is not None:
                yield table
    yield environment(recipe, findings)


def sent(recipe: Recipe, findings: Findings, reading: str) -> TableSection | None:
    """Bytes a round."""
    cells = findings.cells(recipe, reading)
    if not cells:
        return None

    def bytes_of(row: Finding) -> tuple[float, float]:
        rounds = row.last("round").mean()
        return row.last("bytes_up").mean() / rounds, row.last("bytes_down").mean() / rounds

    def cell_of(row: Finding | None) -> Cell:
        if row is None or not row.finished:
            return Cell("–", muted=True)
        return Cell(" / ".join(map(bytes_text, bytes_of(row))))

    return TableSection(
        title=f"Bytes a round: {recipe.readings[reading].title}",
        about="Sent by / to all clients of a round together, mean over rounds and seeds.",
        name=f"{recipe.name}-{reading}-bytes",
        columns=["method", *(recipe.cells[cell].title for cell in cells)],
        rows=[
            [Cell(row.title), *(cell_of(rows.get(name)) for rows in cells.values())]
            for name, row in recipe.rows.items()
            if any(name in rows for rows in cells.values())
        ],
        records=Records(
            ["method", "data_and_model", "upload_bytes_per_round", "download_bytes_per_round"],
            [
                [recipe.rows[name].title, recipe.cells[cell].title, *map(round, bytes_of(row))]
                for cell, rows in cells.items()
                for name, row in rows.items()
                if row.finished
            ],
        ),
    )


def environment(recipe: Recipe, findings: Findings) -> FactsSection:
    """Where and when it was run."""
    known: dict[str, set[str]] = {}
    for _, _, rows in cells_of(recipe, findings):
        for row in rows.values():
            for key, value in {**row.values.get("environment", {}), "date": row.values.get("made")}.items():
                if value is not None:
                    known.setdefault(key, set()).add(str(value))
            for choice in row.choices.values():
                known.setdefault("values", set()).add(BY[choice["by"]])
    return FactsSection("Where and when", [(key, "; ".join(sorted(values))) for key, values in known.items()])


BY = {
    "tuned": "chosen by cross-validation on training rows",
    "stored": "chosen so before and stored with the recipe",
    "fixed": "fixed by the recipe",
}
