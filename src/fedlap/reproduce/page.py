"""The HTML page of a recipe: all results, and the command that reproduces them."""

from collections.abc import Iterator
from pathlib import Path

from fedlap.report.comparison import format_bytes
from fedlap.report.page import FactsSection, Page, PageSection, Records, TableCell, TableSection, write_page
from fedlap.reproduce import claims, figures, score_table
from fedlap.reproduce.cell_results import ResultFolder, RowResult, iterate_cells
from fedlap.reproduce.recipe import Recipe


def write_recipe_page(recipe: Recipe, findings: ResultFolder, command: str) -> Path:
    """Write the page, with its tables and figures as files, into the folder of results."""
    return write_page(build_recipe_page(recipe, findings, command), findings.folder / recipe.name)


def build_recipe_page(recipe: Recipe, findings: ResultFolder, command: str) -> Page:
    """Build the page of a recipe."""
    return Page(
        title=recipe.title,
        lead=f"{recipe.place}. {' '.join(recipe.about.split())}",
        sections=list(_sections(recipe, findings)),
        command=command,
    )


def _sections(recipe: Recipe, findings: ResultFolder) -> Iterator[PageSection]:
    for reading in recipe.readings:
        table = score_table.build_score_table(recipe, findings, reading)
        if table is not None:
            yield table
    yield from claims.claim_tables(recipe, findings)
    for reading in recipe.readings:
        if recipe.shown == "strengths":
            figure = figures.strength_figure(recipe, findings, reading)
            if figure is not None:
                yield figure
        yield from figures.curve_figures(recipe, findings, reading)
    for reading in recipe.readings:
        yield from figures.gain_figures(recipe, findings, reading)
    yield from figures.label_heatmaps(recipe, findings)
    for reading in recipe.readings:
        yield from figures.learned_graph_figures(recipe, findings, reading)
    for reading in recipe.readings:
        for table in (
            score_table.build_choices_table(recipe, findings, reading),
            traffic_table(recipe, findings, reading),
        ):
            if table is not None:
                yield table
    yield environment_facts(recipe, findings)


def traffic_table(recipe: Recipe, findings: ResultFolder, reading: str) -> TableSection | None:
    """Bytes per round."""
    cells = findings.cells(recipe, reading)
    if not cells:
        return None

    def bytes_of(row: RowResult) -> tuple[float, float]:
        rounds = row.last("round").mean()
        return row.last("bytes_up").mean() / rounds, row.last("bytes_down").mean() / rounds

    def cell_of(row: RowResult | None) -> TableCell:
        if row is None or not row.finished:
            return TableCell("–", muted=True)
        return TableCell(" / ".join(map(format_bytes, bytes_of(row))))

    return TableSection(
        title=f"Bytes per round: {recipe.readings[reading].title}",
        about="Upload / download of all clients per round together, mean over rounds and seeds.",
        name=f"{recipe.name}-{reading}-bytes",
        columns=["method", *(recipe.cells[cell].title for cell in cells)],
        rows=[
            [TableCell(row.title), *(cell_of(rows.get(name)) for rows in cells.values())]
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


def environment_facts(recipe: Recipe, findings: ResultFolder) -> FactsSection:
    """Machine, versions and dates of the runs."""
    known: dict[str, set[str]] = {}
    for _, _, rows in iterate_cells(recipe, findings):
        for row in rows.values():
            for key, value in {**row.values.get("environment", {}), "date": row.values.get("made")}.items():
                if value is not None:
                    known.setdefault(key, set()).add(str(value))
            for choice in row.choices.values():
                known.setdefault("values", set()).add(CHOICE_ORIGINS[choice["by"]])
    return FactsSection("Environment", [(key, "; ".join(sorted(values))) for key, values in known.items()])


CHOICE_ORIGINS = {
    "tuned": "chosen by cross-validation on training rows",
    "stored": "chosen by an earlier cross-validation and stored with the recipe",
    "fixed": "fixed by the recipe",
}
