"""Whether one is better than another: differences seed by seed, their interval and test.

A seed gives every row the same data, split, start and draws, so that rows are compared seed by seed.
Differences are taken to be independent over seeds and about normal.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit  # Student's t, as in scipy.stats, which takes half a second to load

CONFIDENCE = 0.95  # of intervals
LEVEL = 0.05  # what chance alone would bring about less often than this counts as shown
ROUNDING = 1e-12  # differences whose spread is below this share of the scores have none


def reach(seeds: int) -> float:
    """How many standard errors the interval goes either way; a test by itself shows what is beyond."""
    return float(stdtrit(seeds - 1, (1 + CONFIDENCE) / 2))


@dataclass(frozen=True)
class Paired:
    """One − other, over seeds.

    mean: of the differences.
    error: its standard error; None of one seed.
    interval: 95 %, by Student's t, of this difference by itself; None of one seed, or without any spread.
    p_value: of the two-sided paired t-test for no difference, by itself; None where there is no interval.
    same: whether both have the same score at every seed.
    """

    mean: float
    error: float | None
    interval: tuple[float, float] | None
    p_value: float | None
    same: bool


def paired(one: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray) -> Paired:
    """Compare two rows of scores, a value for each seed."""
    return _paired(np.array([one], dtype=float), np.array([other], dtype=float))[0]


def _paired(one: np.ndarray, other: np.ndarray) -> list[Paired]:
    """Compare many, (pair, seed)."""
    gap, seeds = one - other, one.shape[1]
    tiny = ROUNDING * np.maximum(np.abs(one), np.abs(other)).max(1)
    mean, same = gap.mean(1).tolist(), (np.abs(gap).max(1) <= tiny).tolist()
    if seeds < 2:
        return [Paired(*each) for each in zip(mean, *[[None] * len(gap)] * 3, same, strict=True)]
    spread = np.ptp(gap, axis=1) > tiny
    error = np.where(spread, gap.std(1, ddof=1), 0.0) / np.sqrt(seeds)
    p_value = 2 * stdtr(seeds - 1, -np.abs(mean) / np.where(spread, error, 1.0))
    return [
        Paired(mean, error, (mean - half, mean + half), p_value, same)
        if spread
        else Paired(mean, error, None, None, same)
        for mean, error, half, p_value, spread, same in zip(
            mean, error.tolist(), (reach(seeds) * error).tolist(), p_value.tolist(), spread, same, strict=True
        )
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of tests made together, adjusted so that any is wrongly small only as often as one alone.

    Holm's rule: of m, the smallest is multiplied by m, the next by m − 1, and so on; none is less than one
    before it, nor more than 1.
    """
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable").tolist()):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted


@dataclass(frozen=True)
class Lead:
    """How the leader compares with another row.

    p_adjusted: the p-value by Holm's rule, over all pairs of rows; None where there is no test.
    shown: whether it is so small that the leader is taken to be better; None where there is no test.
    """

    other: str
    pair: Paired
    p_adjusted: float | None
    shown: bool | None

    def as_dict(self) -> dict[str, Any]:
        """For a machine, without names."""
        return {
            "difference": self.pair.mean,
            "standard_error": self.pair.error,
            "interval": None if self.pair.interval is None else list(self.pair.interval),
            "p_value": self.pair.p_value,
            "p_adjusted": self.p_adjusted,
            "shown": self.shown,
        }


def leads(scores: Mapping[str, np.ndarray], leader: str) -> list[Lead]:
    """The leader against every other row, each of whose values is a seed's score.

    The leader is whoever has the best mean, picked by the very scores that are tested. Hence the two-sided
    test, and a correction for all pairs of rows, any of which could have been picked: corrected for the
    leader's pairs alone, one of fifteen equal rows would be said to be better in one comparison of eight.
    """
    names = [leader, *(name for name in scores if name != leader)]
    one, other = zip(*itertools.combinations(names, 2), strict=True)
    made = _paired(np.stack([scores[name] for name in one]), np.stack([scores[name] for name in other]))
    # What cannot be tested counts as a test that shows nothing.
    adjusted = holm([1.0 if pair.p_value is None else pair.p_value for pair in made])
    return [
        Lead(name, pair, None, None) if pair.p_value is None else Lead(name, pair, p, p < LEVEL)
        for name, pair, p in zip(names[1:], made, adjusted, strict=False)  # the leader's pairs come first
    ]
