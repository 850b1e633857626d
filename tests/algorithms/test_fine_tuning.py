"""Fine-tuning of global models at the clients: against plain NumPy, and that it changes nothing else."""

import pytest
import torch

import fedlap as fl
from fedlap.training.schedule import Schedule
from fedlap.training.scoring_interval import count_scored_rows
from fedlap.training.state import list_leaves
from related_methods import (
    LR,
    a_start,
    distance,
    given_arrays,  # noqa: F401 — a fixture
    given_federation,  # noqa: F401 — a fixture
    slope,
    train_method,
)


def make_gossip(**settings):
    """Return D-PSGD on a ring of the six clients."""
    return fl.DPSGD(fl.Graph.from_matrix(fl.Graph.ring(list("abcdef")).weights.matrix()), **settings)


METHODS = {
    "fedavg": fl.FedAvg,
    "fedprox": fl.FedProx,
    "scaffold": fl.Scaffold,
    "afl": fl.AFL,
    "global": fl.Global,
    "dpsgd": make_gossip,
}
SHARES = {"dpsgd": 1.0}  # peers are not sampled
every_method = pytest.mark.parametrize("name", METHODS)


@every_method
@pytest.mark.parametrize("engine", ["stacked", "one_by_one"])
def test_fine_tuning_is_gradient_steps_on_all_training_rows(name, engine, arrays, federation):
    make, how = METHODS[name], {"sample": SHARES.get(name, 0.5), "start": a_start(), "engine": engine}
    plain = train_method(make(lr=LR), federation, **how)
    tuned = train_method(make(lr=LR, fine_tune_steps=3), federation, **how)
    expected = plain.models.numpy().copy()
    for k, rows in enumerate(arrays.values()):
        for _ in range(3):
            expected[k] = expected[k] - LR * slope(expected[k], rows)
    assert distance(tuned.models, expected) < 1e-9
    assert distance(tuned.models, plain.models) > 1e-3


@every_method
@pytest.mark.parametrize("steps", [0, 4])
def test_fine_tuning_changes_neither_training_nor_bytes(name, steps, federation):
    make = METHODS[name]
    plain, tuned = (
        train_method(make(fine_tune_steps=number), federation, sample=SHARES.get(name, 0.5))
        for number in (None, steps)
    )
    assert all(
        torch.equal(one, other)
        for state in ("server", "private")
        for one, other in zip(
            list_leaves(getattr(plain, state)), list_leaves(getattr(tuned, state)), strict=True
        )
        if one is not None
    )
    one, other = plain.scores[-1], tuned.scores[-1]
    assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)
    if steps == 0:
        assert torch.equal(plain.models, tuned.models)
    else:
        assert other.train_loss < one.train_loss


def test_a_subclass_with_its_own_adaptation_is_adapted_first(federation):
    class Halved(fl.FedAvg):
        def adapt(self, w, task):
            return w / 2

    plain, halved = (train_method(make(lr=LR), federation) for make in (fl.FedAvg, Halved))
    assert distance(halved.models, plain.models / 2) == 0


def test_scoring_costs_more_with_fine_tuning_alone(federation):
    rows = [count_scored_rows(fl.FedAvg(fine_tune_steps=n), federation, Schedule()) for n in (None, 0, 2)]
    assert rows[0] == rows[1] < rows[2]


@every_method
def test_a_negative_number_of_steps_is_refused(name):
    with pytest.raises(fl.InputError, match=f"{name}: fine_tune_steps = -1") as error:
        METHODS[name](fine_tune_steps=-1)
    assert error.value.field == "fine_tune_steps"
