"""Labels to cut, every kind of partition, and the rows that clients get from it."""

import numpy as np
import pytest
import torch

from fedlap.data.partition import PARTITIONS

each_kind = pytest.mark.parametrize("kind", PARTITIONS.values(), ids=PARTITIONS)


def labelled(counts, seed=0):
    """This many rows of each label, shuffled."""
    rows = np.repeat(np.arange(len(counts)), counts)
    return torch.from_numpy(np.random.default_rng(seed).permutation(rows))


def sizes_of(own):
    return [len(rows) for rows in own]


def everything(federation):
    """Where in the store all training and test rows are."""
    return sorted(torch.cat([federation.train.row, federation.test.row]).tolist())
