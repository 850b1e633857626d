"""Values of settings over several seeds, in one table."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedlap.report.comparison import Comparison

LARGEST = {"sample": 1.0}  # beyond which there is nothing to try; below zero there never is


@dataclass(frozen=True)
class Sweep(Comparison):
    """A comparison whose rows are values of varied fields."""

    names: tuple[str, ...] = ()  # of the fields
    values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # of them, for each row
    algorithms: tuple[str, ...] = ()

    def fields(self) -> list[str]:
        """The varied fields, a column each."""
        return list(self.names)

    def cells(self, name: str) -> list[str]:
        """Their values."""
        return [shown(value) for value in self.values[name]]

    def subject(self) -> str:
        """The algorithm and the data; an algorithm that is varied is in the rows."""
        return f"{self.algorithms[0]} on {self.data}" if len(self.algorithms) == 1 else self.data

    def against(self, best: str, other: str) -> str:
        """Values are not written with a minus between: it would look like arithmetic."""
        return f"against {other}: "

    def tried(self, place: int) -> list[Any]:
        """The values of one field, in the order given."""
        return list({shown(values[place]): values[place] for values in self.values.values()}.values())

    def numeric(self, place: int) -> bool:
        """Whether all values of one field are numbers."""
        return all(isinstance(v, int | float) and not isinstance(v, bool) for v in self.tried(place))

    def verdict(self) -> list[str]:
        """What leads, by how much, and where it may be worth to look further."""
        return super().verdict() + self._at_edges()

    def _at_edges(self) -> list[str]:
        """A line for each field whose best value is the smallest or the largest of three or more numbers."""
        best, lines = self.best, []
        for place, name in enumerate(self.names):
            tried = self.tried(place)
            if best is None or len(tried) < 3 or not self.numeric(place):
                continue
            value, edges = self.values[best][place], (min(tried), max(tried))
            inner = [self.mean(row) for row in self.ranked if self.values[row][place] not in edges]
            if value not in edges or value == 0 or value == LARGEST.get(name) or self.mean(best) in inner:
                continue
            size, more = ("largest", "larger") if value == edges[1] else ("smallest", "smaller")
            lines.append(f"the best {name} is the {size} tried; try {more} ones")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """For a machine: every last-round score of every seed, none for one that diverged, and why."""

        def named(row: str) -> dict[str, Any]:
            plain: dict[str, Any] = json.loads(json.dumps(self.values[row], default=str))
            return dict(zip(self.names, plain, strict=True))

        return {
            "data": self.data,
            "source": self.source or self.data,
            "algorithms": list(self.algorithms),
            "fields": list(self.names),
            "seeds": self.seeds,
            "runs": [{"values": named(row), "scores": self.last_scores(row)} for row in self.runs],
            "diverged": [
                {"values": named(row), "seed": seed, "reason": reason}
                for row, seed, reason in self.failures()
            ],
            "best": None if self.best is None else named(self.best),
            "comparisons": self.tested(named),
            "verdict": self.verdict(),
        }


def shown(value: Any) -> str:
    """A value as it is written in a table; different numbers are never written alike."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, dict):
        return ", ".join(f"{key} = {shown(each)}" for key, each in value.items())
    return str(value)
