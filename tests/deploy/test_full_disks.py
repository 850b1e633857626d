"""Disks that are full or read-only, on real file systems: small ones in memory, mounted for a test alone.

Nothing is patched: the system refuses a write with ENOSPC or EROFS, in the middle of a file too.
"""

import pytest
import torch

from deployment_processes import SERVER, DeploymentProcesses, build_federation, describe_plan
from deployments import LocalDeployment, read_model, simulate, train_cohorts
from fedlap.deploy.client import SiteClient
from fedlap.deploy.event_log import EVENT_LOG_FILE, EventLog, read_events
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.plan import Plan
from fedlap.deploy.run_state import ASK_AGAIN_SECONDS, Phase
from fedlap.deploy.run_storage import COHORT_FILE, REPLIES_FOLDER
from fedlap.deploy.transport import ExitCode, PermanentError
from fedlap.training.worker import Worker
from peer_networks import PeerNetwork
from peer_plans import build_peer_plan, build_peer_rows
from ports import find_ports
from private_mounts import PrivateMounts, fill, find_mounting_problem, list_unfinished, make_room
from process_starter import ProcessStarter

pytestmark = pytest.mark.skipif(bool(find_mounting_problem()), reason=find_mounting_problem())
WIDE = {"model": {"name": "mlp", "hidden": [300]}}  # 9.6 kB per model: a write can end in its middle
ALL = {"deadline": 60.0, "minimum": 4}


@pytest.fixture(scope="module")
def mounts():
    with PrivateMounts() as mounts:
        yield mounts


@pytest.fixture
def disk(mounts, tmp_path):
    """Mount a disk for a deployment, and smaller ones on its folders; return how they are reached."""
    run = tmp_path / "run"
    run.mkdir()
    mounts.mount(run, "size=64m")

    def mount(name, size):
        mounts.show(run / name).mkdir()
        mounts.mount(run / name, f"size={size}")
        return mounts.show(run / name)

    return mount


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr(SiteClient, "_pause", lambda self, seconds: None)


def build_local(mounts, tmp_path, algorithm="fedu", **changes):
    plan = Plan.of(describe_plan(algorithm, **{"rounds": 4, "evaluate_every": 2, **changes}))
    return LocalDeployment(mounts.show(tmp_path / "run"), plan, build_federation())


def play_until(deployment, round):
    """Take steps until a round begins; its first client has not answered then."""
    for _ in range(500):
        if deployment.coordinator.round >= round:
            return
        for name in deployment.plan.clients:
            deployment.step(name)
    raise AssertionError(f"round {round} does not begin")


# Within this process.


def test_a_server_on_a_full_disk_stops_before_it_merges_and_continues(mounts, disk, tmp_path):
    """It stops at every write of a round, as the free pages decide; each time it loses nothing."""
    server, places = disk(SERVER, "1m"), set()
    deployment = build_local(mounts, tmp_path, "scaffold", rounds=12, **WIDE)
    for pages in (0, 1, 4, 5, 9, 19, 20, 21, 25):
        play_until(deployment, deployment.coordinator.round + 1)
        fill(server, pages)
        with pytest.raises(PermanentError, match="No space left on device") as caught:
            deployment.run()
        assert caught.value.code is ExitCode.STORAGE
        assert list_unfinished(server) == []
        places.add((len(list((server / REPLIES_FOLDER).iterdir())), (server / COHORT_FILE).exists()))
        make_room(server)
        deployment.start_server()
    assert {(0, False), (1, False), (4, False), (4, True)} <= places
    assert torch.equal(deployment.run().models, simulate(deployment.plan, build_federation()).models)


@pytest.mark.deploy
def test_a_server_on_a_read_only_disk_stops_and_continues(mounts, disk, tmp_path):
    disk(SERVER, "1m")
    deployment = build_local(mounts, tmp_path)
    play_until(deployment, 3)
    mounts.remount(tmp_path / "run" / SERVER, "ro")
    for act in (deployment.run, deployment.start_server):
        with pytest.raises(PermanentError, match="Read-only file system") as caught:
            act()
        assert caught.value.code is ExitCode.STORAGE
    mounts.remount(tmp_path / "run" / SERVER, "rw")
    deployment.start_server()
    assert torch.equal(deployment.run().models, simulate(deployment.plan, build_federation()).models)


