"""Stored replies that a power cut loses or damages, and who is awaited then; clients that leave a round."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from deployment_processes import build_federation, describe_plan
from deployments import LocalDeployment, simulate, train_cohorts
from fedlap.deploy import client as client_module
from fedlap.deploy import coordinator
from fedlap.deploy.change_files import write_change_file
from fedlap.deploy.check import ConnectionChecker, check_data
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.message_sizes import build_first_setup, measure_messages
from fedlap.deploy.plan import Plan
from fedlap.deploy.roster_changes import RosterChange
from fedlap.deploy.roster_requests import accept_change
from fedlap.deploy.run_state import Phase
from fedlap.deploy.run_storage import CHECKPOINT_FILE, COHORT_FILE, REPLIES_FOLDER, RunStorage
from fedlap.deploy.server import DeploymentServer
from fedlap.deploy.server_board import ServerBoard, choose_state
from fedlap.deploy.status_display import describe_waiting
from fedlap.deploy.transport import PermanentError
from fedlap.deploy.wire import ANSWERS, Message, decode_message, encode_message
from fedlap.errors import InputError


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(client_module, "FIRST_DELAY", 0.0)


class EndedError(Exception):
    """The server has ended."""


def end_server(*values):
    raise EndedError


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Build a deployment whose server stops in round 2, before or after the decision who counts."""

    def build(algorithm="scaffold", decided=False, rounds=3, answered="abc", **changes):
        plan = Plan.of(describe_plan(algorithm, rounds=rounds, **changes))
        deployment = LocalDeployment(tmp_path, plan, build_federation())
        while deployment.coordinator.round < 2:
            for name in "abcd":
                deployment.step(name)
        while len(deployment.coordinator.open_round.replies) < len(answered):
            for name in answered:
                deployment.step(name)
        if decided:
            with monkeypatch.context() as patch:
                patch.setattr(coordinator, "merge_round", end_server)
                with pytest.raises(EndedError):
                    deployment.step("d")
            deployment.start_client("d")
            assert (tmp_path / "server" / COHORT_FILE).exists()
        return deployment

    return build


def find_reply(deployment, name):
    place = deployment.plan.clients.index(name)
    return deployment.folder / "server" / REPLIES_FOLDER / f"{place}.state"


def spoil(path, how):
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "truncated": content[:-9], "short": content[:30]}[how])


@pytest.mark.parametrize("decided", [False, True])
@pytest.mark.parametrize("how", ["empty", "truncated", "short", "missing"])
def test_a_lost_reply_is_asked_for_again(how, decided, build):
    deployment = build(decided=decided)
    spoil(find_reply(deployment, "b"), how)
    deployment.start_server()
    opened = deployment.coordinator.open_round
    assert (opened.number, sorted(opened.replies)) == (2, [0, 2, 3] if decided else [0, 2])
    assert not find_reply(deployment, "b").exists()
    # Without a decision, nobody knows that there was a reply whose file is gone.
    expected = [] if how == "missing" and not decided else [{"name": "b", "round": 2}]
    assert deployment.list_events("reply-lost") == expected
    assert deployment.coordinator.list_awaited(0.0) == (["b"] if decided else ["b", "d"])
    deployment.run()
    assert not deployment.list_events("left-out")
    assert torch.equal(deployment.models, simulate(deployment.plan, build_federation()).models)


def test_damaged_replies_of_an_earlier_round_are_removed(build):
    deployment = build()
    spare = find_reply(deployment, "d")
    spare.write_bytes(b"")
    find_reply(deployment, "a").with_name("77.state").write_bytes(b"")
    deployment.start_server()
    assert {facts["name"] for facts in deployment.list_events("reply-lost")} == {"d"}
    assert not spare.exists()
    assert torch.equal(deployment.run().models, simulate(deployment.plan, build_federation()).models)


def test_a_decided_round_waits_for_a_lost_reply_and_says_so(build):
    deployment = build(decided=True)
    find_reply(deployment, "d").unlink()
    deployment.start_server()
    run = deployment.coordinator
    for _ in range(3):
        for name in "abc":
            deployment.step(name)
        deployment.advance(61.0)
    assert (run.round, run.list_awaited(deployment.now)) == (2, ["d"])
    status = ServerBoard(run, None, None).observe(deployment.now)
    assert describe_waiting(status, deployment.now) == "waiting for d (not connected yet)"
    deployment.start_client("d")  # Whenever it is back, the round continues as decided.
    assert torch.equal(deployment.run().models, simulate(deployment.plan, build_federation()).models)


