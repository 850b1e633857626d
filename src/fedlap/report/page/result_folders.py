"""Stored results: the runs of a comparison, a sweep or a tuning, or a list of runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedlap.errors import DivergedError, InputError
from fedlap.experiments.group_folder import RESULT_FILES
from fedlap.experiments.run_folder import EXPERIMENT_FILE, RunFolder
from fedlap.experiments.session import RunOutcome
from fedlap.experiments.settings import flatten_fields, format_value
from fedlap.report.comparison import Comparison
from fedlap.report.page.reported_runs import ReportedResults, StoredRun
from fedlap.report.sweep_table import Sweep
from fedlap.report.tuning_table import Tuning
from fedlap.storage.files import parse_json, read_file, refuse_links

SHARED_KEYS = ("data", "partition", "scarce", "fold")  # settings that runs must share to be compared
PER_RUN_KEYS = ("seed", "content")  # settings in which the runs of a row differ


def load_results(folders: Sequence[Path], metric: str | None = None) -> ReportedResults:
    """Load the result folder of one command, or a list of run folders.

    metric: the metric to show, by default the one of the command, or that of the task.
    """
    for folder in folders:
        command = next((name for name, file in RESULT_FILES.items() if (folder / file).is_file()), None)
        if command is not None and len(folders) > 1:
            raise InputError(f"report: {str(folder)!r} contains several runs; pass it alone")
        if command is not None:
            return _load_command(folder, command, metric)
    return _load_runs([_open_run(folder) for folder in folders], metric)


def _open_run(folder: Path) -> StoredRun:
    inside = sorted(path.parent for file in RESULT_FILES.values() for path in folder.glob(f"*/{file}"))
    if inside:
        raise InputError(
            f"{str(folder)!r} contains results of several commands; pass one of them, e.g. {inside[-1]}"
        )
    run = RunFolder.open(folder)
    return StoredRun(run.folder, run.description_file)


def _load_command(folder: Path, command: str, metric: str | None) -> ReportedResults:
    """Load the result file of `compare`, `sweep` or `tune`."""
    path = folder / RESULT_FILES[command]
    try:
        facts = parse_json(read_file(path))
        refuse_links(folder, ("report",))
        _check_facts(facts)
        rows = _list_rows(facts, command)
        return _build_results(folder, command, facts, rows, metric)
    except KeyError as error:
        raise InputError(
            f"{str(path)!r} has no {error}; run `fedlap {command}` again, which loads finished runs"
        ) from None
    except InputError:
        raise
    except (OSError, ValueError, TypeError, AttributeError, LookupError, StopIteration):
        raise InputError(f"{str(path)!r} is damaged; run `fedlap {command}` again") from None


def _check_facts(facts: dict[str, Any]) -> None:
    """Raise ValueError for values of types that commands do not write."""
    kinds = {
        "data": str,
        "source": str,
        "command": str,
        "metric": str,
        "folds": int,
        "seeds": list,
        "fields": list,
        "kept": dict,
        "selection": str,
    }
    if any(name in facts and not isinstance(facts[name], kind) for name, kind in kinds.items()):
        raise ValueError("a value has an unexpected type")
    seeds, fields = facts["seeds"], facts.get("fields", [])
    if not all(type(seed) is int for seed in seeds) or not all(isinstance(name, str) for name in fields):
        raise ValueError("a seed is not an integer, or a field name is not text")
    for names in facts["kept"].values():
        if len(names) != len(seeds) * facts.get("folds", 1) or not names:
            raise ValueError("a row does not have one run per seed")
        if any(not isinstance(name, str) or name == ".." or Path(name).name != name for name in names):
            raise ValueError("a run is not in the parent folder")


def _list_rows(facts: dict[str, Any], command: str) -> list[dict[str, Any]]:
    """Return values and last scores of each row."""
    if command == "compare":
        return [{"values": {}, "scores": scores} for scores in facts["algorithms"].values()]
    return list(facts["runs" if command == "sweep" else "candidates"])


def _build_results(
    folder: Path, command: str, facts: dict[str, Any], rows: list[dict[str, Any]], metric: str | None
) -> ReportedResults:
    runs = {
        label: [StoredRun(folder.parent / name) for name in names] for label, names in facts["kept"].items()
    }
    reasons = iter(facts["diverged"])  # in the order of rows and seeds
    outcomes: dict[str, list[RunOutcome]] = {}
    for (label, row_runs), row in zip(runs.items(), rows, strict=True):
        outcomes[label] = [
            DivergedError(next(reasons)["reason"]) if last is None else _load_scores(run, last["round"])
            for run, last in zip(row_runs, row["scores"], strict=True)
        ]
    common = facts["data"], facts["seeds"], outcomes, facts["source"]
    values = {label: tuple(row["values"].values()) for label, row in zip(runs, rows, strict=True)}
    metric = metric or facts.get("metric")
    comparison: Comparison
    controls = tuple((str(one), str(other)) for one, other in facts.get("control_rows", []))
    if command == "compare":
        selection = facts.get("selection", "")
        comparison = Comparison(*common, controls=controls, selection=selection, metric_name=metric)
    elif command == "sweep":
        swept = tuple(facts["fields"]), values, tuple(facts["algorithms"])
        comparison = Sweep(*common, *swept, controls=controls, metric_name=metric)
    else:
        places = [seed for seed in facts["seeds"] for _ in range(facts["folds"])]
        refused = tuple(
            (tuple(candidate["values"].values()), candidate["reason"]) for candidate in facts["refused"]
        )
        comparison = Tuning(
            facts["data"], places, outcomes, facts["source"], tuple(facts["fields"]), values,
            tuple(facts["algorithms"]), facts["folds"], refused, metric_name=metric,
        )  # fmt: skip
    return ReportedResults(comparison, runs, facts["command"])


def _load_scores(run: RunFolder, rounds: int) -> list[Any]:
    """Load the scores of a run up to the round `rounds`."""
    RunFolder.open(run.folder)
    scores = [score for score in run.read_scores() if score.round <= rounds]
    if run.get_status(rounds) == "unfinished" or not scores or scores[-1].round != rounds:
        raise InputError(_describe_unfinished(run, rounds))
    return scores


def _describe_unfinished(run: RunFolder, rounds: int) -> str:
    progress = (
        f"checkpoint at round {run.saved_rounds[0]} of {rounds}" if run.saved_rounds else "no checkpoint yet"
    )
    advice = f"run `fedlap resume {run.folder}`"
    if run.experiment.objects is not None:
        advice = "repeat the call in Python, with the same folder"
    return f"{str(run.folder)!r} is not finished ({progress}); {advice}"


def _load_runs(runs: Sequence[StoredRun], metric: str | None) -> ReportedResults:
    """Group a list of runs: runs that differ only in their seeds form a row."""
    first, rows = runs[0].experiment, dict[str, list[StoredRun]]()
    described = {id(run): run.experiment.describe() for run in runs}
    for run in runs:
        for field in SHARED_KEYS:
            one, other = described[id(runs[0])].get(field), described[id(run)].get(field)
            if one != other:
                raise InputError(
                    f"report: {runs[0].name} and {run.name} have different data ({field}), so their "
                    "scores cannot be compared; write one page for each"
                )
    for run in runs:
        shared = {key: value for key, value in described[id(run)].items() if key not in PER_RUN_KEYS}
        rows.setdefault(json.dumps(shared, sort_keys=True), []).append(run)
    labels = _build_labels([json.loads(row) for row in rows])
    ordered = {
        label: sorted(row_runs, key=lambda run: run.experiment.seed)
        for label, row_runs in zip(labels, rows.values(), strict=True)
    }
    seeds = {label: [run.experiment.seed for run in row_runs] for label, row_runs in ordered.items()}
    base = next(iter(seeds))
    for label, row_seeds in seeds.items():
        if len(set(row_seeds)) < len(row_seeds):
            raise InputError(f"report: a run of {label} is given twice; pass each run once")
        if row_seeds != seeds[base]:
            raise InputError(
                f"report: runs of {base} have seeds {seeds[base]}, runs of {label} {row_seeds}; pass runs "
                "with equal seeds"
            )
    outcomes = {label: [_load_outcome(run) for run in row_runs] for label, row_runs in ordered.items()}
    comparison = Comparison(first.title, seeds[base], outcomes, first.data["name"], metric_name=metric)
    again = "\n".join(
        f"fedlap run {run.folder / EXPERIMENT_FILE}" for run in runs if run.experiment.objects is None
    )
    return ReportedResults(comparison, ordered, again)


def _load_outcome(run: RunFolder) -> RunOutcome:
    if run.get_status() == "diverged":
        return run.read_failure()
    return _load_scores(run, run.experiment.rounds)


def _build_labels(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the algorithm of each row, with the settings that distinguish rows of one algorithm."""
    names = [row["algorithm"]["name"] for row in rows]
    flat = [flatten_fields(row) for row in rows]
    labels = []
    for name, row in zip(names, flat, strict=True):
        others = [other for other, other_name in zip(flat, names, strict=True) if other_name == name]
        differ = {
            key: row.get(key)
            for key in sorted({key for other in others for key in other})
            if len({json.dumps(other.get(key)) for other in others}) > 1
        }
        differences = [f"{key.split('.')[-1]} = {format_value(value)}" for key, value in differ.items()]
        labels.append(" ".join([name, f"({', '.join(differences)})"]) if differences else name)
    return labels
