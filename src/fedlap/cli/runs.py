"""Commands on one stored run: show and resume."""

from pathlib import Path
from typing import Any

from fedlap.cli import console
from fedlap.cli.output_files import check_output, list_run_files
from fedlap.cli.run import run_experiment
from fedlap.cli.threads import use_threads
from fedlap.cli.train_runs import print_run
from fedlap.errors import InputError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.find_folder import find_run
from fedlap.experiments.plugins import list_unknown_names
from fedlap.experiments.run_folder import RunFolder
from fedlap.experiments.settings import check_integers
from fedlap.report.score_export import write_scores


def _warn_unknown_names(run: RunFolder, experiment: Experiment) -> None:
    """Print which names of a run are not registered in this process; only training needs them."""
    named = {
        name: section
        for name, section in experiment.sections.items()
        if name not in (experiment.objects or {})
    }
    for text in list_unknown_names(experiment.plugins, named):
        console.print_remark(f"note: {run.name}: {text}")


def show_run(run: Path, out: Path, to: Path | None, metric: str | None, json_: bool) -> None:
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
        console.print_remark(f"note: this run is not finished ({saved}); {_advise_resuming(stored)}")
    if not scores:
        raise InputError(f"{stored.name} has no scores yet; {_advise_resuming(stored)}")
    print_run(stored, experiment, scores, metric, json_)


def _advise_resuming(run: RunFolder) -> str:
    if run.experiment.objects is None:
        return f"`fedlap resume {run.folder}` continues it"
    return "repeat the call in Python, with the same folder, to continue it"


def resume_run(run: Path, rounds: int | None, threads: int | None, options: dict[str, Any]) -> None:
    """Resume a run from its last checkpoint."""
    use_threads(threads)
    stored = find_run(run, options["out"])
    experiment = stored.experiment
    experiment.check_named("resumed")
    name = RunFolder.of(stored.folder.parent, experiment).name
    if stored.folder.name != name:
        raise InputError(
            f"{str(stored.folder)!r} does not have the name of its experiment; rename it to {name!r}"
        )
    total = experiment.rounds if rounds is None else rounds
    check_integers("rounds", total)
    run_experiment(experiment.model_copy(update={"rounds": total}), {**options, "out": stored.folder.parent})
