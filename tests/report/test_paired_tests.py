"""Differences over seeds: their interval and test, held against SciPy, closed forms and laws."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedlap.report.paired_tests import (
    LEVEL,
    PairedComparison,
    adjust_holm,
    compare_leader,
    compare_paired,
    critical_t,
)

shares = st.integers(0, 1000).map(lambda hits: hits / 1000)


@st.composite
def two_rows(draw, least=2):
    """Scores of two rows, over some seeds, whose differences are not all alike."""
    seeds = draw(st.integers(least, 12))
    one, other = (np.array(draw(st.lists(shares, min_size=seeds, max_size=seeds))) for _ in range(2))
    if np.ptp(one - other) < 1e-9:
        one[0] += 0.5
    return one, other


@given(two_rows())
def test_interval_and_test_are_those_of_scipy(rows):
    pair, wanted = compare_paired(*rows), stats.ttest_rel(*rows)
    assert pair.p_value == pytest.approx(wanted.pvalue, rel=1e-9, abs=1e-15)
    interval = wanted.confidence_interval(0.95)
    assert pair.interval == pytest.approx((interval.low, interval.high), rel=1e-9, abs=1e-12)
    assert pair.mean == pytest.approx((rows[0] - rows[1]).mean(), abs=1e-15)
    assert pair.error == pytest.approx(stats.sem(rows[0] - rows[1]), rel=1e-9)


@given(two_rows())
def test_swapped_it_is_mirrored(rows):
    pair, swapped = compare_paired(*rows), compare_paired(*rows[::-1])
    low, high = pair.interval
    assert swapped == PairedComparison(-pair.mean, pair.error, (-high, -low), pair.p_value, pair.identical)


@given(two_rows(), st.randoms(use_true_random=False))
def test_the_order_of_seeds_is_nothing(rows, random):
    order = list(range(len(rows[0])))
    random.shuffle(order)
    pair, other = compare_paired(*rows), compare_paired(*(row[order] for row in rows))
    assert (other.mean, other.error, other.p_value) == pytest.approx((pair.mean, pair.error, pair.p_value))
    assert other.interval == pytest.approx(pair.interval)


@given(two_rows(), st.integers(-5, 5))
def test_a_shift_moves_the_interval_by_itself(rows, shift):
    pair, moved = compare_paired(*rows), compare_paired(rows[0] + shift, rows[1])
    assert moved.mean == pytest.approx(pair.mean + shift, abs=1e-12)
    assert moved.interval == pytest.approx([end + shift for end in pair.interval], abs=1e-9)
    # What moves both rows at a seed moves nothing: seeds may be as different as they like.
    seeds = np.arange(len(rows[0])) * shift
    assert compare_paired(rows[0] + seeds, rows[1] + seeds).mean == pytest.approx(pair.mean, abs=1e-12)


@given(two_rows())
def test_the_interval_leaves_out_zero_exactly_where_the_test_shows_a_difference(rows):
    pair = compare_paired(*rows)
    low, high = pair.interval
    assert (low > 0 or high < 0) == (pair.p_value < LEVEL)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 9.0, 40.0])
def test_two_and_three_seeds_have_closed_forms(t):
    # One degree of freedom is Cauchy's distribution: P(|T| > t) = 1 − (2/π) arctan t.
    pair = compare_paired([t + 1, t - 1], [0, 0])
    assert (pair.mean, pair.error) == pytest.approx((t, 1))
    assert pair.p_value == pytest.approx(1 - 2 / math.pi * math.atan(t))
    assert pair.interval == pytest.approx((t - math.tan(0.475 * math.pi), t + math.tan(0.475 * math.pi)))
    # Of two: P(|T| > t) = 1 − t/√(2 + t²).
    root = math.sqrt(3)
    assert compare_paired([t + root, t, t - root], [0, 0, 0]).p_value == pytest.approx(
        1 - t / math.sqrt(2 + t * t)
    )


@pytest.mark.parametrize(("seeds", "errors"), [(2, 12.706), (3, 4.303), (5, 2.776), (10, 2.262), (31, 2.042)])
def test_how_far_the_interval_reaches(seeds, errors):
    assert critical_t(seeds) == pytest.approx(errors, abs=5e-4)


def test_of_one_seed_nothing_but_the_difference_is_known():
    assert compare_paired([0.75], [0.5]) == PairedComparison(0.25, None, None, None, identical=False)
    assert compare_paired([0.5], [0.5]) == PairedComparison(0.0, None, None, None, identical=True)


@pytest.mark.parametrize("shift", [0.1, -0.25, 1e-3])
def test_without_a_spread_there_is_no_test(shift):
    scores = np.array([0.1, 0.3, 0.7, 0.9])
    pair = compare_paired(scores + shift, scores)  # equal but for rounding
    assert pair.mean == pytest.approx(shift)
    assert pair == PairedComparison(pair.mean, 0.0, None, None, identical=False)


def test_rows_that_differ_by_rounding_are_the_same():
    scores = np.array([0.1, 0.3, 0.7])
    for one, other in ((scores, scores), (scores + np.array([1e-16, 0, -1e-16]), scores), (0 * scores,) * 2):
        pair = compare_paired(one, other)
        assert (pair.identical, pair.error, pair.interval, pair.p_value) == (True, 0.0, None, None)


def test_holm_by_hand():
    assert adjust_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust_holm([0.5, 0.9]) == [1.0, 1.0]
    assert adjust_holm([0.2]) == [0.2]
    assert adjust_holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_keeps_the_order_and_only_makes_larger(p_values):
    adjusted = adjust_holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    assert min(adjusted) == min(1, len(p_values) * min(p_values))
    for (p, q), (p2, q2) in itertools.pairwise(sorted(zip(p_values, adjusted, strict=True))):
        assert q <= q2 or p == p2
    # Rejecting what is below a level is Holm's step-down procedure.
    ranked = sorted(p_values)
    firm = next((n for n, p in enumerate(ranked) if p * (len(ranked) - n) >= LEVEL), len(ranked))
    assert sum(q < LEVEL for q in adjusted) == firm


def rows_of(*shifts, seeds=6):
    rng = np.random.default_rng(1)
    common = rng.normal(size=seeds)
    return {f"row {n}": shift + common + 0.1 * rng.normal(size=seeds) for n, shift in enumerate(shifts)}


def test_two_rows_need_no_correction():
    scores = rows_of(0.0, 0.2)
    (lead,) = compare_leader(scores, "row 1")
    assert lead.pair == compare_paired(scores["row 1"], scores["row 0"])
    assert lead.p_adjusted == lead.pair.p_value
    assert lead.significant is (lead.pair.p_value < LEVEL)


def test_the_correction_is_for_all_pairs():
    scores = rows_of(0.0, 0.9, 0.1, 0.5)
    leads = {lead.other: lead for lead in compare_leader(scores, "row 1")}
    assert list(leads) == ["row 0", "row 2", "row 3"]
    pairs = list(itertools.combinations(scores, 2))
    adjusted = dict(
        zip(pairs, adjust_holm([compare_paired(scores[a], scores[b]).p_value for a, b in pairs]), strict=True)
    )
    for (a, b), p in adjusted.items():
        if "row 1" in (a, b):
            assert leads[b if a == "row 1" else a].p_adjusted == pytest.approx(p, rel=1e-9)
    assert all(lead.significant for lead in leads.values())


def test_what_cannot_be_tested_is_not_shown_and_counts_as_a_pair():
    scores = rows_of(0.0, 0.9)
    both = compare_leader({**scores, "twin": scores["row 1"], "above": scores["row 0"] - 1}, "row 1")
    row, twin, above = both
    assert (twin.pair.identical, twin.p_adjusted, twin.significant) == (True, None, None)
    assert above.significant is True
    assert row.p_adjusted > 3 * row.pair.p_value
    assert twin.as_dict() == {"difference": 0.0, "standard_error": 0.0, "interval": None, "p_value": None,
                              "p_adjusted": None, "shown": None}  # fmt: skip


@pytest.mark.parametrize(("rows", "seeds"), [(2, 5), (4, 5), (8, 3), (8, 10)])
def test_of_equal_rows_a_leader_is_seldom_said_to_be_better(rows, seeds):
    """In no more than one comparison of twenty, though the leader is picked by the scores that are tested."""
    rng, times, wrong = np.random.default_rng(0), 1000, 0
    for _ in range(times):
        scores = {str(n): values for n, values in enumerate(rng.normal(size=(rows, seeds)))}
        best = max(scores, key=lambda name: scores[name].mean())
        wrong += any(lead.significant for lead in compare_leader(scores, best))
    assert 0 < wrong / times < LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / times)
