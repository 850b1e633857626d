"""A run between a server and clients is the simulation, bit for bit, whatever happens to its messages."""

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedlap as fl
from deployments import LocalDeployment, simulate
from fedlap.algorithms import ALGORITHMS
from fedlap.deploy import client as client_module
from fedlap.deploy.plan import Plan
from property_settings import short_law
from random_inputs import random_arrays

COUNTS = (9, 14, 6, 11)
SERVER_METHODS = [name for name in ALGORITHMS if name not in ("dfedu", "global")]


def build_plan(algorithm="fedu", real=False, **changes):
    labels = {"task": "regression"} if real else {"task": "classification", "labels": ["x", "y", "z"]}
    data = {"label": "y", "features": ["u", "v", "w", "t"], **labels}
    values = {
        "name": "test", "clients": list("abcd"), "rounds": 4, "batch": 4, "evaluate_every": 2, "seed": 5,
        "data": {**data, **changes.pop("data", {})}, "algorithm": {"name": algorithm},
        "graph": {"name": "ring"}, "limits": {"deadline": 30.0}, **changes,
    }  # fmt: skip
    if algorithm == "fedper":
        values["model"] = {"name": "mlp", "hidden": [5]}
    return Plan.of(values)


def build_federation(real=False):
    arrays = random_arrays(COUNTS, labels=1 if real else 3, real=real)
    labels = None if real else ["x", "y", "z"]
    return fl.Federation.from_arrays(arrays, test_share=0.25, seed=5, labels=labels, scale="none")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Skip the pauses between attempts, and waiting for the disk: no power is cut here."""
    monkeypatch.setattr(client_module, "FIRST_DELAY", 0.0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize("algorithm", SERVER_METHODS)
@pytest.mark.parametrize("sample", [1.0, 0.5])
def test_every_server_method_repeats_the_simulation(algorithm, sample, tmp_path):
    plan, federation = build_plan(algorithm, sample=sample), build_federation()
    deployment = LocalDeployment(tmp_path, plan, federation).run()
    result = simulate(plan, federation)
    assert torch.equal(deployment.models, result.models)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("scale", ["none", "client", "pooled"])
def test_scores_are_those_of_the_simulation(scale, real, tmp_path):
    plan, federation = build_plan(real=real, data={"scale": scale}), build_federation(real)
    deployment = LocalDeployment(tmp_path, plan, federation).run()
    result = simulate(plan, federation)
    assert torch.equal(deployment.models, result.models)
    assert [score.round for score in deployment.coordinator.scores] == [2, 4]
    for one, other in zip(deployment.coordinator.scores, result.scores, strict=True):
        found, expected = one.as_dict(), other.as_dict() | {"seconds": one.seconds}
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name] == (value if value is None else pytest.approx(value, rel=1e-12)), name


FAULTS = st.tuples(
    st.sampled_from(["none", "drop", "forget", "twice", "corrupt", "truncate", "replay"]),
    st.integers(0, 10_000),
)


@short_law
@given(
    st.lists(FAULTS, max_size=60),
    st.permutations("abcd"),
    st.sampled_from(["fedu", "scaffold", "mocha", "ditto"]),
)
def test_disturbed_messages_change_nothing(tmp_path_factory, script, order, algorithm):
    plan, federation = build_plan(algorithm), build_federation()
    deployment = LocalDeployment(tmp_path_factory.mktemp("run"), plan, federation, script).run(order)
    assert torch.equal(deployment.models, simulate(plan, federation).models)
