"""Linear models trained in float64 from a given start, and the settings they are trained with."""

import pytest
import torch

import fedlap as fl

LABELS, L2, LR, SEED = 3, 0.02, 0.05, 11
every_batch = pytest.mark.parametrize("batch", [4, "all"])
either_sample = pytest.mark.parametrize("sample", [0.45, 1.0])


def fields(work):
    return {f"local_{kind}": number for kind, number in work.items()}


def train_linear(algorithm, federation, start, **schedule):
    schedule = {"rounds": 10, "seed": SEED, "evaluate_every": 0, **schedule}
    model = fl.models.linear(l2=schedule.pop("l2", L2))
    return fl.fit(algorithm, federation, model, start=torch.as_tensor(start), dtype="float64", **schedule)


def distance(one, other):
    return float((torch.as_tensor(one) - torch.as_tensor(other)).abs().max())
