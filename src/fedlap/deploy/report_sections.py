"""Sections of the pages of runs between machines, with a server or without one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fedlap.deploy.plan import Plan
from fedlap.report.comparison import format_bytes
from fedlap.report.page import (
    CurveSeries,
    FactsSection,
    FigureSection,
    Panel,
    Records,
    TableCell,
    TableSection,
)
from fedlap.report.page.result_sections import MAX_POINTS, format_setting
from fedlap.report.page.sections import RecordValue
from fedlap.training.metrics import METRICS, Metric, choose_metric
from fedlap.training.scores import Score

REPORT_FOLDER: Final = Path("report")  # in the folder of a run
STATISTICS: Final = {"": "all test rows", "_mean": "mean over clients", "_worst": "worst tenth of clients"}


@dataclass(frozen=True)
class ClientLine:
    """A client in the table of clients: its rows, the scores of its model, and its messages.

    scores: `test_rows` and a value per metric; empty before the first score. counts: a number per column that
    this page has in addition.
    """

    name: str
    train_rows: int
    scores: Mapping[str, float | None]
    bytes_up: int
    bytes_down: int
    counts: Mapping[str, int] = field(default_factory=dict)
    note: str = ""


def choose_lead_score(scores: Sequence[Score], metric: str | None) -> tuple[Metric | None, str]:
    """Return the metric of a page, and a sentence with its last value; None and "" before the first score."""
    if not scores:
        return None, ""
    chosen, last = choose_metric(scores, metric), scores[-1]
    value = getattr(last, chosen.name)
    if value is None:
        return chosen, ""
    return chosen, f" {chosen.label} over all test rows after round {last.round}: {chosen.format(value)}."


def build_score_curves(scores: Sequence[Score], metric: Metric, about: str) -> FigureSection:
    """Build curves of the test score and of the training loss over rounds."""
    step = -(-len(scores) // MAX_POINTS)
    drawn = scores[::-1][::step][::-1]  # includes the last one
    panels = [
        Panel(
            "On test rows",
            "round",
            f"{metric.label}{metric.unit}{metric.direction}",
            list(_build_series(drawn, metric)),
        ),
        Panel(
            "On training rows",
            "round",
            "loss",
            list(_build_curve("all training rows", drawn, "train_loss", 1.0)),
        ),
    ]
    return FigureSection("Learning curves", about, "curves", [panel for panel in panels if panel.series])


def _build_series(scores: Sequence[Score], metric: Metric) -> Iterator[CurveSeries]:
    for suffix, name in STATISTICS.items():
        yield from _build_curve(name, scores, metric.name + suffix, metric.factor)


def _build_curve(name: str, scores: Sequence[Score], field: str, factor: float) -> Iterator[CurveSeries]:
    """Build a curve of the rounds that have this score; none if no round has it."""
    points = [(float(score.round), getattr(score, field)) for score in scores]
    known = [(x, float(f"{factor * value:.7g}")) for x, value in points if value is not None]
    if known:
        yield CurveSeries(name, [x for x, _ in known], [value for _, value in known])


def build_client_table(
    clients: Sequence[ClientLine], about: str, kind: str = "client", columns: Mapping[str, str] | None = None
) -> TableSection:
    """Build a line per client: rows, scores, counts, and bytes.

    kind: the noun in headings. columns: headings of the counts by name.
    """
    extra = columns or {}
    metrics = [
        metric for metric in METRICS.values() if any(metric.name in client.scores for client in clients)
    ]
    rows, records = [], []
    for client in clients:
        test_rows = client.scores.get("test_rows")
        values = [client.scores.get(metric.name) for metric in metrics]
        shown = [
            "–" if value is None else f"{metric.factor * value:.{metric.digits}f}"
            for metric, value in zip(metrics, values, strict=True)
        ]
        counts = [client.counts[name] for name in extra]
        texts = [f"{client.train_rows:,}", "–" if test_rows is None else f"{int(test_rows):,}", *shown]
        texts += [f"{count:,}" for count in counts]
        texts += [format_bytes(client.bytes_up), format_bytes(client.bytes_down)]
        rows.append([TableCell(client.name, client.note), *map(TableCell, texts)])
        record: list[RecordValue] = [client.name, client.train_rows, test_rows, *values, *counts]
        records.append([*record, client.bytes_up, client.bytes_down])
    names = [kind, "train_rows", "test_rows", *(metric.name for metric in metrics), *extra]
    headings = [kind, "training rows", "test rows", *(metric.label + metric.unit for metric in metrics)]
    return TableSection(
        f"{kind.capitalize()}s",
        about,
        f"{kind}s",
        [*headings, *extra.values(), "upload", "download"],
        rows,
        records=Records([*names, "upload_bytes", "download_bytes"], records),
    )


def build_plan_facts(plan: Plan) -> FactsSection:
    """Build the settings of the plan, and its digest."""
    facts = [("digest", plan.digest)]
    for name, value in plan.describe().items():
        if name in ("data", "peers"):
            shared = value if plan.peers is None or name == "data" else plan.peers.describe_shared()
            settings = {key: item for key, item in shared.items() if item not in (None, [], {}, "")}
            facts.append((name, format_setting(settings)))
        elif name not in ("name", "clients"):
            facts.append((name.replace("_", " "), format_setting(value)))
    return FactsSection("Plan", facts)
