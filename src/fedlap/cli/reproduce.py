"""The command that makes the paper's tables and figures again: reproduce."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.box import SIMPLE_HEAVY
from rich.table import Table
from rich.text import Text

from fedlap.cli import console
from fedlap.cli.arguments import seed_numbers
from fedlap.cli.interrupts import stop_on_signal
from fedlap.cli.threads import use_threads
from fedlap.cli.workers import side_by_side
from fedlap.errors import InputError, unknown
from fedlap.experiments.prepare import Loader
from fedlap.experiments.run_folder import prepare
from fedlap.report.eta import Remaining, shown
from fedlap.report.page.sections import TableSection
from fedlap.reproduce import page, score_table
from fedlap.reproduce.cell_results import Findings, stored, stored_for
from fedlap.reproduce.ledger import Ledger
from fedlap.reproduce.recipe import Recipe, Unit, known_recipes, recipe
from fedlap.reproduce.results_pages import summary
from fedlap.reproduce.runner import Reproducer, Told, Weight, weight
from fedlap.training.packing import share_memory

Todo = list[tuple[Unit, list[int]]]


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(help=f"Recipes ({', '.join(known_recipes())}), or files of your own (.toml)."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every recipe.")] = False,
    data: Annotated[str, typer.Option(help="Only these data sets, with commas between.")] = "",
    cells: Annotated[str, typer.Option(help="Only these cells, as in har-convex, with commas between.")] = "",
    readings: Annotated[
        str, typer.Option(help="Only these readings of R, steps or epochs, with commas between.")
    ] = "",
    methods: Annotated[str, typer.Option(help="Only these rows, with commas between.")] = "",
    seeds: Annotated[str, typer.Option(help="As in 0-4 or 0,3,7 (default: the recipe's).")] = "",
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A few rounds, seeds, folds and values: tries everything, shows nothing."
        ),
    ] = False,
    tune: Annotated[
        bool, typer.Option("--tune", help="Choose values anew, though some are stored with the recipe.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, ….")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="CPU threads.", min=1)] = None,
    workers: Annotated[int, typer.Option(help="Processes beside each other, by cells or rows.", min=1)] = 1,
    beside: Annotated[int, typer.Option(help="Processes that share this machine.", min=1, hidden=True)] = 1,
    pages: Annotated[bool, typer.Option("--page/--no-page", help="Write a page for each recipe.")] = True,
    out: Annotated[
        Path, typer.Option(help="Folder for results; what is there already is not made again.")
    ] = Path("reproduced"),
) -> None:
    """Make tables and figures of the paper again, tuned on training rows, ours beside the paper's."""
    use_threads(threads)
    share_memory(beside)
    given, out = out, out / "quick" if quick else out
    recipes = _narrowed(_recipes(names or [], everything, quick), data, cells, readings, methods)
    prepare(out)
    findings = Findings(out)
    todo: Todo = []
    for each in recipes:
        numbers = seed_numbers(seeds or each.seeds)
        todo += [(unit, numbers) for unit in each.units() if not findings.has(unit, numbers)]
    units = sum(1 for each in recipes for _ in each.units())
    if len(todo) < units and beside == 1:
        console.remark(f"note: {units - len(todo)} of {units} rows are in {out} already")
    kept = {each.name: {} if tune or quick else stored(each.name) for each in recipes}
    known = sum(
        set(map(str, numbers)) <= set(stored_for(unit, kept[unit.recipe.name])) for unit, numbers in todo
    )
    if known and beside == 1:
        console.remark(
            f"note: {known} rows take the values that are stored with the recipe; --tune chooses anew"
        )
    if workers > 1:
        own = ["--device", device, "--threads", str(threads or max(1, torch.get_num_threads() // workers))]
        own += ["--quick"] * quick + ["--tune"] * tune
        own += ["--out", str(given), "--beside", str(workers)]
        failed = side_by_side(_parts(todo, own, workers), workers)
    else:
        failed = _make(todo, findings, Ledger(out / "ledger.jsonl"), device, kept)
    for each in recipes if beside == 1 else []:
        _show(each, findings)
        if pages:
            console.result(f"{each.name}: {page.write(each, findings, _command()).resolve().as_uri()}")
    if failed:
        raise typer.Exit(1)


def _parts(todo: Todo, options: Sequence[str], workers: int) -> list[list[str]]:
    """The same as commands, one for each cell; where these are too few, one for rows that go together."""
    few = len({unit.place for unit, _ in todo}) < workers
    rows: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for unit, numbers in todo:
        seeds = ",".join(map(str, numbers))
        place = (unit.recipe.source, "--cells", unit.cell, "--readings", unit.reading, "--seeds", seeds)
        rows.setdefault((place, unit.recipe.led(unit.row) if few else ""), []).append(unit.row)
    return [
        ["reproduce", *place, "--methods", ",".join(own), *options, "--no-page"]
        for (place, _), own in rows.items()
    ]


def _command() -> str:
    """As it was typed."""
    return " ".join(["fedlap", *sys.argv[1:]])


def _recipes(names: Sequence[str], everything: bool, quick: bool) -> list[Recipe]:
    """Those that were named."""
    if everything == bool(names):
        raise InputError(f"reproduce: name recipes, or give --all; known: {', '.join(known_recipes())}")
    made = [recipe(name) for name in (known_recipes() if everything else dict.fromkeys(names))]
    return [each.smaller() for each in made] if quick else made


def _narrowed(recipes: Sequence[Recipe], data: str, cells: str, readings: str, methods: str) -> list[Recipe]:
    """What is left of them; one that has nothing of what was asked for is left out."""
    wanted = [_listed(text) for text in (data, cells, readings, methods)]
    known = [
        {cell.data["name"] for each in recipes for cell in each.cells.values()},
        {name for each in recipes for name in each.cells},
        {name for each in recipes for name in each.readings},
        {name for each in recipes for name in each.rows},
    ]
    for option, words, there in zip(("data", "cells", "readings", "methods"), wanted, known, strict=True):
        for word in words:
            if word not in there:
                raise InputError(f"--{option}: {unknown('name', word, there)}")
    made = [each.narrowed(*wanted) for each in recipes]
    return [each for each in made if each.cells and each.rows and each.readings]


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _make(
    todo: Todo, findings: Findings, ledger: Ledger, device: str, kept: dict[str, dict[str, Any]]
) -> int:
    """Make rows one after another; how many could not be made is answered, with why."""
    loader, failed = Loader(), 0
    weights: list[Weight | None] = []
    for unit, numbers in todo:
        try:
            weights.append(weight(unit, numbers, loader))
        except InputError as error:
            weights.append(None)
            console.remark(f"error: {unit.place}: {error}")
    remaining = Remaining(sum(each.all for each in weights if each is not None))
    makers: dict[tuple[str, tuple[int, ...]], Reproducer] = {}
    at_work, a_round = 0, 0.0  # runs, and what a round of one of them weighs
    with stop_on_signal() as stopping, shown(console.err, remaining) as (name, move):

        def on_stack(unit: Unit, stage: str, runs: int) -> None:
            nonlocal at_work
            at_work = runs
            name(_at_work(unit, stage, runs))

        def on_round(done: int, rounds: int) -> None:
            remaining.add(at_work * a_round)
            move(done, rounds)

        before = ""
        for (unit, numbers), cost in zip(todo, weights, strict=True):
            if cost is None:
                failed += 1
                continue
            if unit.place != before:
                loader.forget()  # other data may take as much memory
                before = unit.place
            a_round = cost.a_round
            key = (unit.recipe.name, tuple(numbers))
            if key not in makers:
                told = Told(on_stack, on_round, stopping)
                makers[key] = Reproducer(ledger, numbers, device, kept[unit.recipe.name], told, loader)
            beside = [other for other, same in todo if other.place == unit.place and same == numbers]
            findings.write(unit, makers[key].row(unit, beside), makers[key].federation(unit))
            remaining.finish(cost.all)
    return failed


def _at_work(unit: Unit, stage: str, runs: int) -> str:
    return f"{unit.place}  {unit.recipe.rows[unit.row].title}: {stage}, {runs} run{'s' if runs > 1 else ''}"


def _show(each: Recipe, findings: Findings) -> None:
    """Print its tables."""
    for reading in each.readings:
        table = score_table.table(each, findings, reading)
        if table is not None:
            _print(table)
    for line in summary(each, findings, remarks=False):
        console.result(line.replace("**", ""))


def _print(section: TableSection) -> None:
    console.result(f"{section.group}: {section.title}")
    if section.about:
        console.remark(section.about)
    table = Table(*section.columns, box=SIMPLE_HEAVY, padding=(0, 1, 0, 0), pad_edge=False)
    for row in section.rows:
        cells = [Text(f"{cell.text}{' *' if cell.best else ''}\n{cell.note}".rstrip()) for cell in row]
        table.add_row(*cells)
    console.out.print(table)
