"""The command that reproduces the paper's tables and figures: reproduce."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import typer
from rich.box import SIMPLE_HEAVY
from rich.table import Table
from rich.text import Text

from fedlap.cli import console
from fedlap.cli.arguments import parse_seeds, split_names
from fedlap.cli.interrupts import stop_on_signal
from fedlap.cli.threads import use_threads
from fedlap.cli.workers import run_processes
from fedlap.errors import InputError, unknown_name_error
from fedlap.experiments.prepare import Loader
from fedlap.experiments.run_folder import create_out_folder
from fedlap.report.eta import Eta, show_stack_progress
from fedlap.report.page.sections import TableSection
from fedlap.reproduce import page, score_table
from fedlap.reproduce.cell_results import ResultFolder, read_tuned_values, select_tuned_values
from fedlap.reproduce.ledger import Ledger
from fedlap.reproduce.recipe import Recipe, Unit, find_recipe, list_recipes
from fedlap.reproduce.results_pages import summarise_claims
from fedlap.reproduce.runner import Reproducer, ReproductionCallbacks, WorkEstimate, estimate_work
from fedlap.training.packing import share_memory

Pending = list[tuple[Unit, list[int]]]


def reproduce_recipes(
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
    workers: int,
    processes: int,
    pages: bool,
    out: Path,
) -> None:
    """Reproduce tables and figures of the paper."""
    use_threads(threads)
    share_memory(processes)
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
    if workers > 1:
        shared = ["--device", device, "--threads", str(threads or max(1, torch.get_num_threads() // workers))]
        shared += ["--quick"] * quick + ["--tune"] * tune
        shared += ["--out", str(folder), "--processes", str(workers)]
        failed = run_processes(_split_commands(pending, shared, workers), workers)
    else:
        failed = _train_units(pending, results, Ledger(out / "ledger.jsonl"), device, tuned)
    for recipe in recipes if processes == 1 else []:
        _print_recipe(recipe, results)
        if pages:
            address = page.write_recipe_page(recipe, results, _format_command()).resolve().as_uri()
            console.print_result(f"{recipe.name}: {address}")
    if failed:
        raise typer.Exit(1)


def _split_commands(pending: Pending, options: Sequence[str], workers: int) -> list[list[str]]:
    """Split rows into one command per cell; if those are too few, one per row and the rows that follow it."""
    too_few = len({unit.place for unit, _ in pending}) < workers
    rows: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for unit, numbers in pending:
        seeds = ",".join(map(str, numbers))
        place = (unit.recipe.source, "--cells", unit.cell, "--readings", unit.reading, "--seeds", seeds)
        rows.setdefault((place, unit.recipe.leader_of(unit.row) if too_few else ""), []).append(unit.row)
    return [
        ["reproduce", *place, "--methods", ",".join(names), *options, "--no-page"]
        for (place, _), names in rows.items()
    ]


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


def _train_units(
    pending: Pending, results: ResultFolder, ledger: Ledger, device: str, tuned: dict[str, dict[str, Any]]
) -> int:
    """Train rows one after another; report failures and return their number."""
    loader, failed = Loader(), 0
    estimates: list[WorkEstimate | None] = []
    for unit, numbers in pending:
        try:
            estimates.append(estimate_work(unit, numbers, loader))
        except InputError as error:
            estimates.append(None)
            console.print_remark(f"error: {unit.place}: {error}")
    remaining = Eta(sum(work.total for work in estimates if work is not None))
    reproducers: dict[tuple[str, tuple[int, ...]], Reproducer] = {}
    active, per_round = 0, 0.0  # runs, and the work of one round of one run
    with stop_on_signal() as stopping, show_stack_progress(console.err, remaining) as (name, move):

        def on_stack(unit: Unit, stage: str, runs: int) -> None:
            nonlocal active
            active = runs
            name(_format_progress(unit, stage, runs))

        def on_round(done: int, rounds: int) -> None:
            remaining.add(active * per_round)
            move(done, rounds)

        place = ""
        for (unit, numbers), cost in zip(pending, estimates, strict=True):
            if cost is None:
                failed += 1
                continue
            if unit.place != place:
                loader.clear()  # two data sets at once may not fit in memory
                place = unit.place
            per_round = cost.per_round
            key = (unit.recipe.name, tuple(numbers))
            if key not in reproducers:
                callbacks = ReproductionCallbacks(on_stack, on_round, stopping)
                values = tuned[unit.recipe.name]
                reproducers[key] = Reproducer(ledger, numbers, device, values, callbacks, loader)
            others = [other for other, seeds in pending if other.place == unit.place and seeds == numbers]
            row = reproducers[key].run_row(unit, others)
            results.write(unit, row, reproducers[key].load_federation(unit))
            remaining.finish(cost.total)
    return failed


def _format_progress(unit: Unit, stage: str, runs: int) -> str:
    return f"{unit.place}  {unit.recipe.rows[unit.row].title}: {stage}, {runs} run{'s' if runs > 1 else ''}"


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
