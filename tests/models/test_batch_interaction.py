"""Modules whose rows of a batch meet, held against one plain PyTorch loop per client."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedlap as fl
import reference
from networks import LABELS, Conv, build_seeded, sequential
from random_inputs import random_arrays

COUNTS, SEED, LR, BATCH = [7, 23, 8, 12, 42, 10], 11, 0.1, 5
EITHER_ENGINE = pytest.mark.parametrize("engine", ["stacked", "one_by_one"])


class Centred(nn.Module):
    """Features less their mean over the batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, LABELS)

    def forward(self, x):
        return self.layer(x - x.mean(0))


class Attending(nn.Module):
    """A softmax over the batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, LABELS)

    def forward(self, x):
        return self.layer(x) + torch.softmax(self.layer(x), 0)


class ZeroHead(nn.Module):
    """A batch norm that the first outputs do not show."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, LABELS)
        nn.init.zeros_(self.layer.weight)

    def forward(self, x):
        return self.layer(self.norm(x))


def build_batch_norm():
    norm = nn.BatchNorm1d(6, track_running_stats=False)
    return nn.Sequential(nn.Linear(4, 6), norm, nn.ReLU(), nn.Linear(6, LABELS))


def normed_images():
    norm = nn.BatchNorm2d(2, track_running_stats=False)
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 2, 2, padding=1), norm, nn.Flatten(), nn.Linear(18, LABELS)
    )


MIXING = {
    "batch norm": build_batch_norm,
    "batch norm of images": normed_images,
    "centred": Centred,
    "softmax": Attending,
    "zero head": ZeroHead,
}
every_mixing = pytest.mark.parametrize("name", MIXING)


@pytest.fixture(scope="module")
def problem():
    arrays = random_arrays(COUNTS, labels=LABELS)
    held = random_arrays([3, 2, 6, 0, 9, 4], labels=LABELS, seed=1)
    test = {name: rows for name, rows in held.items() if len(rows[0])}
    return arrays, test, fl.Federation.from_arrays(arrays, test=test, labels=LABELS, scale="none")


def plainly(net, arrays, rounds, work, batch=BATCH):
    """Each client's own copy of the module, trained by a loop."""
    nets = {}
    for name, (x, y) in arrays.items():
        local = copy.deepcopy(net).double()
        x, y = torch.from_numpy(x), torch.from_numpy(y)
        for round in range(1, rounds + 1):
            for rows in reference.batches(name, len(x), SEED, round, batch, **work):
                loss = functional.cross_entropy(local(x[rows]), y[rows])
                for parameter, step in zip(
                    local.parameters(), torch.autograd.grad(loss, [*local.parameters()]), strict=True
                ):
                    parameter.data -= LR * step
        nets[name] = local
    return nets


def losses(nets, arrays):
    """Mean losses over all clients' rows together, each client's rows scored at once."""
    total = count = right = 0
    with torch.no_grad():
        for name, (x, y) in arrays.items():
            scores, y = nets[name](torch.from_numpy(x)), torch.from_numpy(y)
            total += float(functional.cross_entropy(scores, y, reduction="sum"))
            right += int((scores.argmax(1) == y).sum())
            count += len(y)
    return total / count, right / count


@EITHER_ENGINE
@pytest.mark.parametrize(
    "batch", [BATCH, *(pytest.param(size, marks=pytest.mark.slow) for size in (64, "all"))]
)
@pytest.mark.parametrize("work", [{"steps": 3}, {"epochs": 2}], ids=["steps", "epochs"])
@every_mixing
def test_training_and_scores_equal_a_plain_loop(name, work, batch, engine, problem):
    arrays, test, federation = problem
    net = build_seeded(MIXING[name])
    method = fl.Local(lr=LR, **{f"local_{kind}": number for kind, number in work.items()})
    how = {"rounds": 3, "batch": batch, "seed": SEED, "dtype": "float64", "engine": engine}
    result = fl.fit(method, federation, fl.models.module(net), **how)
    nets = plainly(net, arrays, 3, work, batch)
    plain = torch.stack(
        [nn.utils.parameters_to_vector(nets[client].parameters()).detach() for client in arrays]
    )
    assert (result.models - plain).abs().max() < 1e-9
    last, (train_loss, _), (loss, accuracy) = result.scores[-1], losses(nets, arrays), losses(nets, test)
    assert last.train_loss == pytest.approx(train_loss, abs=1e-9)
    assert last.loss == pytest.approx(loss, abs=1e-9)
    assert last.accuracy == pytest.approx(accuracy, abs=1e-12)
    x = test["e"][0]
    wanted = nets["e"](torch.from_numpy(x)).argmax(1)
    assert torch.equal(result.predict("e", x), wanted)


