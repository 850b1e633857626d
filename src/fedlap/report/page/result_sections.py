"""The page of a comparison, a sweep, a tuning, or of runs."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedlap.experiments.run_folder import ENVIRONMENT
from fedlap.report.comparison import Comparison
from fedlap.report.page.result_folders import Kept
from fedlap.report.page.sections import (
    Cell,
    FactsSection,
    FigureSection,
    Panel,
    Records,
    Section,
    Series,
    TableSection,
    TextSection,
    Value,
)
from fedlap.report.page.table_formats import MARK
from fedlap.report.sweep_table import Sweep, shown
from fedlap.report.tuning_table import Tuning
from fedlap.storage.files import parse_json, read_file

MOST_POINTS = 200  # of a curve
MOST_CURVES = 24
WIDE = 10  # values that span more than this many times lie on a logarithmic axis
FACTS = (
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


def scores_table(made: Comparison) -> TableSection:
    """Every row's scores; the leader is marked where the test supports it against every other."""
    best = supported(made)
    fields = list(made.names) if isinstance(made, Sweep) else made.fields()
    first = len(made.fields())
    rows = []
    for name, cells in zip(made.runs, made.rows(), strict=True):
        known = [shown(value) for value in made.values[name]] if isinstance(made, Sweep) else made.cells(name)
        chosen = "chosen" if isinstance(made, Tuning) and name == made.best else ""
        failed = bool(made.diverged(name))
        line = [Cell(text, chosen if place == 0 else "") for place, text in enumerate(known)]
        line += [
            Cell(text, best=place == 0 and name in best, muted=failed)
            for place, text in enumerate(cells[first:])
        ]
        rows.append(line)
    return TableSection(
        "Scores", f"{made.title()}.", "scores", [*fields, *made.headers()[first:]], rows,
        f"{made.legend()} {_mark(made, best)}".strip(), records=score_records(made),
    )  # fmt: skip


def score_records(made: Comparison) -> Records:
    """The numbers of the table: for each score its mean and standard deviation over the runs of a row."""
    fields = list(made.names) if isinstance(made, Sweep) else made.fields()
    chosen = [made.best] if isinstance(made, Tuning) else supported(made)
    columns = [*fields, made.repeats, "diverged"]
    for _, field, factor in made.columns():
        columns += [f"{_column(field, factor)}_{kind}" for kind in ("mean", "std")]
    columns += ["upload_bytes_per_round", "download_bytes_per_round", "milliseconds_per_round"]
    columns.append("chosen" if isinstance(made, Tuning) else "shown_best")
    rows: list[list[Value]] = []
    for name, runs in made.runs.items():
        failed, costs = made.diverged(name), made.costs(name)
        line: list[Value] = list(made.cells(name))
        if isinstance(made, Sweep):
            line = [value if _is_number(value) else shown(value) for value in made.values[name]]
        line += [len(runs), failed]
        for _, field, factor in made.columns():
            values = made.last(name, field) * factor
            line.append(None if failed else float(values.mean()))
            line.append(None if failed or len(values) < 2 else float(values.std(ddof=1)))
        line += [None] * 3 if costs is None else [round(costs[0]), round(costs[1]), 1000 * costs[2]]
        rows.append([*line, int(name in chosen)])
    return Records(columns, rows)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _column(field: str, factor: float) -> str:
    """The name of a score in a CSV file, with its unit."""
    what, _, kind = field.partition("_")
    over = {"": "pooled", "mean": "client_mean", "worst": "worst_tenth", "std": "client_std"}[kind]
    return f"{over}_{what}{'_percent' if factor == 100 else ''}"


def supported(made: Comparison) -> list[str]:
    """Who leads and is shown to: the leader, and those that are the same at every seed."""
    leads = made.leads()
    same = [lead.other for lead in leads if lead.pair.same]
    others = [lead for lead in leads if not lead.pair.same]
    if made.best is None or not others or not all(lead.shown for lead in others):
        return []
    return [made.best, *same]


def _mark(made: Comparison, best: Sequence[str]) -> str:
    if made.best is None:
        return ""
    if best:
        return f"{MARK}: leads, and the paired test supports it against every other that is not the same."
    return f"No {MARK}: the paired test does not support the leader against every other."


def verdict(made: Comparison) -> list[str]:
    """Its lines as paragraphs: those that are set in stand alone, others flow together."""
    paragraphs: list[str] = []
    flows = False
    for line in made.verdict():
        within = line.startswith("  ")
        if flows and not within:
            paragraphs[-1] += f" {line.strip()}"
        else:
            paragraphs.append(line.strip())
        flows = not within
    return paragraphs


def curves(made: Comparison) -> FigureSection | None:
    """Test score and training loss over rounds, with bands of one standard deviation over seeds."""
    rows = [name for name in made.ranked if len(made.finished(name)[0]) > 1]
    if not rows or len(rows) > MOST_CURVES:
        return None
    what = "accuracy %" if made.classifies else "loss"
    panels = [
        _panel(
            made,
            rows,
            f"On {made.scored_rows}",
            f"{what}, pooled",
            made.headline,
            100.0 if made.classifies else 1.0,
        ),
        _panel(made, rows, "On training rows", "loss, pooled", "train_loss", 1.0, log_y=True),
    ]
    number = len(made.seeds)
    bands = f" Bands: one standard deviation over {number} {made.repeats}." if number > 1 else ""
    failed = [name for name in made.runs if made.diverged(name)]
    left = f" Not drawn, since it diverged: {', '.join(failed)}." if failed else ""
    return FigureSection("Over rounds", f"After each scored round.{bands}{left}", "curves", panels)


