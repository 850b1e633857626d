"""Search for the best settings: a grid first, then beyond its ends while the best value lies there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedlap.errors import InputError
from fedlap.experiments.settings import Section


@dataclass(frozen=True)
class Choice:
    """The values that a method is trained with at one seed, and their origin.

    by: "tuned" on training rows, "stored" with the recipe, or "fixed" if there is only one candidate.
    """

    values: Section
    by: str
    validation: float | None = None  # mean accuracy on the folds
    refused: int = 0  # number of combinations that the method rejects


@dataclass(eq=False)
class Search:
    """A search over a grid and then beyond it.

    First all combinations of the grid are tried. While the best candidate has a setting at an end of the
    values tried for it (all other settings equal), the next rung of that setting's ladder is tried.

    ladders: rising values by setting; a setting without a ladder stays within the grid.
    """

    grid: Sequence[Section]
    ladders: Mapping[str, Sequence[Any]]
    scores: list[tuple[Section, float]] = field(default_factory=list)
    refusals: list[tuple[Section, InputError]] = field(default_factory=list)

    def next_candidates(self) -> list[Section]:
        """Return the candidates to try next."""
        if not self._tried:
            return list(self.grid)
        best = self.best
        if best is None:
            return []
        return [
            {**best[0], name: value}
            for name, ladder in self.ladders.items()
            for value in self._rungs_beyond(name, best[0], ladder)
        ]

    def add(self, values: Section, score: float) -> None:
        """Record the score of a candidate; −∞ if training diverged."""
        self.scores.append((values, score))

    def refuse(self, values: Section, error: InputError) -> None:
        """Record that a candidate is invalid."""
        self.refusals.append((values, error))

    @property
    def best(self) -> tuple[Section, float] | None:
        """The candidate with the highest score; ties go to the first."""
        finite = [scored for scored in self.scores if np.isfinite(scored[1])]
        return max(finite, key=lambda scored: scored[1], default=None)

    @property
    def choice(self) -> Choice | None:
        """The best candidate as a choice; None if every candidate failed."""
        best = self.best
        return None if best is None else Choice(best[0], "tuned", best[1], len(self.refusals))

    @property
    def _tried(self) -> list[Section]:
        return [values for values, _ in (*self.scores, *self.refusals)]

    def _rungs_beyond(self, name: str, best: Section, ladder: Sequence[Any]) -> list[Any]:
        """Return the rungs next to the best value if it is the lowest or highest value tried so far."""
        line = [values[name] for values in self._tried if values == {**best, name: values[name]}]
        below = [rung for rung in ladder if rung < best[name]][-1:] if best[name] == min(line) else []
        above = [rung for rung in ladder if rung > best[name]][:1] if best[name] == max(line) else []
        return below + above
