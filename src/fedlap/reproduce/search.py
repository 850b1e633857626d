"""Search: which values are tried, and in which order, until the best of them lie within what was tried."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedlap.errors import InputError
from fedlap.experiments.settings import Section


@dataclass(frozen=True)
class Choice:
    """The values a method is trained with at one seed, and how they were found.

    by: "tuned" on training rows, "stored" with the recipe, or "fixed", where nothing is to be chosen.
    """

    values: Section
    by: str
    validation: float | None = None  # mean accuracy on the folds
    refused: int = 0  # how many combinations the method refused


@dataclass(eq=False)
class Search:
    """First all combinations of a grid. Then, while the best has a value at an end of those that were tried
    with the rest as it is, the next rung of that setting's ladder beyond it.

    ladders: by setting, rising values; none for settings that keep to the grid.
    """

    grid: Sequence[Section]
    ladders: Mapping[str, Sequence[Any]]
    scores: list[tuple[Section, float]] = field(default_factory=list)
    refusals: list[tuple[Section, InputError]] = field(default_factory=list)

    def wanted(self) -> list[Section]:
        """What is to be tried next."""
        if not self._tried:
            return list(self.grid)
        best = self.best
        if best is None:
            return []
        return [
            {**best[0], name: value}
            for name, ladder in self.ladders.items()
            for value in self._beyond(name, best[0], ladder)
        ]

    def add(self, values: Section, score: float) -> None:
        """What came out, −∞ where training diverged."""
        self.scores.append((values, score))

    def refuse(self, values: Section, error: InputError) -> None:
        """These cannot be tried."""
        self.refusals.append((values, error))

    @property
    def best(self) -> tuple[Section, float] | None:
        """The highest score, the first of equals."""
        finite = [each for each in self.scores if np.isfinite(each[1])]
        return max(finite, key=lambda each: each[1], default=None)

    @property
    def choice(self) -> Choice | None:
        """What it came to, if to anything."""
        best = self.best
        return None if best is None else Choice(best[0], "tuned", best[1], len(self.refusals))

    @property
    def _tried(self) -> list[Section]:
        return [values for values, _ in (*self.scores, *self.refusals)]

    def _beyond(self, name: str, best: Section, ladder: Sequence[Any]) -> list[Any]:
        """The rung below what was tried of a setting, the rest as it is, and the one above, or neither."""
        line = [values[name] for values in self._tried if values == {**best, name: values[name]}]
        below = [rung for rung in ladder if rung < best[name]][-1:] if best[name] == min(line) else []
        above = [rung for rung in ladder if rung > best[name]][:1] if best[name] == max(line) else []
        return below + above
