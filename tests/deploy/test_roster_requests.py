"""Changes of the roster that meet: one pending change per name, and none that ends the server or the run."""

import pytest
import torch

import fedlap as fl
from deployment_processes import build_federation, describe_plan
from deployments import LocalDeployment, simulate
from fedlap.deploy import client as client_module
from fedlap.deploy.plan import Plan
from fedlap.deploy.roster_changes import RosterChange
from fedlap.deploy.transport import ExitCode, PermanentError


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(client_module, "FIRST_DELAY", 0.0)


@pytest.fixture
def deploy(tmp_path):
    """Build a deployment of clients from a to e, and play it until a round."""

    def deploy(names, round=2):
        values = describe_plan(rounds=4, evaluate_every=0, clients=list(names), graph={"name": "complete"})
        deployment = LocalDeployment(tmp_path, Plan.of(values), build_federation("abcde"))
        while deployment.coordinator.round < round:
            for name in names:
                deployment.step(name)
        return deployment

    return deploy


def list_changes(deployment):
    return [
        (event, facts["name"])
        for event, facts in deployment.events
        if event in ("joined", "left", "ejected", "not-changed") and "round" in facts  # of the server
    ]


def check_rest(deployment, names):
    """Run to the end, with a restart before it; the roster is then these clients."""
    deployment.start_server()
    deployment.run(names)
    assert deployment.coordinator.setup.clients == tuple(names)
    assert deployment.coordinator.finished >= {*names}
    assert deployment.coordinator.storage.read_pending() == []


@pytest.mark.parametrize("first", ["leave", "eject"])
def test_a_client_is_removed_once(first, deploy):
    deployment = deploy("abc")
    other = {"leave": "eject", "eject": "leave"}[first]
    for kind in (first, other, first):
        deployment.coordinator.request_change(RosterChange(kind, "b"))
    assert [change["kind"] for change in deployment.coordinator.storage.read_pending()] == [first]
    check_rest(deployment, "ac")
    assert list_changes(deployment) == [({"leave": "left", "eject": "ejected"}[first], "b")]


def test_a_newcomer_that_is_admitted_twice_joins_as_at_first(deploy):
    deployment = deploy("abc")
    run = deployment.coordinator
    run.request_change(RosterChange("join", "d", {"a": 1.0}))
    with pytest.raises(fl.InputError, match="admitted already, with other neighbours; eject it"):
        run.request_change(RosterChange("join", "d", {"b": 1.0}))
    deployment.start_client("d")
    deployment.step("d")
    check_rest(deployment, "abcd")
    weights = deployment.coordinator.setup.graph.weights.matrix().toarray()
    assert weights[3].tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", ["leave", "eject"])
def test_the_last_two_clients_cannot_be_removed_in_one_round(kind, deploy):
    deployment = deploy("ab")
    deployment.coordinator.request_change(RosterChange(kind, "a"))
    with pytest.raises(fl.InputError, match="client 'b' is the last one"):
        deployment.coordinator.request_change(RosterChange(kind, "b"))
    check_rest(deployment, "b")


def test_a_client_whose_removal_fails_takes_part_again(deploy):
    """As after changes that an earlier version has accepted."""
    deployment = deploy("ab")
    run = deployment.coordinator
    run.request_change(RosterChange("eject", "a"))
    run.changes.append(RosterChange("eject", "b"))
    run.sites["b"].is_away = run.sites["b"].is_ejected = True
    deployment.advance()
    assert not run.sites["b"].is_ejected
    deployment.run("b")
    assert list_changes(deployment) == [("ejected", "a"), ("not-changed", "b")]


@pytest.mark.parametrize("is_registered", [False, True])
@pytest.mark.parametrize("kind", ["leave", "eject"])
def test_a_newcomer_that_is_removed_before_its_first_round_never_joins(kind, is_registered, deploy):
    deployment = deploy("abc")
    run = deployment.coordinator
    run.request_change(RosterChange("join", "d"))
    deployment.start_client("d")
    if is_registered:
        deployment.step("d")
    if kind == "leave":
        deployment.clients["d"].leave(for_good=True)
    else:
        run.request_change(RosterChange("eject", "d"))
    assert "d" not in run.sites
    with pytest.raises(PermanentError, match="'d' is not part of this run") as caught:
        deployment.step("d")
    assert caught.value.code is ExitCode.REFUSED
    check_rest(deployment, "abc")
    assert list_changes(deployment) == [({"leave": "left", "eject": "ejected"}[kind], "d")]


def test_a_newcomer_whose_admission_was_cancelled_can_be_admitted_again(deploy):
    deployment = deploy("abc")
    for change in (
        RosterChange("join", "d", {"a": 1.0}),
        RosterChange("eject", "d"),
        RosterChange("join", "d", {"b": 1.0}),
    ):
        deployment.coordinator.request_change(change)
    deployment.start_client("d")
    deployment.step("d")
    check_rest(deployment, "abcd")
    weights = deployment.coordinator.setup.graph.weights.matrix().toarray()
    assert weights[3].tolist() == [0.0, 1.0, 0.0, 0.0]


def test_a_client_cannot_leave_for_good_before_the_start(deploy):
    deployment = deploy("abcd", round=0)
    for name in "abc":
        deployment.step(name)
    with pytest.raises(PermanentError, match="has not started; change the clients in the plan") as caught:
        deployment.clients["b"].leave(for_good=True)
    assert caught.value.code is ExitCode.REFUSED
    federation = build_federation("abcd")
    assert torch.equal(deployment.run().models, simulate(deployment.plan, federation).models)


@pytest.mark.parametrize("name", ["", " d", "d ", "x" * 55, "a\nb", "é" * 28])
def test_a_newcomer_has_a_name_that_the_log_and_certificates_can_have(name):
    with pytest.raises(fl.InputError, match="expected 1 to 54 bytes of printable characters"):
        RosterChange.parse({"kind": "join", "name": name, "neighbours": {}})
    assert RosterChange.parse({"kind": "eject", "name": name, "neighbours": {}}).name == name
