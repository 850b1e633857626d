"""The HTML page of a recipe: all results, and the command that reproduces them."""

from collections.abc import Iterator
from pathlib import Path

from fedlap.report.comparison import format_bytes
from fedlap.report.page import FactsSection, Page, PageSection, Records, TableCell, TableSection, write_page
from fedlap.reproduce import claims, figures, score_table
from fedlap.reproduce.cell_results import ResultFolder, RowResult, iterate_cells
from fedlap.reproduce.recipe import Recipe


def write_recipe_page(recipe: Recipe, results: ResultFolder, command: str) -> Path:
    """Write the page, with its tables and figures as files, into the folder of results."""
    return write_page(build_recipe_page(recipe, results, command), results.folder / recipe.name)


def build_recipe_page(recipe: Recipe, results: ResultFolder, command: str) -> Page:
    """Build the page of a recipe."""
    return Page(
        title=recipe.title,
        lead=f"{recipe.place}. {' '.join(recipe.about.split())}",
        sections=list(_build_sections(recipe, results)),
        command=command,
    )


def _build_sections(recipe: Recipe, results: ResultFolder) -> Iterator[PageSection]:
    for reading in recipe.readings:
        table = score_table.build_score_table(recipe, results, reading)
        if table is not None:
            yield table
    yield from claims.build_claim_tables(recipe, results)
    for reading in recipe.readings:
        if recipe.shown == "strengths":
            figure = figures.build_strength_figure(recipe, results, reading)
            if figure is not None:
                yield figure
        yield from figures.build_curve_figures(recipe, results, reading)
    for reading in recipe.readings:
        yield from figures.build_gain_figures(recipe, results, reading)
    yield from figures.build_label_heatmaps(recipe, results)
    for reading in recipe.readings:
        yield from figures.build_learned_graph_figures(recipe, results, reading)
    for reading in recipe.readings:
        for table in (
            score_table.build_choices_table(recipe, results, reading),
            build_traffic_table(recipe, results, reading),
        ):
            if table is not None:
                yield table
    yield build_environment_section(recipe, results)


def build_traffic_table(recipe: Recipe, results: ResultFolder, reading: str) -> TableSection | None:
    """Build the table of bytes per round; None if nothing was run."""
    cells = results.read_cells(recipe, reading)
    if not cells:
        return None

    def average_traffic(row: RowResult) -> tuple[float, float]:
        rounds = row.last_scores("round").mean()
        return row.last_scores("bytes_up").mean() / rounds, row.last_scores("bytes_down").mean() / rounds

    def build_cell(row: RowResult | None) -> TableCell:
        if row is None or not row.finished:
            return TableCell("–", muted=True)
        return TableCell(" / ".join(map(format_bytes, average_traffic(row))))

    return TableSection(
        title=f"Bytes per round: {recipe.readings[reading].title}",
        about="Upload / download of all clients per round together, mean over rounds and seeds.",
        name=f"{recipe.name}-{reading}-bytes",
        columns=["method", *(recipe.cells[cell].title for cell in cells)],
        rows=[
            [TableCell(row.title), *(build_cell(rows.get(name)) for rows in cells.values())]
            for name, row in recipe.rows.items()
            if any(name in rows for rows in cells.values())
        ],
        records=Records(
            ["method", "data_and_model", "upload_bytes_per_round", "download_bytes_per_round"],
            [
                [recipe.rows[name].title, recipe.cells[cell].title, *map(round, average_traffic(row))]
                for cell, rows in cells.items()
                for name, row in rows.items()
                if row.finished
            ],
        ),
    )


def build_environment_section(recipe: Recipe, results: ResultFolder) -> FactsSection:
    """Build the facts about machine, versions and dates of the runs."""
    known: dict[str, set[str]] = {}
    for _, _, rows in iterate_cells(recipe, results):
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
