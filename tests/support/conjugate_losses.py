"""Losses, their conjugates and their steps, written from the definitions."""

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, xlogy

LOSSES = ("squared", "logistic", "hinge")


def value(loss, z, y):
    if loss == "squared":
        return (z - y) ** 2 / 2
    if loss == "logistic":
        return np.logaddexp(0, -y * z)
    return np.where(y * z >= 1, 0, np.where(y * z <= 0, 0.5 - y * z, (1 - y * z) ** 2 / 2))


def conjugate(loss, a, y):
    if loss == "logistic":
        return xlogy(a * y, a * y) + xlogy(1 - a * y, 1 - a * y)
    return a**2 / 2 - y * a


def best(loss, a, z, y, c):
    if loss == "squared":
        return (y - z + c * a) / (1 + c)
    if loss == "hinge":
        return y * min(1, max(0, (1 - y * z + c * a * y) / (1 + c)))
    d = c * a * y - y * z
    return y * expit(brentq(lambda t: t + c * expit(t) - d, d - c - 1, d + 1, xtol=1e-15, rtol=1e-15))
