"""Nine rows as pictures and as numbers, and checks that federations of rows are equal or refused."""

from functools import partial

import numpy as np
import pytest
import torch

import fedlap as fl

from_table, from_arrays = fl.Federation.from_table, partial(fl.Federation.from_arrays, scale="none")


def check_refusal(message, call, *args, **settings):
    with pytest.raises(fl.InputError, match=message) as error:
        call(*args, **settings)
    assert "\n" not in str(error.value)


def same(one, other):
    """Return True if two federations hold the same clients and rows, to the last digit."""
    assert (one.clients, one.labels) == (other.clients, other.labels)
    for a, b in ((one.train, other.train), (one.test, other.test)):
        assert a.x.dtype == b.x.dtype
        assert a.y.dtype == b.y.dtype
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
        assert torch.equal(a.count, b.count)
    return True


PIXELS = np.random.default_rng(0).integers(0, 256, (9, 5, 6, 3), dtype=np.uint8)
REALS = np.random.default_rng(1).normal(size=(9, 4))
LABELS = np.arange(9) % 3
FIRST = np.ascontiguousarray(PIXELS.transpose(0, 3, 1, 2))


def of(part, federation, name):
    return part.client(federation.clients.index(name))
