"""Messages of a client that has a certificate and is hostile: they harm nobody but their sender."""

import pytest
import torch

import fedlap as fl
from deployment_processes import build_federation, describe_plan
from deployments import LocalDeployment, simulate
from fedlap.deploy import client as client_module
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.plan import Plan
from fedlap.deploy.wire import ANSWERS, Message, decode_message, encode_message
from fedlap.training.worker import Worker


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(client_module, "FIRST_DELAY", 0.0)


@pytest.fixture
def deploy(tmp_path, monkeypatch):
    """Build a deployment in which the uploads of the client `a` are changed by a function.

    It is the first one of the roster, whose types the merge takes.
    """

    def deploy(algorithm, spoil=lambda up: up, **changes):
        local = Worker.local

        def train(self, round, down, *, merged):
            up = local(self, round, down, merged=merged)
            return spoil(up) if self.client == "a" else up

        monkeypatch.setattr(Worker, "local", train)
        plan = Plan.of(describe_plan(algorithm, rounds=2, evaluate_every=2, **changes))
        return LocalDeployment(tmp_path, plan, build_federation())

    return deploy


@pytest.mark.parametrize("plan", [5, None, "f" * 64, ["f"]])
def test_a_check_cannot_choose_the_plan_that_the_server_compares(plan, deploy):
    facts = {"version": fl.__version__, "plan": plan}
    answer = decode_message(deploy("fedu").handle("a", encode_message(Message("check", facts))), ANSWERS)
    assert answer.kind == "overview"


def forget_types(state):
    """Return the state with plain tuples, which are equal to its named ones."""
    return tuple(map(forget_types, state)) if isinstance(state, tuple) else state


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "ifca", "fedprox"])
def test_an_upload_of_plain_tuples_is_merged_like_that_of_the_method(algorithm, deploy):
    deployment = deploy(algorithm, forget_types)
    while not (opened := deployment.coordinator.open_round) or not opened.replies:
        deployment.step("a")
        for name in "bcd":
            if not deployment.clients[name].greeted:
                deployment.step(name)
    deployment.start_server()  # It reads the reply from its disk.
    assert torch.equal(deployment.run().models, simulate(deployment.plan, deployment.federation).models)
    assert deployment.coordinator.checkpoint.left_out == {}


@pytest.mark.parametrize("change", [1.0, -30.0, float("nan"), 1e30])
def test_another_number_of_rows_than_registered_is_refused(change, deploy):
    deployment = deploy("fedavg", lambda up: up._replace(counts=up.counts + change)).run()
    assert deployment.coordinator.checkpoint.left_out == {"a": 2}
    assert {facts["reason"] for facts in deployment.list_events("left-out")} == {EventReason.ROWS}
    assert bool(deployment.models.isfinite().all())


def test_the_number_of_rows_has_no_part_in_the_norm(deploy):
    """A client with a million rows would be above the default limit in every round."""
    deployment = deploy("fedavg", limits={"deadline": 60.0, "most_norm": 3.0})
    assert min(deployment.federation.train.count) > 3
    deployment.run()
    assert deployment.coordinator.checkpoint.left_out == {}
    assert torch.equal(deployment.models, simulate(deployment.plan, deployment.federation).models)
