"""The command that lists stored runs and groups: runs."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from rich.box import SIMPLE_HEAVY
from rich.table import Table
from rich.text import Text

from fedlap.cli import console
from fedlap.errors import InputError, unknown_name_error
from fedlap.experiments.find_folder import SHORT_DIGEST, read_digest
from fedlap.experiments.run_summary import (
    GroupSummary,
    ListedScore,
    RunSummary,
    find_differences,
    list_summaries,
)
from fedlap.experiments.settings import format_value
from fedlap.report.seed_list import format_seeds
from fedlap.training.metrics import METRICS

SHOWN_DIGITS = 8  # of a digest, more if two folders share them
SHOWN_SETTINGS = 80  # characters
WIDE_COLUMNS = 96  # of a terminal that has room for hours, and for columns of both rounds and state
FOLDED_HEADERS = ("data", "settings")
WIDEST_SETTING = 28  # characters of a setting that stays in one piece
SHA256 = "sha256"
AGE = re.compile(r"(\d{1,6})([hdw])")
HOURS = {"h": 1, "d": 24, "w": 168}
HEADERS = ("run", "date (UTC)", "data", "method", "seed", "settings", "score", "rounds", "state")
NARROW_HEADERS = ("run", "date", "data", "method", "seed", "settings", "score", "state")

Entry = TypeVar("Entry", bound=RunSummary | GroupSummary)


@dataclass(frozen=True)
class RunFilter:
    """Conditions on the runs to list; None accepts every run."""

    data: str | None = None
    algorithm: str | None = None
    state: str | None = None
    since: float | None = None

    def accepts(self, run: RunSummary) -> bool:
        """Return whether a run meets all conditions."""
        return (
            self.data in (None, run.data, run.settings.get("data.name"))
            and (self.algorithm is None or self.algorithm.casefold() == run.algorithm.casefold())
            and self.state in (None, run.state)
            and run.date >= (self.since or 0)
        )


def print_runs(out: Path, unfold: bool, wanted: RunFilter, metric: str | None, as_json: bool) -> None:
    """Print stored runs and groups; a group stands for its runs unless `unfold`.

    They are sorted by date, newest first, or by a metric, best first.
    """
    if metric is not None and metric not in METRICS:
        raise unknown_name_error("metric", metric, METRICS, field="metric")
    runs, groups = list_summaries(out, metric)
    if not runs and not groups:
        raise InputError(f"no runs in {str(out)!r}; choose another folder with --out")
    problems = {entry.name: entry.problem for entry in runs} | {entry.name: entry.problem for entry in groups}
    for name, problem in problems.items():
        if problem is not None:
            console.print_remark(f"note: {name} is damaged: {problem}")
    for run in runs:
        for text in run.unknown:
            console.print_remark(f"note: {run.name}: {text}")
    total, by_name = len(runs), {run.name: run for run in runs if wanted.accepts(run)}
    groups = [group for group in groups if wanted == RunFilter() or not by_name.keys().isdisjoint(group.runs)]
    if metric is not None:
        _check_scores([*by_name.values(), *groups], metric)
        by_name = {run.name: run for run in sort_entries(list(by_name.values()), metric)}
        groups = sort_entries(groups, metric)
    if as_json:
        for run in by_name.values():
            print(json.dumps(describe_run(run, groups)))
        for group in groups:
            print(json.dumps(describe_group(group, runs)))
        return
    if not by_name and not groups:
        console.print_remark(f"none of {total} runs in {str(out)!r} matches")
        return
    names = {run.name for run in runs}
    listed = list(by_name.values())
    console.out.print(build_table(listed, groups, names, unfold, console.out.width, metric))
    folded = 0 if unfold else len({name for group in groups for name in group.runs} & by_name.keys())
    if folded:
        console.print_remark(f"{folded} runs of comparisons, sweeps and tunings are folded; --all lists them")


def sort_entries(entries: Sequence[Entry], metric: str | None) -> list[Entry]:
    """Sort runs and groups: newest first, or by a metric, best first and those without it last."""
    newest = sorted(entries, key=lambda entry: entry.date, reverse=True)
    if metric is None:
        return newest
    sign = METRICS[metric].sign
    return sorted(newest, key=lambda entry: -sign * entry.score.value if entry.score else math.inf)


def _check_scores(entries: Sequence[RunSummary | GroupSummary], metric: str) -> None:
    """Raise InputError if there are scores, but none of them has the metric."""
    scored = [entry for entry in entries if isinstance(entry, RunSummary) and entry.last]
    if scored and not any(entry.score for entry in entries):
        valid = [name for name in METRICS if any(run.last.get(name) is not None for run in scored)]
        raise InputError(
            f"metric = {metric}: the listed runs do not have it; use {', '.join(valid)}", field="metric"
        )


def parse_since(text: str | None) -> float | None:
    """Parse a date and time in UTC, or an age as in 12h, 7d or 2w; return seconds since 1970."""
    if text is None:
        return None
    age = AGE.fullmatch(text.strip())
    if age is not None:
        return (datetime.now(UTC) - timedelta(hours=int(age[1]) * HOURS[age[2]])).timestamp()
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InputError(
            f"--since {text}: expected a date or an age, e.g. 2026-01-31, '2026-01-31 12:00', 12h, 7d or 2w"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def describe_run(run: RunSummary, groups: Sequence[GroupSummary]) -> dict[str, Any]:
    """Return a run as plain values."""
    return {
        "run": run.name,
        "date": format_date(run.date, "%Y-%m-%dT%H:%M:%SZ"),
        "data": run.data,
        "algorithm": run.algorithm,
        "seed": run.seed,
        "state": run.state,
        "round": run.round,
        "rounds": run.rounds,
        "accuracy": run.last.get("accuracy"),
        "loss": run.last.get("loss"),
        **_describe_score(run.score),
        "settings": dict(run.settings),
        "groups": [group.name for group in groups if run.name in group.runs],
        "folder": str(run.folder),
    }


def describe_group(group: GroupSummary, runs: Sequence[RunSummary]) -> dict[str, Any]:
    """Return a group as plain values."""
    names = {run.name for run in runs}
    return {
        "group": group.name,
        "command": group.group.command,
        "date": format_date(group.date, "%Y-%m-%dT%H:%M:%SZ"),
        "data": group.data,
        "seeds": list(group.seeds),
        "rows": list(group.rows),
        "best": group.best,
        **_describe_score(group.score),
        "runs": list(group.runs),
        "missing": [name for name in group.runs if name not in names],
        "folder": str(group.group.folder),
    }


def _describe_score(score: ListedScore | None) -> dict[str, Any]:
    return {"metric": score and score.metric.name, "score": score and score.value}


def build_table(
    runs: Sequence[RunSummary],
    groups: Sequence[GroupSummary],
    stored: set[str],
    unfold: bool,
    width: int = 100,
    metric: str | None = None,
) -> Table:
    """Build the table, sorted; runs of groups are listed beneath their group, or not at all.

    A terminal narrower than 96 characters shows days alone, and rounds only of runs that are not done. Values
    are not broken there, except very long ones.
    """
    inside = {name for group in groups for name in group.runs}
    by_name = {run.name: run for run in runs}
    shown = [run for run in runs if unfold or run.name not in inside]
    settings = _describe_differences(shown)
    shorten = build_shortener([*(run.name for run in runs), *(group.name for group in groups)])
    entries: list[RunSummary | GroupSummary] = [
        *(run for run in shown if run.name not in inside), *groups
    ]  # fmt: skip
    is_wide = width >= WIDE_COLUMNS
    form = "%Y-%m-%d %H:%M" if is_wide else "%m-%d"
    rows: list[list[str]] = []
    for entry in sort_entries(entries, metric):
        if isinstance(entry, RunSummary):
            rows.append(_list_run_cells(entry, shorten(entry.name), settings, form))
            continue
        rows.append(_list_group_cells(entry, shorten(entry.name), stored, by_name, form))
        for name in entry.runs if unfold else ():
            if name in by_name:
                rows.append(_list_run_cells(by_name[name], f"└ {shorten(name)}", settings, form))
    if not is_wide:
        rows = [_merge_progress(cells) for cells in rows]
    headers = HEADERS if is_wide else NARROW_HEADERS
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    others = sum(widths) - widths[headers.index("settings")] + len(headers) + 1
    longest = max(
        (len(word) for cells in rows for word in cells[headers.index("settings")].split()), default=0
    )
    table = Table(box=SIMPLE_HEAVY, padding=0, pad_edge=False)
    for header in headers:
        room = min(longest, WIDEST_SETTING, width - others) if header == "settings" else 0
        table.add_column(
            header,
            overflow="fold",
            justify="right" if header in ("seed", "score") else "left",
            no_wrap=header not in FOLDED_HEADERS,
            min_width=max(len(header), room),
        )
    for cells in rows:
        table.add_row(*(Text(cell, overflow="fold") for cell in cells))
    return table


def _merge_progress(cells: Sequence[str]) -> list[str]:
    """Join the last two cells: the rounds are shown only if a run is not done."""
    *first, rounds, state = cells
    if "/" in rounds and state != "done":
        state = rounds if state == "unfinished" else f"{state} {rounds}"
    return [*first, state]


def _list_run_cells(run: RunSummary, name: str, settings: Mapping[str, str], form: str) -> list[str]:
    progress = str(run.round) if run.round >= run.rounds else f"{run.round}/{run.rounds}"
    return [
        name, format_date(run.date, form), run.data, run.algorithm, "" if run.seed is None else str(run.seed),
        settings.get(run.name, ""), format_score(run.score), progress, run.state,
    ]  # fmt: skip


def _list_group_cells(
    group: GroupSummary, name: str, stored: set[str], by_name: Mapping[str, RunSummary], form: str
) -> list[str]:
    missing = sum(run not in stored for run in group.runs)
    diverged = sum(by_name[run].state == "diverged" for run in group.runs if run in by_name)
    state = f"{missing} missing" if missing else f"{diverged} diverged" if diverged else "done"
    rows = f"best of {len(group.rows)}: {group.best}" if group.best else ", ".join(group.rows)
    rounds = sorted({by_name[run].rounds for run in group.runs if run in by_name})
    return [
        name, format_date(group.date, form), group.data, f"{group.group.command} ({len(group.runs)})",
        format_seeds(group.seeds).partition(" ")[2] if group.seeds else "", _abbreviate_text(rows),
        format_score(group.score), "-".join(map(str, rounds[:1] + rounds[1:][-1:])),
        "damaged" if group.problem else state,
    ]  # fmt: skip


def _describe_differences(runs: Sequence[RunSummary]) -> dict[str, str]:
    """Return, per run, the settings in which the listed runs of its data and method differ."""
    families: dict[tuple[str, str], list[RunSummary]] = {}
    for run in runs:
        families.setdefault((run.data, run.algorithm), []).append(run)
    described: dict[str, str] = {}
    for family in families.values():
        fields = find_differences([run.settings for run in family])
        for run in family:
            pairs = [f"{_shorten_field(field)}={_format_setting(field, run.settings[field])}"
                     for field in fields if field in run.settings]  # fmt: skip
            described[run.name] = _abbreviate_text(" ".join(pairs))
    return described


def _shorten_field(field: str) -> str:
    """Return a dotted path without "algorithm", and of a name only its section."""
    section, _, last = field.rpartition(".")
    return section if last == "name" else field.removeprefix("algorithm.")


def _format_setting(field: str, value: Any) -> str:
    """Return a value without spaces; of a digest, the first digits."""
    if field.rpartition(".")[2].endswith(SHA256):
        return str(value)[:SHOWN_DIGITS]
    if isinstance(value, list | tuple):
        return ",".join(_format_setting("", part) for part in value)
    return format_value(value)


def _abbreviate_text(text: str) -> str:
    return text if len(text) <= SHOWN_SETTINGS else f"{text[: SHOWN_SETTINGS - 1]}…"


def build_shortener(names: Sequence[str]) -> Callable[[str], str]:
    """Return a function from a folder's name to the first digits of its digest, which only it has.

    A name that does not end in a digest stays whole.
    """
    digests = sorted({read_digest(name) for name in names})
    digits = max((_count_common(one, other) + 1 for one, other in pairwise(digests)), default=0)
    digits = max(digits, SHOWN_DIGITS)

    def shorten(name: str) -> str:
        digest = read_digest(name)
        return digest[:digits] if len(digest) == 16 and SHORT_DIGEST.fullmatch(digest) else name

    return shorten


def _count_common(one: str, other: str) -> int:
    """Count the characters with which both texts begin."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


def format_score(score: ListedScore | None) -> str:
    """Return the value with its unit or name."""
    if score is None:
        return "–"
    value = score.value * score.metric.factor
    if score.metric.is_percent:
        return f"{value:.{score.metric.digits}f} %"
    return f"{score.metric.label} {value:.4g}"


def format_date(seconds: float, form: str) -> str:
    """Return a time in UTC as text."""
    return datetime.fromtimestamp(seconds, UTC).strftime(form)
