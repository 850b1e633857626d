"""Models that no peer takes are refused, logged once, and the last good one stands in; clip and forget."""

import os

import pytest
import torch

from deployments import simulate
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.peers.neighbours import Turn
from peer_networks import PeerNetwork
from peer_plans import build_peer_plan, build_peer_rows

ANY = {"staleness": "any"}
EXPLICIT = {"name": "dfedu", "local_steps": 1}


@pytest.fixture(autouse=True)
def no_waits_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def spoil(message, kind):
    """Return the message of a model that is not as its receiver expects it."""
    facts, state = message.facts, message.state
    if kind == "not finite":
        return message._replace(state=state.index_fill(1, torch.tensor([0]), torch.nan))
    if kind == "norm":
        return message._replace(state=state + 1e9)
    if kind == "shape":
        return message._replace(state=state[:, :-1])
    if kind == "type":
        return message._replace(state=state.double())
    if kind == "replay":
        return message._replace(facts={**facts, "round": 1, "base_round": 1})
    return message._replace(facts={**facts, "round": 99, "base_round": 99})


REASONS = {
    "not finite": EventReason.NOT_FINITE, "norm": EventReason.NORM, "shape": EventReason.SHAPE,
    "type": EventReason.SHAPE, "replay": EventReason.REPLAYED, "future": EventReason.UNASKED,
}  # fmt: skip


@pytest.mark.parametrize("kind", REASONS)
def test_a_bad_model_is_refused_and_the_last_good_one_stands_in(kind, tmp_path):
    plan = build_peer_plan(rounds=8, algorithm=EXPLICIT, peers=ANY)

    def change(sender, receiver, message):
        is_chosen = (sender, receiver) == ("b", "a") and message.kind == "model"
        return spoil(message, kind) if is_chosen and message.facts["round"] > 3 else message

    network = PeerNetwork(tmp_path, plan, build_peer_rows(), change=change).reach(3)
    good = network.runs["a"].peer.neighbours["b"].models[Turn(3, 0)].clone()
    network.reach(6)
    neighbour = network.runs["a"].peer.neighbours["b"]
    assert neighbour.newest == Turn(3, 0)
    assert torch.equal(neighbour.models[neighbour.newest], good)
    network.run()
    assert [facts["reason"] for facts in network.list_events("refused")] == [REASONS[kind]]
    assert {facts["name"] for facts in network.list_events("stands-in", "a")} == {"b"}
    assert network.models.isfinite().all()


@pytest.mark.parametrize("compression", ["float16", "int8", "top-k:0.3"])
def test_a_plain_tuple_in_place_of_a_compressed_difference_is_read_as_one(compression, tmp_path):
    plan = build_peer_plan(rounds=3, algorithm={"name": "dfedu", "compression": compression})
    plain = []

    def change(sender, receiver, message):
        if message.kind != "model" or not isinstance(message.state, tuple):
            return message
        plain.append(sender)
        return message._replace(state=tuple(message.state))

    network = PeerNetwork(tmp_path, plan, build_peer_rows(), change=change).run()
    assert set(plain) == set("abcd")
    assert network.list_events("refused") == []
    assert torch.equal(network.models, simulate(plan, build_peer_rows()).models)


def test_a_clip_moves_models_that_are_too_far_away_and_no_others(tmp_path):
    plan = build_peer_plan(rounds=2, algorithm=EXPLICIT, peers={"staleness": 0, "clip": 0.01})
    network = PeerNetwork(tmp_path, plan, build_peer_rows()).reach(1)
    peer = network.runs["a"].peer
    center = torch.zeros(1, 15)
    near, far = center + 0.001, center + 1.0
    assert peer._clip(near, center) is near
    clipped = peer._clip(far, center)
    assert float(clipped.norm()) == pytest.approx(0.01)
    torch.testing.assert_close(clipped / clipped.norm(), far / far.norm())


@pytest.mark.parametrize(("clip", "is_same"), [(1e6, True), (1e-4, False)])
def test_a_clip_acts_in_a_run_if_models_are_farther_apart(clip, is_same, tmp_path):
    plan = build_peer_plan(rounds=4, algorithm=EXPLICIT, peers={"staleness": 0, "clip": clip})
    network = PeerNetwork(tmp_path, plan, build_peer_rows()).run()
    assert torch.equal(network.models, simulate(plan, build_peer_rows()).models) == is_same


def test_a_silent_neighbour_is_forgotten_after_the_rounds_of_the_plan(tmp_path):
    plan = build_peer_plan(rounds=20, algorithm=EXPLICIT, peers={**ANY, "forget": 5})
    network = PeerNetwork(tmp_path, plan, build_peer_rows()).reach(3)
    last = network.runs["c"].round
    network.kill("c")
    network.run()
    for name in "bd":
        (forgotten,) = network.list_events("forgotten-edge", name)
        assert forgotten["name"] == "c"
        assert 5 <= forgotten["round"] - last <= 8
        assert network.list_events("graph-changed", name)
        known = network.runs[name].peer.neighbours.values()
        assert {one.name: one.is_removed for one in known} == {"a": False, "c": True}  # c is to hear it
    assert network.list_events("forgotten-edge", "a") == []
