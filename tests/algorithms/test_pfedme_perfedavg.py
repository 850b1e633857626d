"""pFedMe and Per-FedAvg: against their papers as loops, their gradients and their limits."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import fedlap as fl
import reference
from fedlap.algorithms.local_work import LocalWork
from fedlap.models import Model
from fedlap.training.batched_updates import UPDATES
from fedlap.training.placement import PlacedClients
from fedlap.training.task import StackTask
from linear_fits import L2, LABELS, LR, SEED, distance, either_sample, every_batch, fields, train_linear
from random_inputs import random_arrays

COUNTS = [7, 23, 5, 12, 41, 9, 2]
SIZE = 4 * LABELS + LABELS
CPU = torch.device("cpu")

every_work = pytest.mark.parametrize("work", [{"steps": 3}, {"epochs": 2}], ids=["steps", "epochs"])
either_form = pytest.mark.parametrize("form", ["first-order", "hessian"])


# The papers' pseudo-code, client by client


def pfedme(data, start, lam, inner_steps, inner_lr, mix, *, batch, share, work):
    """Algorithm 1 with gradient steps for the inner problem: the personal models, and w."""
    w, theta = start.copy(), {k: start.copy() for k in data}
    for t in range(1, 11):
        sent = []
        for k in reference.draw_cohort(list(data), SEED, t, share):
            x, y = data[k]
            local, personal = w.copy(), w.copy()
            for rows in reference.batches(k, len(x), SEED, t, batch, **work):
                for _ in range(inner_steps):
                    slope = reference.gradient(personal, x[rows], y[rows], LABELS, L2)
                    personal = personal - inner_lr * (slope + lam * (personal - local))
                local = local - LR * lam * (local - personal)
            theta[k] = personal
            sent.append(local)
        w = (1 - mix) * w + mix / len(sent) * sum(sent)
    return np.stack(list(theta.values())), w


def loss(w, x, y, widths=(4, LABELS), l2=L2):
    """F of a dense network as plain PyTorch, for one client."""
    rest = w
    for i, o in itertools.pairwise(widths):
        weight, bias, rest = rest[: i * o].reshape(o, i), rest[i * o : i * o + o], rest[i * o + o :]
        x = x @ weight.T + bias
        x = x.relu() if len(rest) else x
    return cross_entropy(x, y) + l2 / 2 * w.square().sum()


def hessian(w, x, y, widths=(4, LABELS)):
    """∇²F of one client, dense."""
    return torch.func.jacrev(torch.func.grad(loss))(w, x, y, widths)


def perfedavg(data, start, form, alpha, *, batch, share, work):
    """Algorithm 1, with several times the mini-batches, so that steps are as many: personal models, and w."""
    group = 3 if form == "hessian" else 2
    work = {kind: number * group for kind, number in work.items()}
    gradient = partial(reference.gradient, labels=LABELS, l2=L2)
    w = start.copy()
    for t in range(1, 11):
        sent = []
        for k in reference.draw_cohort(list(data), SEED, t, share):
            x, y = data[k]
            local = w.copy()
            drawn = reference.batches(k, len(x), SEED, t, batch, **work)
            while len(drawn) >= group:
                (here, there, *curved), drawn = drawn[:group], drawn[group:]
                ahead = local - alpha * gradient(local, x[here], y[here])
                step = gradient(ahead, x[there], y[there])
                if form == "hessian":
                    rows = curved[0]
                    dense = hessian(*map(torch.from_numpy, (local, x[rows], y[rows]))).numpy()
                    step = step - alpha * dense @ step
                local = local - LR * step
            sent.append(local)
        w = sum(sent) / len(sent)
    return np.stack([w - alpha * gradient(w, x, y) for x, y in data.values()]), w


@pytest.fixture(scope="module")
def problem():
    arrays = random_arrays(COUNTS, labels=LABELS)
    start = np.random.default_rng(1).normal(size=SIZE) / 3
    return arrays, fl.Federation.from_arrays(arrays, test_share=0, labels=LABELS, scale="none"), start


@every_batch
@every_work
@either_sample
def test_pfedme_is_its_algorithm_1(problem, sample, work, batch):
    arrays, federation, start = problem
    theta, w = pfedme(arrays, start, 3.0, 4, 0.1, 1.6, batch=batch, share=sample, work=work)
    method = fl.PFedMe(3.0, inner_steps=4, inner_lr=0.1, server_mix=1.6, lr=LR, **fields(work))
    result = train_linear(method, federation, start, batch=batch, sample=sample)
    assert distance(result.models, theta) < 1e-9
    assert distance(result.server.model, w) < 1e-9
    assert distance(w, start) > 0.1


@every_batch
@every_work
@either_sample
@either_form
def test_per_fedavg_is_its_algorithm_1(problem, form, sample, work, batch):
    arrays, federation, start = problem
    models, w = perfedavg(arrays, start, form, 0.2, batch=batch, share=sample, work=work)
    result = train_linear(
        fl.PerFedAvg(form, 0.2, lr=LR, **fields(work)), federation, start, batch=batch, sample=sample
    )
    assert distance(result.models, models) < 1e-9
    assert distance(result.server.model, w) < 1e-9
    assert distance(w, start) > 0.02


# Gradients of what is minimised


def build_model(hidden):
    return Model(fl.models.mlp(hidden, l2=L2).build((4,), LABELS), fl.models.CrossEntropy(), L2)


class FixedBatches:
    """A task with fixed mini-batches, on which updates run as written or batched, without a kernel."""

    def __init__(self, task, batched, *batches):
        self.task, self.batched, self.fixed = replace(task, step_by_step=True), batched, batches

    def batches(self):
        yield from self.fixed

    def run(self, update, w, **values):
        if self.batched:
            return UPDATES[update](self, w.clone(), **values)
        return update(w, self, **values)

    def __getattr__(self, name):
        return getattr(self.task, name)


@pytest.fixture(params=[(), (5,), (6, 5)], ids=["linear", "mlp", "deep mlp"])
def stack_problem(problem, request):
    """A task, two mini-batches of every client, some of them short, and a stack of models."""
    _, federation, _ = problem
    model = build_model(request.param)
    clients = PlacedClients.of([federation], [SEED], model, 4, CPU, torch.float64)
    cohort = clients.build_cohort(clients.sort_by_count(torch.arange(len(COUNTS))))
    task = StackTask(clients, cohort, 1, LocalWork(2, False))
    w = torch.stack([model.start(k) for k in range(len(COUNTS))])
    return (4, *request.param, LABELS), task, *task.batches(), w


def used(batch, place):
    """A client's rows of a mini-batch, without padding."""
    inside = batch.weight[place] > 0
    return batch.x[place][inside], batch.y[place][inside]


