"""The rounds of the benchmark on lost messages are those of dFedU, and what is lost is drawn as stated."""

import pytest
import torch
from benchmarks.lost_messages import Losses, build_peers, build_plan, draw_number, train

import fedlap as fl
from random_inputs import random_arrays


def build_clients():
    return fl.Federation.from_arrays(
        random_arrays((9, 14, 6, 11, 8, 9)), test_share=0, labels=["x", "y", "z"], scale="none"
    )


def train_peers(share, staleness, rounds=40):
    """Return the models after each round, and what was lost."""
    clients = build_clients()
    peers, _ = build_peers(clients, build_plan(clients, rounds, staleness))
    losses = Losses(share)
    return train(peers, clients.clients, losses), losses


@pytest.mark.parametrize("staleness", [0, 1, "any"])
def test_without_losses_rounds_are_dfedu(staleness):
    found, losses = train_peers(0.0, staleness, rounds=8)
    clients = build_clients()
    plan = build_plan(clients, 8, staleness)
    expected = fl.fit(
        plan.build_algorithm(plan.build_graph(clients.clients)), clients, plan.build_architecture(), rounds=8,
        batch="all", dtype="float64", evaluate_every=0,
    )  # fmt: skip
    torch.testing.assert_close(found[-1], expected.models, rtol=1e-9, atol=1e-9)
    assert losses.lost == 0
    assert set(losses.ages) == {0}


@pytest.mark.parametrize(("staleness", "most"), [(0, 0), (1, 1), (5, 5), ("any", 40)])
def test_no_model_in_use_is_older_than_the_staleness(staleness, most):
    _, losses = train_peers(0.5, staleness)
    attempts = sum(losses.attempts.values())
    assert max(losses.ages) <= most
    assert (max(losses.ages) > 5) == (staleness == "any")
    assert losses.lost / attempts == pytest.approx(0.5, abs=0.06)
    repeated = max(losses.attempts.values()) > 1
    assert repeated == (staleness != "any"), "only a peer that waits asks again"


def test_losses_are_a_function_of_seed_edge_round_and_attempt():
    cases = [
        (0, "a", "b", 1, 0),
        (1, "a", "b", 1, 0),
        (0, "b", "a", 1, 0),
        (0, "a", "b", 2, 0),
        (0, "a", "b", 1, 1),
    ]
    numbers = [draw_number(*case) for case in cases]
    assert numbers == [draw_number(*case) for case in cases]
    assert len(set(numbers)) == len(cases)
