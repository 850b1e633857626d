"""Summaries of stored runs and groups for lists, from few lines of run folder."""

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from fedlap.errors import InputError
from fedlap.experiments.fit_description import FIT_FILE, convert_fit_file
from fedlap.experiments.group_folder import RESULT_FILES, GroupFolder, list_member_names, list_run_names
from fedlap.experiments.plugins import REGISTRIES, list_unknown_names
from fedlap.experiments.run_folder import CHECKPOINT_FOLDER, EXPERIMENT_FILE, FAILURE_FILE, find_description
from fedlap.experiments.score_log import SCORE_LOG_FILE
from fedlap.experiments.settings import flatten_fields
from fedlap.storage.files import describe_error, parse_json, read_last_bytes, read_text
from fedlap.training.metrics import METRICS, Metric

ListedState = Literal["done", "unfinished", "diverged", "damaged"]
LAST_LINES_BYTES = 1 << 16  # of rounds.jsonl; a line of scores has about 1 kB
PER_RUN_FIELDS = ("seed", "content", "rounds")  # not settings in which runs of a list differ
DEFAULT_METRICS = ("accuracy", "rmse", "loss")  # the first that a score has


@dataclass(frozen=True, eq=False)
class ListedScore:
    """The headline metric of a run or of a group's best row."""

    metric: Metric
    value: float

    @staticmethod
    def of(scores: Sequence[Mapping[str, Any]], metric: str | None = None) -> "ListedScore | None":
        """Return the mean of a metric over scores, by default that of the task; None if they lack it."""
        for name in DEFAULT_METRICS if metric is None else (metric,):
            values = [score.get(name) for score in scores]
            if values and all(type(value) in (int, float) for value in values):
                return ListedScore(METRICS[name], sum(values) / len(values))  # type: ignore[arg-type]
        return None


@dataclass(frozen=True, eq=False)
class RunSummary:
    """A run in a list.

    date: time of the last score, in seconds since 1970. settings: fields of the experiment by dotted path.
    unknown: descriptions of names that are not registered in this process; only training needs them.
    problem: why a damaged run cannot be read.
    metric: the metric of its score; None is the default of the task.
    """

    folder: Path
    state: ListedState
    date: float
    data: str
    algorithm: str
    seed: int | None
    round: int
    rounds: int
    settings: Mapping[str, Any]
    last: Mapping[str, Any]
    unknown: tuple[str, ...] = ()
    problem: str | None = None
    metric: str | None = None

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.name

    @property
    def score(self) -> ListedScore | None:
        """The last score."""
        return ListedScore.of([self.last], self.metric) if self.last else None


@dataclass(frozen=True, eq=False)
class GroupSummary:
    """A comparison, sweep or tuning in a list; `runs` are the names of its runs, run once.

    best: the row with the best mean score, if the group has several rows.
    """

    group: GroupFolder
    date: float
    data: str
    seeds: tuple[int, ...]
    runs: tuple[str, ...]
    rows: tuple[str, ...]
    best: str | None
    score: ListedScore | None
    problem: str | None = None

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.group.name


