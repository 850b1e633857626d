"""Losses and their conjugates, written once more and held against each other."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from conjugate_losses import LOSSES, best, conjugate, value
from fedlap.algorithms.conjugates import CONJUGATES

# The losses once more: ℓ(z), ℓ*(−a), and of one variable the best b of ℓ*(−b) + zb + c/2 (b − a)².


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_and_their_conjugates(loss):
    rng = np.random.default_rng(0)
    functions = CONJUGATES[loss]

    def slack(a, y, z):
        return a * z + value(loss, z, y)

    z, y = rng.normal(size=200) * 15, rng.choice([-1.0, 1.0], 200)
    a = rng.uniform(0, 1, 200) * y
    z_, y_, a_ = (torch.from_numpy(v) for v in (z, y, a))
    assert np.abs(functions.value(z_, y_).numpy() - value(loss, z, y)).max() < 1e-12
    assert np.abs(functions.conjugate(a_, y_).numpy() - conjugate(loss, a, y)).max() < 1e-12
    for dual, target in zip(a[:20], y[:20], strict=True):  # ℓ*(−a) = sup_z −az − ℓ(z)
        found = minimize_scalar(partial(slack, dual, target), bounds=(-50, 50), method="bounded")
        assert -found.fun == pytest.approx(conjugate(loss, dual, target), abs=1e-6)
    assert (functions.value(z_, y_) + functions.conjugate(a_, y_) + a_ * z_).min() >= 0


@pytest.mark.parametrize("loss", LOSSES)
def test_the_best_of_one_dual_variable(loss):
    rng = np.random.default_rng(0)
    c = 10 ** rng.uniform(-9, 9, 3000)
    z = rng.normal(size=3000) * 10 ** rng.uniform(-3, 3, 3000)
    y = rng.choice([-1.0, 1.0], 3000)
    a = np.where(rng.uniform(size=3000) < 0.4, rng.integers(0, 2, 3000), rng.uniform(size=3000)) * y
    found = CONJUGATES[loss].minimise(*(torch.from_numpy(v) for v in (a, z, y, c))).numpy()
    expected = [best(loss, *case) for case in zip(a, z, y, c, strict=True)]
    assert np.abs(found - expected).max() < 1e-13 * max(1, np.abs(expected).max())
    if loss != "squared":
        rounded = [torch.from_numpy(v).float() for v in (a, z, y, c)]
        single = CONJUGATES[loss].minimise(*rounded)
        exact = CONJUGATES[loss].minimise(*(tensor.double() for tensor in rounded))
        assert (single - exact).abs().max() < 1e-6
        assert (single * rounded[2]).min() >= 0
        assert (single * rounded[2]).max() <= 1
