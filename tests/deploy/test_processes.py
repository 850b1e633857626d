"""Runs between real processes of `fedlap serve` and `fedlap client` end like the simulation."""

import re
import signal
import time
from datetime import timedelta

import pytest
import torch

from deployment_processes import SERVER, build_federation, describe_plan
from deployments import LocalDeployment, read_model, simulate
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.plan import Plan
from fedlap.deploy.roster_changes import RosterChange
from fedlap.deploy.run_storage import RunStorage
from fedlap.deploy.transport import HOLD_SECONDS, ExitCode
from key_folders import KeyFolders, Renewal
from method_kinds import SERVER_METHODS
from ports import find_ports

pytestmark = pytest.mark.deploy


@pytest.mark.parametrize("algorithm", SERVER_METHODS)
def test_ten_rounds_of_every_server_method_are_those_of_the_simulation(algorithm, deploy):
    deployment = deploy(describe_plan(algorithm)).start_all().finish()
    assert torch.equal(deployment.models, simulate(deployment.plan, build_federation()).models)


@pytest.mark.parametrize("algorithm", ["fedu", "scaffold", "mocha", "ditto"])
def test_ten_rounds_of_the_fast_task_differ_by_rounding_only(algorithm, deploy):
    deployment = deploy(describe_plan(algorithm, task="fast", dtype="float64")).start_all().finish()
    expected = simulate(deployment.plan, build_federation()).models
    torch.testing.assert_close(deployment.models, expected, rtol=1e-9, atol=1e-9)


def test_ten_rounds_over_tls_with_sampled_clients(deploy, tmp_path):
    folders = KeyFolders(tmp_path)
    keys = {SERVER: folders.sign_server().folder, **{n: folders.sign_client(n).folder for n in "abcd"}}
    deployment = deploy(describe_plan("scaffold", sample=0.5), keys).start_all().finish()
    assert torch.equal(deployment.models, simulate(deployment.plan, build_federation()).models)


@pytest.mark.slow
def test_a_run_with_certificates_of_eight_seconds(deploy, tmp_path):
    """It trains until the certificates of the start and of two renewals have expired."""
    folders, lifetime = KeyFolders(tmp_path), timedelta(seconds=8)

    def renew():
        return [folders.sign_server(lifetime=lifetime), *(folders.sign_client(n, lifetime) for n in "abcd")]

    with Renewal(renew, lifetime) as renewal:
        keys = {
            owner: signed.folder for owner, signed in zip([SERVER, *"abcd"], renewal.signed[0], strict=True)
        }
        deployment = deploy(describe_plan("scaffold", rounds=150, evaluate_every=50), keys)
        deployment.start_all(a=deployment.slow_down(0.3))
        deployment.wait(lambda: renewal.has_expired(3), "certificates of two renewals expire")
        deployment.wait_for_round(deployment.round + 2)
        assert deployment.round < 150
        deployment.finish()
        issues = re.findall(r"certificate server:(\d+) is in use", deployment.read_output(SERVER))
        assert len(issues) >= 3
    assert not deployment.list_events("left-out")
    assert torch.equal(deployment.models, simulate(deployment.plan, build_federation()).models)


def test_the_server_says_once_what_it_waits_for(deploy):
    deployment = deploy(describe_plan())
    deployment.start_server()
    deployment.wait(lambda: len(deployment.list_events("awaited")) == 4, "the log names who is awaited")
    assert deployment.stop(SERVER) == 0
    text = deployment.read_output(SERVER)
    for words in ("listens", f"port {deployment.port}", "a (not connected yet)", "d (not connected yet)"):
        assert text.count(words) == 1, text
    assert "The run waits for" not in text


# Silence.

DEADLINE = 5.0  # seconds
LIMITS = {"limits": {"deadline": DEADLINE}}


def test_a_stopped_client_is_left_out_and_takes_part_again(deploy):
    deployment = deploy(describe_plan(rounds=60, **LIMITS))
    deployment.start_all(a=deployment.slow_down(0.3))
    deployment.wait_for_round(2)
    deployment.send_signal("c", signal.SIGSTOP)
    deployment.wait(lambda: deployment.list_events("left-out", name="c"), "c is left out")
    first = deployment.list_events("left-out", name="c")[0]
    assert first.reason == EventReason.SILENT
    deployment.wait_for_round(first.round + 2)  # The others continue.
    deployment.send_signal("c", signal.SIGCONT)
    deployment.wait(lambda: deployment.list_events("returned", name="c"), "c is back")
    deployment.finish()
    last = deployment.list_events("left-out", name="c")[-1].round
    assert deployment.list_events("answered", name="c", round=60), "c does not take part again"
    assert 2 < first.round <= last < 60
    assert {event.name for event in deployment.list_events("left-out")} == {"c"}


def test_a_client_that_trains_longer_than_the_deadline_counts(deploy):
    slow = ("train_slowly", 0.0, 1.5 * DEADLINE, 2)
    deployment = deploy(describe_plan("scaffold", rounds=3, **LIMITS)).start_all(c=slow).finish()
    assert not deployment.list_events("left-out")
    assert not deployment.list_events("late")
    assert torch.equal(deployment.models, simulate(deployment.plan, build_federation()).models)


# The roster.


