"""Several runs as one stack: each is what it would be alone."""

import pytest
import torch

import fedlap as fl
from fedlap.algorithms import Steady
from fedlap.algorithms.column import Column
from fedlap.schedule import Schedule
from fedlap.training import fit_all
from fedlap.trials import Trial, kind
from laws import METHODS, WORK

STEADY = [name for name in METHODS if isinstance(METHODS[name].make(fl.Graph.complete("abcdef")), Steady)]
FLOATS = ("lr", "strength", "proximal", "regularisation", "inner_lr", "server_mix", "server_lr", "mixture",
          "mixture_lr", "smoothing", "alpha", "beta", "adapt_lr")  # fmt: skip


def varied(algorithm, factor):
    """The same method with every real-valued setting scaled."""
    for name in FLOATS:
        if isinstance(getattr(algorithm, name, None), float):
            algorithm = changed(algorithm, name, getattr(algorithm, name) * factor)
    return algorithm


def changed(algorithm, name, value):
    made = object.__new__(type(algorithm))
    made.__dict__.update(vars(algorithm))
    made.__dict__[name] = value
    return made


def trials(name, work, federation, graph):
    """Three seeds and settings, on two federations of which one has other rows and one client less."""
    method = METHODS[name]
    arrays = {c: federation.train.client(k) for k, c in enumerate(federation.clients[:-1])}
    other = fl.Federation.from_arrays({c: (x[1:], y[1:]) for c, (x, y) in arrays.items()}, labels=3)
    smaller = fl.Graph.path(other.clients)
    made = [
        Trial(method.make(graph, **work), federation, method.model, 5),
        Trial(varied(method.make(graph, **work), 0.9), federation, method.model, 6),
        Trial(varied(method.make(smaller, **work), 0.5), other, method.model, 5),
    ]
    return made[:2] if name == "global" else made  # the steps of one that owns all rows go with its clients


@pytest.mark.parametrize(
    ("work", "sample"),
    [
        pytest.param(WORK["steps"], 0.5, id="steps-0.5"),
        pytest.param(WORK["epochs"], 1.0, id="epochs-1.0"),
        pytest.param(WORK["steps"], 1.0, id="steps-1.0", marks=pytest.mark.slow),
        pytest.param(WORK["epochs"], 0.5, id="epochs-0.5", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", STEADY)
def test_a_stack_of_runs_is_each_of_them_alone(name, work, sample, federation, graph):
    schedule = {"rounds": 6, "batch": 4, "dtype": "float64", "evaluate_every": 3}
    schedule["sample"] = sample if METHODS[name].sampled else 1.0
    many = trials(name, work, federation, graph)
    seen = []
    together = fit_all(many, Schedule(**schedule), lambda run, score: seen.append((run, score.round)))
    for trial, result in zip(many, together, strict=True):
        alone = fl.fit(trial.algorithm, trial.federation, trial.model, seed=trial.seed, **schedule)
        assert (alone.models - result.models).abs().max() < 1e-9
        one, other = (
            [[v for k, v in s.as_dict().items() if k != "seconds" and v is not None] for s in made.scores]
            for made in (alone, result)
        )
        assert (torch.tensor(one) - torch.tensor(other)).abs().max() < 1e-5
    assert seen == [(run, round) for round in (3, 6) for run in range(len(many))]


def test_settings_matter(federation, graph):
    """Else the law above could not fail."""
    many = trials("fedprox", {"local_epochs": 2}, federation, graph)
    one, other, _ = fit_all(many, Schedule(rounds=2, batch=4, dtype="float64"))
    same = fl.fit(many[0].algorithm, federation, many[0].model, seed=6, rounds=2, batch=4, dtype="float64")
    assert (one.models - other.models).abs().max() > 1e-3
    assert (other.models - same.models).abs().max() > 1e-5


def test_one_that_diverges_leaves_the_others_alone(federation, graph):
    model = fl.models.linear(l2=1.0)
    many = [Trial(fl.Local(lr=lr), federation, model) for lr in (0.05, 1e30, 0.01)]
    good, bad, also = fit_all(many, Schedule(rounds=5))
    assert isinstance(bad, fl.DivergedError)
    assert "lower lr (now 1e+30)" in str(bad)
    for lr, result in ((0.05, good), (0.01, also)):
        assert len(result.scores) == 5
        assert torch.allclose(result.models, fl.fit(fl.Local(lr=lr), federation, model, rounds=5).models)


@pytest.mark.parametrize(
    "other",
    [
        lambda f, m: Trial(fl.Local(), f, fl.models.linear(l2=0.1)),
        lambda f, m: Trial(fl.FedAvg(), f, m),
        lambda f, m: Trial(fl.Local(local_steps=3), f, m),
        lambda f, m: Trial(fl.L2GD(), f, m),
    ],
    ids=["model", "method", "work", "not steady"],
)
def test_what_does_not_go_together_is_refused(other, federation):
    model = fl.models.linear()
    with pytest.raises(fl.InputError, match="do not go together"):
        fit_all([Trial(fl.Local(), federation, model), other(federation, model)], Schedule())


def test_a_method_that_is_not_steady_is_alone(federation, graph):
    one = Trial(fl.L2GD(), federation, fl.models.linear())
    assert kind(one) != kind(one)
    fedu = Trial(fl.FedU(graph, 0.1), federation, fl.models.linear())
    assert kind(fedu) == kind(Trial(fl.FedU(graph, 0.2, 0.01), federation, fl.models.linear(), 3))
    sampled = Trial(fl.FedU(graph, 0.1, neighbours="sampled"), federation, fl.models.linear())
    assert kind(fedu) != kind(sampled)


def test_a_column_is_a_number_for_each_row():
    rows = torch.arange(1.0, 7.0).view(3, 2)
    column = Column(torch.tensor([[1.0], [10.0], [100.0]]))
    by_hand = column.values
    assert torch.equal(column * rows, by_hand * rows)
    assert torch.equal(rows * column, by_hand * rows)
    assert torch.equal(column * rows[:2], by_hand[:2] * rows[:2])  # cut to the clients that are still at work
    assert torch.equal(rows - column, rows - by_hand)
    assert torch.equal(column - rows, by_hand - rows)
    assert torch.equal(rows + column, column + rows)
    assert torch.equal(rows / column, rows / by_hand)
    assert torch.equal(column / rows, by_hand / rows)
    mixed = -(1 - 2 * column * column / 4 + 3)
    assert torch.equal(mixed * torch.ones(3, 1), -(4 - by_hand * by_hand / 2))
    assert torch.equal((1 / column) * torch.ones(3, 1), 1 / by_hand)