@pytest.mark.parametrize("kind", ["full", pytest.param("read-only", marks=pytest.mark.deploy)])
def test_a_client_declines_before_it_trains_and_returns(kind, mounts, disk, tmp_path, no_pauses, monkeypatch):
    folder, trained, local = disk("b", "16m"), [], Worker.local

    def note(self, round, down, *, merged):
        trained.append((self.client, round))
        return local(self, round, down, merged=merged)

    monkeypatch.setattr(Worker, "local", note)
    deployment = build_local(mounts, tmp_path, rounds=8)
    play_until(deployment, 3)
    fill(folder, 100) if kind == "full" else mounts.remount(tmp_path / "run" / "b", "ro")
    play_until(deployment, 6)
    make_room(folder) if kind == "full" else mounts.remount(tmp_path / "run" / "b", "rw")
    deployment.run()
    missed = [facts["round"] for facts in deployment.list_events("left-out")]
    assert missed == [3, 4, 5]
    assert [round for name, round in trained if name == "b"] == [1, 2, 6, 7, 8]
    cohorts = ["acd" if round in missed else "abcd" for round in range(1, 9)]
    expected = train_cohorts(deployment.plan, build_federation(), cohorts)
    assert torch.equal(deployment.models, expected)
    assert not torch.equal(expected, simulate(deployment.plan, build_federation()).models)


@pytest.mark.deploy
@pytest.mark.parametrize("algorithm", ["fedu", "scaffold"])
def test_a_disk_that_becomes_full_while_a_client_trains(
    algorithm, mounts, disk, tmp_path, no_pauses, monkeypatch
):
    """The state or the reply does not fit, as the free pages decide; the round waits for the minimum."""
    cases = {"fedu": (0, 1, 2), "scaffold": (0, 1, 4, 7, 0)}  # pages; with 7 the state fits, the reply not
    folder, local, free = disk("b", "16m"), Worker.local, []

    def train_and_fill(self, round, down, *, merged):
        if self.client == "b" and free:
            fill(folder, free.pop())
        return local(self, round, down, merged=merged)

    monkeypatch.setattr(Worker, "local", train_and_fill)
    deployment = build_local(mounts, tmp_path, algorithm, limits=ALL, **WIDE)
    play_until(deployment, 1)
    for name in "acd":
        deployment.step(name)
    for count, pages in enumerate(cases[algorithm]):
        free.append(pages)
        deployment.step("b")  # It trains, and finds no room.
        assert free == []
        assert list_unfinished(folder) == []
        deployment.advance(ASK_AGAIN_SECONDS)
        deployment.step("b")  # There is still no room, so that it declines before it trains.
        assert len(deployment.list_events("round-declined")) == 2 * (count + 1)
        make_room(folder)
        deployment.advance(ASK_AGAIN_SECONDS)
    assert deployment.coordinator.round == 1
    deployment.run()
    assert not deployment.list_events("left-out")
    assert torch.equal(deployment.models, simulate(deployment.plan, build_federation()).models)


@pytest.mark.deploy
def test_a_model_that_finds_no_room_keeps_the_earlier_one_and_the_run_waits(
    mounts, disk, tmp_path, no_pauses
):
    folder = disk("b", "16m")
    deployment = build_local(mounts, tmp_path, **WIDE)
    play_until(deployment, 3)  # Round 2 is scored, and b has its model.
    earlier = read_model(folder)
    for pages in (0, 1, 2, 3):
        fill(folder, pages)
        for _ in range(12):
            for name in deployment.plan.clients:
                deployment.step(name)
        assert deployment.coordinator.phase is Phase.FINISHING
        assert deployment.coordinator.finished == set("acd")
        assert [score.round for score in deployment.coordinator.scores] == [2, 4]
        assert torch.equal(read_model(folder), earlier)
        assert list_unfinished(folder) == []
        make_room(folder)
    deployment.run()
    cohorts = ["abcd", "abcd", "acd", "acd"]
    assert torch.equal(deployment.models, train_cohorts(deployment.plan, build_federation(), cohorts))


