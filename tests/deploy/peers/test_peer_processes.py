"""Runs between real processes of `fedlap peer` end like the simulation."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch

from deployment_processes import SEED, build_federation
from deployments import simulate
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.keys import revoke_certificates
from fedlap.deploy.peers.storage import PeerStorage
from fedlap.deploy.register import ISSUES_AHEAD, REGISTER_NAME
from fedlap.deploy.status import read_status
from fedlap.deploy.transport import ExitCode
from key_folders import KeyFolders
from peer_convergence import BOUND
from peer_processes import describe_peers

pytestmark = pytest.mark.deploy


def read_checkpoint(run, name):
    """Return the facts of a peer's checkpoint."""
    return PeerStorage(run.find_folder(name)).read_facts()


def test_ten_rounds_over_tls_are_those_of_the_simulation(deploy, tmp_path):
    folders = KeyFolders(tmp_path)
    keys = {name: folders.sign_peer(name).folder for name in "abcd"}
    run = deploy(describe_peers(), keys).start_all().finish()
    expected = simulate(run.plan, build_federation())
    assert torch.equal(run.models, expected.models)
    neighbours = [one for name in "abcd" for one in read_checkpoint(run, name)["neighbours"]]
    assert len(neighbours) == 2 * expected.algorithm.graph.edges
    for direction, number in (("bytes_up", 0), ("bytes_down", 1)):
        assert sum(one[direction] for one in neighbours) == expected.progress.sent[number]


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"name": "dfedu", "mixing": "implicit", "exchanges": 3}},
        {"graph": {"name": "complete"}, "peers": {"staleness": "any"}},
        {"algorithm": {"name": "dfedu", "compression": "int8"}},
    ],
    ids=["three exchanges", "any staleness", "int8"],
)
def test_other_settings_are_those_of_the_simulation(changes, deploy):
    run = deploy(describe_peers(**changes)).start_all().finish()
    expected = simulate(run.plan, build_federation())
    assert torch.equal(run.models, expected.models)
    neighbours = [one for name in "abcd" for one in read_checkpoint(run, name)["neighbours"]]
    assert sum(one["bytes_down"] for one in neighbours) == expected.progress.sent[1]


def test_the_fast_task_differs_by_rounding_only(deploy):
    run = deploy(describe_peers(task="fast", dtype="float64")).start_all().finish()
    expected = simulate(run.plan, build_federation()).models
    torch.testing.assert_close(run.models, expected, rtol=1e-9, atol=1e-9)


# Silence.


def test_a_stopped_peer_is_represented_by_its_last_model_and_catches_up(deploy):
    run = deploy(describe_peers(peers={"staleness": "any", "deadline": 5.0}, rounds=150))
    run.start_all(a=run.slow_down(0.1))
    run.wait_for_round(2)
    run.send_signal("c", signal.SIGSTOP)
    stopped = run.find_round("c")
    run.wait(lambda: run.list_events("stands-in", "b", name="c"), "c's last model stands in")
    run.wait_for_round(stopped + 12, "abd")
    ages = [event.numbers["rounds_behind"] for event in run.list_events("stands-in", "b", name="c")]
    begin = max(place for place, age in enumerate(ages) if age == 1)
    assert ages[begin : begin + 4] == [1, 2, 4, 8]
    run.send_signal("c", signal.SIGCONT)
    run.wait(lambda: run.find_round("c") > stopped, "c continues")
    run.finish()
    assert {run.find_round(name) for name in "abcd"} == {150}
    assert run.list_events("stands-in", "d", name="c")
    assert not run.list_events("stands-in", "a", name="c")  # It is no neighbour of c.


def test_staleness_zero_waits_for_a_stopped_peer(deploy):
    run = deploy(describe_peers(peers={"deadline": 0.5}, rounds=30))
    run.start_all(a=run.slow_down(0.2))
    run.wait_for_round(2)
    run.send_signal("c", signal.SIGSTOP)
    time.sleep(2.0)  # four deadlines
    assert run.find_round("a") <= run.find_round("c") + 3
    run.send_signal("c", signal.SIGCONT)
    run.finish()
    assert not run.list_events("stands-in", "b")
    assert torch.equal(run.models, simulate(run.plan, build_federation()).models)


# Edges.


