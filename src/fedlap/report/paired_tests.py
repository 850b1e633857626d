"""Paired comparisons of rows: differences seed by seed, their interval and test.

A seed gives every row the same data, split, initial model and draws, so rows are compared seed by seed.
Differences are assumed to be independent over seeds and approximately normal.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit  # Student's t, as in scipy.stats, which takes half a second to load

CONFIDENCE = 0.95  # of intervals
LEVEL = 0.05  # of significance: a p-value below it counts as significant
ROUNDING_SHARE = 1e-12  # spreads below this share of the scores are rounding error


def critical_t(seeds: int) -> float:
    """Return the half-width of the interval in standard errors: Student's t quantile."""
    return float(stdtrit(seeds - 1, (1 + CONFIDENCE) / 2))


@dataclass(frozen=True)
class PairedComparison:
    """The difference of two rows (one − other) over seeds.

    mean: mean of the differences.
    error: standard error of the mean; None for one seed.
    interval: 95 % interval by Student's t, uncorrected; None for one seed, or without any spread.
    p_value: two-sided paired t-test for no difference, uncorrected; None where there is no interval.
    identical: True if both have the same score at every seed.
    """

    mean: float
    error: float | None
    interval: tuple[float, float] | None
    p_value: float | None
    identical: bool


def compare_paired(
    one: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray
) -> PairedComparison:
    """Compare two rows of scores, one value per seed."""
    return _compare_pairs(np.array([one], dtype=float), np.array([other], dtype=float))[0]


def _compare_pairs(one: np.ndarray, other: np.ndarray) -> list[PairedComparison]:
    """Compare many pairs of rows; both arrays have the shape (pair, seed)."""
    gap, seeds = one - other, one.shape[1]
    tiny = ROUNDING_SHARE * np.maximum(np.abs(one), np.abs(other)).max(1)
    mean, identical = gap.mean(1).tolist(), (np.abs(gap).max(1) <= tiny).tolist()
    if seeds < 2:
        return [
            PairedComparison(*values)
            for values in zip(mean, *[[None] * len(gap)] * 3, identical, strict=True)
        ]
    spread = np.ptp(gap, axis=1) > tiny
    error = np.where(spread, gap.std(1, ddof=1), 0.0) / np.sqrt(seeds)
    p_value = 2 * stdtr(seeds - 1, -np.abs(mean) / np.where(spread, error, 1.0))
    return [
        PairedComparison(mean, error, (mean - half, mean + half), p_value, identical)
        if spread
        else PairedComparison(mean, error, None, None, identical)
        for mean, error, half, p_value, spread, identical in zip(
            mean,
            error.tolist(),
            (critical_t(seeds) * error).tolist(),
            p_value.tolist(),
            spread,
            identical,
            strict=True,
        )
    ]


def adjust_holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values of several tests by Holm's method, which controls the family-wise error rate.

    Of m p-values the smallest is multiplied by m, the next by m − 1, and so on; none is less than the one
    before it, nor more than 1.
    """
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable").tolist()):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted


@dataclass(frozen=True)
class RowTest:
    """The difference of two rows (one − other), tested among all pairs of rows.

    p_adjusted: the p-value by Holm's method, over all pairs of rows; None where there is no test.
    significant: True if p_adjusted is below LEVEL; None where there is no test.
    """

    one: str
    other: str
    pair: PairedComparison
    p_adjusted: float | None
    significant: bool | None

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers as plain values, without the names of rows."""
        return {
            "difference": self.pair.mean,
            "standard_error": self.pair.error,
            "interval": None if self.pair.interval is None else list(self.pair.interval),
            "p_value": self.pair.p_value,
            "p_adjusted": self.p_adjusted,
            "shown": self.significant,
        }

    def describe_outcome(self, higher_is_better: bool) -> str:
        """Return the outcome of the test for the first row."""
        if self.significant is None:
            return "identical" if self.pair.identical else "no test"
        if not self.significant:
            return "not significant"
        return "better" if (self.pair.mean > 0) == higher_is_better else "worse"


def compare_leader(scores: Mapping[str, np.ndarray], leader: str) -> list[RowTest]:
    """Compare the leader with every other row; the values of a row are its scores per seed.

    The leader is the row with the best mean, selected by the same scores that are tested. Hence the two-sided
    test, and a correction for all pairs of rows, any of which could have been selected: corrected for the
    leader's pairs alone, one of fifteen equal rows would be called better in one comparison of eight.
    """
    return compare_rows(scores, [(leader, name) for name in scores if name != leader])


def compare_rows(scores: Mapping[str, np.ndarray], chosen: Sequence[tuple[str, str]]) -> list[RowTest]:
    """Compare the chosen pairs of rows, corrected for all pairs of rows."""
    # Chosen pairs come first and in their direction; the others only count for the correction.
    pairs = list(chosen)
    pairs += [pair for pair in itertools.combinations(scores, 2) if not {pair, pair[::-1]} & set(chosen)]
    if not pairs:
        return []
    one, other = zip(*pairs, strict=True)
    compared = _compare_pairs(
        np.stack([scores[name] for name in one]), np.stack([scores[name] for name in other])
    )
    # A pair that cannot be tested counts as a test with p = 1.
    adjusted = adjust_holm([1.0 if pair.p_value is None else pair.p_value for pair in compared])
    return [
        RowTest(*names, pair, None, None) if pair.p_value is None else RowTest(*names, pair, p, p < LEVEL)
        for names, pair, p in zip(chosen, compared, adjusted, strict=False)
    ]
