"""Table of several algorithms over several seeds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAVY
from rich.table import Table
from rich.text import Text

from fedlap.errors import DivergedError
from fedlap.experiments.session import RunOutcome
from fedlap.report.paired_tests import CONFIDENCE, LEVEL, RowTest, compare_leader, compare_rows
from fedlap.report.verdict import describe_control, describe_lead
from fedlap.training.metrics import Metric, choose_metric
from fedlap.training.scores import Score

OutcomesByRow = Mapping[str, Sequence[RunOutcome]]  # outcomes per seed, by label of the row

COST_HEADERS = ["upload/round", "download/round", "ms/round"]


@dataclass(frozen=True)
class Comparison:
    """Last-round scores per row, mean ± std over seeds, and a test of the leading row.

    A row is an algorithm. A row with a diverged run appears without scores and is not ranked.
    """

    data: str
    seeds: list[int]
    runs: OutcomesByRow
    source: str = ""  # name of the data set, if it differs from `data`
    # Pairs of rows whose difference is always reported: a graph, and its shuffled form.
    controls: tuple[tuple[str, str], ...] = field(default=(), kw_only=True)
    selection: str = field(default="", kw_only=True)  # how settings were chosen, as a sentence
    metric_name: str | None = field(default=None, kw_only=True)  # None: the default of the task

    @property
    def scored_rows(self) -> str:
        """Data rows that the scores are computed on."""
        return "test rows"

    @property
    def repeats(self) -> str:
        """Name of what the runs of a row differ in."""
        return "seeds"

    def describe_columns(self) -> str:
        """Return the meaning of the columns."""
        return (
            f"Pooled: over all {self.scored_rows} together; client mean, client std: over clients; worst "
            "tenth: mean over the worst tenth of clients; upload, download: bytes sent by and to all clients "
            "together; ms: training time without evaluation." + (self.selection and f" {self.selection}")
        )

    def row_headers(self) -> list[str]:
        """Return the headers of the columns before the scores, which identify a row."""
        return ["algorithm"]

    def row_cells(self, name: str) -> list[str]:
        """Return the cells of a row in these columns."""
        return [name]

    def describe_subject(self) -> str:
        """Return a name for what all rows share."""
        return self.data

    def describe_difference(self, best: str, other: str) -> str:
        """Return the text before a difference: the two rows that it compares."""
        return f"{best} − {other} = "

    def finished_runs(self, name: str) -> list[list[Score]]:
        """Return the scores of the runs of a row that did not diverge."""
        return [outcome for outcome in self.runs[name] if not isinstance(outcome, DivergedError)]

    def curve(self, name: str, field: str) -> tuple[list[int], np.ndarray]:
        """Return the rounds in which every finished run of a row has this score, and the score per run."""
        runs = [
            {score.round: value for score in scores if (value := getattr(score, field)) is not None}
            for scores in self.finished_runs(name)
        ]
        rounds = sorted(set.intersection(*map(set, runs))) if runs else []
        values = [[by_round[round] for round in rounds] for by_round in runs]
        return rounds, np.array(values, dtype=np.float64)

    def has_training_curves(self) -> bool:
        """Return whether training rows were scored in several rounds."""
        return any(len(self.curve(name, "train_loss")[0]) > 1 for name in self.ranked_rows)

    def count_diverged(self, name: str) -> int:
        """Count the diverged runs of a row."""
        return len(self.runs[name]) - len(self.finished_runs(name))

    @property
    def ranked_rows(self) -> list[str]:
        """Rows of which every run finished."""
        return [name for name in self.runs if not self.count_diverged(name)]

    @property
    def metric(self) -> Metric:
        """The metric that rows are shown and ranked by; raise InputError unless all runs have it."""
        last = (scores[-1] for name in self.runs for scores in self.finished_runs(name))
        return choose_metric(last, self.metric_name)

    @property
    def headline(self) -> str:
        """Name of the score that rows are ranked by."""
        return self.metric.name

    def final_scores(self, name: str, field: str) -> np.ndarray:
        """Return a score at the last round, one value per seed."""
        return np.array([getattr(scores[-1], field) for scores in self.finished_runs(name)], dtype=float)

    def score_columns(self) -> list[tuple[str, str, float]]:
        """Return header, field of the score, and factor of each score column."""
        metric = self.metric
        return [
            (f"pooled {metric.label}{metric.unit}", metric.name, metric.factor),
            (f"client mean{metric.unit}", f"{metric.name}_mean", metric.factor),
            (f"worst tenth{metric.unit}", f"{metric.name}_worst", metric.factor),
            (f"client std{metric.unit}", f"{metric.name}_std", metric.factor),
        ]

    def table_rows(self) -> list[list[str]]:
        """Return the cells of the table, row by row."""
        return [
            [*self.row_cells(name), *self._format_scores(name), *self._format_costs(name)]
            for name in self.runs
        ]

    def _format_scores(self, name: str) -> list[str]:
        failed, total = self.count_diverged(name), len(self.runs[name])
        if failed:
            text = "diverged" if failed == total else f"{failed} of {total} diverged"
            return [text, *["–"] * (len(self.score_columns()) - 1)]
        return [
            _format_mean_std(self.final_scores(name, field) * factor, self.metric.is_percent)
            for _, field, factor in self.score_columns()
        ]

    def mean_costs(self, name: str) -> tuple[float, float, float] | None:
        """Return mean upload bytes, download bytes and seconds per round; None if no run finished."""
        last = [scores[-1] for scores in self.finished_runs(name)]
        if not last:
            return None
        up, down, seconds = np.mean(
            [(score.bytes_up / score.round, score.bytes_down / score.round, score.seconds / score.round)
             for score in last], axis=0,
        )  # fmt: skip
        return float(up), float(down), float(seconds)

    def _format_costs(self, name: str) -> list[str]:
        costs = self.mean_costs(name)
        if costs is None:
            return ["–"] * len(COST_HEADERS)
        up, down, seconds = costs
        return [format_bytes(up), format_bytes(down), f"{1000 * seconds:.1f}"]

    def headers(self) -> list[str]:
        """Return the headers of all columns."""
        return [*self.row_headers(), *(header for header, _, _ in self.score_columns()), *COST_HEADERS]

    def describe_repeats(self) -> str:
        """Return what the means are taken over."""
        return f"mean ± std over {len(self.seeds)} seeds" if len(self.seeds) > 1 else f"seed {self.seeds[0]}"

    def describe_table(self) -> str:
        """Return the title of the table."""
        rounds = {scores[-1].round for name in self.runs for scores in self.finished_runs(name)}
        when = f"round {rounds.pop()}" if len(rounds) == 1 else "the last round"
        title = f"{self.describe_subject()}: {self.scored_rows} after {when}, {self.describe_repeats()}"
        return title + self.metric.direction

    def build_table(self, width: int = 80) -> Table:
        """Build the table for a terminal; a narrow terminal gets fewer columns."""
        # Headers take two lines so that the table fits into 80 columns.
        headers = [header.replace(" ", "\n", 1).replace("/", "\n/") for header in self.headers()]
        rows = self.table_rows()
        columns = [[*header.split("\n"), *cells] for header, *cells in zip(headers, *rows, strict=True)]
        widths = [max(map(len, column)) + 1 for column in columns]
        first = len(self.row_headers())
        places = self._choose_columns(
            first, lambda places: sum(widths[place] for place in places) + 1 <= width
        )
        table = Table(box=SIMPLE_HEAVY, padding=0, pad_edge=False)
        for place in places:
            if place < first:
                table.add_column(Text(headers[place]), justify="left", overflow="fold")
            else:
                table.add_column(headers[place], justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(row[place]) for place in places))
        return table

    def _choose_columns(self, first: int, fits: Callable[[list[int]], bool]) -> list[int]:
        """Choose the most columns that fit.

        All of them; else without download; else also without std over clients; else the scores alone.
        """
        whole, (std, down) = list(range(len(self.headers()))), (first + 3, first + 5)
        fewer = [[place for place in whole if place not in out] for out in ((), (down,), (down, std))]
        return next(filter(fits, fewer), whole[:std])

    def render_markdown(self) -> str:
        """Render title, table, legend and verdict as Markdown."""
        first = len(self.row_headers())
        lines = [
            self.headers(),
            ["---"] * first + ["---:"] * (len(self.headers()) - first),
            *self.table_rows(),
        ]
        table = "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )
        return (
            f"{self.describe_table()}\n\n{table}\n\n{self.describe_columns()}\n\n"
            + "\n".join(self.describe_verdict())
            + "\n"
        )

    @property
    def best(self) -> str | None:
        """The row with the best mean, if two or more are ranked."""
        means = {name: self.ranking_score(name) for name in self.ranked_rows}
        if len(means) < 2 or any(math.isnan(mean) for mean in means.values()):
            return None
        return max(means, key=lambda name: means[name])

    def ranking_score(self, name: str) -> float:
        """Return the mean over seeds of the metric, negated if lower is better: higher is better."""
        return self.metric.sign * float(self.final_scores(name, self.headline).mean())

    def compare_leader(self) -> list[RowTest]:
        """Compare the leader with every other ranked row, over seeds."""
        scores = {name: self.final_scores(name, self.headline) for name in self.ranked_rows}
        return [] if self.best is None else compare_leader(scores, self.best)

    def compare_controls(self) -> list[RowTest]:
        """Compare each graph with its shuffled form, if both rows are ranked, over seeds."""
        scores = {name: self.final_scores(name, self.headline) for name in self.ranked_rows}
        return compare_rows(scores, [pair for pair in self.controls if set(pair) <= scores.keys()])

    def list_tests(self) -> list[RowTest]:
        """Return the tests of the leader, and those of controls that the leader has no part in."""
        tests = self.compare_leader()
        tested = {frozenset((test.one, test.other)) for test in tests}
        return tests + [
            test for test in self.compare_controls() if frozenset((test.one, test.other)) not in tested
        ]

    def describe_verdict(self) -> list[str]:
        """Return the leader, the significance of its lead, all differences, and the diverged rows."""
        best, lines = self.best, []
        if best is not None:
            against = partial(self.describe_difference, best)
            lines = describe_lead(best, self.compare_leader(), len(self.seeds), self.metric, against)
        lines += [
            describe_control(test, self.metric, self.describe_control_pair(test.one, test.other))
            for test in self.compare_controls()
        ]
        for name in self.runs:
            if failed := self.count_diverged(name):
                seeds = f" in {failed} of {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
                lines.append(f"{name} diverged{seeds} and is not ranked")
        return lines

    def describe_control_pair(self, graph: str, shuffled: str) -> str:
        """Return both rows of a control as the beginning of a line."""
        return self.describe_difference(graph, shuffled)

    def tests_as_dict(self, name_row: Callable[[str], Any]) -> dict[str, Any] | None:
        """Return the tests of the leader as plain values; differences have the unit of the score."""
        if self.best is None:
            return None
        return {
            "score": self.headline,
            "test": "paired t-test over seeds, two-sided",
            "adjusted": "Holm, over all pairs",
            "pairs": math.comb(len(self.ranked_rows), 2),
            "confidence": CONFIDENCE,
            "level": LEVEL,
            "leader": name_row(self.best),
            "against": [{"other": name_row(lead.other), **lead.as_dict()} for lead in self.compare_leader()],
            **self._controls_as_dict(name_row),
        }

    def _controls_as_dict(self, name_row: Callable[[str], Any]) -> dict[str, Any]:
        """Return the tests of graphs against their shuffled forms; nothing without such rows."""
        tests = [
            {"graph": name_row(test.one), "shuffled": name_row(test.other), **test.as_dict()}
            for test in self.compare_controls()
        ]
        return {"controls": tests} if tests else {}

    def metric_as_dict(self) -> dict[str, Any]:
        """Return the name of a chosen metric, for files; nothing for the default of the task."""
        return {} if self.metric_name is None else {"metric": self.metric_name}

    def as_dict(self) -> dict[str, Any]:
        """Return last-round scores of every seed (None if diverged), failures and verdict as plain values."""
        return {
            "data": self.data,
            "source": self.source or self.data,
            "seeds": self.seeds,
            **self.metric_as_dict(),
            "algorithms": {name: self.final_score_dicts(name) for name in self.runs},
            "diverged": [
                {"algorithm": name, "seed": seed, "reason": reason}
                for name, seed, reason in self.list_failures()
            ],
            "comparisons": self.tests_as_dict(str),
            "verdict": self.describe_verdict(),
            **({"control_rows": [list(pair) for pair in self.controls]} if self.controls else {}),
            **({"selection": self.selection} if self.selection else {}),
        }

    def final_score_dicts(self, name: str) -> list[dict[str, Any] | None]:
        """Return the last-round scores of a row, seed by seed; None for diverged runs."""
        return [
            None if isinstance(outcome, DivergedError) else outcome[-1].as_dict()
            for outcome in self.runs[name]
        ]

    def list_failures(self) -> list[tuple[str, int, str]]:
        """Return row, seed and reason of each diverged run."""
        return [
            (name, seed, str(outcome))
            for name, outcomes in self.runs.items()
            for seed, outcome in zip(self.seeds, outcomes, strict=True)
            if isinstance(outcome, DivergedError)
        ]


def _format_mean_std(values: np.ndarray, percent: bool) -> str:
    """Format mean ± sample standard deviation, or a single value."""
    if np.isnan(values).any():
        return "–"
    mean = float(values.mean())
    digits = 2 if percent or abs(mean) >= 10 else 3
    if not percent and 0 < abs(mean) < 0.1:  # three significant digits, in whatever unit the targets are
        digits = 2 - math.floor(math.log10(abs(mean)))
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def format_bytes(number: float) -> str:
    """Format a number of bytes with its unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5 or unit == "GB":
            return f"{number:.3g} {unit}" if number else "0"
        number /= 1000
    raise AssertionError("unreachable")
