"""Commands on the paper: reproduce, results and theory."""

from pathlib import Path
from typing import Annotated

import typer

from fedlap.cli.names import RECIPE_NAMES
from fedlap.cli.options import (
    OUTPUT_PANEL,
    TRAINING_PANEL,
    JsonOption,
    RunFolderArgument,
    RunsFolderOption,
    ThreadsOption,
)

SELECTION_PANEL = "Selection"
THEORY_PANEL = "Theory"


def reproduce_command(
    context: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE", help=f"Recipes, or your own .toml files. Recipes: {', '.join(RECIPE_NAMES)}."
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", metavar="", help="Reproduce every recipe.", rich_help_panel=SELECTION_PANEL),
    ] = False,
    data: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="Only these data sets (comma-separated).", rich_help_panel=SELECTION_PANEL
        ),
    ] = "",
    cells: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Only these table cells (comma-separated), e.g. har-convex.",
            rich_help_panel=SELECTION_PANEL,
        ),
    ] = "",
    readings: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Only these interpretations of R: steps, epochs.",
            rich_help_panel=SELECTION_PANEL,
        ),
    ] = "",
    methods: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="Only these table rows (comma-separated).", rich_help_panel=SELECTION_PANEL
        ),
    ] = "",
    seeds: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Random seeds, e.g. 0-4 or 0,3,7. Default: the recipe's.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = "",
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            metavar="",
            help="Smoke test: few rounds, seeds, folds and values. Scores mean nothing.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = False,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            metavar="",
            help="Tune again, ignoring the values stored with the recipe.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = False,
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE", help="Device: cpu, cuda, cuda:1 and so on.", rich_help_panel=TRAINING_PANEL
        ),
    ] = "cpu",
    threads: ThreadsOption = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Number of processes, split by table cells or rows. Default: 1, or with --address one "
            "per GPU or core.",
            min=1,
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Ray cluster for the processes, e.g. auto. Default: this machine, without Ray.",
            rich_help_panel=TRAINING_PANEL,
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option("--processes", help="Processes that share this machine.", min=1, hidden=True)
    ] = 1,
    pages: Annotated[
        bool,
        typer.Option(
            "--page/--no-page", metavar="", help="Write a page per recipe.", rich_help_panel=OUTPUT_PANEL
        ),
    ] = True,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="Folder for results. Finished rows in it are not trained again.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = Path("reproduced"),
) -> None:
    """Reproduce tables and figures of the paper.

    Settings are tuned on training rows. Our scores are shown next to the paper's.

    Example: fedlap reproduce table-full-sampled --quick
    """
    from fedlap.cli.reproduce import reproduce_recipes

    reproduce_recipes(
        context,
        names,
        everything,
        data,
        cells,
        readings,
        methods,
        seeds,
        quick,
        tune,
        device,
        threads,
        workers,
        address,
        processes,
        pages,
        out,
    )


def results_command(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder that `fedlap reproduce --out` wrote.")
    ] = Path("results"),
    to: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder for the Markdown pages.", rich_help_panel=OUTPUT_PANEL),
    ] = Path("docs/results"),
    tuned: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for tuned values, one file per recipe.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
) -> None:
    """Write result pages from reproduced scores.

    The pages have the verdicts, tables, claims and deviations from the paper.

    Example: fedlap results results --to docs/results
    """
    from fedlap.cli.results import write_results

    write_results(folder, to, tuned)


def theory_command(
    run: RunFolderArgument,
    out: RunsFolderOption = Path("runs"),
    accuracy: Annotated[
        float | None,
        typer.Option(
            metavar="GAP",
            help="Target J(W) − J* for the predicted rounds. Default: a hundredth of the initial gap.",
            rich_help_panel=THEORY_PANEL,
        ),
    ] = None,
    repeat: Annotated[
        bool,
        typer.Option(
            "--repeat",
            metavar="",
            help="Repeat the run to measure W̃ and ∇J in every round.",
            rich_help_panel=THEORY_PANEL,
        ),
    ] = False,
    threads: ThreadsOption = None,
    json_: JsonOption = False,
) -> None:
    """Compare a run of fedu or dfedu with the theorems.

    Prints the constants, the largest step sizes, the bounds and the measured gaps and rates.

    Example: fedlap theory runs/digits-fedu-0123456789abcdef --accuracy 0.1
    """
    from fedlap.cli.theory import compare_with_theorems

    compare_with_theorems(run, out, accuracy, repeat, threads, json_)
