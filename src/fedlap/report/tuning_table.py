"""Candidates over the folds of training rows, in one table, and what is chosen."""

import json
from dataclasses import dataclass
from typing import Any

from fedlap.report.paired_tests import LEVEL, Paired, paired
from fedlap.report.sweep_table import LARGEST, Sweep

RULE = "highest mean, the first in order among equals"
ROUGH = "folds share training rows, so that intervals are rough"


@dataclass(frozen=True)
class Tuning(Sweep):
    """A sweep whose rows are candidates, scored on folds that were held out, of one seed or of several.

    Every seed stands in `seeds` once for each fold.
    """

    folds: int = 5
    refused: tuple[tuple[tuple[Any, ...], str], ...] = ()  # values of those not tried, and why

    def fields(self) -> list[str]:
        """A mark at the best, and the varied fields."""
        return ["", *self.names]

    def cells(self, name: str) -> list[str]:
        """The same of a row."""
        return ["best" if name == self.best else "", *super().cells(name)]

    def over(self) -> str:
        """What numbers are taken over."""
        seeds = list(dict.fromkeys(self.seeds))
        return f"mean ± std over {self.folds} folds of " + (
            f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds each"
        )

    @property
    def scored_rows(self) -> str:
        """Rows that scores are taken on."""
        return "held-out training rows"

    @property
    def repeats(self) -> str:
        """Runs of a row, which differ in these."""
        return "folds"

    @property
    def best(self) -> str | None:
        """What is chosen, if any finished."""
        return max(self.ranked, key=self.mean, default=None)

    @property
    def runner_up(self) -> str | None:
        """What would be chosen if the best were not there."""
        return max((name for name in self.ranked if name != self.best), key=self.mean, default=None)

    def against_best(self, name: str) -> Paired:
        """The best minus another, fold by fold."""
        return paired(self.last(str(self.best), self.headline), self.last(name, self.headline))

    def within_noise(self, name: str) -> bool:
        """Whether the best is not shown to be better than another, by a paired t-test over folds."""
        pair = self.against_best(name)
        return pair.same or (pair.p_value is not None and pair.p_value >= LEVEL)

    def verdict(self) -> list[str]:
        """What is chosen and why, how sure that is, and where it may be worth to look further."""
        what = "accuracy" if self.classifies else "loss"
        diverged = [f"{name} diverged and is not chosen" for name in self.runs if self.diverged(name)]
        if self.best is None:
            return ["every candidate diverged, so none is chosen; try smaller rates"]
        rule = RULE if self.classifies else RULE.replace("highest", "lowest")
        chosen = f"best: {self.best} ({rule}), by {what} on held-out training rows"
        return [chosen, *self._noise(), *self._at_edges(), *diverged]

    def _noise(self) -> list[str]:
        """How the best stands against the next, and against all."""
        if self.runner_up is None:
            return []
        pair, unit = self.against_best(self.runner_up), " points" if self.classifies else ""
        factor, digits = (100.0, 2) if self.classifies else (1.0, 4)
        ends = [f"{factor * end:+z.{digits}f}" for end in pair.interval or ()]
        inside = f" [{', '.join(ends)}]" if ends else ""
        said = "the same" if pair.same else f"{factor * pair.mean:+z.{digits}f}{inside}{unit}"
        near = [name for name in self.ranked if name != self.best and self.within_noise(name)]
        noise = " — within noise" if self.runner_up in near and not pair.same else ""
        return [
            f"  against the next, {self.runner_up}: {said}{noise}",
            f"  {len(near)} of {len(self.ranked) - 1} others are within noise of the best (95 % intervals, "
            f"paired over {len(self.seeds)} folds, each by itself; {ROUGH})",
        ]

    def _at_edges(self) -> list[str]:
        """A line for each field whose best value is the last of those tried with the others as they are."""
        lines = []
        chosen = self.values[str(self.best)]
        every = [(values, name) for name, values in self.values.items()]
        every += [(values, "") for values, _ in self.refused]
        for place, name in enumerate(self.names):
            value = chosen[place]
            # By their texts, since a value may be a list or a table.
            beside = [
                (values[place], row)
                for values, row in every
                if _others(values, place) == _others(chosen, place)
            ]
            tried = [other for other, row in beside if row]
            if not self.numeric(place) or len(beside) < 3 or value == 0 or value == LARGEST.get(name):
                continue
            inner = [row for other, row in beside if row in self.ranked and min(tried) < other < max(tried)]
            if value not in (min(tried), max(tried)) or self.mean(str(self.best)) in map(self.mean, inner):
                continue
            size, more = ("largest", "larger") if value == max(tried) else ("smallest", "smaller")
            beyond = [v for v, row in beside if not row and (v > value if more == "larger" else v < value)]
            lines.append(
                f"the best {name} is the {size} that was not refused; {more} ones may need other settings"
                if beyond
                else f"the best {name} is the {size} tried, so the best may lie beyond; try {more} ones"
            )
        return lines

    def as_dict(self) -> dict[str, Any]:
        """For a machine: every score of every fold, none for one that diverged, and what is chosen."""
        sign = 1 if self.classifies else -1
        return {
            "data": self.data,
            "source": self.source or self.data,
            "algorithms": list(self.algorithms),
            "fields": list(self.names),
            "seeds": list(dict.fromkeys(self.seeds)),
            "folds": self.folds,
            "score": self.headline,
            "candidates": [
                {
                    "values": self._named(self.values[row]),
                    "mean": sign * self.mean(row) if row in self.ranked else None,
                    "scores": self.last_scores(row),
                }
                for row in self.runs
            ],
            "diverged": [
                {"values": self._named(self.values[row]), "seed": seed, "reason": reason}
                for row, seed, reason in self.failures()
            ],
            "refused": [{"values": self._named(values), "reason": reason} for values, reason in self.refused],
            "best": None if self.best is None else self._named(self.values[self.best]),
            "verdict": self.verdict(),
        }

    def _named(self, values: tuple[Any, ...]) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(json.dumps(values, default=str))
        return dict(zip(self.names, plain, strict=True))


def _others(values: tuple[Any, ...], place: int) -> str:
    return repr([value for at, value in enumerate(values) if at != place])
