"""FedPer: as its paper has it, what is exactly true, and which layers are personal."""

import numpy as np
import pytest
import torch
from torch import nn

import fedlap as fl
from related_methods import (
    FEATURES,
    HIDDEN,
    L2,
    LABELS,
    LR,
    ROUNDS,
    a_start,
    average_by_rows,
    distance,
    either_share,
    either_work,
    fields,
    given_arrays,  # noqa: F401 — a fixture
    given_federation,  # noqa: F401 — a fixture
    rounds,
    steps_of,
    train_method,
)

HEAD = HIDDEN * LABELS + LABELS  # parameters of the last layer


def mlp_slope(w, batch):
    """Back-propagation through one hidden layer, sample by sample."""
    cut = np.cumsum([HIDDEN * FEATURES, HIDDEN, LABELS * HIDDEN])
    w1, b1, w2, b2 = np.split(w, cut)
    w1, w2 = w1.reshape(HIDDEN, FEATURES), w2.reshape(LABELS, HIDDEN)
    total = np.zeros_like(w)
    for sample, label in zip(*batch, strict=True):
        inside = w1 @ sample + b1
        h = np.maximum(inside, 0)
        scores = w2 @ h + b2
        p = np.exp(scores - scores.max())
        p /= p.sum()
        p[label] -= 1
        below = (w2.T @ p) * (inside > 0)
        total += np.concatenate([np.outer(below, sample).ravel(), below, np.outer(p, h).ravel(), p])
    return total / len(batch[0]) + L2 * w


def plain_fedper(arrays, start, share, work):
    steps = steps_of(arrays, work)
    base, head = start[:-HEAD].copy(), {k: start[-HEAD:].copy() for k in arrays}
    for t, chosen in rounds(arrays, share):
        sent = []
        for k in chosen:
            w = np.concatenate([base, head[k]])
            for batch in steps(k, t):
                w = w - LR * mlp_slope(w, batch)
            head[k] = w[-HEAD:]
            sent.append(w[:-HEAD])
        base = average_by_rows(sent, [len(arrays[k][0]) for k in chosen])
    return np.stack([np.concatenate([base, head[k]]) for k in arrays])


@either_work
@either_share
def test_fedper_is_its_algorithms_1_and_2(arrays, federation, work, share):
    start = a_start(HIDDEN * FEATURES + HIDDEN + HEAD)
    model = fl.models.mlp(HIDDEN, l2=L2)
    found = train_method(fl.FedPer(**fields(work)), federation, model, sample=share, start=start)
    assert distance(found.models, plain_fedper(arrays, start, share, work)) < 1e-9


# What is exactly true.


mlp = fl.models.mlp(HIDDEN, l2=L2)


@either_work
@either_share
def test_fedper_shares_the_base_and_nothing_else(federation, work, share):
    found = train_method(fl.FedPer(**fields(work)), federation, mlp, sample=share, dtype="float32")
    assert torch.equal(found.models[:, :-HEAD], found.models[:1, :-HEAD].expand(6, -1))
    heads = found.models[:, -HEAD:]
    assert torch.pdist(heads).min() > 1e-3
    base, sampled = HIDDEN * FEATURES + HIDDEN, 3 if share < 1 else 6
    last = found.scores[-1]
    assert last.bytes_down == ROUNDS * sampled * 4 * base
    assert last.bytes_up == ROUNDS * sampled * 4 * (base + 1)  # the number of rows goes with it


@either_share
def test_fedper_without_personal_layers_is_fedavg(federation, share):
    found = train_method(fl.FedPer(0, LR), federation, mlp, sample=share)
    assert torch.equal(found.models, train_method(fl.FedAvg(LR), federation, mlp, sample=share).models)


@pytest.mark.parametrize(("model", "layers"), [(mlp, 2), (fl.models.linear(l2=L2), 1)], ids=["mlp", "linear"])
def test_fedper_with_personal_layers_alone_is_local_and_sends_nothing(federation, model, layers):
    found = train_method(fl.FedPer(layers, LR), federation, model, sample=0.5)
    assert torch.equal(found.models, train_method(fl.Local(LR), federation, model, sample=0.5).models)
    assert found.scores[-1].bytes_up == found.scores[-1].bytes_down == 0
    with pytest.raises(fl.InputError, match=f"personal_layers = {layers + 1}; expected at most {layers}"):
        train_method(fl.FedPer(layers + 1), federation, model)


@either_work
@either_share
def test_fedper_on_layers_does_not_depend_on_engine_or_order(federation, work, share):
    method = fl.FedPer(**fields(work))
    one, apart, again = (
        train_method(method, federation, mlp, sample=share, engine=engine)
        for engine in ("stacked", "one_by_one", "stacked")
    )
    assert distance(one.models, apart.models) < 1e-9
    assert torch.equal(one.models, again.models)
    order = ("d", "a", "f", "c", "b", "e")
    places = [federation.clients.index(client) for client in order]
    turned = train_method(method, federation.reorder(order), mlp, sample=share)
    assert distance(turned.models, one.models[places]) < 1e-9


class Odd(nn.Module):
    """A frozen layer, a norm, and a bare parameter, which comes first in the flat row."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.first = nn.Linear(4, 4).requires_grad_(False)
        self.block = nn.Sequential(nn.Linear(4, 5), nn.GroupNorm(1, 5))
        self.last = nn.Linear(5, LABELS, bias=False)

    def forward(self, x):
        return self.last(self.block(self.first(x))) * self.scale


@pytest.mark.parametrize(
    ("model", "layers", "head"),
    [
        (fl.models.mlp((6, 5)), 1, 5 * 3 + 3),
        (fl.models.mlp((6, 5)), 2, 5 * 3 + 3 + 6 * 5 + 5),
        (fl.models.module(Odd()), 1, 5 * 3),
        (fl.models.module(Odd()), 2, 5 * 3 + 2 * 5),
        (fl.models.module(Odd()), 3, 5 * 3 + 2 * 5 + 4 * 5 + 5),
    ],
)
def test_fedper_counts_layers_from_the_end(federation, model, layers, head):
    found = train_method(fl.FedPer(layers), federation, model, rounds=2, dtype="float32")
    assert found.private.shape == (6, head)
    assert found.server.model.shape == (1, found.objective.size - head)


def test_fedper_keeps_the_last_layer_of_the_convolutional_network():
    x, y = np.random.default_rng(0).normal(size=(6, 4, 4)), np.arange(6) % 3
    images = fl.Federation.from_arrays({"a": (x, y), "b": (-x, y)}, test_share=0, scale="none")
    found = train_method(fl.FedPer(local_steps=1), images, fl.models.cnn(), rounds=1, dtype="float32")
    assert found.private.shape == (2, 512 * 3 + 3)
