"""Sections of the page of a comparison, a sweep, a tuning, or runs."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedlap.errors import DivergedError
from fedlap.experiments.settings import format_value
from fedlap.report.comparison import Comparison
from fedlap.report.page.reported_runs import ReportedResults
from fedlap.report.page.sections import (
    CurveSeries,
    FactsSection,
    FigureSection,
    PageSection,
    Panel,
    Records,
    RecordValue,
    TableCell,
    TableSection,
    TextSection,
)
from fedlap.report.page.table_formats import MARK
from fedlap.report.sweep_figure import LOG_AXIS_RATIO
from fedlap.report.sweep_table import Sweep
from fedlap.report.tuning_table import Tuning
from fedlap.training.scores import Score

MAX_POINTS = 200  # per curve
MAX_CURVES = 24
SHARED_SETTINGS = (
    "data",
    "partition",
    "scarce",
    "model",
    "rounds",
    "batch",
    "sample",
    "evaluate_every",
    "dtype",
    "device",
)


def build_scores_section(comparison: Comparison) -> TableSection:
    """Build the table of scores; the leader is marked if it is significantly better than every other row."""
    best = find_significant_leaders(comparison)
    fields = list(comparison.field_names) if isinstance(comparison, Sweep) else comparison.row_headers()
    first = len(comparison.row_headers())
    rows = []
    for name, cells in zip(comparison.runs, comparison.table_rows(), strict=True):
        known = (
            [format_value(value) for value in comparison.values[name]]
            if isinstance(comparison, Sweep)
            else comparison.row_cells(name)
        )
        selected = "selected" if isinstance(comparison, Tuning) and name == comparison.best else ""
        failed = bool(comparison.count_diverged(name))
        line = [TableCell(text, selected if place == 0 else "") for place, text in enumerate(known)]
        line += [
            TableCell(text, best=place == 0 and name in best, muted=failed)
            for place, text in enumerate(cells[first:])
        ]
        rows.append(line)
    return TableSection(
        "Scores", f"{comparison.describe_table()}.", "scores", [*fields, *comparison.headers()[first:]], rows,
        f"{comparison.describe_columns()} {_explain_mark(comparison, best)}".strip(),
        records=build_score_records(comparison), by_seed=build_seed_records(comparison),
    )  # fmt: skip


def build_score_records(comparison: Comparison) -> Records:
    """Build the numbers of the table: mean and standard deviation of each score over the runs of a row."""
    fields = list(comparison.field_names) if isinstance(comparison, Sweep) else comparison.row_headers()
    chosen = [comparison.best] if isinstance(comparison, Tuning) else find_significant_leaders(comparison)
    columns = [*fields, comparison.repeats, "diverged"]
    for _, field, factor in comparison.score_columns():
        columns += [f"{_name_csv_column(field, factor)}_{kind}" for kind in ("mean", "std")]
    columns += ["upload_bytes_per_round", "download_bytes_per_round", "milliseconds_per_round"]
    columns.append("chosen" if isinstance(comparison, Tuning) else "shown_best")
    rows: list[list[RecordValue]] = []
    for name, runs in comparison.runs.items():
        failed, costs = comparison.count_diverged(name), comparison.mean_costs(name)
        line: list[RecordValue] = list(comparison.row_cells(name))
        if isinstance(comparison, Sweep):
            line = [value if _is_number(value) else format_value(value) for value in comparison.values[name]]
        line += [len(runs), failed]
        for _, field, factor in comparison.score_columns():
            values = comparison.final_scores(name, field) * factor
            line.append(None if failed else float(values.mean()))
            line.append(None if failed or len(values) < 2 else float(values.std(ddof=1)))
        line += [None] * 3 if costs is None else [round(costs[0]), round(costs[1]), 1000 * costs[2]]
        rows.append([*line, int(name in chosen)])
    return Records(columns, rows)


def build_seed_records(comparison: Comparison) -> Records:
    """Build the scores of the last round in long form: method, seed, metric, value; without diverged runs."""
    rows: list[list[RecordValue]] = [
        [*line, metric, float(value)]
        for line, scores in _list_runs(comparison, list(comparison.runs))
        for metric, value in scores[-1].as_dict().items()
        if value is not None and metric != "round"
    ]
    return Records([*_list_run_columns(comparison), "metric", "value"], rows)


def build_curve_records(comparison: Comparison, rows: Sequence[str], metrics: Sequence[str]) -> Records:
    """Build the scores of every round in long form: method, seed, round, metric, value."""
    lines: list[list[RecordValue]] = [
        [*line, score.round, metric, float(value)]
        for line, scores in _list_runs(comparison, rows)
        for score in scores
        for metric in metrics
        if (value := getattr(score, metric)) is not None
    ]
    return Records([*_list_run_columns(comparison), "round", "metric", "value"], lines)


def _list_run_columns(comparison: Comparison) -> list[str]:
    """Return the columns that identify a run: method, or settings of a sweep, seed, and fold of a tuning."""
    row = list(comparison.field_names) if isinstance(comparison, Sweep) else ["method"]
    return [*row, "seed", *(["fold"] if isinstance(comparison, Tuning) else [])]


def _list_runs(
    comparison: Comparison, rows: Sequence[str]
) -> Iterator[tuple[list[RecordValue], list[Score]]]:
    """Yield what identifies each finished run of the rows, and its scores."""
    for name in rows:
        first: list[RecordValue] = [name]
        if isinstance(comparison, Sweep):
            first = [value if _is_number(value) else format_value(value) for value in comparison.values[name]]
        folds = Counter[int]()
        for seed, outcome in zip(comparison.seeds, comparison.runs[name], strict=True):
            fold = [folds[seed]] if isinstance(comparison, Tuning) else []
            folds[seed] += 1
            if not isinstance(outcome, DivergedError):
                yield [*first, seed, *fold], outcome


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _name_csv_column(field: str, factor: float) -> str:
    """Return the name of a score in a CSV file, with its unit."""
    what, _, kind = field.partition("_")
    over = {"": "pooled", "mean": "client_mean", "worst": "worst_tenth", "std": "client_std"}[kind]
    return f"{over}_{what}{'_percent' if factor == 100 else ''}"


def find_significant_leaders(comparison: Comparison) -> list[str]:
    """Return the leader and rows identical to it, if it is significantly better than all others."""
    leads = comparison.compare_leader()
    same = [lead.other for lead in leads if lead.pair.identical]
    others = [lead for lead in leads if not lead.pair.identical]
    if comparison.best is None or not others or not all(lead.significant for lead in others):
        return []
    return [comparison.best, *same]


def _explain_mark(comparison: Comparison, best: Sequence[str]) -> str:
    if comparison.best is None:
        return ""
    if best:
        return f"{MARK}: best, and significantly better than every other row that is not identical."
    return f"No {MARK}: the best row is not significantly better than every other row."


def split_verdict(comparison: Comparison) -> list[str]:
    """Split a verdict into paragraphs: indented lines stand alone, others are joined."""
    paragraphs: list[str] = []
    flows = False
    for line in comparison.describe_verdict():
        within = line.startswith("  ")
        if flows and not within:
            paragraphs[-1] += f" {line.strip()}"
        else:
            paragraphs.append(line.strip())
        flows = not within
    return paragraphs


def build_curves(comparison: Comparison) -> FigureSection | None:
    """Build curves of test score and training loss over rounds, with bands of one standard deviation."""
    metric = comparison.metric
    rows = [name for name in comparison.ranked_rows if len(comparison.curve(name, metric.name)[0]) > 1]
    if not rows or len(rows) > MAX_CURVES:
        return None
    panels = [
        _build_panel(
            comparison,
            rows,
            f"On {comparison.scored_rows}",
            f"pooled {metric.label}{metric.unit}{metric.direction}",
            metric.name,
            metric.factor,
        ),
    ]
    if comparison.has_training_curves():
        title = "On training rows"
        panels.append(_build_panel(comparison, rows, title, "pooled loss", "train_loss", 1.0, log_y=True))
    number = len(comparison.seeds)
    bands = f" Bands: one standard deviation over {number} {comparison.repeats}." if number > 1 else ""
    failed = [name for name in comparison.runs if comparison.count_diverged(name)]
    left = f" Diverged, not drawn: {', '.join(failed)}." if failed else ""
    metrics = [metric.name, *(["train_loss"] if len(panels) > 1 else [])]
    return FigureSection(
        "Learning curves",
        f"Scores after each evaluated round.{bands}{left}",
        "curves",
        panels,
        build_curve_records(comparison, rows, metrics),
    )


def _build_panel(
    comparison: Comparison,
    rows: Sequence[str],
    title: str,
    label: str,
    field: str,
    factor: float,
    log_y: bool = False,
) -> Panel:
    series = []
    for name in rows:
        rounds, values = comparison.curve(name, field)
        if len(rounds) < 2:
            continue
        step = -(-len(rounds) // MAX_POINTS)
        picked = np.arange(len(rounds))[::-1][::step][::-1]  # includes the last one
        series.append(_build_series(name, [rounds[place] for place in picked], factor * values[:, picked]))
    log_y = log_y and all(value > 0 for curve in series for value in curve.mean)
    return Panel(title, "round", label, series, log_y=log_y)


def _build_series(name: str, x: list[float], values: Any) -> CurveSeries:
    """Build a curve of mean and standard deviation over the first axis."""
    mean = _round_values(values.mean(0))
    if len(values) < 2:
        return CurveSeries(name, x, mean)
    std = values.std(0, ddof=1)
    return CurveSeries(
        name, x, mean, _round_values(values.mean(0) - std), _round_values(values.mean(0) + std)
    )


def _round_values(values: Any) -> list[float]:
    return [float(f"{value:.7g}") for value in values.tolist()]


def build_response_figure(sweep: Comparison) -> FigureSection | None:
    """Build the score against the setting with the most numbers, one curve per value of the others."""
    if not isinstance(sweep, Sweep):
        return None
    numbers = [place for place in range(len(sweep.field_names)) if sweep.is_numeric(place)]
    along = max(numbers, key=lambda place: len(sweep.list_values(place)), default=-1)
    if along < 0 or len(sweep.list_values(along)) < 2 or not sweep.ranked_rows:
        return None
    groups: dict[str, list[str]] = {}
    for row in sweep.ranked_rows:
        others = [
            f"{name} = {format_value(value)}"
            for place, (name, value) in enumerate(zip(sweep.field_names, sweep.values[row], strict=True))
            if place != along
        ]
        groups.setdefault(", ".join(others) or sweep.describe_subject(), []).append(row)
    if len(groups) > MAX_CURVES:
        return None
    metric = sweep.metric
    series = []
    for label, rows in groups.items():
        rows = sorted(rows, key=lambda row: sweep.values[row][along])
        values = np.stack([metric.factor * sweep.final_scores(row, metric.name) for row in rows], 1)
        series.append(_build_series(label, [float(sweep.values[row][along]) for row in rows], values))
    sizes = [abs(float(value)) for value in sweep.list_values(along) if value]
    log = len(sizes) > 1 and max(sizes) / min(sizes) > LOG_AXIS_RATIO and min(sweep.list_values(along)) >= 0
    what = f"pooled {metric.label}{metric.unit}{metric.direction}"
    title = f"Effect of {sweep.field_names[along]}"
    panel = Panel(
        f"On {sweep.scored_rows} after the last round", sweep.field_names[along], what, series, log_x=log
    )
    about = f"Bands: one standard deviation over {sweep.repeats}. Values with a diverged run are not drawn."
    return FigureSection(title, about, "response", [panel])


def build_settings_sections(results: ReportedResults) -> Iterator[PageSection]:
    """Build the settings, common and per row, and the environment of the runs."""
    every = [
        {
            **runs[0].experiment.describe(),
            "rounds": results.rounds(row),
            "algorithm": _merge_settings([run.experiment.algorithm for run in runs]),
        }
        for row, runs in results.runs.items()
    ]
    facts = []
    for field in SHARED_SETTINGS:
        values = {format_setting(described[field]) if field in described else "" for described in every}
        if values != {""}:
            facts.append((field.replace("_", " "), values.pop() if len(values) == 1 else "varied"))
    facts.append(("seeds", ", ".join(map(str, dict.fromkeys(results.comparison.seeds)))))
    for row, described in zip(results.runs, every, strict=True):
        text = format_setting(described["algorithm"]).removeprefix(f"{row}, ")
        facts.append(
            (row, f"{text}; graph: {format_setting(described['graph'])}" if described.get("graph") else text)
        )
    yield FactsSection("Settings", facts)
    environment = results.first_row[0].read_environment()
    yield FactsSection(
        "Environment", [(key, "–" if value is None else str(value)) for key, value in environment]
    )


def _merge_settings(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the settings that the runs of a row share; tuned ones, and defaults of a graph, may differ."""
    return {
        key: value if all(other.get(key) == value for other in runs) else "varies by seed"
        for key, value in runs[0].items()
    }


