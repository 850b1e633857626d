"""Commands on runs that are kept: runs, show and resume."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAVY
from rich.table import Table
from rich.text import Text

from fedlap.cli import console
from fedlap.cli.options import KEEPING, RESULT, takes
from fedlap.cli.output_files import check_output, files_of_run
from fedlap.cli.run import run_one
from fedlap.cli.threads import use_threads
from fedlap.cli.train_runs import show_one
from fedlap.errors import InputError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.run_folder import RunFolder, runs_in
from fedlap.experiments.settings import brief, check_numbers
from fedlap.report.score_export import write_scores

RUN = Annotated[Path, typer.Argument(help="The folder of a run.")]
OUT = Annotated[Path, typer.Option(help="Folder of results.")]


def runs(
    out: OUT = Path("runs"),
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """List the runs that are kept, and how far they are."""
    found = runs_in(out)
    if not found:
        raise InputError(f"there are no runs in {str(out)!r}; name another folder with --out")
    lines = [_line(run) for run in found]
    if json_:
        for line in lines:
            print(json.dumps(line))
        return
    table = Table("run", "state", "rounds", "accuracy %", "loss", box=SIMPLE_HEAVY, padding=0, pad_edge=False)
    for line in lines:
        accuracy = "–" if line["accuracy"] is None else f"{100 * line['accuracy']:.2f}"
        loss = "–" if line["loss"] is None else f"{line['loss']:.4g}"
        cells = line["run"], line["state"], f"{line['round']}/{line['rounds']}", accuracy, loss
        table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    console.out.print(table)


def _line(run: RunFolder) -> dict[str, Any]:
    try:
        experiment, scores, saved = run.experiment, run.scores(), run.saved
    except InputError as error:  # which is no reason to hide the others
        console.remark(f"note: {run.name}: {error}")
        empty = dict.fromkeys(("accuracy", "loss"))
        return {
            "run": run.name,
            "state": "damaged",
            "round": 0,
            "rounds": 0,
            **empty,
            "folder": str(run.folder),
        }
    _say_unknown(run, experiment)
    last = scores[-1] if scores else None
    return {
        "run": run.name,
        "state": run.state(),
        "round": saved[0] if saved else 0,
        "rounds": experiment.rounds,
        "accuracy": last and last.accuracy,
        "loss": last and last.loss,
        "folder": str(run.folder),
    }


def _say_unknown(run: RunFolder, experiment: Experiment) -> None:
    """Say that a run's method is not registered in this process, which only training needs."""
    if not experiment.knows_method:
        console.remark(f"note: {run.name}: unknown method {brief(experiment.algorithm['name'])}")


def show(
    run: RUN,
    out: OUT = Path("runs"),
    to: Annotated[
        Path | None, typer.Option(help="Write the scores of all rounds into a .csv or .parquet file.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what came out of a run, or how far it is."""
    kept = named(run, out)
    scores, state, experiment = kept.scores(), kept.state(), kept.experiment
    _say_unknown(kept, experiment)
    if to is not None:
        check_output(to, files_of_run(kept.folder))
        write_scores(scores, to)
    if state == "diverged":
        raise kept.failure()
    if state == "unfinished":
        saved = f"saved at round {kept.saved[0]}" if kept.saved else "nothing saved yet"
        console.remark(f"note: this run is not finished ({saved}); `fedlap resume {kept.folder}` goes on")
    if not scores:
        raise InputError(f"{kept.name} has no scores yet")
    show_one(kept, experiment, scores, json_)


@takes({name: RESULT[name] for name in ("out", "json")}, KEEPING)
def resume(
    run: RUN,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds in all (default: as many as were asked for).", min=1)
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads, as for run.", min=1)] = None,
    **given: Any,
) -> None:
    """Go on with a run exactly where it was saved last."""
    use_threads(threads)
    kept = named(run, given["out"])
    experiment = kept.experiment
    if kept.folder.name != RunFolder.of(kept.folder.parent, experiment).name:
        raise InputError(f"{str(kept.folder)!r} is not named by its experiment; give it its name back")
    more = experiment.rounds if rounds is None else rounds
    check_numbers("rounds", more)
    run_one(experiment.model_copy(update={"rounds": more}), {**given, "out": kept.folder.parent})


def named(run: Path, out: Path) -> RunFolder:
    """A run by its folder, or by its name in the folder of results."""
    return RunFolder.open(run if run.exists() or not (out / run).exists() else out / run)
