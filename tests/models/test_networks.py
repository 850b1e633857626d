"""Losses, gradients and starts of every network, each client's apart; sizes, and what is refused."""

import math

import pytest
import torch
from torch.nn import functional

import fedlap as fl
from fedlap.models import Batch, CrossEntropy, SquaredError
from networks import (
    CLIENTS,
    LABELS,
    NETWORKS,
    Conv,
    build_seeded,
    close,
    every_network,
    generator,
    problem,
    sequential,
)

REAL = {"cross-entropy": False, "squared error": True}


either_loss = pytest.mark.parametrize("real", REAL.values(), ids=REAL)


def rows_of(batch, places):
    return Batch(batch.x[places], batch.y[places], batch.weight[places])


@every_network
@either_loss
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_gradient_is_that_of_the_loss(name, real, l2):
    model, W, batch = problem(name, real, l2)
    leaf = W.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model.loss(leaf, batch).sum(), leaf)
    before = W.clone()
    gradient = model.gradient(W, batch)
    close(gradient, expected)
    assert gradient.abs().max() > 1e-3
    assert torch.equal(W, before)


@pytest.mark.parametrize("name", ["linear", "mlp", "conv"])
@either_loss
def test_gradient_is_the_limit_of_differences(name, real):
    model, W, batch = problem(name, real)
    along = torch.randn(W.shape, generator=generator(3), dtype=torch.float64)
    h = 1e-5
    difference = (model.loss(W + h * along, batch) - model.loss(W - h * along, batch)) / (2 * h)
    close((model.gradient(W, batch) * along).sum(1), difference, 1e-6)


@every_network
@either_loss
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_descending_is_a_step_against_the_gradient(name, real, l2):
    model, W, batch = problem(name, real, l2)
    expected = W - 0.3 * model.gradient(W, batch)
    model.descend(W, batch, 0.3)
    close(W, expected, 1e-12)


@every_network
@either_loss
def test_rows_do_not_mix(name, real):
    """A client's numbers do not change in a stack with clients whose models are NaN."""
    model, W, batch = problem(name, real)
    together = model.scores(W, batch.x), model.gradient(W, batch), model.loss(W, batch)
    poisoned = W.clone()
    poisoned[[0, 2]] = math.nan
    for stack, places in ((W[[1]], [1]), (W[[2, 1]], [2, 1]), (poisoned, [0, 1, 2])):
        subset = rows_of(batch, places)
        at = places.index(1)
        apart = model.scores(stack, subset.x), model.gradient(stack, subset), model.loss(stack, subset)
        for one, other in zip(together, apart, strict=True):
            close(one[1], other[at], 1e-12)
        stack = stack.clone()
        model.descend(stack, subset, 0.3)
        close(stack[at], W[1] - 0.3 * together[1][1], 1e-12)


@every_network
@either_loss
def test_places_without_weight_do_not_count(name, real):
    model, W, batch = problem(name, real)
    short = Batch(batch.x[1:2, :3], batch.y[1:2, :3], batch.weight[1:2, :3])
    close(model.loss(W[1:2], short), model.loss(W, batch)[1:2], 1e-12)
    close(model.gradient(W[1:2], short), model.gradient(W, batch)[1:2], 1e-12)


@pytest.mark.parametrize("name", [n for n in NETWORKS if n not in ("sequential", "conv")])
def test_start_is_uniform_by_fan_in(name):
    architecture, inputs = NETWORKS[name]
    network = architecture().build(inputs, LABELS)
    start = network.start(4)
    assert start.dtype == torch.float64
    assert torch.equal(start, network.start(4))
    assert not torch.equal(start, network.start(5))
    tensors = list(network.module(start).parameters())
    for weight, bias in zip(tensors[::2], tensors[1::2], strict=True):
        bound = weight[0].numel() ** -0.5
        values = torch.cat([weight.flatten(), bias])
        assert values.abs().max() < bound
        if len(values) > 500:
            assert values.abs().max() > 0.98 * bound
            assert abs(values.std() / bound - 3**-0.5) < 0.04
            assert abs(values.mean()) < 0.1 * bound


