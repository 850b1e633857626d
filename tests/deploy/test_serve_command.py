"""`fedlap serve` until it would listen: plans that it refuses, and the log of a run that resumes."""

import os

import pytest

import fedlap as fl
from deployment_processes import build_federation, describe_plan, format_toml
from deployments import LocalDeployment
from fedlap.cli import serve as serve_module
from fedlap.cli.serve import serve
from fedlap.deploy import client as client_module
from fedlap.deploy.event_log import read_events
from fedlap.deploy.plan import Plan
from fedlap.deploy.roster_changes import RosterChange
from fedlap.deploy.run_storage import REPLIES_FOLDER


@pytest.fixture(autouse=True)
def no_listening(monkeypatch):
    """The command ends where it would listen."""

    def refuse(*words, **named):
        raise fl.InputError("the port is in use")

    monkeypatch.setattr(serve_module, "ZenohServer", refuse)
    monkeypatch.setattr(os, "umask", lambda mask: mask)
    monkeypatch.setattr(client_module, "FIRST_DELAY", 0.0)


def write_plan(folder, values):
    path = folder / "plan.toml"
    path.write_text("".join(f"{key} = {format_toml(value)}\n" for key, value in values.items()))
    return path


def serve_plan(folder, values):
    serve(write_plan(folder, values), "127.0.0.1:0", None, folder / "server", insecure=True)


def test_a_plan_of_peers_is_refused(tmp_path):
    addresses = {name: f"127.0.0.1:{7001 + k}" for k, name in enumerate("abcd")}
    with pytest.raises(fl.InputError, match=r"it has \[peers\]; use fedlap peer"):
        serve_plan(tmp_path, describe_plan("dfedu", peers={"addresses": addresses}))
    assert not (tmp_path / "server").exists()


def test_a_lost_reply_of_a_newcomer_is_logged_when_the_run_resumes(tmp_path):
    """The log must know the newcomer before the run is loaded, which logs the loss."""
    values = describe_plan(rounds=4, evaluate_every=0, clients=list("abc"), graph={"name": "complete"})
    deployment = LocalDeployment(tmp_path, Plan.of(values), build_federation("abcd"))
    run = deployment.coordinator
    while run.round < 2:
        for name in "abc":
            deployment.step(name)
    run.request_change(RosterChange("join", "d"))
    deployment.start_client("d")
    deployment.step("d")  # It registers.
    while not run.open_round or run.open_round.number < 3 or 3 not in run.open_round.replies:
        for name in "abd" if run.round == 3 else "abcd":  # c holds the round
            deployment.step(name)
    (tmp_path / "server" / REPLIES_FOLDER / "3.state").write_bytes(b"")
    with pytest.raises(fl.InputError, match="the port is in use"):
        serve_plan(tmp_path, values)
    events = [(event.event, event.name) for event in read_events(tmp_path / "server")]
    assert ("reply-lost", "d") in events
    assert events[-1] == ("failed", None)