def test_an_ejected_client_ends_the_wait_for_its_lost_reply_also_after_a_restart(build):
    deployment = build("fedu", decided=True, graph={"name": "complete"})
    find_reply(deployment, "d").unlink()
    deployment.start_server()
    run = deployment.coordinator
    run.request_change(RosterChange("eject", "d"))
    assert deployment.list_events("round-decided") == [{"round": 2, "replies": 3}]
    assert run.storage.read_cohort(2) == [0, 1, 2]
    deployment.start_server()  # before it merges
    assert deployment.coordinator.open_round.counted == [0, 1, 2]
    deployment.advance()
    left_out = {"name": "d", "round": 2, "reason": EventReason.EJECTED}
    assert left_out in deployment.list_events("left-out")
    expected = train_cohorts(deployment.plan, build_federation(), ["abcd", "abc"])
    assert torch.equal(deployment.coordinator.checkpoint.server.models.values[:3], expected[:3])
    deployment.run("abc")
    assert deployment.coordinator.setup.clients == ("a", "b", "c")


def test_a_decision_never_outlives_its_replies(build, monkeypatch):
    """All counted replies and their folder are on disk before the decision is."""
    deployment, synced = build(), []
    sync, write = os.fsync, RunStorage.write_cohort

    def note_sync(descriptor):
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    def check(self, round, counted):
        folder = self.folder / REPLIES_FOLDER
        assert {str(folder), *(str(folder / f"{place}.state") for place in counted)} <= {*synced}
        synced.append("decided")
        write(self, round, counted)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(RunStorage, "write_cohort", check)
    deployment.step("d")
    assert "decided" in synced
    assert deployment.coordinator.round == 3


# Clients that leave.


@pytest.mark.parametrize("kind", ["eject", "leave"])
def test_a_round_does_not_wait_for_replies_that_cannot_come(kind, build):
    """Four replies are needed, and one of the four clients is not part of the run any more."""
    deployment = build("fedu", limits={"deadline": 60.0, "minimum": 4}, graph={"name": "complete"})
    run = deployment.coordinator
    deployment.advance(61.0)
    assert (run.round, run.list_awaited(deployment.now)) == (2, ["d"])
    run.request_change(RosterChange(kind, "d"))
    deployment.advance()
    reason = EventReason.EJECTED if kind == "eject" else EventReason.LEFT
    assert deployment.list_events("left-out") == [{"name": "d", "round": 2, "reason": reason}]
    deployment.run("abc")
    assert deployment.coordinator.checkpoint.round == 3


def test_a_round_whose_whole_cohort_has_left_changes_nothing(tmp_path):
    values = describe_plan(rounds=12, sample=0.25, graph={"name": "complete"}, evaluate_every=0)
    deployment = LocalDeployment(tmp_path, Plan.of(values), build_federation())
    for name in "abcd":
        deployment.step(name)
    run = deployment.coordinator
    (place,) = run.open_round.cohort
    before = run.checkpoint.server.models.values.clone()
    run.request_change(RosterChange("eject", "abcd"[place]))
    deployment.advance()
    assert (run.checkpoint.round, run.round) == (1, 2)
    assert deployment.list_events("round-abandoned") == [{"round": 1, "replies": 0, "clients": 1}]
    assert torch.equal(run.checkpoint.server.models.values, before[[k for k in range(4) if k != place]])
    deployment.run([name for name in "abcd" if name != "abcd"[place]])


def test_a_client_that_says_that_it_leaves_is_not_called_silent(build):
    deployment = build()
    deployment.clients["d"].leave(for_good=False)
    deployment.advance()
    left_out = deployment.list_events("left-out")
    assert left_out == [{"name": "d", "round": 2, "reason": EventReason.AWAY}]


# fedlap check of a client that is away.


