"""Strengths by block: between one strength, training alone and a shared body with a private head."""

import numpy as np
import pytest
import torch
from torch import nn

import fedlap as fl
from fedlap.algorithms.coupling import Coupling
from fedlap.algorithms.parameter_blocks import Block, ParameterBlocks, find_blocks
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.fields import set_field
from fedlap.models import Model
from fedlap.theory import LaplacianProblem
from laws import LR
from random_inputs import random_arrays, random_weights

MLP = fl.models.mlp((5,), l2=0.01)  # 1.weight, 1.bias, 3.weight, 3.bias
BODY, HEAD = slice(0, 25), slice(25, 43)


@pytest.fixture(scope="module")
def problem():
    arrays = random_arrays([7, 23, 5, 12, 40, 9])
    federation = fl.Federation.from_arrays(arrays, test_share=0.25, seed=3, labels=3, scale="none")
    return federation, fl.Graph.from_matrix(random_weights(federation.clients), federation.clients)


def train(method, federation, model=MLP, **schedule):
    usual = {
        "rounds": 6,
        "batch": 4,
        "seed": 5,
        "sample": 0.5,
        "dtype": "float64",
        "score_training": "always",
    }
    return fl.fit(method, federation, model, **{**usual, **schedule})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("settings", [{}, {"mixing": "implicit"}, {"neighbours": "sampled"}])
def test_equal_strengths_are_one_strength_bit_for_bit(problem, settings, dtype):
    federation, graph = problem
    for strength in ({"1": 0.3, "3": 0.3}, {"1.weight": 0.3, "1.bias": 0.3, "3.weight": 0.3, "3": 0.3}):
        one, other = (
            train(fl.FedU(graph, strength=eta, lr=LR, **settings), federation, dtype=dtype)
            for eta in (0.3, strength)
        )
        assert torch.equal(one.models, other.models)
        assert one.scores[-1].objective == other.scores[-1].objective
        assert one.scores[-1].bytes_up == other.scores[-1].bytes_up


@pytest.mark.parametrize("compression", [None, "float16"])
def test_equal_strengths_of_peers_are_one_strength_bit_for_bit(problem, compression):
    federation, graph = problem
    one, other = (
        train(fl.DFedU(graph, strength=eta, lr=LR, compression=compression), federation, sample=1.0)
        for eta in (0.3, {"1": 0.3, "3.weight": 0.3, "3.bias": 0.3})
    )
    assert torch.equal(one.models, other.models)
    assert one.scores[-1].bytes_up == other.scores[-1].bytes_up


def test_peers_send_blocks_with_a_strength_and_equal_fedu(problem):
    """Blocks of strength zero are not in any message, and all others are mixed as at a server."""
    federation, graph = problem
    strength = {"1": 0.3, "3.bias": 0.1}  # 28 of 43 parameters
    peers, fedu = (train(method(graph, strength=strength, lr=LR), federation, sample=1.0)
                   for method in (fl.DFedU, fl.FedU))  # fmt: skip
    assert (peers.models - fedu.models).abs().max() < 1e-12
    assert peers.scores[-1].objective == pytest.approx(fedu.scores[-1].objective, abs=1e-12)
    whole = train(fl.DFedU(graph, strength=0.3, lr=LR), federation, sample=1.0)
    assert peers.scores[-1].bytes_up * 43 == whole.scores[-1].bytes_up * 28
    alone = train(fl.Local(lr=LR), federation, sample=1.0)
    silent = train(fl.DFedU(graph, strength={}, lr=LR), federation, sample=1.0)
    assert torch.equal(silent.models, alone.models)
    assert silent.scores[-1].bytes_up == 0
    with pytest.raises(fl.InputError, match="implicit mixing between peers takes one; use one number"):
        fl.DFedU(graph, strength=strength, lr=LR, mixing="implicit")


