"""Every method with every model: all clients at once, several runs at once, and one client at a time."""

import pytest
import torch

import fedlap as fl
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.schedule import Schedule
from laws import METHODS, WORK


def network():
    """A user's own, with layers that no built-in model has."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(16, 5),
        torch.nn.GroupNorm(1, 5),
        torch.nn.Tanh(),
        torch.nn.Linear(5, 3),
    )


MODELS = {
    "linear": lambda: fl.models.linear(l2=0.01),
    "mlp": lambda: fl.models.mlp((6, 5), l2=0.01),
    "cnn": lambda: fl.models.cnn(l2=0.01),
    "module": lambda: fl.models.module(network(), l2=0.01),
}
QUICK = ("fedu",)  # the others are slow ones
TRIED = [
    pytest.param(name, model, id=f"{name}-{model}", marks=[] if name in QUICK else [pytest.mark.slow])
    for name in METHODS
    for model in MODELS
    if name != "mocha" or model == "linear"  # it is for linear models
]


def images():
    """Clients of unequal size with pictures of 4 × 4."""
    g = torch.Generator().manual_seed(3)
    sizes = {"a": 3, "b": 9, "c": 5, "d": 12}
    return fl.Federation.from_arrays(
        {
            name: (torch.randn(n, 4, 4, generator=g), torch.randint(0, 3, (n,), generator=g))
            for name, n in sizes.items()
        },
        labels=3,
        scale="none",
    )


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize(("name", "model"), TRIED)
def test_together_and_apart(name, model, work):
    federation, architecture = images(), MODELS[model]()
    method = METHODS[name].make(fl.Graph.path(federation.clients), **work)
    schedule = {"rounds": 3, "batch": 4, "dtype": "float64", "evaluate_every": 0}
    together, apart = (
        fl.fit(method, federation, architecture, seed=5, **schedule, engine=engine)
        for engine in ("stacked", "one_by_one")
    )
    assert (together.models - apart.models).abs().max() < 1e-9
    assert together.scores[-1].loss == pytest.approx(apart.scores[-1].loss, abs=1e-9)
    start = fl.fit(method, federation, architecture, seed=5, **{**schedule, "rounds": 1})
    assert (together.models - start.models).abs().max() > 1e-6  # it learns
    if name not in ("mocha", "l2gd"):
        _, second = fit_all(
            [Job(method, federation, architecture, seed) for seed in (6, 5)], Schedule(**schedule)
        )
        assert (together.models - second.models).abs().max() < 1e-9


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ["fedu", "ditto", "perfedavg-hessian"])
def test_recorded_on_a_gpu(name, model, work):
    federation, architecture = images(), MODELS[model]()
    method = METHODS[name].make(fl.Graph.path(federation.clients), **work)
    one, other = (
        fl.fit(method, federation, architecture, rounds=6, batch=4, dtype="float64", device=device)
        for device in ("cpu", "cuda")
    )
    assert (one.models - other.models.cpu()).abs().max() < 1e-9
