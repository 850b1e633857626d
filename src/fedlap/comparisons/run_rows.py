"""From rows to a result: prepare, tune, train, rank and, if there is a folder, store everything."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedlap.comparisons.prepared_rows import PreparedRows, check_same_task, prepare_rows
from fedlap.comparisons.result import ComparisonResult
from fedlap.comparisons.rows import Row
from fedlap.comparisons.training import TrainingSession, train_runs
from fedlap.comparisons.tuning import RowTuning, tune_rows
from fedlap.errors import UnsuitedError
from fedlap.experiments.group_folder import RESULT_FILES
from fedlap.experiments.prepare import Prepared
from fedlap.experiments.run_folder import RunFolder, choose_group_folder, create_out_folder
from fedlap.report.comparison import Comparison, OutcomesByRow
from fedlap.report.curves import draw_curves
from fedlap.report.sweep_figure import draw_sweep
from fedlap.report.sweep_table import Sweep
from fedlap.storage.files import write_file
from fedlap.training.metrics import check_metric

# Builds the table from the title, the outcomes and the name of the data set.
BuildTable = Callable[[str, OutcomesByRow, str], Comparison]


def run_rows(
    rows: Sequence[Row],
    seeds: Sequence[int],
    session: TrainingSession,
    build_table: BuildTable,
    *,
    metric: str | None = None,
    folds: int | None = None,
    fields: str = "algorithm",
    on_ready: Callable[[PreparedRows], None] = lambda prepared: None,
    on_tuned: Callable[[RowTuning], None] = lambda tuning: None,
    on_skip: Callable[[str, UnsuitedError], None] | None = None,
) -> ComparisonResult:
    """Train all rows with all seeds and return their ranking.

    metric: the metric to rank by; None is the default of the task.
    folds: tune every row before, with this number of folds; None uses the settings of the rows.
    fields: what rows differ in, for the progress.
    on_ready: called after every run was checked, before the first is trained.
    on_tuned: called with the chosen settings.
    on_skip: called with a row that cannot be trained on these data, which is then skipped; None raises.
    """
    if session.folder is not None:
        create_out_folder(session.folder)
    prepared = prepare_rows(rows, seeds, on_skip=on_skip)
    check_same_task(prepared.ready)
    check_metric(metric, prepared.ready[0].federation.labels is not None)
    on_ready(prepared)
    tuning = None
    if folds is not None:
        tuning = tune_rows(prepared.rows, seeds, session, folds, metric)
        on_tuned(tuning)
        prepared = prepare_rows(prepared.rows, seeds, tuning.values)
    trained = train_runs(session, prepared.ready, prepared.labels, fields)
    runs: dict[str, list[Any]] = {row.label: [] for row in prepared.rows}
    outcomes: dict[str, list[Any]] = {row.label: [] for row in prepared.rows}
    for label, (run, outcome) in zip(prepared.labels, trained, strict=True):
        runs[label].append(run)
        outcomes[label].append(outcome)
    first = prepared.ready[0].experiment
    comparison = replace(build_table(first.title, outcomes, first.data["name"]), metric_name=metric)
    if tuning is not None:
        comparison = replace(comparison, selection=tuning.describe_rule())
    result = ComparisonResult(
        comparison, runs, session.command, tuned=None if tuning is None else tuning.values
    )
    if session.folder is None:
        return result
    facts = comparison.as_dict() | describe_folders(session, prepared.ready, prepared.labels)
    if tuning is not None:
        facts["tuning"] = tuning.as_dict()
    folder = write_comparison(comparison, session.folder, prepared.ready, facts)
    return replace(result, folder=folder, facts=facts)


def write_comparison(
    comparison: Comparison, out: Path, ready: Sequence[Prepared], facts: dict[str, Any]
) -> Path:
    """Write the table, the figure and the numbers into a folder, and return it."""
    is_sweep = isinstance(comparison, Sweep)
    kind = "sweep" if is_sweep else "compare"
    folder = choose_group_folder(out, [run.experiment for run in ready], kind)
    if isinstance(comparison, Sweep):
        write_file(folder / "sweep.png", draw_sweep(comparison))
    else:
        write_file(folder / "curves.png", draw_curves(comparison))
    write_file(folder / "table.md", comparison.render_markdown().encode())
    write_file(folder / RESULT_FILES[kind], json.dumps(facts, indent=1).encode())
    return folder


def describe_folders(
    session: TrainingSession, ready: Sequence[Prepared], labels: Sequence[str]
) -> dict[str, Any]:
    """Return the command and, per row, the runs' folders and their rounds, as `fedlap report` needs them.

    A remark says if folders are past the last round of the table.
    """
    assert session.folder is not None
    rows: dict[str, list[str]] = {}
    rounds: dict[str, list[int]] = {}
    later = []
    for run, label in zip(ready, labels, strict=True):
        folder = RunFolder.of(session.folder, run.experiment)
        saved = next(iter(folder.saved_rounds), 0)
        rows.setdefault(label, []).append(folder.name)
        rounds.setdefault(label, []).append(saved)
        later += [saved] if saved > run.experiment.rounds else []
    if later:
        session.on_remark(
            f"note: {len(later)} of {len(ready)} runs were trained further, up to round {max(later)}; their "
            "folders and models are at that later round"
        )
    return {"command": session.command, "kept": rows, "folder_rounds": rounds}
