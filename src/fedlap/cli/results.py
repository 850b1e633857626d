"""The command that writes the result pages: results."""

import json
from pathlib import Path

from fedlap.cli import console
from fedlap.cli.output_files import check_output
from fedlap.errors import InputError
from fedlap.reproduce.cell_results import ResultFolder
from fedlap.reproduce.recipe import find_recipe, list_recipes
from fedlap.reproduce.results_pages import (
    INTRODUCTION,
    VERDICT_PAGE,
    build_results_pages,
    find_deviations,
)
from fedlap.storage.files import write_file


def write_results(folder: Path, to: Path, tuned: Path | None) -> None:
    """Write result pages from reproduced scores."""
    if not folder.is_dir():
        raise InputError(f"no folder {str(folder)!r}; run `fedlap reproduce --out` first")
    if to in (Path(), folder) or to.suffix == ".md" or (to.exists() and not to.is_dir()):
        raise InputError(f"--to {str(to)!r}: expected a folder for pages; pass one, such as docs/results")
    _check_verdict_page(to / VERDICT_PAGE)
    recipes, results = [find_recipe(name) for name in list_recipes()], ResultFolder(folder)
    for name, text in build_results_pages(recipes, results).items():
        check_output(to / name, folder.glob("*/*.json"))
        write_file(to / name, text.encode())
    console.print_result(f"result pages: {to}")
    for recipe in recipes:
        values = results.list_tuned_values(recipe)
        if tuned is not None and values:
            check_output(tuned / f"{recipe.name}.json", folder.glob("*/*.json"))
            write_file(tuned / f"{recipe.name}.json", _format_json(values).encode())
    for recipe in recipes:
        for deviation in find_deviations(recipe, results):
            if deviation.reason is None:
                where = f"{deviation.cell}-{deviation.reading}, {deviation.row}"
                console.print_remark(
                    f"note: {where} differs from the paper by {deviation.difference:+.2f} points; add "
                    f"a reason to recipe {recipe.name}"
                )


def _check_verdict_page(page: Path) -> None:
    """Raise InputError if a file of this name is there that `fedlap results` did not write."""
    title, *_ = INTRODUCTION.splitlines()
    if page.is_file():
        text = page.read_text("utf-8", errors="replace")
        if not text.startswith(title) or "`fedlap results`" not in text:
            raise InputError(
                f"{str(page)!r} is not a page of results and would be replaced; pass another --to"
            )


def _format_json(values: dict[str, dict[str, object]]) -> str:
    """Return JSON with one line per row."""
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    return f"{{\n{lines}\n}}\n"