def test_a_newcomer_joins_and_a_peer_leaves(deploy, tmp_path):
    """The newcomer's request is signed; its neighbours admit it; nobody is restarted."""
    folders = KeyFolders(tmp_path)
    keys = {name: folders.sign_peer(name).folder for name in "abcd"}
    values = describe_peers("abc", {"deadline": 2.0}, rounds=20_000, seed=SEED, evaluate_every=0)
    run = deploy(values, keys)
    run.start_all(a=run.slow_down(0.05))
    run.write_rows("d")
    run.wait_for_round(2)
    run.start("request", ["peer", "plan.toml", "--name", "d", "--keys", keys["d"], "--neighbours", "a=2,b",
                          "--request-join", "join-d.json"])  # fmt: skip
    run.wait(lambda: run.poll("request") == 0, "the request is written")
    for name in "ab":
        run.start(f"admit {name}", ["admit", f"peer-{name}", "join-d.json"])
    run.start_peer("d", extra=["--join", "join-d.json"])
    run.wait(lambda: run.find_round("d") > 0, "d trains")
    began = run.find_round("d")
    assert began > 2
    assert [event.name for event in run.list_events("joined", "a")] == ["d"]
    run.wait_for_round(run.find_round("d") + 3)
    assert run.stop("c") == 0
    run.start_peer("c", extra=["--leave"])
    run.wait(lambda: run.poll("c") == 0, "c leaves")
    for name in "ab":
        run.wait(lambda name=name: run.list_events("left", name, name="c"), f"{name} knows it")
    run.start("eject", ["eject", "peer-a", "d"])
    run.wait(lambda: run.list_events("ejected", "a", name="d"), "a ejects d")
    run.wait(lambda: run.list_events("excluded", "d", name="a"), "d notices it")
    run.wait_for_round(run.find_round("b") + 3, "bd")
    # The edge between d and b remains; a trains alone with b.
    assert {one["name"] for one in read_checkpoint(run, "a")["neighbours"]} == {"b"}
    assert {one["name"] for one in read_checkpoint(run, "b")["neighbours"]} == {"a", "d"}
    assert run.stop("d") == 0
    run.start("eject again", ["eject", "peer-b", "d"])
    run.wait(lambda: run.list_events("ejected", "b", name="d"), "b ejects d, which is away")
    run.start_peer("d", extra=["--join", "join-d.json"])
    run.wait(lambda: run.list_events("excluded", "d", name="b"), "d hears it when it returns")
    run.wait(lambda: {one["name"] for one in read_checkpoint(run, "b")["neighbours"]} == {"a"}, "b is done")


def test_a_changed_request_is_refused(deploy, tmp_path):
    folders = KeyFolders(tmp_path)
    keys = {name: folders.sign_peer(name).folder for name in "abcd"}
    run = deploy(describe_peers("abc", rounds=300), keys)
    run.start_all(a=run.slow_down(0.5))
    run.wait_for_round(1)
    request = run.folder / "join-d.json"
    run.start("request", ["peer", "plan.toml", "--name", "d", "--keys", keys["d"], "--neighbours", "a",
                          "--request-join", request])  # fmt: skip
    run.wait(lambda: run.poll("request") == 0, "the request is written")
    request.write_text(request.read_text().replace("1.0", "9.0"))
    run.start("admit", ["admit", "peer-a", request])
    run.wait(lambda: run.poll("admit") is not None, "the command ends", without=("admit",))
    assert run.poll("admit") == 2
    assert "is not signed by it" in run.read_output("admit")
    del run.pids["admit"]


# Ends.


def test_sigterm_ends_a_peer_and_it_resumes(deploy):
    run = deploy(describe_peers(rounds=40))
    run.start_all(a=run.slow_down(0.3))
    run.wait_for_round(2)
    assert run.stop("b") == 0
    assert "repeat the command to resume" in run.read_output("b")
    run.wait(lambda: run.list_events("away", "a", name="b"), "a knows it")
    run.start_peer("b")
    run.finish()
    assert torch.equal(run.models, simulate(run.plan, build_federation()).models)


def test_permanent_errors_end_with_one_line_and_their_own_code(deploy):
    run = deploy(describe_peers(rounds=1000)).start_all(without="cd")

    def fail(owner, code, *parts):
        run.wait(lambda: run.poll(owner) is not None, f"{owner} ends", without=(owner,))
        lines = run.read_output(owner).splitlines()
        assert run.poll(owner) == code, lines
        errors = [line for line in lines if line.startswith("error: ")]
        assert len(errors) == 1, lines
        for part in parts:
            assert part in errors[0]
        del run.pids[owner]
        (run.folder / f"{owner}.out").unlink()

    run.start_peer("d", change=("set_peer_version", "0.0.1"))
    fail("d", ExitCode.OTHER_VERSION, "0.0.1", "install one version")
    shutil.rmtree(run.find_folder("d"))
    run.write_plan(run.values | {"seed": 77})
    run.start_peer("d")
    fail("d", ExitCode.OTHER_PLAN, "settings of the run", "one plan")
    run.write_plan(run.values)
    run.start("x", ["peer", "plan.toml", "--name", "x", "--data", "a.csv", "--insecure"])
    fail("x", 2, "not in the plan", "--join")
    run.start(
        "y", ["peer", "plan.toml", "--name", "c", "--data", "c.csv", "--insecure", "--folder", "peer-a"]
    )
    fail("y", 2, "peer-a")
    refused = run.list_events("refused", "a", reason=str(EventReason.OTHER_VERSION))
    assert refused
    run.write_plan(run.values | {"name": "lonely", "peers": run.values["peers"] | {"deadline": 0.5}})
    run.start("z", ["peer", "plan.toml", "--name", "d", "--data", "d.csv", "--insecure", "--folder", "peer-z",
                    "--listen", "127.0.0.1:0", "--patience", "1"])  # fmt: skip
    fail("z", ExitCode.NO_ANSWER, "heard of no neighbour for 1 seconds (--patience)")