def test_scores_do_not_depend_on_blocks(problem, monkeypatch):
    """A client's rows are scored at once, whatever memory blocks others are scored in."""
    method, net, federation = fl.Local(lr=LR), build_seeded(build_batch_norm), problem[2]

    def compute_last_score():
        return fl.fit(method, federation, fl.models.module(net), rounds=2, batch=4, dtype="float64").scores[
            -1
        ]

    whole = compute_last_score()
    monkeypatch.setattr("fedlap.training.placement.EVALUATION_BLOCK_VALUES", 1)
    assert compute_last_score().loss == pytest.approx(whole.loss, abs=1e-12)
    assert compute_last_score().train_loss == pytest.approx(whole.train_loss, abs=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda graph: fl.FedU(graph, strength=0.3, lr=LR),
        lambda graph: fl.PFedMe(3.0, 4, 0.1, 1.2, lr=LR),
        lambda graph: fl.PerFedAvg("hessian", 0.1, lr=LR),
        lambda graph: fl.Scaffold(1.1, lr=LR),
        lambda graph: fl.AFL(0.2, lr=LR),
        lambda graph: fl.Global(lr=LR),
    ],
    ids=["fedu", "pfedme", "perfedavg", "scaffold", "afl", "global"],
)
def test_both_engines_agree_for_methods_of_every_kind(make, problem):
    federation = problem[2]
    method = make(fl.Graph.complete(federation.clients))
    how = {"rounds": 2, "batch": BATCH, "seed": SEED, "dtype": "float64"}
    one, other = (
        fl.fit(method, federation, fl.models.module(build_seeded(build_batch_norm)), engine=engine, **how)
        for engine in ("stacked", "one_by_one")
    )
    assert (one.models - other.models).abs().max() < 1e-9
    assert one.scores[-1].loss == pytest.approx(other.scores[-1].loss, abs=1e-9)


@every_mixing
def test_mixing_is_found_when_the_module_is_bound(name):
    before = torch.random.get_rng_state()
    assert fl.models.module(build_seeded(MIXING[name])).build((4,), LABELS).is_batch_dependent
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (sequential, (4,)),
        (lambda: build_seeded(Conv), (2, 5, 5)),
        (lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, LABELS)), (4,)),
        (lambda: nn.Sequential(nn.Linear(4, 512), nn.Tanh(), nn.Linear(512, LABELS)), (4,)),
    ],
    ids=["sequential", "conv", "layer norm", "wide"],
)
def test_other_modules_are_not_taken_for_mixing(make, inputs):
    assert not fl.models.module(make()).build(inputs, LABELS).is_batch_dependent


# A batch of one row.


def test_a_client_of_one_row_is_refused(problem):
    arrays = {"many": problem[0]["a"], "lone": tuple(values[:1] for values in problem[0]["b"])}
    federation = fl.Federation.from_arrays(arrays, test_share=0, labels=LABELS)
    with pytest.raises(fl.InputError, match="client 'lone' has a batch of one training row") as error:
        fl.fit(fl.Local(), federation, fl.models.module(build_batch_norm()), rounds=1)
    assert "\n" not in str(error.value)


def test_a_single_test_row_is_refused(problem):
    arrays = problem[0]
    test = {"b": tuple(values[:1] for values in arrays["b"])}
    federation = fl.Federation.from_arrays(arrays, test=test, labels=LABELS)
    with pytest.raises(fl.InputError, match="client 'b' has a single test row for scoring"):
        fl.fit(fl.Local(), federation, fl.models.module(build_batch_norm()), rounds=1)


def test_a_last_batch_of_one_row_is_refused(problem):
    """Client b has 23 rows, which is 1 more than two batches of 11."""
    with pytest.raises(fl.InputError, match=r"client 'b' has a batch of one training row.*batch = 11"):
        fl.fit(fl.Local(local_epochs=1), problem[2], fl.models.module(build_batch_norm()), rounds=1, batch=11)
    fl.fit(fl.Local(local_steps=1), problem[2], fl.models.module(build_batch_norm()), rounds=1, batch=11)


def test_one_row_is_no_trouble_for_modules_that_can_do_it(problem):
    arrays = {"many": problem[0]["a"], "lone": tuple(values[:1] for values in problem[0]["b"])}
    federation = fl.Federation.from_arrays(arrays, test_share=0, labels=LABELS)
    for make in (Centred, Attending, normed_images):
        fl.fit(fl.Local(), federation, fl.models.module(make()), rounds=1)


def test_predictions_and_newcomers_of_one_row_are_refused(problem):
    result = fl.fit(fl.Local(), problem[2], fl.models.module(build_batch_norm()), rounds=1)
    with pytest.raises(fl.InputError, match="cannot take a batch of one row") as error:
        result.predict("a", np.zeros((1, 4)))
    assert "\n" not in str(error.value)
    with pytest.raises(fl.InputError, match="cannot take a batch of one row"):
        result.join(np.zeros((1, 4)), [0], {"a": 1.0})
