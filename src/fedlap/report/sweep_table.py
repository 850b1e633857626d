"""Table of values of settings over several seeds."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedlap.experiments.settings import format_value
from fedlap.report.comparison import Comparison

UPPER_LIMITS = {"sample": 1.0}  # largest valid values; no field has values below zero


@dataclass(frozen=True)
class Sweep(Comparison):
    """A comparison whose rows are values of varied fields."""

    field_names: tuple[str, ...] = ()  # of the varied settings
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # of the varied settings, per row
    algorithms: tuple[str, ...] = ()

    def row_headers(self) -> list[str]:
        """Return the varied settings, one column each."""
        return list(self.field_names)

    def row_cells(self, name: str) -> list[str]:
        """Return the values of a row."""
        return [format_value(value) for value in self.values[name]]

    def describe_subject(self) -> str:
        """Return the algorithm and the data; a varied algorithm is in the rows instead."""
        return f"{self.algorithms[0]} on {self.data}" if len(self.algorithms) == 1 else self.data

    def describe_difference(self, best: str, other: str) -> str:
        """Return the other row alone: `lr = 0.1 − lr = 0.2` would look like arithmetic."""
        return f"against {other}: "

    def describe_control_pair(self, graph: str, shuffled: str) -> str:
        """Return both rows of a control, without a minus sign between equations."""
        return f"{graph} against {shuffled}: "

    def list_values(self, place: int) -> list[Any]:
        """Return the distinct values of one setting, in the order of the rows."""
        return list({format_value(values[place]): values[place] for values in self.values.values()}.values())

    def is_numeric(self, place: int) -> bool:
        """Return True if all values of one setting are numbers."""
        return all(isinstance(v, int | float) and not isinstance(v, bool) for v in self.list_values(place))

    def describe_verdict(self) -> list[str]:
        """Return the verdict of a comparison, and the best values that lie at an edge of the grid."""
        return super().describe_verdict() + self._describe_edges()

    def _describe_edges(self) -> list[str]:
        """Return a line per setting whose best value is the smallest or largest of three or more numbers."""
        best, lines = self.best, []
        for place, name in enumerate(self.field_names):
            tried = self.list_values(place)
            if best is None or len(tried) < 3 or not self.is_numeric(place):
                continue
            value, edges = self.values[best][place], (min(tried), max(tried))
            inner = [
                self.ranking_score(row) for row in self.ranked_rows if self.values[row][place] not in edges
            ]
            if (
                value not in edges
                or value == 0
                or value == UPPER_LIMITS.get(name)
                or self.ranking_score(best) in inner
            ):
                continue
            size, more = ("largest", "larger") if value == edges[1] else ("smallest", "smaller")
            lines.append(f"the best {name} is the {size} value tried; try {more} values")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Return last-round scores of every seed (None if diverged), failures and verdict as plain values."""

        def name_values(row: str) -> dict[str, Any]:
            plain: dict[str, Any] = json.loads(json.dumps(self.values[row], default=str))
            return dict(zip(self.field_names, plain, strict=True))

        return {
            "data": self.data,
            "source": self.source or self.data,
            "algorithms": list(self.algorithms),
            "fields": list(self.field_names),
            "seeds": self.seeds,
            **self.metric_as_dict(),
            "runs": [
                {"values": name_values(row), "scores": self.final_score_dicts(row)} for row in self.runs
            ],
            "diverged": [
                {"values": name_values(row), "seed": seed, "reason": reason}
                for row, seed, reason in self.list_failures()
            ],
            "best": None if self.best is None else name_values(self.best),
            "comparisons": self.tests_as_dict(name_values),
            "verdict": self.describe_verdict(),
            **({"control_rows": [list(pair) for pair in self.controls]} if self.controls else {}),
        }