def format_setting(value: Any) -> str:
    """Format a setting; of a section, its name and then its settings."""
    if isinstance(value, dict):
        rest = [
            f"{key} = {format_value(item)}" for key, item in value.items() if key not in ("name", "sha256")
        ]
        return ", ".join([*([str(value["name"])] if "name" in value else []), *rest])
    return format_value(value)


def build_result_sections(results: ReportedResults) -> Iterator[PageSection]:
    """Build scores, summary and curves."""
    comparison = results.comparison
    yield build_scores_section(comparison)
    paragraphs = split_verdict(comparison)
    if paragraphs:
        yield TextSection("Summary", paragraphs)
    for figure in (build_response_figure(comparison), build_curves(comparison)):
        if figure is not None:
            yield figure


def build_objective_facts(results: ReportedResults) -> FactsSection | None:
    """Build the objective and the training time of a single run; None for several runs."""
    outcomes = [outcome for row_outcomes in results.comparison.runs.values() for outcome in row_outcomes]
    if len(outcomes) != 1 or not isinstance(outcomes[0], list):
        return None
    last = outcomes[0][-1]
    if last.objective is None or last.train_loss is None:  # a stopped run, or a round before the last
        return None
    facts = [("J(W)", f"{last.objective:.6g}"), ("training loss", f"{last.train_loss:.6g}")]
    if last.gap is not None and math.isfinite(last.gap):
        facts.append(("duality gap", f"{last.gap:.4g}"))
    return FactsSection("Objective", [*facts, ("training time, s", f"{last.seconds:.2f}")])