class Adapted(nn.Module):
    """A frozen layer with an adapter of rank one, which starts at zero, and a head."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(4, 6).requires_grad_(False)
        self.down, self.up = nn.Linear(4, 1, bias=False), nn.Linear(1, 6, bias=False)
        nn.init.zeros_(self.up.weight)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.relu(self.base(x) + self.up(self.down(x))))


@pytest.mark.parametrize("method", [fl.FedU, fl.DFedU])
def test_only_adapters_are_shared(problem, method):
    """LoRA's limit: a frozen body that is in no message, shared adapters, and a head per client."""
    federation, _ = problem
    graph = fl.Graph.complete(federation.clients)
    torch.manual_seed(0)
    model = fl.models.module(Adapted())
    strength = 1 / (LR * 5 * graph.rho)  # one step takes all adapters to their mean
    settings = {"sample": 1.0, "rounds": 4}
    found = train(
        method(graph, strength={"down": strength, "up": strength}, lr=LR), federation, model, **settings
    )
    whole = train(method(graph, strength=0.1, lr=LR), federation, model, **settings)
    assert found.models.shape == (6, 4 + 6 + 21)  # without the frozen layer
    adapters, heads = found.models[:, :10], found.models[:, 10:]
    assert (adapters - adapters[0]).abs().max() < 1e-12
    assert (heads - heads[0]).abs().amax(1)[1:].min() > 1e-3
    assert found.scores[-1].bytes_up * 31 == whole.scores[-1].bytes_up * 10
    once = {"sample": 1.0, "rounds": 1}
    alone = train(fl.Local(lr=LR), federation, model, **once)
    first = train(
        method(graph, strength={"down": strength, "up": strength}, lr=LR), federation, model, **once
    )
    assert torch.equal(first.models[:, 10:], alone.models[:, 10:])
    assert (first.models[0, :10] - alone.models[:, :10].mean(0)).abs().max() < 1e-12


@pytest.mark.parametrize("sample", [0.5, 1.0])
@pytest.mark.parametrize("strength", [{"3": 0.0, "1": 0.3}, {"1": 0.3}])
def test_a_block_of_strength_zero_stays_with_its_client(problem, strength, sample):
    """It neither crosses the wire nor reaches the server, and others' models do not reach it."""
    federation, graph = problem
    result = train(fl.FedU(graph, strength=strength, lr=LR), federation, sample=sample, dtype="float32")
    whole = train(fl.FedU(graph, strength=0.3, lr=LR), federation, sample=sample, dtype="float32")
    assert result.scores[-1].bytes_up == result.scores[-1].bytes_down
    assert result.scores[-1].bytes_up * 43 == whole.scores[-1].bytes_up * 25
    assert result.server.models.values.shape == (6, 25)
    assert result.private.shape == (6, 18)
    assert torch.equal(result.models[:, BODY], result.server.models.values)
    assert torch.equal(result.models[:, HEAD], result.private)


def test_without_any_pull_every_client_trains_alone(problem):
    federation, graph = problem
    alone = train(fl.Local(lr=LR), federation)
    for strength in ({}, {"1": 0.0, "3": 0.0}):
        result = train(fl.FedU(graph, strength=strength, lr=LR), federation)
        assert torch.equal(result.models, alone.models)
        assert result.scores[-1].bytes_up == 0


def test_a_free_head_is_that_of_local_while_bodies_are_equal(problem):
    """After one round of which only the head moves, heads are those of Local; with the body pulled, not."""
    federation, graph = problem
    alone = train(fl.Local(lr=LR), federation, rounds=1)
    result = train(fl.FedU(graph, strength={"1": 0.3}, lr=LR), federation, rounds=1)
    assert torch.equal(result.models[:, HEAD], alone.models[:, HEAD])
    assert not torch.equal(result.models[:, BODY], alone.models[:, BODY])
    linear = train(fl.FedU(graph, strength={"1.bias": 0.3}, lr=LR), federation, fl.models.linear(), rounds=1)
    local = train(fl.Local(lr=LR), federation, fl.models.linear(), rounds=1)
    assert torch.equal(linear.models[:, :12], local.models[:, :12])


def test_a_strongly_shared_body_and_a_free_head_is_fedper(problem):
    """Its limit, with equally many rows per client, everyone sampled and the complete graph."""
    arrays = random_arrays([12] * 6)
    federation = fl.Federation.from_arrays(arrays, test_share=0, labels=3, scale="none")
    graph = fl.Graph.complete(federation.clients)
    strength = 1 / (LR * 5 * graph.rho)  # one step takes every body to the mean
    start = torch.from_numpy(np.random.default_rng(0).normal(size=43) / 3)
    schedule = {"sample": 1.0, "rounds": 10, "start": start}
    fedu = train(fl.FedU(graph, strength={"1": strength}, lr=LR), federation, **schedule)
    fedper = train(fl.FedPer(1, lr=LR), federation, **schedule)
    assert (fedu.models - fedper.models).abs().max() < 1e-12