def read_run_summary(folder: Path) -> RunSummary:
    """Read the experiment and the last score of a run; a run that cannot be read is damaged."""
    file = folder / (find_description(folder) or EXPERIMENT_FILE)
    title, date = folder.name, _read_time(folder, (SCORE_LOG_FILE, file.name))
    try:
        names = _list_entries(folder)
        experiment = tomllib.loads(read_text(file))
        if file.name == FIT_FILE:
            experiment = convert_fit_file(experiment)
        data, algorithm = experiment["data"], experiment["algorithm"]["name"]
        title = str(Path(data["path"]).stem if "path" in data else data["name"])
        rounds, seed = int(experiment["rounds"]), int(experiment["seed"])
        file = folder / SCORE_LOG_FILE
        last = _read_last_score(file) if SCORE_LOG_FILE in names else {}
        saved = _find_last_checkpoint(folder) if CHECKPOINT_FOLDER in names else 0
        sections = {section: experiment[section] for section in REGISTRIES}
        objects = experiment.pop("objects", {})
        named = {name: section for name, section in sections.items() if name not in objects}
        unknown = tuple(list_unknown_names(experiment.get("plugins"), named))
    except (OSError, InputError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else describe_error(error)
        problem = f"{str(file)!r} cannot be read ({reason})"
        return RunSummary(folder, "damaged", date, title, "", None, 0, 0, {}, {}, (), problem)
    state: ListedState = "done" if saved >= rounds else "unfinished"
    if FAILURE_FILE in names:
        state = "diverged"
    settings = flatten_fields(experiment)
    return RunSummary(
        folder, state, date, title, str(algorithm), seed, saved, rounds, settings, last, unknown
    )


def read_group_summary(group: GroupFolder, metric: str | None = None) -> GroupSummary:
    """Read the results of a group; one that cannot be read has no runs.

    metric: the metric to rank its rows by; None is the one that the group was ranked by.
    """
    date = _read_time(group.folder, (RESULT_FILES[group.command],))
    try:
        facts = group.read_facts()
        names_per_row = list_run_names(facts)
        ranked_by = facts.get("metric") if metric is None else metric
        scores = [_list_scores(row) for row in _list_rows(facts, group.command)]
        rows = {
            label: ListedScore.of(row, ranked_by if ranked_by in METRICS else None)
            for label, row in zip(names_per_row, scores, strict=True)
            if row is not None
        }
        data, seeds = str(facts["data"]), tuple(int(seed) for seed in facts["seeds"])
    except (InputError, ValueError, TypeError, LookupError, AttributeError) as error:
        return GroupSummary(group, date, group.name, (), (), (), None, None, describe_error(error))
    known = {label: score for label, score in rows.items() if score is not None}
    runs = tuple(list_member_names(facts))
    best = max(known, key=lambda label: known[label].metric.sign * known[label].value, default=None)
    score = None if best is None else known[best]
    return GroupSummary(
        group, date, data, seeds, runs, tuple(names_per_row), best if len(names_per_row) > 1 else None, score
    )


def list_summaries(out: Path, metric: str | None = None) -> tuple[list[RunSummary], list[GroupSummary]]:
    """Return all runs and groups in a folder, newest first, with their scores by a metric.

    The folder may also be that of a run itself.
    """
    if find_description(out) is not None:
        return [replace(read_run_summary(out), metric=metric)], []
    runs, groups = [], []
    try:
        entries = sorted(entry.name for entry in os.scandir(out) if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return [], []
    for name in entries:
        if find_description(out / name) is not None:
            runs.append(replace(read_run_summary(out / name), metric=metric))
        elif (group := GroupFolder.find(out / name)) is not None:
            groups.append(read_group_summary(group, metric))
    return (
        sorted(runs, key=lambda run: run.date, reverse=True),
        sorted(groups, key=lambda group: group.date, reverse=True),
    )


def find_differences(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields that differ between runs, sorted; seeds, rounds and digests of data do not count."""
    fields = sorted({field for run in settings for field in run} - set(PER_RUN_FIELDS))
    return [
        field for field in fields
        if len({json.dumps(run.get(field), default=str) for run in settings}) > 1
    ]  # fmt: skip


def _list_entries(folder: Path) -> set[str]:
    """Return the names in a folder; raise ValueError for a link, which would lead out of it."""
    with os.scandir(folder) as entries:
        names = set()
        for entry in entries:
            if entry.is_symlink():
                raise ValueError(f"{entry.name!r} is a link; remove it, or replace it by a copy")
            names.add(entry.name)
    return names


def _read_time(folder: Path, files: Sequence[str]) -> float:
    """Return the time of the first file that exists; 0 if none does."""
    for name in files:
        try:
            return (folder / name).lstat().st_mtime
        except OSError:
            continue
    return 0.0


def _read_last_score(path: Path) -> dict[str, Any]:
    """Return the last complete line of scores; empty if there is none."""
    lines = read_last_bytes(path, LAST_LINES_BYTES).split(b"\n")[:-1]
    return dict(parse_json(lines[-1])) if lines else {}


def _find_last_checkpoint(folder: Path) -> int:
    with os.scandir(folder / CHECKPOINT_FOLDER) as entries:
        names = [entry.name.removeprefix("round-") for entry in entries if entry.name.startswith("round-")]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def _list_rows(facts: Mapping[str, Any], command: str) -> list[Any]:
    """Return the last scores per row, as run command writes them."""
    if command == "compare":
        return list(facts["algorithms"].values())
    return [row["scores"] for row in facts["runs" if command == "sweep" else "candidates"]]


def _list_scores(row: Any) -> list[Mapping[str, Any]]:
    """Return the scores of a row; empty if a run of it diverged."""
    scores: list[Mapping[str, Any]] = [score for score in row if isinstance(score, dict)]
    return scores if len(scores) == len(row) else []
