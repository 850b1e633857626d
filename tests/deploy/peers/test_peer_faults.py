"""With staleness 0 the models are those without faults, bit for bit, wherever peers end and messages fail."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments import CrashError, simulate
from disturbed_links import DisturbedLinks
from fedlap.deploy import failpoints
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.failpoints import PEER_POINTS
from fedlap.deploy.peers.signatures import CertificateSigner
from fedlap.deploy.peers.stages import Stage
from fedlap.deploy.transport import ExitCode
from fedlap.storage.files import unwritable_error
from key_folders import KeyFolders
from peer_networks import TICK, PeerNetwork
from peer_plans import build_peer_plan, build_peer_rows

EXPLICIT = {"name": "dfedu", "local_steps": 1}
IMPLICIT = {**EXPLICIT, "mixing": "implicit", "exchanges": 2, "strength": 5.0}
NEIGHBOURS = ("ab", "bc", "cd", "da")
ONCE = ("greeted", "setup")  # points that a peer passes once


def end_process():
    raise CrashError


@pytest.fixture(autouse=True)
def no_waits_for_the_disk(monkeypatch):
    """Wait for no disk, since no power is cut here, and let failpoints end a peer of a network alone."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(failpoints, "end_process", end_process)
    monkeypatch.setattr(failpoints, "_passed", {})
    monkeypatch.setenv(failpoints.VARIABLE, "")


@pytest.fixture(scope="module")
def simulation():
    """A function that returns the models of the simulation; each plan is simulated once."""
    known = {}

    def find(plan):
        if plan.digest not in known:
            known[plan.digest] = simulate(plan, build_peer_rows()).models
        return known[plan.digest]

    return find


def end_at(tmp_path, plan, victims, point, times):
    """Run peers of which some end at a point, for the last time when they pass it that often."""
    times = 1 if point.split(".")[1] in ONCE else times
    network = PeerNetwork(tmp_path, plan, build_peer_rows(), names=())
    network.points = dict.fromkeys(victims, f"{point}:{times}")
    for name in plan.clients:
        network.start(name)
    network.run()
    assert all(network.passed[name][point] >= times for name in victims), "the point was not passed"
    return network


@pytest.mark.parametrize(("place", "point"), list(enumerate(PEER_POINTS)))
def test_two_neighbours_that_end_anywhere_change_nothing(place, point, simulation, tmp_path):
    plan = build_peer_plan(rounds=3, algorithm=EXPLICIT)
    network = end_at(tmp_path, plan, NEIGHBOURS[place % 4], point, 2)
    assert torch.equal(network.models, simulation(plan))
    ends = [end for run in network.runs.values() for end in run.peer.neighbours.values()]
    assert {(end.bytes_up, end.bytes_down) for end in ends} == {(3 * 60, 3 * 60)}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [EXPLICIT, IMPLICIT], ids=["explicit", "implicit"])
@pytest.mark.parametrize("victims", [*"abcd", *NEIGHBOURS, "ac", "abcd"])
@pytest.mark.parametrize("point", PEER_POINTS)
def test_any_peers_that_end_anywhere_change_nothing(point, victims, algorithm, simulation, tmp_path):
    plan = build_peer_plan(rounds=4, algorithm=algorithm)
    for times in (1, 2):
        network = end_at(tmp_path / str(times), plan, victims, point, times)
        assert torch.equal(network.models, simulation(plan))


def test_a_peer_without_a_neighbour_for_long_waits_and_continues(simulation, tmp_path):
    plan = build_peer_plan(rounds=4, algorithm=EXPLICIT)
    network = PeerNetwork(tmp_path, plan, build_peer_rows()).reach(2)
    network.kill("c")
    for _ in range(30):
        network.sweep()
    assert network.runs["a"].list_awaited(network.now) in (["b"], ["d"], ["b", "d"])
    assert network.runs["b"].list_awaited(network.now) == ["c"]
    network.start("c")
    assert torch.equal(network.run().models, simulation(plan))
    assert network.list_events("stands-in") == []
    lost = [facts for facts in network.list_events("lost", "b") if facts["name"] == "c"]
    assert len(lost) == 1, "a problem that stays the same is logged once"


@pytest.mark.parametrize("round", [0, 2])
def test_a_peer_without_neighbours_waits_as_long_as_its_patience(round, simulation, tmp_path):
    """It waits before the first round and with staleness 0, and continues when it is started again."""
    plan = build_peer_plan(rounds=4, algorithm=EXPLICIT)
    network = PeerNetwork(tmp_path, plan, build_peer_rows()).reach(round)
    for name in "abd":
        network.kill(name)
    lonely = network.runs["c"]
    began, lonely.patience = network.now, 205.0
    network.run_until(lambda: network.ended)
    (name, error), waited = network.ended[0], network.now - began
    assert (name, error.code) == ("c", ExitCode.NO_ANSWER)
    assert "c waits for" in str(error)
    assert "heard of no neighbour for 205 seconds" in str(error)
    assert 205.0 <= waited <= 205.0 + 2 * TICK
    for name in "abcd":
        network.start(name)
        network.runs[name].patience = 205.0
    assert torch.equal(network.run().models, simulation(plan))


