"""Remarks about late models: each condition of the theorem that a plan or a peer's rows do not meet."""

import pytest
import torch

from deployments import unscale
from fedlap.deploy.peers.late_models import explain_late_models
from fedlap.deploy.peers.start_check import check_late_models
from peer_networks import PeerNetwork
from peer_plans import build_peer_plan, build_peer_rows
from worker_processes import cut_client

ANY = {"staleness": "any"}
LINEAR = {"name": "linear", "l2": 0.1}
RING = {"name": "dfedu", "lr": 0.1}


def build_plan(real=False, peers=ANY, **changes):
    """Return a plan that meets all conditions, except for changes."""
    scale = changes.pop("scale", "client")
    values = {"batch": "all", "model": LINEAR, "algorithm": RING} | changes
    plan = build_peer_plan(real, peers=peers, **values)
    object.__setattr__(plan.data, "scale", scale)
    return plan


def find_remark(plan, real=False):
    """Return what the check of peer a remarks; None if it is content."""
    rows = build_peer_rows(real)
    found = check_late_models(plan, lambda data, seed: cut_client(unscale(rows), 0))
    assert found.problem == ""
    return found.detail if found.is_remark else None


def test_nothing_is_remarked_if_every_condition_holds():
    found = check_late_models(build_plan(scale="pooled"))
    assert "so training ends at the same point as without them, if every loss is" in found.detail
    assert "the default strength tolerates them" in found.detail
    assert not found.is_remark
    assert find_remark(build_plan()) is None
    assert find_remark(build_plan(algorithm={**RING, "compression": "none"})) is None
    assert find_remark(build_plan(real=True), real=True) is None
    assert find_remark(build_plan(real=True, model={"name": "linear"}), real=True) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"name": "mlp", "l2": 0.1}}, "model = mlp is a network, whose loss is not convex"),
        ({"model": {"name": "linear"}}, "l2 = 0 with cross-entropy"),
        ({"batch": 4}, "batch = 4: mini-batches end in a neighbourhood of that point"),
        ({"batch": 4, "algorithm": {**RING, "local_epochs": 2}}, "batch = 4 with local_epochs: passes over"),
        ({"algorithm": {**RING, "compression": "int8"}}, "compression = int8 is not covered"),
        ({"peers": {**ANY, "clip": 2.0}}, "clip = 2 has another limit"),
        ({"algorithm": {**RING, "lr": 300.0}}, "lr = 300 is not below 2/β = "),
    ],
    ids=lambda value: None if isinstance(value, dict) else value.partition(" = ")[0],
)
def test_a_condition_that_does_not_hold_is_named_and_no_other(changes, words):
    remark = find_remark(build_plan(**changes))
    assert remark.startswith(
        f"it is not proved that training with late models ends where it ends without them: {words}"
    )
    assert remark.count(": ") == 1 + words.count(": ")


def test_all_conditions_that_do_not_hold_are_named():
    plan = build_plan(model={"name": "mlp"}, batch=20, algorithm={**RING, "lr": 300.0})
    remark = find_remark(plan)
    assert "model = mlp" in remark
    assert "batch = 20" in remark
    linear = find_remark(build_plan(model={"name": "linear"}, batch=20, algorithm={**RING, "lr": 300.0}))
    assert "l2 = 0" in linear
    assert "batch = 20" in linear
    assert "lr = 300" in linear


def test_batches_with_all_rows_of_every_peer_are_full_gradients():
    plan = build_plan(batch=11)
    method = plan.build_algorithm(plan.build_graph(plan.clients))
    assert explain_late_models(plan, method, counts=[7, 11, 5, 8]) is None
    assert "batch = 11" in explain_late_models(plan, method, counts=[7, 12, 5, 8])


def test_too_few_rows_of_a_regression_are_not_strongly_convex():
    rows = cut_client(build_peer_rows(real=True, counts=(4, 14, 6, 11)), 0)  # three train, of four features
    plan = build_plan(real=True, model={"name": "linear"})
    method = plan.build_algorithm(plan.build_graph(plan.clients))
    assert "the squared error of this peer's rows is not strongly convex" in explain_late_models(
        plan, method, rows
    )
    plan = build_plan(real=True)
    assert explain_late_models(plan, method, rows) is None


@pytest.mark.parametrize("real", [False, True])
def test_the_largest_step_is_that_of_the_scaled_rows_of_this_peer(real):
    rows = build_peer_rows(real)
    site = cut_client(unscale(rows), 0)
    x = site.train.x[: int(site.train.count)].double()
    x = (x - x.mean(0)) / x.std(0, correction=0)
    x = torch.cat([x, x.new_ones(len(x), 1)], 1)
    largest = float(torch.linalg.eigvalsh(x.mT @ x / len(x))[-1])
    bound = 2 / ((1.0 if real else 0.5) * largest + 0.1)
    for lr, is_fine in ((0.99 * bound, True), (1.01 * bound, False)):
        remark = find_remark(build_plan(real=real, algorithm={"name": "dfedu", "lr": lr}), real)
        assert (remark is None) == is_fine, remark


@pytest.mark.parametrize(("strength", "remark"), [(0.66, False), (0.67, True)])
def test_late_models_are_covered_up_to_a_product_of_one(strength, remark):
    """In a complete graph of four with weights 1, d = 3: the product is 3·lr·R·strength."""
    algorithm = {"name": "dfedu", "lr": 0.1, "local_steps": 5, "strength": strength}
    found = check_late_models(build_plan(algorithm=algorithm, graph={"name": "complete"}))
    assert found.problem == ""
    assert found.is_remark == remark
    assert f" = {3 * 0.1 * 5 * strength:.4g}" in found.detail
    assert ("use a strength of at most 0.6667, or staleness = 0" in found.detail) == remark


def test_nothing_is_late_with_staleness_zero():
    found = check_late_models(build_plan(peers={"staleness": 0}, batch=4))
    assert not found.is_remark
    assert "staleness = 0" in found.detail


@pytest.mark.parametrize(("lr", "is_said"), [(0.1, False), (300.0, True)])
def test_a_peer_says_at_its_start_which_condition_does_not_hold(lr, is_said, tmp_path):
    """Its rows are scaled by then, with pooled constants."""
    plan = build_plan(scale="pooled", algorithm={"name": "dfedu", "lr": lr})
    network = PeerNetwork(tmp_path, plan, build_peer_rows()).reach(1)
    informed = [name for name, text in network.texts if "lr = 300 is not below 2/β = " in text]
    assert sorted(informed) == (list("abcd") if is_said else [])
    assert bool(network.texts) == is_said
