"""Labels to cut, every kind of partition, and the rows that clients get from it."""

import numpy as np
import pytest
import torch

from fedlap.data.partition import PARTITIONS

each_kind = pytest.mark.parametrize("kind", PARTITIONS.values(), ids=PARTITIONS)


def draw_labels(counts, seed=0):
    """Return `counts[k]` labels k for every k, shuffled."""
    rows = np.repeat(np.arange(len(counts)), counts)
    return torch.from_numpy(np.random.default_rng(seed).permutation(rows))


def sizes_of(parts):
    return [len(rows) for rows in parts]


def everything(federation):
    """Return the places in the store of all training and test rows."""
    return sorted(torch.cat([federation.train.row, federation.test.row]).tolist())
