"""Several algorithms over several seeds, in one table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAVY
from rich.table import Table
from rich.text import Text

from fedlap.errors import DivergedError
from fedlap.scores import Score

Outcome = list[Score] | DivergedError  # a run's scores, or why it has none
Runs = Mapping[str, Sequence[Outcome]]  # for each label, for each seed


@dataclass(frozen=True)
class Comparison:
    """Last-round scores of each row's runs, mean ± std over seeds, and who leads by how much.

    A row is an algorithm here; one in which a seed diverged is shown without scores, and not ranked.
    """

    data: str
    seeds: list[int]
    runs: Runs
    source: str = ""  # the name of the data set, where that is not what it is called here

    def fields(self) -> list[str]:
        """What tells rows apart: headers of the columns before the scores."""
        return ["algorithm"]

    def cells(self, name: str) -> list[str]:
        """What a row has in those columns."""
        return [name]

    def subject(self) -> str:
        """What the rows have in common."""
        return self.data

    def against(self, best: str, other: str) -> str:
        """What a difference is the difference of."""
        return f"{best} − {other} = "

    def finished(self, name: str) -> list[list[Score]]:
        """The scores of those runs of a row that did not diverge."""
        return [outcome for outcome in self.runs[name] if not isinstance(outcome, DivergedError)]

    def diverged(self, name: str) -> int:
        """How many runs of a row did."""
        return len(self.runs[name]) - len(self.finished(name))

    @property
    def ranked(self) -> list[str]:
        """The rows of which every run finished."""
        return [name for name in self.runs if not self.diverged(name)]

    @property
    def classifies(self) -> bool:
        """Whether accuracy is what counts; else it is the test loss."""
        scores = [scores[-1] for name in self.runs for scores in self.finished(name)]
        return not scores or scores[0].accuracy is not None

    @property
    def headline(self) -> str:
        """The score that rows are ranked by."""
        return "accuracy" if self.classifies else "loss"

    def last(self, name: str, field: str) -> np.ndarray:
        """A score at the last round, one value a seed."""
        return np.array([getattr(scores[-1], field) for scores in self.finished(name)], dtype=float)

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
        """The table's cells."""
        return [[*self.cells(name), *self._scores(name), *self._costs(name)] for name in self.runs]

    def _scores(self, name: str) -> list[str]:
        failed, all_ = self.diverged(name), len(self.runs[name])
        if failed:
            text = "diverged" if failed == all_ else f"{failed} of {all_} diverged"
            return [text, *["–"] * (len(self.columns()) - 1)]
        return [_cell(self.last(name, field) * factor) for _, field, factor in self.columns()]

    def _costs(self, name: str) -> list[str]:
        last = [scores[-1] for scores in self.finished(name)]
        if not last:
            return ["–", "–"]
        sent = float(np.mean([score.bytes_up / score.round for score in last]))
        return [bytes_text(sent), f"{np.mean([1000 * score.seconds / score.round for score in last]):.1f}"]

    def headers(self) -> list[str]:
        """One for each cell of a row."""
        return [*self.fields(), *(header for header, _, _ in self.columns()), "sent a round", "ms a round"]

    def over(self) -> str:
        """What numbers are taken over."""
        return f"mean ± std over {len(self.seeds)} seeds" if len(self.seeds) > 1 else f"seed {self.seeds[0]}"

    def title(self) -> str:
        """What the table shows."""
        rounds = {scores[-1].round for name in self.runs for scores in self.finished(name)}
        when = f"round {rounds.pop()}" if len(rounds) == 1 else "the last round"
        return f"{self.subject()}: test rows after {when}, {self.over()}"

    def table(self, width: int = 80) -> Table:
        """For a terminal, below the title; a narrow one gets the scores alone."""
        # Headers on two lines: the whole table fits into eighty columns.
        headers, rows = [header.replace(" ", "\n", 1) for header in self.headers()], self.rows()
        columns = [[*header.split("\n"), *cells] for header, *cells in zip(headers, *rows, strict=True)]
        whole = sum(max(map(len, column)) + 1 for column in columns) + 1 <= width
        first = len(self.fields())
        shown = len(headers) if whole else first + len(self.columns())
        table = Table(box=SIMPLE_HEAVY, padding=0, pad_edge=False)
        for place, header in enumerate(headers[:shown]):
            if place < first:
                table.add_column(Text(header), justify="left", overflow="fold")
            else:
                table.add_column(header, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(cell) for cell in row[:shown]))
        return table

    def markdown(self) -> str:
        """For a page or a paper."""
        first = len(self.fields())
        lines = [self.headers(), ["---"] * first + ["---:"] * (len(self.headers()) - first), *self.rows()]
        table = "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )
        return f"{self.title()}\n\n{table}\n\n" + "\n".join(self.verdict()) + "\n"

    @property
    def best(self) -> str | None:
        """The row that leads, among two or more that can be ranked."""
        means = {name: self.mean(name) for name in self.ranked}
        if len(means) < 2 or any(math.isnan(mean) for mean in means.values()):
            return None
        return max(means, key=lambda name: means[name])

    def mean(self, name: str) -> float:
        """The score that a row is ranked by, over seeds; more is better."""
        return (1 if self.classifies else -1) * float(self.last(name, self.headline).mean())

    def verdict(self) -> list[str]:
        """Who leads, and the differences seed by seed, whoever that favours."""
        best, lines = self.best, []
        if best is not None:
            what = "test accuracy" if self.classifies else "test loss (lower is better)"
            several = f"paired over {len(self.seeds)} seeds (± standard error)"
            lines = [f"{best} leads in {what}; {several if len(self.seeds) > 1 else 'one seed'}:"]
            lines += [self._difference(best, other) for other in self.ranked if other != best]
        for name in self.runs:
            if failed := self.diverged(name):
                seeds = f" in {failed} of {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
                lines.append(f"{name} diverged{seeds} and is not ranked")
        return lines

    def _difference(self, best: str, other: str) -> str:
        """By how much one leads another."""
        unit, factor, digits = (" points", 100.0, 2) if self.classifies else ("", 1.0, 4)
        gap = (self.last(best, self.headline) - self.last(other, self.headline)) * factor
        error = gap.std(ddof=1) / math.sqrt(len(gap)) if len(gap) > 1 else math.nan
        note = " — within two standard errors" if abs(gap.mean()) <= 2 * error else ""
        note = note if gap.any() else " — the same"
        spread = f" ± {error:.{digits}f}" if len(gap) > 1 else ""
        return f"  {self.against(best, other)}{gap.mean():+.{digits}f}{spread}{unit}{note}"

    def as_dict(self) -> dict[str, Any]:
        """For a machine: every last-round score of every seed, none for one that diverged, and why."""
        return {
            "data": self.data,
            "source": self.source or self.data,
            "seeds": self.seeds,
            "algorithms": {name: self.last_scores(name) for name in self.runs},
            "diverged": [
                {"algorithm": name, "seed": seed, "reason": reason} for name, seed, reason in self.failures()
            ],
            "verdict": self.verdict(),
        }

    def last_scores(self, name: str) -> list[dict[str, Any] | None]:
        """A row's last-round scores, seed by seed."""
        return [
            None if isinstance(outcome, DivergedError) else outcome[-1].as_dict()
            for outcome in self.runs[name]
        ]

    def failures(self) -> list[tuple[str, int, str]]:
        """Row, seed and reason of each run that diverged."""
        return [
            (name, seed, str(outcome))
            for name, outcomes in self.runs.items()
            for seed, outcome in zip(self.seeds, outcomes, strict=True)
            if isinstance(outcome, DivergedError)
        ]


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
