"""The command that reproduces the paper's tables and figures: reproduce."""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import typer
from rich.box import SIMPLE_HEAVY
from rich.table import Table
from rich.text import Text

from fedlap.cli import console
from fedlap.cli.arguments import parse_seeds, split_names
from fedlap.cli.exit_codes import EXIT_FAILED
from fedlap.cli.task_workers import open_workers
from fedlap.cli.threads import use_threads
from fedlap.cli.train_units import Pending, split_units, train_units, train_units_by_workers
from fedlap.cli.workers import run_processes
from fedlap.errors import InputError, unknown_name_error
from fedlap.experiments.run_folder import create_out_folder
from fedlap.report.page.sections import TableSection
from fedlap.reproduce import page, score_table
from fedlap.reproduce.cell_results import ResultFolder, read_tuned_values, select_tuned_values
from fedlap.reproduce.recipe import Recipe, find_recipe, list_recipes
from fedlap.reproduce.results_pages import summarise_claims
from fedlap.training.packing import share_memory


def reproduce_recipes(
    context: typer.Context,
    names: list[str] | None,
    everything: bool,
    data: str,
    cells: str,
    readings: str,
    methods: str,
    seeds: str,
    quick: bool,
    tune: bool,
    device: str,
    threads: int | None,
    workers: int | None,
    address: str | None,
    processes: int,
    pages: bool,
    out: Path,
) -> None:
    """Reproduce tables and figures of the paper."""
    use_threads(threads)
    share_memory(processes)
    cluster = None if address is None else open_workers(context, workers, address, threads)
    folder, out = out, out / "quick" if quick else out
    recipes = _select_parts(_load_recipes(names or [], everything, quick), data, cells, readings, methods)
    create_out_folder(out)
    results = ResultFolder(out)
    pending: Pending = []
    for recipe in recipes:
        numbers = parse_seeds(seeds or recipe.seeds)
        pending += [(unit, numbers) for unit in recipe.units() if not results.has(unit, numbers)]
    units = sum(1 for recipe in recipes for _ in recipe.units())
    if len(pending) < units and processes == 1:
        console.print_remark(
            f"note: {units - len(pending)} of {units} rows are finished and loaded from {out}"
        )
    tuned = {recipe.name: {} if tune or quick else read_tuned_values(recipe.name) for recipe in recipes}
    known = sum(
        set(map(str, numbers)) <= set(select_tuned_values(unit, tuned[unit.recipe.name]))
        for unit, numbers in pending
    )
    if known and processes == 1:
        console.print_remark(
            f"note: {known} rows use the tuned values that are stored with the recipe; --tune tunes again"
        )
    if cluster is not None and pending:
        parts = split_units(pending, cluster.open("cuda" in device))
        failed = train_units_by_workers(cluster, parts, out, device, tuned)
    elif workers is not None and workers > 1:
        shared = ["--device", device, "--threads", str(threads or max(1, torch.get_num_threads() // workers))]
        shared += ["--quick"] * quick + ["--tune"] * tune
        shared += ["--out", str(folder), "--processes", str(workers)]
        commands = [_build_command(part, shared) for part in split_units(pending, workers)]
        failed = run_processes(commands, workers)
    else:
        failed = train_units(pending, out, device, tuned)
    for recipe in recipes if processes == 1 else []:
        _print_recipe(recipe, results)
        if pages:
            uri = page.write_recipe_page(recipe, results, _format_command()).resolve().as_uri()
            console.print_result(f"{recipe.name}: {uri}")
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _build_command(part: Pending, options: Sequence[str]) -> list[str]:
    """Return the arguments that train rows of one cell in another process."""
    unit, numbers = part[0]
    place = ["--cells", unit.cell, "--readings", unit.reading, "--seeds", ",".join(map(str, numbers))]
    names = ",".join(unit.row for unit, _ in part)
    return ["reproduce", unit.recipe.source, *place, "--methods", names, *options, "--no-page"]


def _format_command() -> str:
    """Return the command line as it was typed."""
    return " ".join(["fedlap", *sys.argv[1:]])


def _load_recipes(names: Sequence[str], everything: bool, quick: bool) -> list[Recipe]:
    """Load the named recipes, or all of them."""
    if everything == bool(names):
        problem = "both recipes and --all" if names else "no recipes"
        raise InputError(f"reproduce: {problem}; pass names or --all, known: {', '.join(list_recipes())}")
    recipes = [find_recipe(name) for name in (list_recipes() if everything else dict.fromkeys(names))]
    return [recipe.quick_form() for recipe in recipes] if quick else recipes


def _select_parts(
    recipes: Sequence[Recipe], data: str, cells: str, readings: str, methods: str
) -> list[Recipe]:
    """Narrow recipes to the selected parts; drop recipes without any."""
    wanted = [split_names([text]) for text in (data, cells, readings, methods)]
    known = [
        {cell.data["name"] for recipe in recipes for cell in recipe.cells.values()},
        {name for recipe in recipes for name in recipe.cells},
        {name for recipe in recipes for name in recipe.readings},
        {name for recipe in recipes for name in recipe.rows},
    ]
    for option, words, available in zip(("data", "cells", "readings", "methods"), wanted, known, strict=True):
        for word in words:
            if word not in available:
                raise InputError(f"--{option}: {unknown_name_error('name', word, available)}")
    narrowed = [recipe.narrow(*wanted) for recipe in recipes]
    return [recipe for recipe in narrowed if recipe.cells and recipe.rows and recipe.readings]


def _print_recipe(recipe: Recipe, results: ResultFolder) -> None:
    """Print the tables of a recipe."""
    for reading in recipe.readings:
        table = score_table.build_score_table(recipe, results, reading)
        if table is not None:
            _print_table(table)
    for line in summarise_claims(recipe, results):
        console.print_result(line.replace("**", ""))


def _print_table(section: TableSection) -> None:
    console.print_result(f"{section.group}: {section.title}")
    if section.about:
        console.print_remark(section.about)
    table = Table(*section.columns, box=SIMPLE_HEAVY, padding=(0, 1, 0, 0), pad_edge=False)
    for row in section.rows:
        cells = [Text(f"{cell.text}{' *' if cell.best else ''}\n{cell.note}".rstrip()) for cell in row]
        table.add_row(*cells)
    console.out.print(table)