@pytest.mark.deploy
def test_a_client_that_starts_on_a_full_disk_takes_part_when_there_is_room(mounts, disk, tmp_path, no_pauses):
    """Its folder has the plan already, so that nothing needs to be written before the first round."""
    folder = disk("b", "16m")
    deployment = build_local(mounts, tmp_path, limits=ALL)
    play_until(deployment, 3)
    fill(folder)
    deployment.start_client("b")
    for name in "abcdabcdabcd":
        deployment.step(name)
    assert deployment.coordinator.round == 3
    make_room(folder)
    deployment.advance(ASK_AGAIN_SECONDS)
    assert torch.equal(deployment.run().models, simulate(deployment.plan, build_federation()).models)


def test_a_log_on_a_full_disk_counts_its_gap(mounts, disk):
    """A line that fits only in part ends where the disk did; the next one begins a new line."""
    folder, shown = disk("log", "64k"), []
    log = EventLog(folder / EVENT_LOG_FILE, "test", ["b"], show=shown.append)
    fill(folder, 1)
    for _ in range(100):  # 4,096 bytes have no room for 100 lines, and the last line in them is cut.
        log.write("answered", name="b", round=1)
    make_room(folder)
    for round in (2, 3):
        log.write("answered", name="b", round=round)
    log.close()
    events = read_events(folder)
    written = [event for event in events if event.round == 1]
    gaps = [event.numbers["events"] for event in events if event.event == "log-gap"]
    assert gaps == [100 - len(written)]
    assert [event.round for event in events[-2:]] == [2, 3]
    assert len([line for line in shown if "cannot be written" in line]) == 1


@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_a_peer_waits_for_room_and_its_neighbours_for_it(kind, mounts, disk, tmp_path):
    """With staleness 0, so that it ends as the simulation; the free pages decide which write fails."""
    folder, run = disk("b", "1m"), tmp_path / "run"
    plan = build_peer_plan(rounds=20, evaluate_every=1, algorithm={"name": "dfedu", "local_steps": 1}, **WIDE)
    network = PeerNetwork(mounts.show(run), plan, build_peer_rows())
    for pages in (0, 1, 4, 9, 12) if kind == "full" else (0, 0):
        network.reach(network.runs["b"].round + 2)
        before = len(network.list_events("round-declined", "b"))
        fill(folder, pages) if kind == "full" else mounts.remount(run / "b", "ro")
        for _ in range(25):
            network.sweep()
        declined = network.list_events("round-declined", "b")[before:]
        assert {facts["reason"] for facts in declined} == {EventReason.STORAGE}
        assert {network.runs[name].round - network.runs["b"].round for name in "ac"} <= {0, 1}
        assert list_unfinished(folder) == []
        network.kill("b")
        make_room(folder) if kind == "full" else mounts.remount(run / "b", "rw")
        network.start("b")
    assert torch.equal(network.run().models, simulate(plan, build_peer_rows()).models)
    assert not network.list_events("stands-in")


# Real processes.


@pytest.fixture(scope="module")
def private_starter(mounts):
    """The process that starts all processes, which see the mounts."""
    starter = ProcessStarter(mounts.enter)
    yield starter
    starter.close()


@pytest.fixture
def processes(private_starter, mounts, tmp_path):
    """Build deployments whose processes end with the test."""
    deployments = []

    def build(values):
        deployments.append(DeploymentProcesses(private_starter, mounts.show(tmp_path / "run"), values))
        return deployments[-1]

    yield build
    for deployment in deployments:
        deployment.close()


