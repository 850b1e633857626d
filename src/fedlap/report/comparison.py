"""Several algorithms over several seeds, in one table."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAVY
from rich.table import Table
from rich.text import Text

from fedlap.errors import DivergedError
from fedlap.report.paired_tests import CONFIDENCE, LEVEL, Lead, leads
from fedlap.report.verdict import verdict
from fedlap.training.scores import Score

Outcome = list[Score] | DivergedError  # a run's scores, or why it has none
Runs = Mapping[str, Sequence[Outcome]]  # for each label, for each seed

COSTS = ["up a round", "down a round", "ms a round"]


@dataclass(frozen=True)
class Comparison:
    """Last-round scores of each row's runs, mean ± std over seeds, who leads, and whether that is shown.

    A row is an algorithm here; one in which a seed diverged is shown without scores, and not ranked.
    """

    data: str
    seeds: list[int]
    runs: Runs
    source: str = ""  # the name of the data set, where that is not what it is called here

    @property
    def scored_rows(self) -> str:
        """Rows that scores are taken on."""
        return "test rows"

    @property
    def repeats(self) -> str:
        """Runs of a row, which differ in these."""
        return "seeds"

    def legend(self) -> str:
        """The meaning of the columns."""
        return (
            f"Pooled: over all {self.scored_rows} together; client mean, client std: over clients; worst "
            "tenth: mean over the tenth of clients that does worst; up, down: sent by and to all clients "
            "together; ms: training without evaluation."
        )

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
                ("pooled accuracy %", "accuracy", 100.0),
                ("client mean %", "accuracy_mean", 100.0),
                ("worst tenth %", "accuracy_worst", 100.0),
                ("client std %", "accuracy_std", 100.0),
            ]
        return [
            ("pooled loss", "loss", 1.0),
            ("client mean", "loss_mean", 1.0),
            ("worst tenth", "loss_worst", 1.0),
            ("client std", "loss_std", 1.0),
        ]

    def rows(self) -> list[list[str]]:
        """The table's cells."""
        return [[*self.cells(name), *self._scores(name), *self._costs(name)] for name in self.runs]

    def _scores(self, name: str) -> list[str]:
        failed, all_ = self.diverged(name), len(self.runs[name])
        if failed:
            text = "diverged" if failed == all_ else f"{failed} of {all_} diverged"
            return [text, *["–"] * (len(self.columns()) - 1)]
        return [
            _cell(self.last(name, field) * factor, self.classifies) for _, field, factor in self.columns()
        ]

    def costs(self, name: str) -> tuple[float, float, float] | None:
        """Bytes sent by and to all clients and seconds per round, mean over finished runs, if any."""
        last = [scores[-1] for scores in self.finished(name)]
        if not last:
            return None
        up, down, seconds = np.mean(
            [(score.bytes_up / score.round, score.bytes_down / score.round, score.seconds / score.round)
             for score in last], axis=0,
        )  # fmt: skip
        return float(up), float(down), float(seconds)

    def _costs(self, name: str) -> list[str]:
        costs = self.costs(name)
        if costs is None:
            return ["–"] * len(COSTS)
        up, down, seconds = costs
        return [bytes_text(up), bytes_text(down), f"{1000 * seconds:.1f}"]

    def headers(self) -> list[str]:
        """One for each cell of a row."""
        return [*self.fields(), *(header for header, _, _ in self.columns()), *COSTS]

    def over(self) -> str:
        """What numbers are taken over."""
        return f"mean ± std over {len(self.seeds)} seeds" if len(self.seeds) > 1 else f"seed {self.seeds[0]}"

    def title(self) -> str:
        """What the table shows."""
        rounds = {scores[-1].round for name in self.runs for scores in self.finished(name)}
        when = f"round {rounds.pop()}" if len(rounds) == 1 else "the last round"
        return f"{self.subject()}: {self.scored_rows} after {when}, {self.over()}"

    def table(self, width: int = 80) -> Table:
        """For a terminal, below the title; a narrow one gets fewer columns."""
        # Headers on two lines: the table fits into eighty columns.
        headers, rows = [header.replace(" ", "\n", 1) for header in self.headers()], self.rows()
        columns = [[*header.split("\n"), *cells] for header, *cells in zip(headers, *rows, strict=True)]
        widths = [max(map(len, column)) + 1 for column in columns]
        first = len(self.fields())
        places = self._places(first, lambda places: sum(widths[place] for place in places) + 1 <= width)
        table = Table(box=SIMPLE_HEAVY, padding=0, pad_edge=False)
        for place in places:
            if place < first:
                table.add_column(Text(headers[place]), justify="left", overflow="fold")
            else:
                table.add_column(headers[place], justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(row[place]) for place in places))
        return table

    def _places(self, first: int, fits: Callable[[list[int]], bool]) -> list[int]:
        """The most columns that fit: all, without bytes down, without std over clients, the scores alone."""
        whole, (std, down) = list(range(len(self.headers()))), (first + 3, first + 5)
        fewer = [[place for place in whole if place not in out] for out in ((), (down,), (down, std))]
        return next(filter(fits, fewer), whole[:std])

    def markdown(self) -> str:
        """For a page or a paper."""
        first = len(self.fields())
        lines = [self.headers(), ["---"] * first + ["---:"] * (len(self.headers()) - first), *self.rows()]
        table = "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )
        return f"{self.title()}\n\n{table}\n\n{self.legend()}\n\n" + "\n".join(self.verdict()) + "\n"

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

    def leads(self) -> list[Lead]:
        """The leader against every other ranked row, over seeds."""
        scores = {name: self.last(name, self.headline) for name in self.ranked}
        return [] if self.best is None else leads(scores, self.best)

    def verdict(self) -> list[str]:
        """Who leads, whether a test supports it, the differences seed by seed, and what diverged."""
        best, lines = self.best, []
        if best is not None:
            against = partial(self.against, best)
            lines = verdict(best, self.leads(), len(self.seeds), self.classifies, against)
        for name in self.runs:
            if failed := self.diverged(name):
                seeds = f" in {failed} of {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
                lines.append(f"{name} diverged{seeds} and is not ranked")
        return lines

    def tested(self, named: Callable[[str], Any]) -> dict[str, Any] | None:
        """For a machine: the leader against every other; differences are in the score's own unit."""
        if self.best is None:
            return None
        return {
            "score": self.headline,
            "test": "paired t-test over seeds, two-sided",
            "adjusted": "Holm, over all pairs",
            "pairs": math.comb(len(self.ranked), 2),
            "confidence": CONFIDENCE,
            "level": LEVEL,
            "leader": named(self.best),
            "against": [{"other": named(lead.other), **lead.as_dict()} for lead in self.leads()],
        }

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
            "comparisons": self.tested(str),
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


def _cell(values: np.ndarray, percent: bool) -> str:
    """Mean ± sample standard deviation, or the one value."""
    if np.isnan(values).any():
        return "–"
    mean = float(values.mean())
    digits = 2 if percent or abs(mean) >= 10 else 3
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