def test_curvature_is_the_hessian_times_a_vector(stack_problem):
    widths, task, batch, _, w = stack_problem
    v = torch.randn(w.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = task.curvature(w, batch, v)
    for place in range(len(w)):
        dense = hessian(w[place], *used(batch, place), widths)
        assert distance(found[place], dense @ v[place]) < 1e-12
    assert found.abs().max() > 0.1


@pytest.mark.parametrize("batched", [False, True], ids=["as written", "batched"])
def test_per_fedavg_descends_on_the_loss_after_adaptation(stack_problem, batched):
    """With D″ = D the step is the whole derivative of F̃(w − α∇F̃(w; D); D′)."""
    widths, task, here, there, w = stack_problem
    alpha = 0.3
    three, two = (FixedBatches(task, batched, *batches) for batches in ((here, there, here), (here, there)))
    _, ups = fl.PerFedAvg("hessian", alpha, lr=1.0).local(None, w, three)
    _, short = fl.PerFedAvg("first-order", alpha, lr=1.0).local(None, w, two)
    for place in range(len(w)):

        def compute_adapted_loss(at, place=place):
            ahead = at - alpha * torch.func.grad(loss)(at, *used(here, place), widths)
            return loss(ahead, *used(there, place), widths)

        assert distance(w[place] - ups[place], torch.func.grad(compute_adapted_loss)(w[place])) < 1e-12
    assert distance(ups, short) > 1e-3  # which first order leaves out


# Limits


@pytest.fixture(scope="module")
def equals():
    """Clients with as many rows as each other, where FedAvg's mean is the plain one."""
    return fl.Federation.from_arrays(
        random_arrays([11] * 5, labels=LABELS), test_share=0, labels=LABELS, scale="none"
    )


@every_batch
@every_work
@either_sample
def test_pfedme_that_goes_all_the_way_to_one_inner_step_is_fedavg(problem, equals, sample, work, batch):
    """μλ = 1 and K = 1: w_k becomes θ_k, a gradient step of length ν from w_k."""
    _, _, start = problem
    method = fl.PFedMe(4.0, inner_steps=1, inner_lr=LR, lr=0.25, **fields(work))
    one = train_linear(method, equals, start, batch=batch, sample=sample)
    other = train_linear(fl.FedAvg(lr=LR, **fields(work)), equals, start, batch=batch, sample=sample)
    assert distance(one.server.model, other.server.model) < 1e-12
    assert distance(one.server.model, start) > 0.1


@either_sample
@either_form
def test_per_fedavg_that_does_not_adapt_is_fedavg(problem, equals, form, sample):
    _, _, start = problem
    method = fl.PerFedAvg(form, adapt_lr=0, lr=LR)
    one = train_linear(method, equals, start, batch="all", sample=sample)
    other = train_linear(fl.FedAvg(lr=LR), equals, start, batch="all", sample=sample)
    assert distance(one.models, other.models) < 1e-12
    assert distance(one.server.model, start) > 0.05


@either_form
def test_per_fedavg_that_does_not_adapt_descends_on_its_second_batches(problem, form):
    arrays, federation, start = problem
    group = 3 if form == "hessian" else 2
    w = start
    for t in range(1, 11):
        sent = []
        for k, (x, y) in arrays.items():
            local = w
            for rows in reference.batches(k, len(x), SEED, t, 4, steps=3 * group)[1::group]:
                local = local - LR * reference.gradient(local, x[rows], y[rows], LABELS, L2)
            sent.append(local)
        w = sum(sent) / len(sent)
    result = train_linear(fl.PerFedAvg(form, 0.0, lr=LR, local_steps=3), federation, start, batch=4)
    assert distance(result.models, w) < 1e-12
