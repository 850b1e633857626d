"""FedRep: as its paper has it, and what is exactly true."""

import numpy as np
import pytest
import torch
from test_fedper import HEAD, mlp_slope

import fedlap as fl
from related_methods import (
    FEATURES,
    HIDDEN,
    L2,
    LR,
    ROUNDS,
    a_start,
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

mlp = fl.models.mlp(HIDDEN, l2=L2)


def plain_fedrep(arrays, start, share, work):
    steps = steps_of(arrays, work)
    base, head = start[:-HEAD].copy(), {k: start[-HEAD:].copy() for k in arrays}
    for t, chosen in rounds(arrays, share):
        sent = []
        for k in chosen:
            for batch in steps(k, t):
                head[k] = head[k] - LR * mlp_slope(np.concatenate([base, head[k]]), batch)[-HEAD:]
            mine = base.copy()
            for batch in steps(k, t):
                mine = mine - LR * mlp_slope(np.concatenate([mine, head[k]]), batch)[:-HEAD]
            sent.append(mine)
        base = np.mean(sent, axis=0)
    return np.stack([np.concatenate([base, head[k]]) for k in arrays])


@either_work
@either_share
def test_fedrep_is_its_algorithm_1(arrays, federation, work, share):
    start = a_start(HIDDEN * FEATURES + HIDDEN + HEAD)
    found = train_method(fl.FedRep(**fields(work)), federation, mlp, sample=share, start=start)
    assert distance(found.models, plain_fedrep(arrays, start, share, work)) < 1e-9


@either_share
def test_fedrep_shares_the_base_and_nothing_else(federation, share):
    found = train_method(fl.FedRep(lr=LR), federation, mlp, sample=share, dtype="float32")
    assert torch.equal(found.models[:, :-HEAD], found.models[:1, :-HEAD].expand(6, -1))
    assert torch.pdist(found.models[:, -HEAD:]).min() > 1e-3
    last, sampled = found.scores[-1], 3 if share < 1 else 6
    assert last.bytes_down == last.bytes_up == ROUNDS * sampled * 4 * (HIDDEN * FEATURES + HIDDEN)


@pytest.mark.parametrize(("model", "layers"), [(mlp, 2), (fl.models.linear(l2=L2), 1)], ids=["mlp", "linear"])
def test_fedrep_with_personal_layers_alone_is_local_and_sends_nothing(federation, model, layers):
    found = train_method(fl.FedRep(layers, LR), federation, model, sample=0.5)
    alone = train_method(fl.Local(LR), federation, model, sample=0.5)
    assert distance(found.models, alone.models) < 1e-12
    assert found.scores[-1].bytes_up == found.scores[-1].bytes_down == 0
    with pytest.raises(fl.InputError, match=f"personal_layers = {layers + 1}; expected at most {layers}"):
        train_method(fl.FedRep(layers + 1), federation, model)


def test_fedrep_without_personal_layers_is_fedavg_with_equal_counts():
    rng = np.random.default_rng(0)
    arrays = {k: (rng.normal(size=(9, FEATURES)), rng.integers(0, 3, 9)) for k in "abcd"}
    equal = fl.Federation.from_arrays(arrays, test_share=0, labels=3, scale="none")
    one, other = (train_method(method, equal, mlp) for method in (fl.FedRep(0, LR), fl.FedAvg(LR)))
    assert distance(one.models, other.models) < 1e-12
