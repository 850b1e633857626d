"""Killed peers change nothing with staleness 0: the end of a run is that of the simulation.

`make torture` kills peers at twenty random times each.
"""

import os
import random
import time

import pytest
import torch

from deployment_processes import build_federation
from deployments import simulate
from fedlap.deploy.failpoints import PEER_POINTS
from fedlap.deploy.peers.storage import PeerStorage
from fedlap.theory import DelayTheorem, bound_curvature, compute_contraction
from peer_convergence import BOUND, build_problem
from peer_processes import describe_peers

pytestmark = pytest.mark.deploy
KILLS = int(os.environ.get("FEDLAP_KILLS", "3"))


def check_end(run):
    """Check that no model stood in for another, and that the models are those of the simulation."""
    for name in run.plan.clients:
        assert run.find_round(name) == run.plan.rounds
        assert not run.list_events("stands-in", name)
        assert not run.list_events("rejoined", name)
    assert torch.equal(run.models, simulate(run.plan, build_federation()).models)


@pytest.mark.parametrize("owners", ["b", "ab"], ids=["one peer", "two neighbours"])
def test_peers_that_are_killed_anywhere_change_nothing(owners, deploy):
    """One run passes all points: after each kill, the restarted process is killed at the next one."""
    run = deploy(describe_peers(rounds=60, evaluate_every=2))
    for name in "abcd":
        run.start_peer(name, PEER_POINTS[0] if name in owners else "")
    fired = run.supervise(dict.fromkeys(owners, PEER_POINTS))
    assert sorted(fired) == sorted(PEER_POINTS * len(owners))
    check_end(run)


def test_peers_that_are_killed_at_random_times_change_nothing(deploy):
    draw = random.Random(f"kills of peers {KILLS}")
    run = deploy(describe_peers(rounds=20 + 20 * KILLS, evaluate_every=3))
    slow = run.slow_down(0.05)
    run.start_all(**dict.fromkeys("abcd", slow))
    for number in range(KILLS):
        run.wait_for_round(20 * number + draw.randint(5, 15), "a")
        victims = draw.choice([["b"], ["a"], ["b", "c"], ["a", "c"], ["d"]])
        time.sleep(draw.uniform(0.0, 0.1))
        run.kill(*victims)
        for victim in victims:
            run.start_peer(victim, change=slow)
    run.finish()
    check_end(run)


def test_thirty_percent_of_all_models_lost_change_only_the_speed(deploy):
    """With full batches and strongly convex losses, J is that of the unbroken run (the page on theory)."""
    values = describe_peers(
        peers={"staleness": 5, "deadline": 0.05}, rounds=130, batch="all", dtype="float64", task="fast",
        evaluate_every=0, model={"name": "linear", "l2": 1.0}, algorithm={"name": "dfedu", "lr": 0.1},
    )  # fmt: skip
    run = deploy(values).start_all(**dict.fromkeys("abcd", ("lose_models", 0.3, 0, 0.06))).finish()
    rows = build_federation()
    problem, unbroken = build_problem(run.plan, rows), simulate(run.plan, rows).models
    curvature, coupling = bound_curvature(problem), problem.algorithm.coupling
    contraction = compute_contraction(curvature.alpha, curvature.beta, 0.1, 5)
    assert DelayTheorem(contraction, coupling.delay_product).compute_rate(5) ** 130 < 1e-7
    ends = [end for name in "abcd" for end in PeerStorage(run.find_folder(name)).read_facts()["neighbours"]]
    assert sum(end["rounds_late"] for end in ends) > 0.1 * 130 * len(ends)
    assert abs(problem.objective(run.models) - problem.objective(unbroken)) <= BOUND


def test_a_killed_peer_without_its_disk_starts_at_its_neighbours_mean(deploy):
    values = describe_peers(rounds=200, peers={"staleness": "any", "deadline": 3.0}, evaluate_every=0)
    run = deploy(values)
    run.start_all(a=run.slow_down(0.2))
    run.wait_for_round(3)
    run.kill("c")
    run.wait(lambda: run.list_events("stands-in", "b", name="c"), "the others continue", "c")
    run.find_folder("c").rename(run.folder / "lost")
    run.start_peer("c")
    run.wait(lambda: run.list_events("rejoined", "c"), "c is back")
    assert run.list_events("rejoined", "c")[0].numbers["clients"] == 2
    run.finish()
    assert run.models.isfinite().all()
