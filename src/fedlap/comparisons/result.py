"""The result of a comparison or a sweep: tables, tests, figure, page and the results of all runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlap.comparisons.rows import Values
from fedlap.errors import DivergedError
from fedlap.report.comparison import Comparison
from fedlap.report.curves import plot_curves
from fedlap.report.page import render_html, render_latex, write_page
from fedlap.report.page.reported_runs import ReportedResults, ReportedRun
from fedlap.report.page.result_page import build_page
from fedlap.report.page.result_sections import build_score_records, build_scores_section
from fedlap.report.sweep_figure import plot_sweep
from fedlap.report.sweep_table import Sweep
from fedlap.storage.files import write_file
from fedlap.training.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True, eq=False, repr=False)
class ComparisonResult:
    """Rows that were trained with equal seeds, their scores, and the tests of their differences.

    folder: the folder with the table, the figure and the scores; None if nothing was stored.
    tuned: the settings that were chosen for each row, seed by seed; None without tuning.
    """

    comparison: Comparison
    runs: Mapping[str, Sequence[ReportedRun]]
    command: str = ""
    folder: Path | None = None
    tuned: Mapping[str, Sequence[Values]] | None = None
    advice: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # everything that the folder stores, as plain values

    @property
    def table(self) -> "DataFrame":
        """One row per method, or per combination of a sweep: mean and standard deviation of each score."""
        import pandas

        records = build_score_records(self.comparison)
        frame = pandas.DataFrame(records.rows, columns=records.columns)
        return frame.set_index(records.columns[: len(self.comparison.row_headers())])

    @property
    def scores(self) -> "DataFrame":
        """Scores of the last round in long form: method, seed, metric, value."""
        import pandas

        lines = [
            [*self._row_values(name), seed, metric, float(value)]
            for name, outcomes in self.comparison.runs.items()
            for seed, outcome in zip(self.comparison.seeds, outcomes, strict=True)
            if not isinstance(outcome, DivergedError)
            for metric, value in outcome[-1].as_dict().items()
            if value is not None and metric != "round"
        ]
        return pandas.DataFrame(lines, columns=[*self._row_columns, "seed", "metric", "value"])

    @cached_property
    def clients(self) -> "DataFrame":
        """Test score of each client's model in long form: method, seed, client, metric, value."""
        import pandas

        metric = self.comparison.metric
        lines = []
        for name in self.comparison.ranked_rows:
            for seed, run in zip(self.comparison.seeds, self.runs[name], strict=True):
                federation = run.load_data()[0]
                values = metric.sign * run.score_clients(federation, metric) / metric.factor
                lines += [
                    [*self._row_values(name), seed, client, metric.name, value]
                    for client, value in zip(federation.clients, values.tolist(), strict=True)
                ]
        return pandas.DataFrame(lines, columns=[*self._row_columns, "seed", "client", "metric", "value"])

    @property
    def tests(self) -> "DataFrame":
        """Paired tests over seeds: the leader against every other row, and each graph against its control."""
        import pandas

        columns = ["leader", "other", "difference", "low", "high", "p_value", "p_adjusted", "verdict"]
        lines = [
            [pair.one, pair.other, pair.pair.mean, *(pair.pair.interval or (None, None)), pair.pair.p_value,
             pair.p_adjusted, pair.describe_outcome(self.comparison.metric.higher_is_better)]
            for pair in self.comparison.list_tests()
        ]  # fmt: skip
        frame = pandas.DataFrame(lines, columns=columns)
        numbers = ["difference", "low", "high", "p_value", "p_adjusted"]
        return frame.astype(dict.fromkeys(numbers, "float64"))

    @property
    def verdict(self) -> str:
        """The leader, the tests of its lead, and what to try next, as text."""
        return "\n".join([*self.comparison.describe_verdict(), *self.advice])

    @property
    def results(self) -> dict[str, dict[int, Result]]:
        """The result of each run, by row and seed; diverged runs have none."""
        return {
            name: {
                seed: run.load_result()
                for seed, run, outcome in zip(
                    self.comparison.seeds, runs, self.comparison.runs[name], strict=True
                )
                if not isinstance(outcome, DivergedError)
            }
            for name, runs in self.runs.items()
        }

    def plot(self) -> "Figure":
        """Draw curves over rounds, or the score over the varied settings of a sweep."""
        comparison = self.comparison
        return plot_sweep(comparison) if isinstance(comparison, Sweep) else plot_curves(comparison)

    def report(self, path: str | Path) -> Path:
        """Write the page that `fedlap report` writes, and return its path.

        path: an .html file for the page alone, or a folder for the page, tables and figures.
        """
        page = build_page(ReportedResults(self.comparison, self.runs, self.command), "")
        path = Path(path)
        if path.suffix.lower() != ".html":
            return write_page(page, path)
        write_file(path, render_html(page).encode())
        return path

    def to_latex(self) -> str:
        """Return the table of scores as LaTeX; it needs the package booktabs."""
        return render_latex(build_scores_section(self.comparison))

    def __str__(self) -> str:
        """Return title, table and verdict as Markdown."""
        return "\n".join([self.comparison.render_markdown().rstrip("\n"), *self.advice])

    def __repr__(self) -> str:
        rows, seeds = self.comparison.runs, self.comparison.seeds
        names = ", ".join(rows) if len(", ".join(rows)) <= 80 else f"{len(rows)} rows"
        number = f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
        best = f", best: {self.comparison.best}" if self.comparison.best else ""
        text = f"<{type(self).__name__} on {self.comparison.data}: {names}; {number}{best}>"
        return text if len(text) <= 200 else text[:198] + "…>"

    def _repr_html_(self) -> str:
        """Return the table and the verdict for notebooks."""
        import html

        lines = "".join(f"<br>{html.escape(line)}" for line in self.verdict.splitlines())
        return f"<p>{html.escape(self.comparison.describe_table())}</p>{self.table.to_html()}<p>{lines}</p>"

    @property
    def _row_columns(self) -> list[str]:
        """Columns that identify a row in long form."""
        comparison = self.comparison
        return list(comparison.field_names) if isinstance(comparison, Sweep) else ["method"]

    def _row_values(self, name: str) -> list[Any]:
        comparison = self.comparison
        return list(comparison.values[name]) if isinstance(comparison, Sweep) else [name]