def test_blocks_mix_as_models_of_their_own(problem):
    federation, graph = problem
    method = fl.FedU(graph, strength={"1": 0.3, "3.bias": 0.1}, lr=LR)
    model = Model(MLP.build(federation.inputs, federation.outputs), federation.loss, 0.01)
    bound = method.bind(federation.roster, model)
    W = torch.randn(6, 43, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids, up = torch.tensor([4, 1, 2]), bound._blocks.share(W + 1)[[4, 1, 2]]
    mixed = bound.merge(bound.init_server(W), ids, up.clone()).models.values
    for columns, eta, shared in ((BODY, 0.3, slice(0, 25)), (slice(40, 43), 0.1, slice(25, 28))):
        part = fl.FedU(graph, strength=eta, lr=LR)
        expected = part.merge(part.init_server(W[:, columns]), ids, up[:, shared].clone()).models.values
        assert (mixed[:, shared] - expected).abs().max() < 1e-12
    penalty = 0.15 * graph.smoothness(W[:, BODY]) + 0.05 * graph.smoothness(W[:, 40:])
    server, private = bound.init_server(W), bound.init_clients(W, federation.train.count)
    assert (bound.penalty(server, private) - penalty).abs() < 1e-9
    assert torch.equal(bound.personal_models(server, private, 6), W)


def test_the_longest_name_decides(problem):
    federation, _ = problem
    model = Model(MLP.build(federation.inputs, federation.outputs), federation.loss, 0.01)
    found = find_blocks({"3": 0.2, "3.weight": 0.0, "1.bias": 0.2}, model, "fedu")
    assert found == ParameterBlocks(
        (Block(0, 20, 0.0), Block(20, 25, 0.2), Block(25, 40, 0.0), Block(40, 43, 0.2))
    )
    W = torch.arange(86.0).view(2, 43)
    assert torch.equal(found.join(found.withhold(W), found.share(W)), W)


def test_what_has_one_strength_only_says_so(problem):
    federation, graph = problem
    with pytest.raises(
        fl.InputError, match=r"strength.9: the model has no such parameters; use names of 1.w"
    ):
        train(fl.FedU(graph, strength={"9": 1.0}), federation)
    with pytest.raises(fl.InputError, match=r"strength.1 = -1"):
        fl.FedU(graph, strength={"1": -1.0})
    with pytest.raises(fl.InputError, match="strength = 50 is too large"):
        fl.FedU(graph, strength={"1": 50.0, "3": 0.1}, lr=LR)
    coupling = Coupling(graph, {"1": 0.1}, LR, 5)
    for use in (lambda: coupling.check("fedu-passing", False), lambda: coupling.eta):
        with pytest.raises(fl.InputError, match="has a value per block of parameters; use one number"):
            use()
    with pytest.raises(fl.InputError, match="theory: the strength has a value per block"):
        LaplacianProblem.of(fl.FedU(graph, strength={"1": 0.1}), federation, MLP)


def test_experiments_and_the_command_line_have_strengths_by_block():
    described = {"data": {"name": "synthetic", "clients": 6}, "model": {"name": "mlp", "hidden": [5]}}
    described |= {"algorithm": {"name": "fedu"}, "graph": {"name": "complete"}}
    set_field(described, "algorithm.strength.1", 0.02, "--set algorithm.strength.1=0.02")
    set_field(described, "algorithm.strength.3.bias", 0.01, "--set algorithm.strength.3.bias=0.01")
    experiment = Experiment.of(described)
    assert experiment.build()[0].strength == {"1": 0.02, "3.bias": 0.01}
    assert Experiment.of(experiment.model_dump()) == experiment
    set_field(described, "algorithm.strength", 0.5, "--strength 0.5")
    assert Experiment.of(described).build()[0].strength == 0.5