def test_a_peer_that_has_done_its_last_round_ends_with_its_patience(tmp_path):
    """With staleness 0 it would wait for ever for a neighbour that has not finished."""
    plan = build_peer_plan(rounds=2, algorithm=EXPLICIT)
    network = PeerNetwork(tmp_path, plan, build_peer_rows())
    network.run_until(lambda: any(run.stage is Stage.FINISHING for run in network.runs.values()))
    last = next(name for name, run in network.runs.items() if run.stage is Stage.FINISHING)
    for name in set("abcd") - {last}:
        network.kill(name)
    for _ in range(100):
        network.sweep()
    assert network.runs[last].stage is Stage.FINISHING
    network.runs[last].patience = 205.0
    network.run_until(lambda: network.runs[last].stage is Stage.DONE)
    assert not network.ended


def test_a_link_that_is_cut_at_times_changes_nothing(simulation, tmp_path):
    plan = build_peer_plan(rounds=4, algorithm=IMPLICIT)
    network = PeerNetwork(
        tmp_path,
        plan,
        build_peer_rows(),
        cut=lambda one, other, sweep: {one, other} == {"a", "b"} and sweep % 5 > 1,
    )
    assert torch.equal(network.run().models, simulation(plan))


def test_a_partition_waits_with_staleness_0(simulation, tmp_path):
    plan = build_peer_plan(rounds=5, algorithm=EXPLICIT)
    halves = {"a": 0, "b": 0, "c": 1, "d": 1}
    network = PeerNetwork(
        tmp_path, plan, build_peer_rows(),
        cut=lambda one, other, sweep: halves[one] != halves[other] and 8 < sweep < 60,
    )  # fmt: skip
    network.run_until(lambda: network.sweeps == 50)
    assert max(run.round for run in network.runs.values()) < 5
    assert torch.equal(network.run().models, simulation(plan))


def test_a_peer_that_is_killed_after_its_neighbours_have_ended_ends_too(simulation, tmp_path):
    """Its checkpoint knows that they need nothing from it any more."""
    plan = build_peer_plan(rounds=2, algorithm=EXPLICIT, graph={"name": "path"})
    network = PeerNetwork(tmp_path, plan, build_peer_rows())
    network.points = {"a": "peer.model.writing:2"}  # after the last round; the first one follows round 2
    network.run_until(lambda: network.runs["b"].stage is Stage.FINISHING)
    network.points = {}
    network.kill("a")
    network.start("a")
    network.run()
    network.kill("b")
    network.start("b")
    network.run()
    assert torch.equal(network.models, simulation(plan))


FAULTS = st.tuples(
    st.sampled_from([
        "none", "none", "drop", "forget", "twice", "replay", "late", "corrupt question", "truncate question",
        "corrupt answer", "truncate answer", "end asker", "end holder",
    ]),
    st.integers(0, 10_000),
)  # fmt: skip


@pytest.fixture(scope="module")
def signers(tmp_path_factory):
    folders = KeyFolders(tmp_path_factory.mktemp("keys"))
    return {name: CertificateSigner(folders.sign_client(name).folder) for name in "abcd"}


def check_disturbed_run(folder, script, order, algorithm, signers, simulation):
    plan = build_peer_plan(rounds=3, algorithm=algorithm)
    network = PeerNetwork(folder, plan, build_peer_rows(), names=order, signers=signers)
    network.disturb, network.is_supervised = DisturbedLinks(script), True
    assert torch.equal(network.run().models, simulation(plan))


@settings(max_examples=3, deadline=None, derandomize=True)
@given(st.lists(FAULTS, min_size=40, max_size=80), st.permutations("abcd"))
def test_disturbed_messages_and_ends_change_nothing(tmp_path_factory, signers, simulation, script, order):
    folder = tmp_path_factory.mktemp("run")
    check_disturbed_run(folder, script, order, EXPLICIT, signers, simulation)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(FAULTS, max_size=150), st.permutations("abcd"), st.sampled_from([EXPLICIT, IMPLICIT]),
)  # fmt: skip
def test_many_disturbances_change_nothing(tmp_path_factory, signers, simulation, script, order, algorithm):
    folder = tmp_path_factory.mktemp("run")
    check_disturbed_run(folder, script, order, algorithm, signers, simulation)


@pytest.mark.parametrize("writer", ["write_setup", "write_checkpoint", "write_tally", "write_site_model"])
def test_a_full_disk_is_waited_for(writer, simulation, tmp_path, monkeypatch):
    plan = build_peer_plan(rounds=4, algorithm=EXPLICIT)
    network = PeerNetwork(tmp_path, plan, build_peer_rows())
    full = [False]
    place = "run" if writer == "write_site_model" else "storage.PeerStorage"
    target = f"fedlap.deploy.peers.{place}.{writer}"
    module = __import__("fedlap.deploy.peers.run", fromlist=["run"])
    write = getattr(module if writer == "write_site_model" else module.PeerStorage, writer)

    def refuse(*values, **named):
        folder = values[0].parent if writer == "write_site_model" else values[0].folder
        if full[0] and folder.name == "b":
            raise unwritable_error(folder, OSError(28, "No space left on device"))
        return write(*values, **named)

    monkeypatch.setattr(target, refuse)
    if writer != "write_setup":
        network.reach(1)
    full[0] = True
    for _ in range(30):
        network.sweep()
    assert network.runs["b"].stage is not Stage.DONE
    declined = network.list_events("round-declined")
    assert {facts["reason"] for facts in declined} == {EventReason.STORAGE}
    assert len(declined) == len({facts["round"] for facts in declined}), "it is logged once per round"
    texts = [text for name, text in network.texts if name == "b"]
    assert ["No space left on device" in text for text in texts] == [True] * len(declined)
    network.kill("b")
    network.start("b")
    full[0] = False
    assert torch.equal(network.run().models, simulation(plan))