def expect_storage_error(deployment, reason):
    """Wait until the server ends by itself, with one line and its own exit code."""
    deployment.wait(lambda: deployment.poll(SERVER) is not None, "the server ends", without=(SERVER,))
    lines = deployment.read_output(SERVER).splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert deployment.poll(SERVER) == ExitCode.STORAGE, lines
    assert len(errors) == 1, errors
    assert reason in errors[0]
    assert "Traceback" not in lines
    (deployment.folder / f"{SERVER}.out").unlink()


@pytest.mark.deploy
def test_a_server_process_on_a_full_and_on_a_read_only_disk(processes, mounts, disk, tmp_path):
    server = disk(SERVER, "1m")
    values = describe_plan("scaffold", rounds=80, evaluate_every=5, limits=ALL, **WIDE)
    deployment = processes(values)
    deployment.start_all(a=deployment.slow_down(0.2))
    for pages in (0, 2, 13, 16):
        deployment.wait_for_round(deployment.round + 2)
        fill(server, pages)
        expect_storage_error(deployment, "No space left on device")
        assert list_unfinished(server) == []
        make_room(server)
        deployment.start_server()
    deployment.wait_for_round(deployment.round + 2)
    mounts.cover(tmp_path / "run" / SERVER)
    expect_storage_error(deployment, "Read-only file system")
    mounts.uncover(tmp_path / "run" / SERVER)
    mounts.remount(tmp_path / "run" / SERVER, "ro")  # No process has a file open now.
    deployment.start_server()
    expect_storage_error(deployment, "Read-only file system")
    mounts.remount(tmp_path / "run" / SERVER, "rw")
    assert deployment.round < 80
    deployment.start_server()
    deployment.finish()
    assert torch.equal(deployment.models, simulate(deployment.plan, build_federation()).models)


@pytest.mark.deploy
@pytest.mark.parametrize("kind", ["full", pytest.param("read-only", marks=pytest.mark.slow)])
def test_a_client_process_declines_and_returns(kind, processes, mounts, disk, tmp_path):
    folder = disk("client-b", "16m")
    deployment = processes(describe_plan(rounds=60, evaluate_every=3))
    deployment.start_all(a=deployment.slow_down(0.2))
    deployment.wait_for_round(2)
    fill(folder, 100) if kind == "full" else mounts.cover(tmp_path / "run" / "client-b")
    deployment.wait(lambda: deployment.list_events("declined", name="b"), "b declines")
    deployment.wait_for_round(deployment.round + 8)  # The others continue, and rounds are scored.
    make_room(folder) if kind == "full" else mounts.uncover(tmp_path / "run" / "client-b")
    last = deployment.list_events("left-out")[-1].round
    deployment.wait(
        lambda: any(event.round > last for event in deployment.list_events("answered", name="b")), "b is back"
    )
    deployment.finish()
    missed = {(event.round, event.name) for event in deployment.list_events("left-out")}
    assert {name for _, name in missed} == {"b"}
    assert len(missed) >= 8
    assert {event.reason for event in deployment.list_events("left-out")} == {"declined by the client"}
    assert not deployment.list_events("sent", "b", round=min(missed)[0])
    cohorts = [[n for n in "abcd" if (round, n) not in missed] for round in range(1, 61)]
    assert torch.equal(deployment.models, train_cohorts(deployment.plan, build_federation(), cohorts))


@pytest.mark.deploy
def test_a_log_that_cannot_be_written_ends_no_run(processes, mounts, disk, tmp_path):
    """The log alone is read-only, at the server and at a client."""
    deployment = processes(describe_plan("scaffold", rounds=6))
    for owner in (SERVER, "client-b"):
        folder = disk(owner, "16m")
        (folder / EVENT_LOG_FILE).touch()
        mounts.cover(tmp_path / "run" / owner / EVENT_LOG_FILE)
    deployment.port = find_ports(1)[0]  # which is read from the log otherwise
    deployment.start_all().finish()
    for owner in (SERVER, "b"):
        assert deployment.read_output(owner).count("log.jsonl cannot be written (Read-only file system)") == 1
    assert torch.equal(deployment.models, simulate(deployment.plan, build_federation()).models)
