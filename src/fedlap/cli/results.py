"""The command that writes down what was reproduced: results."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedlap.cli import console
from fedlap.cli.output_files import check_output
from fedlap.errors import InputError
from fedlap.reproduce.cell_results import Findings
from fedlap.reproduce.recipe import known_recipes, recipe
from fedlap.reproduce.results_pages import apart
from fedlap.reproduce.results_pages import results as written
from fedlap.storage.files import write_file


def results(
    folder: Annotated[Path, typer.Argument(help="Folder of what was reproduced.")] = Path("results"),
    to: Annotated[Path, typer.Option(help="The file to write.")] = Path("RESULTS.md"),
    tuned: Annotated[
        Path | None, typer.Option(help="Folder for the values that methods were tuned to, a file a recipe.")
    ] = None,
) -> None:
    """Write RESULTS.md from the files that `reproduce` left: tables, claims, and what differs and why."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {str(folder)!r}; `fedlap reproduce --out` makes one")
    check_output(to, folder.glob("*/*.json"))
    recipes, findings = [recipe(name) for name in known_recipes()], Findings(folder)
    write_file(to, written(recipes, findings).encode())
    console.result(f"results are in {to}")
    for each in recipes:
        values = findings.tuned(each)
        if tuned is not None and values:
            check_output(tuned / f"{each.name}.json", folder.glob("*/*.json"))
            write_file(tuned / f"{each.name}.json", _lines(values).encode())
    for far in [far for each in recipes for far in apart(each, findings) if far.reason is None]:
        where = f"{far.cell}-{far.reading}, {far.row}"
        told = f"{where} is {far.difference:+.2f} points from the paper's"
        console.remark(f"note: {told}, and the recipe gives no reason")


def _lines(values: dict[str, dict[str, object]]) -> str:
    """JSON with a line for each row."""
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    return f"{{\n{lines}\n}}\n"