def test_a_check_does_not_make_a_round_wait_for_a_client_that_is_away(build):
    deployment = build(answered="ab")
    run, transport = deployment.coordinator, deployment.clients["d"]._transport
    deployment.clients["d"].leave(for_good=False)
    deployment.events.clear()
    findings = list(ConnectionChecker(transport, lambda plan: None).check())
    assert [finding.problem for finding in findings] == ["", "", ""]
    assert run.sites["d"].is_away
    assert choose_state(run, run.sites["d"]) == "absent"
    assert run.list_awaited(deployment.now) == ["c"]
    assert not deployment.list_events("returned")
    assert not deployment.list_events("connected")


def test_a_check_before_the_run_does_not_count_as_a_connected_client(tmp_path):
    deployment = LocalDeployment(tmp_path, Plan.of(describe_plan()), build_federation())
    findings = list(ConnectionChecker(deployment.clients["d"]._transport, lambda plan: None).check())
    assert [finding.subject for finding in findings] == ["server", "clock", "round"]
    assert deployment.events == []
    assert deployment.coordinator.sites["d"].last_seen is None


@pytest.mark.parametrize("algorithm", ["scaffold", "fedfomo", "fedu"])
def test_a_check_exchanges_messages_of_the_true_sizes(algorithm, tmp_path, monkeypatch):
    """A message has the size of what the method sends and uploads in a round, in either direction."""
    model = {"name": "mlp", "hidden": [50]}
    plan = Plan.of(describe_plan(algorithm, model=model, rounds=2))
    deployment, sizes = LocalDeployment(tmp_path, plan, build_federation()), {}
    deliver = deployment.faults.deliver

    def note_sizes(name, content, handle):
        answer = deliver(name, content, handle)
        kind = decode_message(answer, ANSWERS, deployment.clients["a"]._tasks._types).kind
        sizes.setdefault((content.split(b'"')[3].decode(), kind), []).append((len(content), len(answer)))
        return answer

    monkeypatch.setattr(deployment.faults, "deliver", note_sizes)
    list(ConnectionChecker(deployment.clients["a"]._transport, lambda plan: None).check())
    ((up, down),) = sizes["probe", "probe"]
    deployment.run()
    for found, _ in sizes["reply", "ack"]:
        assert abs(found - up) < 40
    for _, found in sizes["poll", "train"]:
        assert abs(found - down) < 40
    models = {"scaffold": (2, 2), "fedfomo": (1, 3), "fedu": (1, 1)}[algorithm]
    size = 4 * plan.count_parameters()
    assert (up // size, down // size) == models


# The end.


def test_a_finished_run_that_is_served_again_is_done(build):
    deployment = build().run()
    (deployment.folder / "server" / CHECKPOINT_FILE).stat()
    deployment.events.clear()
    deployment.start_server()
    assert deployment.coordinator.phase is Phase.DONE
    assert deployment.events == []
    status = ServerBoard(deployment.coordinator, None, None).observe(0.0)
    assert status.phase == "done"


def test_a_server_that_restarts_at_the_end_waits_only_for_clients_without_their_model(build):
    deployment = build()
    while deployment.coordinator.finished != {"a", "b", "c"}:
        for name in "abc" if deployment.coordinator.phase is Phase.FINISHING else "abcd":
            deployment.step(name)
    deployment.start_server()
    assert deployment.coordinator.list_awaited(0.0) == ["d"]
    deployment.advance(61.0)  # d is silent: the run ends without it
    assert deployment.coordinator.phase is Phase.DONE
    deployment.start_server()
    run = deployment.coordinator
    assert (run.phase, run.list_awaited(deployment.now)) == (Phase.FINISHING, ["d"])
    assert ServerBoard(run, None, None).observe(deployment.now).phase == "done"
    deployment.run("d")
    assert torch.equal(deployment.models, simulate(deployment.plan, build_federation()).models)


# Messages that are too long, and changes that are refused.


@pytest.mark.parametrize("phase", [Phase.TRAINING, Phase.SCORING])
def test_a_client_whose_messages_are_too_long_counts_as_missing_at_once(phase, build):
    deployment = build(rounds=2)
    run = deployment.coordinator
    if phase is Phase.SCORING:
        while run.phase is not phase:
            deployment.step("d")
        for name in "abc":
            deployment.step(name)
    assert run.list_awaited(deployment.now) == ["d"]
    if phase is Phase.SCORING:  # A client that cannot be reached for a moment may still answer.
        run.leave_out("d", EventReason.UNREACHABLE)
        assert run.list_awaited(deployment.now) == ["d"]
    content = encode_message(Message("heartbeat")) + bytes(run.plan.limits.most_bytes)
    answer = decode_message(deployment.handle("d", content), ANSWERS)
    assert answer.kind == "refused"
    refused = {"name": "d", "round": 2, "reason": EventReason.TOO_LONG}
    assert deployment.list_events("refused") == [refused]
    if phase is Phase.TRAINING:
        assert deployment.list_events("left-out") == [refused]
    else:
        assert [facts["clients"] for facts in deployment.list_events("scored")] == [3]


def test_the_server_passes_the_name_of_too_long_a_message_on(build):
    """The transport reports the name of the certificate, and has not read the message."""
    deployment, answers = build(), []
    request = SimpleNamespace(name="d", content=b"", is_too_long=True, answer=answers.append)
    server = DeploymentServer(deployment.coordinator, SimpleNamespace(), deployment.log)
    server._handle(request, 0.0)
    (answer,) = answers
    assert decode_message(answer, ANSWERS).facts["reason"] == "the message is longer than 64,000,000 bytes"
    assert {"name": "d", "round": 2, "reason": EventReason.TOO_LONG} in deployment.list_events("refused")
    assert deployment.coordinator.open_round.missing == {3: EventReason.TOO_LONG}


def test_a_refused_change_is_logged_and_part_of_the_status(build):
    deployment = build("fedu", graph={"name": "complete"})
    run, remarks = deployment.coordinator, []
    transport = SimpleNamespace(allow=lambda names: None)
    server = DeploymentServer(run, transport, deployment.log, say=remarks.append)
    write_change_file(run.storage.folder, RosterChange("eject", "bb").to_dict())
    server._take_changes()
    assert deployment.list_events("change-refused") == [{"round": 2, "reason": EventReason.ROSTER}]
    status = ServerBoard(run, None, None).observe(0.0)
    assert [status.problem] == remarks
    assert "did you mean 'b'?" in status.problem
    write_change_file(run.storage.folder, RosterChange("eject", "b").to_dict())
    server._take_changes()
    assert ServerBoard(run, None, None).observe(0.0).problem == ""


# Limits of messages.


def test_a_limit_below_the_messages_of_a_run_is_refused_before_anybody_registers(tmp_path):
    """A model of 80 kB: the messages of a round do not fit into 20,000 bytes."""
    wide = describe_plan(model={"name": "mlp", "hidden": [2500]}, limits={"most_bytes": 20_000})
    with pytest.raises(ValueError, match="the longest message of this run has 80,") as caught:
        LocalDeployment(tmp_path, Plan.of(wide), build_federation())
    assert caught.value.field == "limits.most_bytes"
    assert not (tmp_path / "server").exists()


def test_a_change_that_makes_messages_too_long_is_refused():
    """Clients receive the graph, which grows with every newcomer."""
    names = [f"client-{k}" for k in range(60)]

    def build_setup(most_bytes):
        limits = {"most_bytes": most_bytes}
        return build_first_setup(
            Plan.of(describe_plan(clients=names, graph={"name": "complete"}, limits=limits))
        )

    longest = measure_messages(build_setup(10**6)).longest
    for spare, words in ((0, "limits: most_bytes = "), (2_000, "")):
        setup = build_setup(longest + spare)
        measure_messages(setup)
        run = SimpleNamespace(setups=[setup], setup=setup, changes=[], checkpoint=SimpleNamespace(round=1))
        with pytest.raises(InputError if words else AttributeError, match=words or "storage"):
            accept_change(run, RosterChange("join", "newcomer"))
        assert len(run.changes) == (0 if words else 1)


def test_rows_that_do_not_fit_the_plan_have_one_exit_code(tmp_path, monkeypatch):
    """The client ends with the code that `fedlap check` ends with."""
    deployment = LocalDeployment(tmp_path, Plan.of(describe_plan()), build_federation())

    def fail(data, seed):
        raise InputError("column 'y' is missing")

    monkeypatch.setattr(deployment.clients["a"]._tasks, "_load_site", fail)
    with pytest.raises(PermanentError, match="column 'y' is missing") as caught:
        deployment.step("a")
    assert caught.value.code == check_data(deployment.plan, fail).code == 15
