"""Commands on stored runs: runs, show and resume."""

import json
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAVY
from rich.table import Table
from rich.text import Text

from fedlap.cli import console
from fedlap.cli.output_files import check_output, list_run_files
from fedlap.cli.run import run_experiment
from fedlap.cli.threads import use_threads
from fedlap.cli.train_runs import print_run
from fedlap.errors import InputError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.find_folder import find_run
from fedlap.experiments.plugins import list_unknown_names
from fedlap.experiments.run_folder import RunFolder, list_run_folders
from fedlap.experiments.settings import check_integers
from fedlap.report.score_export import write_scores


def list_runs(out: Path, json_: bool) -> None:
    """List stored runs with state, rounds and scores."""
    found = list_run_folders(out)
    if not found:
        raise InputError(f"no runs in {str(out)!r}; choose another folder with --out")
    lines = [_summarise_run(run) for run in found]
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


def _summarise_run(run: RunFolder) -> dict[str, Any]:
    try:
        experiment, scores, saved = run.experiment, run.read_scores(), run.saved_rounds
    except InputError as error:  # one damaged run must not hide the others
        console.print_remark(f"note: {run.name}: {error}")
        empty = dict.fromkeys(("accuracy", "loss"))
        return {
            "run": run.name,
            "state": "damaged",
            "round": 0,
            "rounds": 0,
            **empty,
            "folder": str(run.folder),
        }
    _warn_unknown_names(run, experiment)
    last = scores[-1] if scores else None
    return {
        "run": run.name,
        "state": run.get_status(),
        "round": saved[0] if saved else 0,
        "rounds": experiment.rounds,
        "accuracy": last and last.accuracy,
        "loss": last and last.loss,
        "folder": str(run.folder),
    }


def _warn_unknown_names(run: RunFolder, experiment: Experiment) -> None:
    """Print which names of a run are not registered in this process; only training needs them."""
    for text in list_unknown_names(experiment.plugins, experiment.sections):
        console.print_remark(f"note: {run.name}: {text}")


def show_run(run: Path, out: Path, to: Path | None, json_: bool) -> None:
    """Show the scores of a run, finished or not."""
    stored = find_run(run, out)
    scores, state, experiment = stored.read_scores(), stored.get_status(), stored.experiment
    _warn_unknown_names(stored, experiment)
    if to is not None:
        check_output(to, list_run_files(stored.folder))
        write_scores(scores, to)
    if state == "diverged":
        raise stored.read_failure()
    if state == "unfinished":
        saved = (
            f"checkpoint at round {stored.saved_rounds[0]}" if stored.saved_rounds else "no checkpoint yet"
        )
        console.print_remark(
            f"note: this run is not finished ({saved}); `fedlap resume {stored.folder}` continues it"
        )
    if not scores:
        raise InputError(f"{stored.name} has no scores yet; train it with `fedlap resume {stored.folder}`")
    print_run(stored, experiment, scores, json_)


def resume_run(run: Path, rounds: int | None, threads: int | None, options: dict[str, Any]) -> None:
    """Resume a run from its last checkpoint."""
    use_threads(threads)
    stored = find_run(run, options["out"])
    experiment = stored.experiment
    name = RunFolder.of(stored.folder.parent, experiment).name
    if stored.folder.name != name:
        raise InputError(
            f"{str(stored.folder)!r} does not have the name of its experiment; rename it to {name!r}"
        )
    total = experiment.rounds if rounds is None else rounds
    check_integers("rounds", total)
    run_experiment(experiment.model_copy(update={"rounds": total}), {**options, "out": stored.folder.parent})
