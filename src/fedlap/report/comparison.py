"""Several algorithms over several seeds, in one table."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAVY
from rich.table import Table
from rich.text import Text

from fedlap.scores import Score

Runs = dict[str, list[list[Score]]]  # for each algorithm, for each seed, its scores


@dataclass(frozen=True)
class Comparison:
    """Last-round scores of each algorithm, mean ± std over seeds, and who leads by how much."""

    data: str
    seeds: list[int]
    runs: Runs
    source: str = ""  # the name of the data set, where that is not what it is called here

    @property
    def classifies(self) -> bool:
        """Whether accuracy is what counts; else it is the test loss."""
        return next(iter(self.runs.values()))[0][-1].accuracy is not None

    @property
    def headline(self) -> str:
        """The score that algorithms are ranked by."""
        return "accuracy" if self.classifies else "loss"

    def last(self, algorithm: str, field: str) -> np.ndarray:
        """A score at the last round, one value a seed."""
        return np.array([getattr(scores[-1], field) for scores in self.runs[algorithm]], dtype=float)

    def columns(self) -> list[tuple[str, str, float]]:
        """Header, field of the score, and factor of each column."""
        if self.classifies:
            return [
                ("accuracy %", "accuracy", 100.0),
                ("client mean %", "accuracy_mean", 100.0),
                ("worst tenth %", "accuracy_worst", 100.0),
            ]
        return [("loss", "loss", 1.0), ("client mean", "loss_mean", 1.0), ("worst tenth", "loss_worst", 1.0)]

    def rows(self) -> list[list[str]]:
        """The table's cells, an algorithm a row."""
        return [
            [
                name,
                *(_cell(self.last(name, field) * factor) for _, field, factor in self.columns()),
                bytes_text(float(np.mean([s[-1].bytes_up / s[-1].round for s in self.runs[name]]))),
                f"{np.mean([1000 * s[-1].seconds / s[-1].round for s in self.runs[name]]):.1f}",
            ]
            for name in self.runs
        ]

    def headers(self) -> list[str]:
        """One for each cell of a row."""
        return ["algorithm", *(header for header, _, _ in self.columns()), "sent a round", "ms a round"]

    def over(self) -> str:
        """What numbers are taken over."""
        return f"mean ± std over {len(self.seeds)} seeds" if len(self.seeds) > 1 else f"seed {self.seeds[0]}"

    def title(self) -> str:
        """What the table shows."""
        rounds = next(iter(self.runs.values()))[0][-1].round
        return f"{self.data}: test rows after round {rounds}, {self.over()}"

    def table(self, width: int = 80) -> Table:
        """For a terminal; a narrow one gets the scores alone."""
        # Headers on two lines: the whole table fits into eighty columns.
        table = Table(
            title=Text(self.title()), title_justify="left", box=SIMPLE_HEAVY, padding=0, pad_edge=False
        )
        shown = len(self.headers()) if width >= 72 else len(self.columns()) + 1
        for place, header in enumerate(self.headers()[:shown]):
            table.add_column(
                header.replace(" ", "\n", 1), justify="left" if place == 0 else "right", no_wrap=True
            )
        for row in self.rows():
            table.add_row(*row[:shown])
        return table

    def markdown(self) -> str:
        """For a page or a paper."""
        lines = [self.headers(), ["---"] + ["---:"] * (len(self.headers()) - 1), *self.rows()]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return f"{self.title()}\n\n{table}\n\n" + "\n".join(self.verdict()) + "\n"

    def verdict(self) -> list[str]:
        """Who leads, and the differences seed by seed, whoever that favours."""
        if len(self.runs) < 2 or any(np.isnan(self.last(name, self.headline)).any() for name in self.runs):
            return []
        sign, unit, factor = (1, " points", 100.0) if self.classifies else (-1, "", 1.0)
        means = {name: sign * self.last(name, self.headline).mean() for name in self.runs}
        best = max(means, key=lambda name: means[name])
        what = "test accuracy" if self.classifies else "test loss (lower is better)"
        seeds = (
            f"paired over {len(self.seeds)} seeds (± standard error)" if len(self.seeds) > 1 else "one seed"
        )
        lines = [f"{best} leads in {what}; {seeds}:"]
        for other in self.runs:
            if other == best:
                continue
            gap = (self.last(best, self.headline) - self.last(other, self.headline)) * factor
            error = gap.std(ddof=1) / math.sqrt(len(gap)) if len(gap) > 1 else math.nan
            note = " — within two standard errors" if abs(gap.mean()) <= 2 * error else ""
            note = note if gap.any() else " — the same"
            digits = 2 if self.classifies else 4
            spread = f" ± {error:.{digits}f}" if len(gap) > 1 else ""
            lines.append(f"  {best} − {other} = {gap.mean():+.{digits}f}{spread}{unit}{note}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """For a machine: every last-round score of every seed."""
        return {
            "data": self.data,
            "source": self.source or self.data,
            "seeds": self.seeds,
            "algorithms": {name: [s[-1].as_dict() for s in runs] for name, runs in self.runs.items()},
            "verdict": self.verdict(),
        }


def _cell(values: np.ndarray) -> str:
    """Mean ± sample standard deviation, or the one value."""
    if np.isnan(values).any():
        return "–"
    mean = float(values.mean())
    digits = 2 if abs(mean) >= 10 else 3
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def bytes_text(number: float) -> str:
    """A number of bytes, short."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5 or unit == "GB":
            return f"{number:.3g} {unit}" if number else "0"
        number /= 1000
    raise AssertionError("unreachable")
