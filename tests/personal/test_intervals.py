"""Half-widths of intervals around errors whose variance is estimated from the rows that cause them."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import beta

from fedlap.personal.intervals import COVERAGE, QUANTILE, ErrorNodes, scale_covariance


def build(noise, bias, rest, ratio=(1.0,), freedom=math.inf):
    """One client with one parameter; a number per node."""
    blocks = [torch.tensor(values, dtype=torch.float64)[:, None, None, None] for values in (bias, rest)]
    return ErrorNodes(
        torch.full((1, 1, 1), noise, dtype=torch.float64),
        *blocks,
        torch.tensor(ratio, dtype=torch.float64)[:, None],
        torch.tensor([freedom], dtype=torch.float64),
    )


@pytest.mark.parametrize("rest", [0.0, 1.0, 2.0, 9.0])
def test_a_known_variance_gives_the_normal_interval(rest):
    """However much of the error the rows explain; directions are exact to half a percent."""
    nodes = build(0.5, [1.5], [rest])
    assert float(nodes.find_half_widths()) == pytest.approx(QUANTILE * math.sqrt(2.0), rel=5e-3)
    assert float(scale_covariance(nodes)) == pytest.approx(2.0, rel=1e-2)


@pytest.mark.parametrize("freedom", [2.0, 4.0, 39.0])
def test_an_error_that_is_one_of_the_squares_is_bounded_by_their_sum(freedom):
    wanted = math.sqrt(freedom * beta.ppf(COVERAGE, 0.5, (freedom - 1) / 2))
    assert float(build(0.0, [1.0], [0.0], freedom=freedom).find_half_widths()) == pytest.approx(
        wanted, rel=2e-2
    )
    assert wanted < QUANTILE  # the interval of a normal error is longer


def test_noise_does_not_shrink_with_small_differences():
    """The rows explain all of the noise, and the differences that they show are small by chance."""
    assert float(build(1.0, [0.0], [0.2], ratio=[0.25]).find_half_widths()) == pytest.approx(
        QUANTILE, rel=5e-3
    )
    assert float(build(0.0, [1.0], [0.0], ratio=[0.25]).find_half_widths()) == pytest.approx(
        QUANTILE / 2, rel=2e-2
    )


def test_an_error_without_variance_stays_without():
    assert float(scale_covariance(build(0.0, [0.0], [0.0]))) == 0.0


def test_equal_clients_far_from_their_mean_are_covered_exactly():
    """Five true values without noise, all estimated by their mean: intervals hold at any scale."""
    clients, draws = 5, 4000
    values = np.random.default_rng(0).normal(size=(draws, clients)) * 10.0
    errors = values - values.mean(1, keepdims=True)
    scale = (errors**2).sum(1) / (clients - 1)
    # With the likelihood of t, nodes t_i have ratio scale/t_i, and the bias is t_i (1 − 1/N).
    nodes = np.array([0.3, 1.0, 4.0])
    half = float(
        build(
            0.0, list(nodes * (1 - 1 / clients)), [0.0] * 3, list(1 / nodes), clients - 1.0
        ).find_half_widths()
    )
    assert np.mean(np.abs(errors) <= half * np.sqrt(scale)[:, None]) == pytest.approx(COVERAGE, abs=0.01)
