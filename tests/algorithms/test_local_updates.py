"""Local updates: a stack in its batched form, and a stack that runs them as written, equal each client alone.

A client alone runs the text of `algorithms/local_updates.py` without any of the engine's batched forms.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.algorithms.conjugates import CONJUGATES, DualProblem
from fedlap.algorithms.local_updates import (
    block_sgd,
    cosine_sgd,
    dual_coordinate_ascent,
    first_order_maml,
    interpolated_sgd,
    maml,
    moreau,
    sgd,
    sgd_without_held_out,
)
from fedlap.algorithms.local_work import LocalWork
from fedlap.models import Model
from fedlap.training.batched_updates import UPDATES
from fedlap.training.buffers import BufferPool
from fedlap.training.placement import PlacedClients
from fedlap.training.state import concatenate_states, list_tensors
from fedlap.training.task import StackTask, take_rows
from random_inputs import random_arrays

COUNTS = [7, 23, 5, 12, 41, 9, 2]  # with mini-batches of four rows: 2, 6, 2, 3, 11, 3 and 1 per epoch
LABELS, L2, LR = 3, 0.02, 0.07
CPU = torch.device("cpu")


def random_rows(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def share_setting(value):
    """Return one number for all clients."""
    return value


def vary_setting(value):
    """Return one number per client."""
    return value * torch.linspace(0.5, 1.2, len(COUNTS), dtype=torch.float64).unsqueeze(1)


# A function of the form of settings and of a random stack, which returns the values of an update.
CASES = {
    "sgd": (sgd, lambda of, rows: {"lr": of(LR)}),
    "sgd with an anchor": (sgd, lambda of, rows: {"lr": of(LR), "anchor": rows(1), "pull": of(0.1)}),
    "sgd pulled to its start": (sgd, lambda of, rows: {"lr": of(LR), "pull": of(0.1)}),
    "sgd with a shift": (sgd, lambda of, rows: {"lr": of(LR), "shift": 0.02 * rows(2)}),
    "sgd with one shift per client": (sgd, lambda of, rows: {"lr": of(LR), "shift": of(0.02)}),
    "sgd with all of them": (
        sgd,
        lambda of, rows: {"lr": of(LR), "anchor": rows(1), "pull": of(0.1), "shift": 0.02 * rows(2)},
    ),
    "sgd pulled to its start with a shift": (
        sgd,
        lambda of, rows: {"lr": of(LR), "pull": of(0.1), "shift": 0.02 * rows(2)},
    ),
    "block sgd": (block_sgd, lambda of, rows: {"lr": of(LR), "first": 2, "last": 7}),
    "block sgd of all parameters": (
        block_sgd,
        lambda of, rows: {"lr": of(LR), "first": 0, "last": rows(1).shape[1]},
    ),
    "cosine sgd without a turn": (
        cosine_sgd,
        lambda of, rows: {"lr": of(LR), "direction": rows(1), "pull": 0.0},
    ),
    "cosine sgd": (
        cosine_sgd,
        lambda of, rows: {"lr": of(LR), "direction": rows(1), "pull": of(0.1)},
    ),
    "sgd without held-out rows": (sgd_without_held_out, lambda of, rows: {"lr": of(LR), "every": 3}),
    "moreau": (
        moreau,
        lambda of, rows: {"lr": of(LR), "inner_lr": of(0.1), "inner_steps": 3, "regularisation": of(2.0)},
    ),
    "first-order maml": (first_order_maml, lambda of, rows: {"adapt_lr": of(0.2), "lr": of(LR)}),
    "maml": (maml, lambda of, rows: {"adapt_lr": of(0.2), "lr": of(LR)}),
    "interpolated sgd": (
        interpolated_sgd,
        lambda of, rows: {"v": rows(1), "mixture": rows(3)[:, :1].sigmoid(), "lr": of(LR), "adaptive": False},
    ),
    "interpolated sgd that adapts": (
        interpolated_sgd,
        lambda of, rows: {"v": rows(1), "mixture": rows(3)[:, :1].sigmoid(), "lr": of(LR), "adaptive": True},
    ),
}
BATCHES_PER_STEP = {first_order_maml: 2, maml: 3}

every_case = pytest.mark.parametrize("case", CASES)
every_work = pytest.mark.parametrize(
    ("work", "batch"),
    [(LocalWork(3, False), 4), (LocalWork(2, True), 4), (LocalWork(2, True), "all")],
    ids=["steps", "epochs", "full gradients"],
)
every_form = pytest.mark.parametrize("of", [share_setting, vary_setting], ids=["number", "per client"])
every_network = pytest.mark.parametrize("hidden", [(), (5,)], ids=["linear", "mlp"])


@pytest.fixture(scope="module")
def federations():
    return {
        real: fl.Federation.from_arrays(
            random_arrays(COUNTS, labels=LABELS, real=real),
            test_share=0,
            labels=None if real else LABELS,
            scale="none",
        )
        for real in (False, True)
    }


def make_task(federation, hidden, work, batch, update=None, **more):
    """Return the task of all clients, sorted as an engine sorts them, and their models."""
    model = Model(fl.models.mlp(hidden, l2=L2).build(federation.inputs, LABELS), federation.loss, L2)
    clients = PlacedClients.of([federation], [5], model, batch, CPU, torch.float64)
    cohort = clients.build_cohort(clients.sort_by_count(torch.arange(len(COUNTS))))
    work = LocalWork(work.repeats * BATCHES_PER_STEP.get(update, 1), work.epochs)
    task = StackTask(clients, cohort, 1, work, **more)
    return task, torch.stack([model.start(k) for k in range(len(COUNTS))]).double()


def run_alone(update, w, task, values):
    """Run the text of an update client by client, and stack the results."""
    results = []
    for place in range(len(w)):
        rows = {name: take_rows(value, len(w), place, place + 1) for name, value in values.items()}
        cohort = task.clients.build_cohort(task.cohort.ids[place : place + 1])
        results.append(update(w[place : place + 1], replace(task, cohort=cohort), **rows))
    return concatenate_states(results)


def write_again(update):
    """Return an update that a stack does not know."""

    def copy(w, task, **values):
        return update(w, task, **values)

    return copy


def measure_distance(one, other):
    pairs = list(zip(list_tensors(one), list_tensors(other), strict=True))
    assert all(a.shape == b.shape for a, b in pairs)
    return max((a - b).abs().max().item() for a, b in pairs)


def set_up(case, of, federations, hidden, work, batch, **more):
    update, make_values = CASES[case]
    task, w = make_task(federations[False], hidden, work, batch, update, **more)
    return update, task, w, make_values(of, lambda seed: random_rows(*w.shape, seed=seed))


@every_network
@every_form
@every_work
@every_case
def test_a_stack_runs_what_each_client_runs_alone(case, work, batch, of, hidden, federations):
    update, task, w, values = set_up(case, of, federations, hidden, work, batch)
    if work.epochs and batch == 4:
        assert len(set(task.steps.flatten().tolist())) > 4  # numbers of mini-batches differ
    alone = run_alone(update, w, task, values)
    written = task.run(write_again(update), w, **values)
    batched = task.run(update, w, **values)
    slow, _ = make_task(federations[False], hidden, work, batch, update, step_by_step=True)
    without_kernel = slow.run(update, w, **values)
    for found in (written, batched, without_kernel):
        assert type(found) is type(alone)
        assert measure_distance(found, alone) < 1e-12
    assert (list_tensors(alone)[0] - w).abs().amax(1).min() > 1e-3  # every client moves


@pytest.mark.parametrize("step_by_step", [False, True], ids=["kernel", "step by step"])
@pytest.mark.parametrize("pooled", [False, True], ids=["new memory", "buffers"])
@every_network
@every_case
def test_inputs_stay_unchanged(case, hidden, pooled, step_by_step, federations):
    work = LocalWork(2, True)
    buffers = BufferPool(CPU) if pooled else None
    settings = {"buffers": buffers, "step_by_step": step_by_step}
    update, task, w, values = set_up(case, vary_setting, federations, hidden, work, 4, **settings)
    inputs = [w, *(value for value in values.values() if isinstance(value, torch.Tensor))]
    before = [tensor.clone() for tensor in inputs]
    for run in (update, write_again(update)):
        results = list_tensors(task.run(run, w, **values))
        assert all(torch.equal(tensor, old) for tensor, old in zip(inputs, before, strict=True))
        memory = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        assert not memory & {tensor.untyped_storage().data_ptr() for tensor in results}


@every_network
@every_case
def test_rows_that_share_memory_train_like_copies(case, hidden, federations):
    update, task, w, values = set_up(case, share_setting, federations, hidden, LocalWork(2, True), 4)
    row = w[:1].clone()
    values = {
        name: value[:1].expand(len(w), -1) if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }
    copies = {
        name: value.clone(memory_format=torch.contiguous_format) if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }
    for run in (update, write_again(update)):
        shared = task.run(run, row.expand(len(w), -1), **values)
        assert measure_distance(shared, task.run(run, row.repeat(len(w), 1), **copies)) == 0
    assert torch.equal(row, w[:1])


@every_network
def test_a_method_that_never_reads_old_rows_trains_in_them(hidden, federations):
    work = LocalWork(2, True)
    task, w = make_task(federations[False], hidden, work, 4, in_place=True)
    other, _ = make_task(federations[False], hidden, work, 4)
    expected = other.run(sgd, w, lr=LR)
    assert task.run(sgd, w, lr=LR) is w
    assert torch.equal(w, expected)
    pulled, start = w.clone(), w.clone()  # an anchor in the same memory is read before it is overwritten
    expected = other.run(sgd, start, lr=LR, anchor=start, pull=0.1)
    assert torch.equal(task.run(sgd, pulled, lr=LR, anchor=pulled, pull=0.1), expected)
    shared = w[:1].expand(len(w), -1)  # rows that share memory are copied nevertheless
    before = shared.clone()
    assert task.run(sgd, shared, lr=LR) is not shared
    assert torch.equal(shared, before)


def test_every_local_update_has_a_batched_form():
    """The cases above, and the dual update below, are all of them."""
    assert set(UPDATES) == {update for update, _ in CASES.values()} | {dual_coordinate_ascent}


# Dual coordinate ascent, whose text is for one client


def make_dual_values(task, w, loss, real, share):
    """Return feasible dual variables and settings that differ between clients."""
    problem = DualProblem(task.clients.model.network, CONJUGATES[loss], not real)
    alpha = torch.zeros(len(w), max(COUNTS), LABELS, dtype=torch.float64)
    for place, client in enumerate(task.cohort.ids):
        y = problem.encode_targets(task.clients.train.client(int(client))[1], w)
        alpha[place, : len(y)] = y * random_rows(*y.shape, seed=place).sigmoid()
    scale = vary_setting(0.3) / task.count
    shares = torch.linspace(*share, len(w), dtype=torch.float64).unsqueeze(1)
    return {"alpha": alpha, "scale": scale, "share": shares, "problem": problem}


@pytest.mark.parametrize("share", [(1.0, 1.0), (0.0, 1.0)], ids=["all rows", "some rows"])
@every_work
@pytest.mark.parametrize(
    ("loss", "real"), [("squared", True), ("squared", False), ("logistic", False), ("hinge", False)]
)
def test_dual_ascent_of_a_stack_is_that_of_each_client(loss, real, work, batch, share, federations):
    task, w = make_task(federations[real], (), work, batch)
    values = make_dual_values(task, w, loss, real, share)
    inputs = [w, *(value for value in values.values() if isinstance(value, torch.Tensor))]
    before = [tensor.clone() for tensor in inputs]
    alone = run_alone(dual_coordinate_ascent, w, task, values)
    slow, _ = make_task(federations[real], (), work, batch, step_by_step=True)
    for stack in (task, slow):
        found = stack.run(dual_coordinate_ascent, w, **values)
        assert measure_distance(found, alone) < 1e-10
        assert all(torch.equal(tensor, old) for tensor, old in zip(inputs, before, strict=True))
    moved = (alone[0] - w).abs().amax(1)
    assert np.array_equal(moved > 1e-6, values["share"][:, 0] > 0)