def _panel(
    made: Comparison,
    rows: Sequence[str],
    title: str,
    label: str,
    field: str,
    factor: float,
    log_y: bool = False,
) -> Panel:
    series = []
    for name in rows:
        runs = made.finished(name)
        values = np.array([[getattr(score, field) for score in scores] for scores in runs], dtype=float)
        rounds = np.array([score.round for score in runs[0]])
        step = -(-len(rounds) // MOST_POINTS)
        picked = np.arange(len(rounds))[::-1][::step][::-1]  # the last one is among them
        series.append(_band(name, rounds[picked].tolist(), factor * values[:, picked]))
    log_y = log_y and all(value > 0 for each in series for value in each.mean)
    return Panel(title, "round", label, series, log_y=log_y)


def _band(name: str, x: list[float], values: Any) -> Series:
    """Mean and standard deviation over the first axis."""
    mean = _rounded(values.mean(0))
    if len(values) < 2:
        return Series(name, x, mean)
    std = values.std(0, ddof=1)
    return Series(name, x, mean, _rounded(values.mean(0) - std), _rounded(values.mean(0) + std))


def _rounded(values: Any) -> list[float]:
    return [float(f"{value:.7g}") for value in values.tolist()]


def response(made: Comparison) -> FigureSection | None:
    """The score against the varied field with most numbers, a curve for each value of the others."""
    if not isinstance(made, Sweep):
        return None
    numbers = [place for place in range(len(made.names)) if made.numeric(place)]
    along = max(numbers, key=lambda place: len(made.tried(place)), default=-1)
    if along < 0 or len(made.tried(along)) < 2 or not made.ranked:
        return None
    groups: dict[str, list[str]] = {}
    for row in made.ranked:
        others = [
            f"{name} = {shown(value)}"
            for place, (name, value) in enumerate(zip(made.names, made.values[row], strict=True))
            if place != along
        ]
        groups.setdefault(", ".join(others) or made.subject(), []).append(row)
    if len(groups) > MOST_CURVES:
        return None
    factor = 100.0 if made.classifies else 1.0
    series = []
    for label, rows in groups.items():
        rows = sorted(rows, key=lambda row: made.values[row][along])
        values = np.stack([factor * made.last(row, made.headline) for row in rows], 1)
        series.append(_band(label, [float(made.values[row][along]) for row in rows], values))
    sizes = [abs(float(value)) for value in made.tried(along) if value]
    log = len(sizes) > 1 and max(sizes) / min(sizes) > WIDE and min(made.tried(along)) >= 0
    what = "accuracy %, pooled" if made.classifies else "loss, pooled (lower is better)"
    title = f"Against {made.names[along]}"
    panel = Panel(f"On {made.scored_rows} after the last round", made.names[along], what, series, log_x=log)
    about = (
        f"Bands: one standard deviation over {made.repeats}. Values with which a run diverged are not drawn."
    )
    return FigureSection(title, about, "response", [panel])


def settings(kept: Kept) -> Iterator[Section]:
    """What all runs have in common, what each row is, and where they were run."""
    every = [
        {**runs[0].experiment.described(), "rounds": kept.rounds(row)} for row, runs in kept.runs.items()
    ]
    facts = []
    for field in FACTS:
        values = {_said(described[field]) if field in described else "" for described in every}
        if values != {""}:
            facts.append((field.replace("_", " "), values.pop() if len(values) == 1 else "varied"))
    facts.append(("seeds", ", ".join(map(str, dict.fromkeys(kept.made.seeds)))))
    for row, own in zip(kept.runs, every, strict=True):
        text = _said(own["algorithm"]).removeprefix(f"{row}, ")
        facts.append((row, f"{text}; graph: {_said(own['graph'])}" if own.get("graph") else text))
    yield FactsSection("Settings", facts)
    first = kept.first_row[0]
    try:
        facts = list(parse_json(read_file(first.folder / ENVIRONMENT)).items())
    except (OSError, ValueError, AttributeError):
        facts = [("environment", f"{first.name} does not say any more where it was run")]
    yield FactsSection("Environment", [(key, "–" if value is None else str(value)) for key, value in facts])


def _said(value: Any) -> str:
    if isinstance(value, dict):
        rest = [f"{key} = {shown(each)}" for key, each in value.items() if key not in ("name", "sha256")]
        return ", ".join([*([str(value["name"])] if "name" in value else []), *rest])
    return shown(value)


def result_sections(kept: Kept) -> Iterator[Section]:
    """Scores, what the test says, and curves."""
    made = kept.made
    yield scores_table(made)
    said = verdict(made)
    if said:
        yield TextSection("What the numbers show", said)
    for figure in (response(made), curves(made)):
        if figure is not None:
            yield figure


def objective_facts(kept: Kept) -> FactsSection | None:
    """Of one run alone: what it came to beside its scores."""
    outcomes = [outcome for some in kept.made.runs.values() for outcome in some]
    if len(outcomes) != 1 or not isinstance(outcomes[0], list):
        return None
    last = outcomes[0][-1]
    facts = [("J(W)", f"{last.objective:.6g}"), ("training loss", f"{last.train_loss:.6g}")]
    if last.gap is not None and math.isfinite(last.gap):
        facts.append(("duality gap", f"{last.gap:.4g}"))
    return FactsSection("Objective", [*facts, ("seconds of training", f"{last.seconds:.2f}")])
