"""Random rows of clients and random weights of graphs."""

import numpy as np


def random_arrays(counts, features=4, labels=3, seed=0, real=False):
    """Unequal clients called a, b, c, … with normal features and unrelated labels."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for place, count in enumerate(counts):
        x = rng.normal(size=(count, features)) + 0.5 * rng.normal(size=features)
        y = rng.normal(size=(count, labels)) if real else rng.integers(0, labels, count)
        arrays[chr(ord("a") + place)] = (x, y)
    return arrays


def random_weights(names, seed=0, density=0.7):
    rng = np.random.default_rng(seed)
    a = np.triu(rng.uniform(0.2, 1.5, (len(names),) * 2) * (rng.uniform(size=(len(names),) * 2) < density), 1)
    return a + a.T