def test_a_certificate_that_expires_during_a_run_is_renewed_and_the_run_continues(deploy, tmp_path):
    """The others wait for the peer whose certificate has expired, and no process is restarted."""
    folders = KeyFolders(tmp_path)
    keys = {name: folders.sign_peer(name).folder for name in "abcd"}
    run = deploy(describe_peers(rounds=40), keys)
    run.start_all(a=run.slow_down(0.5))
    run.wait_for_round(2)
    folders.sign_peer("c", lifetime=timedelta(seconds=3))
    run.wait(lambda: run.list_events("refused", "c", reason=str(EventReason.EXPIRED)), "c has expired")
    assert run.find_round("c") < 40
    folders.sign_peer("c")
    run.finish()
    assert not run.list_events("run-resumed", "c")
    assert len(run.list_events("certificate-renewed", "c")) == 2
    assert torch.equal(run.models, simulate(run.plan, build_federation()).models)


@pytest.mark.parametrize("cause", [pytest.param("renewed", marks=pytest.mark.slow), "revoked"])
def test_a_refused_certificate_removes_no_edge_and_a_copied_register_brings_the_link_back(
    cause, deploy, tmp_path
):
    """For longer than the deadline: a renewed certificate without its register, and a revoked one."""
    folders = KeyFolders(tmp_path)
    keys = {name: folders.sign_peer(name).folder for name in "abcd"}

    def copy_register():
        for folder in keys.values():
            (folder / REGISTER_NAME).unlink()
            shutil.copy(folders.authority / REGISTER_NAME, folder)

    copy_register()
    run = deploy(describe_peers(peers={"staleness": "any", "deadline": 1.0}, rounds=10**6), keys)
    run.start_all(**dict.fromkeys("abcd", run.slow_down(0.05)))
    run.wait_for_round(2)
    if cause == "renewed":
        for _ in range(ISSUES_AHEAD + 1):
            folders.sign_peer("b")
    else:
        revoke_certificates(folders.authority, "b")
        copy_register()
    for name in "ac":
        refusals = partial(run.list_events, "refused", name, name="b", reason=str(EventReason.NO_ACCESS))
        run.wait(refusals, f"{name} refuses b")
        run.wait(lambda name=name: find_age(run, name, "b") >= 16, "b's last model stands in")
    run.wait(lambda: find_age(run, "b", "a") >= 16, "the same at b")
    time.sleep(12.0)  # two more attempts, each longer than the deadline after the last one
    status = see_neighbour(run, "a", "b")
    assert status.state == "refused"
    assert "copy the authority's register" in status.problem
    if cause == "revoked":
        folders.sign_peer("b")
    pairs = ("ab", "cb", "ba", "bc")
    frozen = {pair: see_neighbour(run, *pair).round for pair in pairs}
    copy_register()
    for pair in pairs:
        run.wait(lambda pair=pair: see_neighbour(run, *pair).round > frozen[pair] + 3, f"models: {pair}")
        # A link may break once more as sessions reopen.
        run.wait(lambda pair=pair: see_neighbour(run, *pair).problem == "", f"a link: {pair}")
    assert all(run.list_events("register-changed", name) for name in "ac")
    for name in "abcd":
        assert len(read_checkpoint(run, name)["neighbours"]) == 2
        for event in ("left", "ejected", "excluded", "forgotten-edge"):
            assert not run.list_events(event, name)


def see_neighbour(run, name, neighbour):
    """Return a neighbour as a peer's status has it."""
    return read_status(run.find_folder(name)).clients[neighbour]


def find_age(run, name, neighbour):
    """Return how many rounds old a neighbour's last model is, as the log has it last."""
    events = run.list_events("stands-in", name, name=neighbour)
    return events[-1].numbers["rounds_behind"] if events else 0


# The demonstration.


@pytest.mark.slow
def test_the_demonstration_ends_with_its_table(tmp_path):
    """Bit-identical models without a kill, and J of the simulation after one."""
    script = Path(__file__).parents[3] / "examples" / "deploy" / "demo_peers.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "demo")],
        capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = dict(
        re.findall(r"^(simulation|peers, staleness 0|peers, \w+ killed) .*?(\S+e[+-]\d+) ", done.stdout, re.M)
    )
    assert float(rows["simulation"]) == 0
    assert abs(float(rows["peers, staleness 0"])) <= 1e-12
    assert abs(float(rows["peers, southeast killed"])) <= BOUND
    late = re.search(r"^peers, southeast killed .* ([\d,]+)$", done.stdout, re.M)[1]
    assert int(late.replace(",", "")) > 0
    assert (tmp_path / "demo" / "with-a-kill" / "report" / "page.html").exists()
