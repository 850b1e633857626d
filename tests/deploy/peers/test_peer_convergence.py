"""After faults peers reach J of the unbroken run, however old the models were that stood in."""

import os
from dataclasses import replace

import pytest
from benchmarks.lost_messages import draw_number

from deployments import simulate
from peer_convergence import AFTER, BOUND, COUNTS, FAULTS, Fault, build_fault_plan, build_problem, play_fault
from peer_networks import TICK, PeerNetwork
from peer_plans import build_peer_rows


@pytest.fixture(autouse=True)
def no_waits_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def check_fault(fault, found):
    """Check that a fault moved J, and that its effect is gone."""
    assert abs(found.when_it_ends) > 100 * BOUND
    assert abs(found.at_the_end) <= BOUND
    assert found.bias > 100 * BOUND, "it is Algorithm 2's own, and not that of faults"
    assert found.oldest >= fault.rounds // 2
    assert sorted(found.rejoined) == sorted(fault.victims)


@pytest.mark.parametrize(
    "fault", [Fault("cd", disk=False, rounds=30), Fault(half="abcd")], ids=["disks are lost", "partition"]
)
def test_squared_errors_recover_within_forty_rounds(fault, tmp_path):
    """Their curvature is larger than that of the cross-entropy below."""
    check_fault(fault, play_fault(tmp_path, fault, after=40, real=True))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_no_later_than_400_rounds_after_a_fault_j_is_that_of_the_unbroken_run(fault, tmp_path):
    assert AFTER == 400
    check_fault(fault, play_fault(tmp_path, fault))


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("staleness", [1, 5, "any"])
def test_lost_models_change_only_the_speed(share, staleness, tmp_path):
    """Half a tick is the deadline, so that a round continues without a model that is lost."""
    plan = build_fault_plan(tmp_path, Fault(), 200, real=True)
    plan = replace(plan, peers=replace(plan.peers, staleness=staleness, deadline=TICK / 2))
    rows = build_peer_rows(True, COUNTS)
    problem, unbroken = build_problem(plan, rows), simulate(plan, rows).models
    network = PeerNetwork(
        tmp_path, plan, rows, lost=lambda *message: draw_number(0, *message) < share
    ).run()  # fmt: skip
    late = [one.rounds_late for run in network.runs.values() for one in run.peer.neighbours.values()]
    assert sum(late) > 0.5 * share * 200 * len(late)
    assert abs(problem.objective(network.models) - problem.objective(unbroken)) <= BOUND
