"""Table of candidates over folds of the training rows, and the selected one."""

import json
from dataclasses import dataclass
from typing import Any

from fedlap.report.paired_tests import LEVEL, PairedComparison, compare_paired
from fedlap.report.sweep_table import UPPER_LIMITS, Sweep

SELECTION_RULE = "{most} mean {score} on held-out training rows; ties go to the first"
INTERVAL_CAVEAT = "Folds share training rows, so intervals are approximate."


@dataclass(frozen=True)
class Tuning(Sweep):
    """A sweep whose rows are candidates, scored on held-out folds of one or more seeds.

    `seeds` contains every seed once per fold.
    """

    folds: int = 5
    # Values, and why the method rejects them.
    invalid_candidates: tuple[tuple[tuple[Any, ...], str], ...] = ()

    def row_headers(self) -> list[str]:
        """Return a column that marks the best row, then the varied settings."""
        return ["", *self.field_names]

    def row_cells(self, name: str) -> list[str]:
        """Return the mark and the values of a row."""
        return ["best" if name == self.best else "", *super().row_cells(name)]

    def describe_repeats(self) -> str:
        """Return what the means are taken over."""
        seeds = list(dict.fromkeys(self.seeds))
        return f"mean ± std over {self.folds} folds of " + (
            f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds each"
        )

    @property
    def scored_rows(self) -> str:
        """Data rows that the scores are computed on."""
        return "held-out training rows"

    @property
    def repeats(self) -> str:
        """Name of what the runs of a row differ in."""
        return "folds"

    @property
    def best(self) -> str | None:
        """The selected candidate, if any finished."""
        return max(self.ranked_rows, key=self.ranking_score, default=None)

    @property
    def runner_up(self) -> str | None:
        """The second-best candidate, if any."""
        return max(
            (name for name in self.ranked_rows if name != self.best), key=self.ranking_score, default=None
        )

    def compare_best(self, name: str) -> PairedComparison:
        """Compare the best with another candidate, fold by fold."""
        return compare_paired(
            self.final_scores(str(self.best), self.headline), self.final_scores(name, self.headline)
        )

    def is_within_noise(self, name: str) -> bool:
        """Return True if the best is not significantly better, by a paired t-test over folds."""
        pair = self.compare_best(name)
        return pair.identical or (pair.p_value is not None and pair.p_value >= LEVEL)

    def describe_verdict(self) -> list[str]:
        """Return the selected candidate, its lead, best values at an edge of the grid, and failures."""
        diverged = [f"{name} diverged and is not selected" for name in self.runs if self.count_diverged(name)]
        if self.best is None:
            return ["every candidate diverged, so none is selected; try smaller learning rates"]
        rule = SELECTION_RULE.format(
            most="highest" if self.metric.higher_is_better else "lowest", score=self.metric.label
        )
        selected = f"best: {self.best} ({rule})"
        return [selected, *self._describe_noise(), *self._describe_edges(), *diverged]

    def _describe_noise(self) -> list[str]:
        """Return the lead over the runner-up, and how many candidates are not significantly worse."""
        if self.runner_up is None:
            return []
        pair, metric = self.compare_best(self.runner_up), self.metric
        ends = ", ".join(map(metric.format_difference, pair.interval or ()))
        unit = " points" if metric.is_percent else ""
        inside = f" [{ends}]" if ends else ""
        difference = "identical" if pair.identical else f"{metric.format_difference(pair.mean)}{inside}{unit}"
        close = [name for name in self.ranked_rows if name != self.best and self.is_within_noise(name)]
        outcome = " — not significant" if self.runner_up in close and not pair.identical else ""
        return [
            f"  against the runner-up, {self.runner_up}: {difference}{outcome}",
            f"  {len(close)} of {len(self.ranked_rows) - 1} other candidates are not significantly worse "
            f"than the best (95 % intervals, paired over {len(self.seeds)} folds, not corrected). "
            f"{INTERVAL_CAVEAT}",
        ]

    def _describe_edges(self) -> list[str]:
        """Return a line per setting whose best value is the last one tried, other settings being equal."""
        lines = []
        selected = self.values[str(self.best)]
        candidates = [(values, name) for name, values in self.values.items()]
        candidates += [(values, "") for values, _ in self.invalid_candidates]
        for place, name in enumerate(self.field_names):
            value = selected[place]
            # Values are compared by their texts, since a value may be a list or a table.
            neighbours = [
                (values[place], row)
                for values, row in candidates
                if _format_other_values(values, place) == _format_other_values(selected, place)
            ]
            tried = [other for other, row in neighbours if row]
            if (
                not self.is_numeric(place)
                or len(neighbours) < 3
                or value == 0
                or value == UPPER_LIMITS.get(name)
            ):
                continue
            inner = [
                row
                for other, row in neighbours
                if row in self.ranked_rows and min(tried) < other < max(tried)
            ]
            if value not in (min(tried), max(tried)) or self.ranking_score(str(self.best)) in map(
                self.ranking_score, inner
            ):
                continue
            size, more = ("largest", "larger") if value == max(tried) else ("smallest", "smaller")
            beyond = [
                v for v, row in neighbours if not row and (v > value if more == "larger" else v < value)
            ]
            lines.append(
                f"the best {name} is the {size} valid value tried; {more} values may need other settings"
                if beyond
                else f"the best {name} is the {size} value tried; try {more} values"
            )
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Return scores of every fold (None if diverged), failures and the selection as plain values."""
        return {
            "data": self.data,
            "source": self.source or self.data,
            "algorithms": list(self.algorithms),
            "fields": list(self.field_names),
            "seeds": list(dict.fromkeys(self.seeds)),
            "folds": self.folds,
            **self.metric_as_dict(),
            "score": self.headline,
            "candidates": [
                {
                    "values": self._name_values(self.values[row]),
                    "mean": self.metric.sign * self.ranking_score(row) if row in self.ranked_rows else None,
                    "scores": self.final_score_dicts(row),
                }
                for row in self.runs
            ],
            "diverged": [
                {"values": self._name_values(self.values[row]), "seed": seed, "reason": reason}
                for row, seed, reason in self.list_failures()
            ],
            "refused": [
                {"values": self._name_values(values), "reason": reason}
                for values, reason in self.invalid_candidates
            ],
            "best": None if self.best is None else self._name_values(self.values[self.best]),
            "verdict": self.describe_verdict(),
        }

    def _name_values(self, values: tuple[Any, ...]) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(json.dumps(values, default=str))
        return dict(zip(self.field_names, plain, strict=True))


def _format_other_values(values: tuple[Any, ...], place: int) -> str:
    return repr([value for position, value in enumerate(values) if position != place])
