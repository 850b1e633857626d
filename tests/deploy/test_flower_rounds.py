"""The Flower app without Flower: its rounds repeat the simulation, and faults lose nothing."""

import json
import stat
from pathlib import Path

import pytest
import torch

import fedlap as fl
from fedlap.training.state import map_state
from fedlap.training.state_bytes import decode_state, encode_state, list_state_types
from fedlap_flower import rounds
from fedlap_flower.client import answer
from fedlap_flower.rounds import Server, train
from fedlap_flower.task import build_algorithm
from flower_runs import DirectExchange, load_models, read_config, simulate, write_sites

METHODS = [
    name
    for name, method in fl.ALGORITHMS.items()
    if hasattr(method, "merge") and not hasattr(method, "view")
]
SETTINGS = {"fedper": {"model__name": "mlp"}, "mocha": {"graph__name": "ring"}}


@pytest.fixture
def sites(tmp_path):
    return write_sites(tmp_path)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(rounds, "PAUSE", 0.0)


def configure(tmp_path, **changes):
    return read_config(**{"folder": str(tmp_path / "server"), "rounds": 4, "least_replies": 1, **changes})


def assert_equal(sites, result):
    models = load_models(sites)
    for name, expected in zip(result.federation.clients, result.models, strict=True):
        assert torch.equal(models[name], expected), name


@pytest.mark.parametrize("name", METHODS)
def test_rounds_repeat_the_simulation(name, sites, tmp_path):
    changes = {"algorithm__name": name, "sample": 0.6, **SETTINGS.get(name, {})}
    config = configure(tmp_path, **changes)
    if "lr" not in vars(fl.ALGORITHMS[name])["__dataclass_fields__"]:
        del config["algorithm.lr"]
    train(config, DirectExchange(sites))
    assert_equal(sites, simulate(config, sites))


def test_real_targets(tmp_path):
    sites = write_sites(tmp_path, real=True)
    config = configure(tmp_path, labels=0, scale="none")
    score = train(config, DirectExchange(sites)).evaluate()
    result = simulate(config, sites)
    assert_equal(sites, result)
    assert score.rmse == pytest.approx(result.scores[-1].rmse, abs=1e-12)