def test_a_newcomer_and_a_leaver_with_a_restart_between(deploy, tmp_path):
    values = describe_plan(rounds=60, clients=["a", "b", "c"], graph={"name": "complete"}, evaluate_every=0)
    deployment = deploy(values)
    deployment.start_all(a=deployment.slow_down(0.3))
    deployment.wait_for_round(2)
    deployment.start("admit", ["admit", SERVER, "d", "--neighbours", "a,c=3"])
    deployment.wait(lambda: deployment.poll("admit") == 0, "the command ends")
    # The server is killed while it waits for the newcomer, and again after it has joined.
    deployment.wait(lambda: RunStorage(deployment.server_folder).read_pending(), "the change is noted")
    deployment.kill(SERVER)
    deployment.start_server()
    deployment.write_rows("d")
    deployment.start_client("d")
    deployment.wait(lambda: deployment.list_events("joined", name="d"), "d joins")
    deployment.wait(lambda: deployment.list_events("answered", name="d"), "d takes part")
    deployment.kill(SERVER)
    deployment.start_server()
    deployment.wait(lambda: len(deployment.list_events("run-resumed")) == 2, "the server resumes")
    assert deployment.stop("b") == 0
    deployment.start_client("b", extra=["--leave"])
    deployment.wait(lambda: deployment.list_events("left", name="b"), "b leaves")
    deployment.finish()
    joined, left = (deployment.list_events(event)[0].round for event in ("joined", "left"))
    assert 2 < joined < left <= 60
    assert deployment.list_events("answered", name="d", round=60)
    expected = repeat_changes(deployment, tmp_path / "local", joined, left)
    for name in "acd":
        assert torch.equal(read_model(deployment.client_folder(name)), read_model(expected.folder / name)), (
            name
        )


def repeat_changes(deployment, folder, joined, left):
    """Train within this process, with the same changes and the same absences in the same rounds."""
    local = LocalDeployment(folder, Plan.of(deployment.values), build_federation())
    run = local.coordinator
    absent = {(event.round, event.name) for event in deployment.list_events("left-out")}
    assert {name for _, name in absent} <= {"b"}
    for _ in range(2000):
        if run.round == joined - 1 and "d" not in local.clients:
            run.request_change(RosterChange("join", "d", {"a": 1.0, "c": 3.0}))
            local.start_client("d")
            local.step("d")
        if run.round == left - 1 and "b" in local.clients:
            run.request_change(RosterChange("leave", "b"))
            del local.clients["b"]
        if run.phase == "done":
            return local
        for name in list(local.clients):
            if (run.round, name) in absent:
                run.leave_out(name, EventReason.SILENT)
                run.sites[name].is_away = True
            else:
                local.step(name)
        local.advance()
    raise AssertionError("the run is stuck")


# Ends.


def test_sigterm_ends_both_sides_and_both_resume(deploy):
    """No round is merged without all four clients, so that the end is that of the simulation."""
    values = describe_plan("scaffold", rounds=30, limits={"deadline": 60.0, "minimum": 4})
    deployment = deploy(values)
    deployment.start_all(a=deployment.slow_down(0.3))
    deployment.wait_for_round(2)
    assert deployment.stop(SERVER) == 0
    assert "repeat the command to resume" in deployment.read_output(SERVER)
    deployment.start_server()
    deployment.wait_for_round(deployment.round + 2)
    assert deployment.stop("b") == 0
    deployment.wait(lambda: deployment.list_events("away", name="b"), "b is away")
    deployment.start_client("b")
    deployment.wait(lambda: deployment.list_events("returned", name="b"), "b is back")
    deployment.finish()
    assert not deployment.list_events("left-out")
    assert torch.equal(deployment.models, simulate(deployment.plan, build_federation()).models)


def test_permanent_errors_end_with_one_line_and_their_own_code(deploy):
    deployment = deploy(describe_plan(rounds=1000)).start_all(without="d")

    def fail(owner, code, *parts):
        deployment.wait(lambda: deployment.poll(owner) is not None, f"{owner} ends", without=(owner,))
        lines = deployment.read_output(owner).splitlines()
        assert deployment.poll(owner) == code, lines
        errors = [line for line in lines if line.startswith("error: ")]
        assert len(errors) == 1, lines
        for part in parts:
            assert part in errors[0]
        del deployment.pids[owner]

    deployment.start_client("d", change=("set_version", "0.0.1"))
    fail("d", ExitCode.OTHER_VERSION, "0.0.1", "install one version")
    address = f"127.0.0.1:{deployment.port}"
    deployment.start("e", ["client", "--name", "e", "--data", "a.csv", "--server", address, "--insecure"])
    fail("e", ExitCode.REFUSED, "'e'", "ask the server's operator")
    nobody = ["--server", f"127.0.0.1:{find_ports(1)[0]}", "--patience", "0.5"]
    deployment.start("f", ["client", "--name", "f", "--data", "a.csv", "--insecure", *nobody])
    fail("f", ExitCode.NO_ANSWER, "gives up after 0.5 seconds without an answer (--patience)")
    deployment.wait(lambda: deployment.list_events("registered", name="c"), "c registers")
    began = time.monotonic()
    assert deployment.stop("c") == 0
    assert time.monotonic() - began < HOLD_SECONDS, "a client that waits for work does not stop at once"
    folder = str(deployment.client_folder("c"))
    other = deploy(describe_plan(rounds=7), folder="other")
    other.start_server()
    address = f"127.0.0.1:{other.port}"
    words = ["client", "--name", "c", "--data", "c.csv", "--server", address, "--insecure"]
    deployment.start("c again", [*words, "--folder", folder])
    fail("c again", ExitCode.OTHER_PLAN, "use one plan")
    assert other.stop(SERVER) == 0
    # The server refuses the folder of another plan only once the run has started.
    (deployment.folder / "d.out").unlink()
    for name in "cd":
        deployment.start_client(name)
    deployment.wait_for_round(1)
    assert deployment.stop(SERVER) == 0
    deployment.write_plan(describe_plan(rounds=999))
    (deployment.folder / f"{SERVER}.out").unlink()
    deployment.start_server()
    fail(SERVER, ExitCode.OTHER_PLAN, "another plan")