def test_a_start_differs_from_layer_to_layer():
    network = fl.models.mlp((4, 4)).build((4,), 4)
    weights = [p for p in network.module(network.start(0)).parameters() if p.dim() == 2]
    assert len({float(w[0, 0].detach()) for w in weights}) == 3


def test_sizes():
    assert fl.models.cnn().build((1, 28, 28), 10).size == 1_663_370
    assert fl.models.cnn().build((28, 28), 10).size == 1_663_370
    assert fl.models.linear().build((561,), 6).size == 561 * 6 + 6
    assert fl.models.mlp((100, 100)).build((1, 28, 28), 10).size == 784 * 100 + 100 + 100 * 101 + 10 * 101
    assert (
        fl.models.module(build_seeded(Conv)).build((2, 5, 5), LABELS).size == 2 * 4 * 9 + 4 + 8 + 36 * 3 + 3
    )


def test_cross_entropy():
    g = generator()
    scores = torch.randn(2, 7, LABELS, generator=g, dtype=torch.float64) * 5
    y = torch.randint(0, LABELS, (2, 7), generator=g)
    expected = functional.cross_entropy(scores.flatten(0, 1), y.flatten(), reduction="none")
    close(CrossEntropy().values(scores, y).flatten(), expected, 1e-12)
    one_hot = functional.one_hot(y, LABELS)
    close(CrossEntropy().score_gradient(scores, y), torch.softmax(scores, -1) - one_hot, 1e-12)
    assert CrossEntropy().score_gradient(scores, y).sum(-1).abs().max() < 1e-12
    far = torch.tensor([[[1e4, -1e4, 0.0]]], dtype=torch.float64)
    assert CrossEntropy().values(far, torch.tensor([[1]])).item() == 2e4
    assert CrossEntropy().values(far, torch.tensor([[0]])).item() == 0


def test_squared_error():
    scores, y = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]]), torch.tensor([[[4.0, -2.0], [0.0, 1.0]]])
    assert SquaredError().values(scores, y).tolist() == [[12.5, 0.5]]
    assert SquaredError().score_gradient(scores, y).tolist() == [[[-3, 4], [0, -1]]]


def test_least_squares_gradient_by_hand():
    model, W, batch = problem("linear", True, l2=0.5)
    weight, bias = W[:, : 4 * LABELS].view(CLIENTS, LABELS, 4), W[:, 4 * LABELS :]
    for k in range(CLIENTS):
        rest = batch.x[k] @ weight[k].T + bias[k] - batch.y[k]
        by_weight = (batch.weight[k][:, None] * rest).T @ batch.x[k]
        by_bias = batch.weight[k] @ rest
        expected = torch.cat([by_weight.flatten(), by_bias]) + 0.5 * W[k]
        close(model.gradient(W, batch)[k], expected, 1e-12)
        value = (batch.weight[k] * rest.square().sum(1)).sum() / 2 + 0.25 * W[k].square().sum()
        close(model.loss(W, batch)[k], value, 1e-12)


@pytest.mark.parametrize("l2", [-0.1, math.inf, math.nan])
@pytest.mark.parametrize(
    "make", [fl.models.linear, fl.models.mlp, fl.models.cnn], ids=["linear", "mlp", "cnn"]
)
def test_a_wrong_l2(make, l2):
    with pytest.raises(fl.InputError, match=r"l2 = .*of at least zero"):
        make(l2=l2)
    with pytest.raises(fl.InputError, match=r"l2 = .*of at least zero"):
        fl.models.module(sequential(), l2=l2)


def test_wrong_sizes():
    with pytest.raises(fl.InputError, match="at least 1"):
        fl.models.mlp((3, 0))
    for inputs in ((784,), (1, 3, 28), (28, 3), (1, 1, 28, 28)):
        with pytest.raises(fl.InputError, match="cnn: features have shape"):
            fl.models.cnn().build(inputs, 10)
