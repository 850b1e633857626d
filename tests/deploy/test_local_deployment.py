"""A run between a server and clients is the simulation, bit for bit, whatever happens to its messages."""

import errno
import os
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedlap as fl
from deployments import CrashError, LocalDeployment, simulate
from fedlap.deploy import client as client_module
from fedlap.deploy import failpoints
from fedlap.deploy.change_files import CHANGES_FOLDER, write_change_file
from fedlap.deploy.client_storage import ClientStorage
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.failpoints import CLIENT_POINTS, SERVER_POINTS
from fedlap.deploy.plan import Plan
from fedlap.deploy.roster_changes import RosterChange
from fedlap.deploy.server import DeploymentServer
from fedlap.deploy.site_tasks import SiteTasks
from fedlap.deploy.transport import ExitCode, PermanentError
from fedlap.deploy.wire import ANSWERS, Message, decode_message, encode_message
from fedlap.training.worker import Worker
from method_kinds import SERVER_METHODS
from random_inputs import random_arrays
from worker_processes import cut_client

COUNTS = (9, 14, 6, 11)


def build_plan(algorithm="fedu", real=False, **changes):
    labels = {"task": "regression"} if real else {"task": "classification", "labels": ["x", "y", "z"]}
    data = {"label": "y", "features": ["u", "v", "w", "t"], **labels}
    section = algorithm if isinstance(algorithm, dict) else {"name": algorithm}
    values = {
        "name": "test", "clients": list("abcd"), "rounds": 4, "batch": 4, "evaluate_every": 2, "seed": 5,
        "data": {**data, **changes.pop("data", {})}, "algorithm": section,
        "graph": {"name": "ring"}, "limits": {"deadline": 30.0}, **changes,
    }  # fmt: skip
    if algorithm in ("fedper", "fedrep"):
        values["model"] = {"name": "mlp", "hidden": [5]}
    return Plan.of(values)


def build_federation(real=False):
    arrays = random_arrays(COUNTS, labels=1 if real else 3, real=real)
    labels = None if real else ["x", "y", "z"]
    return fl.Federation.from_arrays(arrays, test_share=0.25, seed=5, labels=labels, scale="none")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Skip the pauses between attempts, and waiting for the disk: no power is cut here."""
    monkeypatch.setattr(client_module, "FIRST_DELAY", 0.0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.mark.parametrize("algorithm", SERVER_METHODS)
@pytest.mark.parametrize("sample", [0.5, pytest.param(1.0, marks=pytest.mark.slow)])
def test_every_server_method_repeats_the_simulation(algorithm, sample, tmp_path):
    plan, federation = build_plan(algorithm, sample=sample), build_federation()
    deployment = LocalDeployment(tmp_path, plan, federation).run()
    result = simulate(plan, federation)
    assert torch.equal(deployment.models, result.models)


@pytest.mark.parametrize("sample", [0.5, 1.0])
def test_blocks_of_strength_zero_stay_with_their_client(sample, tmp_path):
    algorithm = {"name": "fedu", "strength": {"1": 0.1}}
    plan = build_plan(algorithm=algorithm, sample=sample, model={"name": "mlp", "hidden": [5]})
    deployment = LocalDeployment(tmp_path, plan, build_federation()).run()
    result = simulate(plan, build_federation())
    assert torch.equal(deployment.models, result.models)
    assert deployment.coordinator.checkpoint.server.models.values.shape == (4, 25)
    assert deployment.coordinator.scores[-1].bytes_up == result.scores[-1].bytes_up


@pytest.mark.parametrize("algorithm", ["fedu", "perfedavg"])
def test_wide_networks_repeat_the_simulation(algorithm, tmp_path):
    """Products of large matrices depend on how memory is aligned; a client by itself has its row alone."""
    plan = build_plan(algorithm, rounds=2, model={"name": "mlp", "hidden": [100]})
    deployment = LocalDeployment(tmp_path, plan, build_federation()).run()
    result = simulate(plan, build_federation())
    assert torch.equal(deployment.models, result.models)
    assert [score.objective for score in deployment.coordinator.scores] == [
        score.objective for score in result.scores
    ]


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("scale", ["none", "client", "pooled"])
def test_scores_are_those_of_the_simulation(scale, real, tmp_path):
    plan, federation = build_plan(real=real, data={"scale": scale}), build_federation(real)
    deployment = LocalDeployment(tmp_path, plan, federation).run()
    result = simulate(plan, federation)
    assert torch.equal(deployment.models, result.models)
    assert [score.round for score in deployment.coordinator.scores] == [2, 4]
    for one, other in zip(deployment.coordinator.scores, result.scores, strict=True):
        found, expected = one.as_dict(), other.as_dict() | {"seconds": one.seconds}
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name] == (value if value is None else pytest.approx(value, rel=1e-12)), name


FAULTS = st.tuples(
    st.sampled_from(["none", "drop", "forget", "twice", "corrupt", "truncate", "replay"]),
    st.integers(0, 10_000),
)


# `make torture` sets more.
EXAMPLES = int(os.environ.get("FEDLAP_EXAMPLES", "12"))


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(
    st.lists(FAULTS, max_size=60),
    st.permutations("abcd"),
    st.sampled_from(["fedu", "scaffold", "mocha", "ditto"]),
)
def test_disturbed_messages_change_nothing(tmp_path_factory, script, order, algorithm):
    plan, federation = build_plan(algorithm), build_federation()
    deployment = LocalDeployment(tmp_path_factory.mktemp("run"), plan, federation, script).run(order)
    assert torch.equal(deployment.models, simulate(plan, federation).models)


POINTS = [
    *(point for point in SERVER_POINTS if not point.startswith(("server.task", "server.reply.ack"))),
    *CLIENT_POINTS,
]  # those of server.py, which is not part of this deployment, are passed in test_processes.py


@pytest.mark.parametrize("algorithm", [pytest.param("fedu", marks=pytest.mark.slow), "scaffold"])
@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_ends_anywhere_changes_nothing(point, algorithm, tmp_path, monkeypatch):
    def crash():
        raise CrashError

    monkeypatch.setattr(failpoints, "end_process", crash)
    monkeypatch.setattr(failpoints, "_passed", {})
    plan, federation = build_plan(algorithm), build_federation()
    expected = simulate(plan, federation)
    times = {"setup": 1, "score": 2}.get(point.split(".")[1], 3)
    monkeypatch.setenv(failpoints.VARIABLE, f"{point}:{times}")
    deployment = LocalDeployment(tmp_path, plan, federation).run()
    assert failpoints._passed[point] >= times, "the point was not passed"
    assert torch.equal(deployment.models, expected.models)
    assert [score.round for score in deployment.coordinator.scores] == [2, 4]


def test_the_decision_who_counts_survives_the_server(tmp_path, monkeypatch):
    """A client that the server left out before it ended does not count afterwards, although it is back."""

    def crash():
        raise CrashError

    monkeypatch.setattr(failpoints, "end_process", crash)
    plan, federation = build_plan("scaffold", rounds=3), build_federation()

    def train(folder, point):
        monkeypatch.setattr(failpoints, "_passed", {})
        monkeypatch.setenv(failpoints.VARIABLE, point)
        deployment = LocalDeployment(folder, plan, federation)
        for _ in range(40):
            if deployment.coordinator.round == 2:
                break
            for name in "abcd":
                deployment.step(name)
        for _ in range(2):  # c is silent beyond the deadline
            for name in "abd":
                deployment.step(name)
            deployment.advance(16.0)
        return deployment.run()

    unbroken = train(tmp_path / "one", "none")
    broken = train(tmp_path / "two", "server.merged:2")
    assert {"name": "c", "round": 2, "reason": EventReason.SILENT} in unbroken.list_events("left-out")
    assert unbroken.coordinator.checkpoint.left_out == broken.coordinator.checkpoint.left_out == {"c": 1}
    assert torch.equal(unbroken.models, broken.models)
    assert not torch.equal(unbroken.models, simulate(plan, federation).models)


def spoil_shape(up):
    return up[:, :-1]


def spoil_type(up):
    return up.double()


def spoil_value(up):
    return up.index_fill(1, torch.tensor([0]), float("nan"))


def spoil_norm(up):
    return up * 1e9


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (spoil_shape, EventReason.SHAPE),
        (spoil_type, EventReason.SHAPE),
        (spoil_value, EventReason.NOT_FINITE),
        (spoil_norm, EventReason.NORM),
    ],
)
def test_a_spoiled_reply_is_refused_and_counts_as_missing(spoil, reason, tmp_path, monkeypatch):
    plan, federation = build_plan(rounds=2), build_federation()
    local = Worker.local

    def train_badly(self, round, down, *, merged):
        up = local(self, round, down, merged=merged)
        return spoil(up) if self.client == "b" else up

    monkeypatch.setattr(Worker, "local", train_badly)
    deployment = LocalDeployment(tmp_path, plan, federation).run()
    assert deployment.coordinator.checkpoint.left_out == {"b": 2}
    assert {facts["reason"] for facts in deployment.list_events("left-out")} == {reason}
    assert bool(deployment.models.isfinite().all())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tally: tally._replace(test=(*tally.test[:2], tally.test[2].repeat(2), tally.test[3])),
        lambda tally: tally._replace(ridge=tally.ridge.float()),
        lambda tally: tally._replace(train=(*tally.train[:2], tally.train[2] + 1, tally.train[3])),
        lambda tally: tally._replace(test=(*tally.test[:2], -tally.test[2], tally.test[3])),
        lambda tally: tally._replace(test=(*tally.test[:2], tally.test[2] + 1, tally.test[3])),
        lambda tally: tally.ridge,
    ],
    ids=[
        "two clients",
        "float32",
        "more rows than registered",
        "a negative count",
        "more test rows",
        "no tally",
    ],
)
def test_spoiled_sums_are_refused_and_the_others_are_scored(spoil, tmp_path, monkeypatch):
    plan, federation, score = build_plan(), build_federation(), Worker.score
    monkeypatch.setattr(
        Worker, "score", lambda self, w: spoil(score(self, w)) if self.client == "b" else score(self, w)
    )
    deployment = LocalDeployment(tmp_path, plan, federation).run()
    assert [facts["clients"] for facts in deployment.list_events("scored")] == [3, 3]
    refused = [facts["reason"] for facts in deployment.list_events("refused")]
    assert refused == [EventReason.SHAPE] * 2
    assert torch.equal(deployment.models, simulate(plan, federation).models)


def test_every_answer_is_decoded_once(tmp_path, monkeypatch):
    decode, decoded, asked = SiteTasks.decode, [], []
    monkeypatch.setattr(SiteTasks, "decode", lambda self, content: decoded.append(1) or decode(self, content))
    deployment = LocalDeployment(tmp_path, build_plan(), build_federation())
    handle = deployment.handle
    deployment.handle = lambda name, content: asked.append(1) or handle(name, content)
    deployment.run()
    assert len(decoded) == len(asked) > 0


def test_unasked_and_late_replies_are_refused(tmp_path):
    plan, federation = build_plan(rounds=3), build_federation()
    deployment = LocalDeployment(tmp_path, plan, federation)
    for _ in range(2):
        for name in "abcd":
            deployment.step(name)
    up = torch.zeros(1, deployment.coordinator.setup.model.size)
    for round in (0, 7):
        content = encode_message(Message("reply", {"round": round, "setup": 1}, up))
        answer = decode_message(deployment.handle("a", content), ANSWERS)
        assert answer.kind == "refused"
    assert torch.equal(deployment.run().models, simulate(plan, federation).models)


def test_a_full_disk_declines_the_round_and_returns_later(tmp_path, monkeypatch):
    plan, federation = build_plan(rounds=3), build_federation()
    deployment = LocalDeployment(tmp_path, plan, federation)
    explain_no_room, full = ClientStorage.explain_no_room, {"full"}

    def refuse_twice(self, size):
        if self.folder.name == "b" and full:
            full.clear()
            return "the disk is full"
        return explain_no_room(self, size)

    monkeypatch.setattr(ClientStorage, "explain_no_room", refuse_twice)
    deployment.run()
    assert deployment.coordinator.checkpoint.left_out == {"b": 1}
    assert deployment.coordinator.checkpoint.merged == dict.fromkeys("abcd", 3)


def test_a_full_disk_stops_the_server_before_it_merges(tmp_path, monkeypatch):
    plan, federation = build_plan(rounds=2), build_federation()
    deployment = LocalDeployment(tmp_path, plan, federation)

    def refuse(*values, **named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("fedlap.training.state_bytes.replace_file", refuse)
        with pytest.raises(PermanentError) as caught:
            deployment.run()
    assert caught.value.code is ExitCode.STORAGE
    deployment.start_server()
    assert torch.equal(deployment.run().models, simulate(plan, federation).models)


def play_until(deployment, names, round):
    for _ in range(200):
        if deployment.coordinator.round >= round:
            return
        for name in names:
            deployment.step(name)
    raise AssertionError("the round was not reached")


@pytest.mark.parametrize(("algorithm", "sample"), [("fedu", 1.0), ("fedu-passing", 0.67)])
def test_a_newcomer_starts_at_its_neighbours_mean_and_a_leaver_is_gone(algorithm, sample, tmp_path):
    federation = build_federation()
    plan = build_plan(
        algorithm, rounds=6, clients=["a", "b", "c"], evaluate_every=0, graph={"name": "complete"},
        sample=sample,
    )  # fmt: skip
    deployment = LocalDeployment(tmp_path, plan, federation)
    play_until(deployment, "abc", 3)
    deployment.coordinator.request_change(RosterChange("join", "d", {"a": 1.0, "c": 3.0}))
    deployment.start_client("d")
    deployment.step("d")  # It registers.
    before = deployment.coordinator.checkpoint.server.models.values.clone()
    play_until(deployment, "abc", 4)
    setup = deployment.coordinator.setup
    assert (setup.version, setup.first_round, setup.clients) == (2, 4, ("a", "b", "c", "d"))
    after = deployment.coordinator.checkpoint.server.models.values
    assert torch.equal(after[3], (after[0] + 3 * after[2]) / 4)
    assert before.shape[0] == 3
    deployment.start_server()  # The server is restarted in between.
    assert deployment.coordinator.setup.version == 2
    deployment.clients["b"].leave(for_good=True)
    del deployment.clients["b"]
    play_until(deployment, "acd", 5)
    assert deployment.coordinator.setup.clients == ("a", "c", "d")
    deployment.run("acd")
    assert deployment.coordinator.finished == {"a", "c", "d"}


def test_changes_that_are_not_in_force_survive_the_server(tmp_path):
    plan = build_plan(rounds=6, clients=["a", "b", "c"], evaluate_every=0, graph={"name": "complete"})
    deployment = LocalDeployment(tmp_path, plan, build_federation())
    play_until(deployment, "abc", 2)
    for change in (RosterChange("join", "d"), RosterChange("eject", "b")):
        for _ in range(2):  # The second time changes nothing.
            deployment.coordinator.request_change(change)
        deployment.start_server()
    assert deployment.coordinator.setup.clients == ("a", "b", "c"), (
        "round 2 has the roster that it began with"
    )
    with pytest.raises(PermanentError):
        deployment.step("b")
    deployment.start_client("d")
    deployment.step("d")  # It registers.
    deployment.run("acd")
    assert deployment.coordinator.setup.clients == ("a", "c", "d")
    assert [facts["round"] for facts in deployment.list_events("joined")] == [3]
    assert deployment.coordinator.storage.read_pending() == []


def test_a_change_that_an_earlier_one_prevents_is_dropped(tmp_path):
    plan = build_plan(rounds=4, clients=["a", "b", "c"], evaluate_every=0)
    deployment = LocalDeployment(tmp_path, plan, build_federation())
    play_until(deployment, "abc", 2)
    deployment.coordinator.request_change(RosterChange("eject", "b"))
    deployment.coordinator.request_change(RosterChange("join", "d", {"b": 1.0}))
    deployment.start_client("d")
    deployment.step("d")
    deployment.run("ac")
    assert deployment.coordinator.setup.clients == ("a", "c")
    assert {facts["name"] for facts in deployment.list_events("not-changed")} == {"d"}


def test_the_last_client_cannot_leave(tmp_path):
    plan = build_plan(rounds=4, clients=["a"], evaluate_every=0, graph={"name": "complete"})
    deployment = LocalDeployment(tmp_path, plan, build_federation())
    play_until(deployment, "a", 2)
    with pytest.raises(PermanentError, match="is the last one"):
        deployment.clients["a"].leave(for_good=True)
    assert torch.equal(deployment.run().models, simulate(plan, cut_client(build_federation(), 0)).models)


@pytest.mark.parametrize("algorithm", ["scaffold", "afl", "fedu-learned", "mocha"])
def test_methods_whose_state_depends_on_the_number_of_clients_refuse_newcomers(algorithm, tmp_path):
    plan = build_plan(algorithm, clients=["a", "b", "c"], graph={"name": "complete"})
    deployment = LocalDeployment(tmp_path, plan, build_federation())
    play_until(deployment, "abc", 1)
    with pytest.raises(fl.InputError, match="depends on the number of clients"):
        deployment.coordinator.request_change(RosterChange("join", "d"))


def test_an_ejected_client_is_refused_and_other_plans_and_versions_too(tmp_path):
    plan, federation = build_plan(), build_federation()
    deployment = LocalDeployment(tmp_path, plan, federation)
    play_until(deployment, "abcd", 2)
    deployment.coordinator.request_change(RosterChange("eject", "b"))
    with pytest.raises(PermanentError) as caught:
        deployment.step("b")
    assert caught.value.code is ExitCode.REFUSED
    for facts, code in (
        ({"version": "0.0.0", "plan": ""}, ExitCode.OTHER_VERSION),
        ({"version": fl.__version__, "plan": "f" * 64}, ExitCode.OTHER_PLAN),
    ):
        answer = decode_message(deployment.handle("a", encode_message(Message("hello", facts))), ANSWERS)
        assert (answer.kind, answer.facts["code"]) == ("refused", code)
    deployment.run("acd")


def test_a_server_of_another_plan_or_format_does_not_load_the_folder(tmp_path):
    plan, federation = build_plan(), build_federation()
    deployment = LocalDeployment(tmp_path, plan, federation)
    play_until(deployment, "abcd", 2)
    deployment.plan = build_plan(seed=6)
    with pytest.raises(PermanentError) as caught:
        deployment.start_server()
    assert caught.value.code is ExitCode.OTHER_PLAN


def test_an_unfinished_file_of_a_killed_server_is_no_reply(tmp_path):
    plan, federation = build_plan(rounds=3), build_federation()
    deployment = LocalDeployment(tmp_path, plan, federation)
    play_until(deployment, "abcd", 2)
    deployment.step("a")
    replies = tmp_path / "server" / "replies"
    (stored,) = replies.glob("[0-9]*.state")
    unfinished = replies / ".fedlap-04115b94-18298-8db275dd32bd992c-1.state"
    for content in (stored.read_bytes(), stored.read_bytes()[:20], b""):
        unfinished.write_bytes(content)
        deployment.start_server()
        assert list(deployment.coordinator.open_round.replies) == [0]
        assert not unfinished.exists()
    assert torch.equal(deployment.run().models, simulate(plan, federation).models)


def test_a_change_that_is_still_written_is_left_alone(tmp_path):
    deployment = LocalDeployment(tmp_path, build_plan(graph={"name": "complete"}), build_federation())
    play_until(deployment, "abcd", 2)
    folder = tmp_path / "server"
    write_change_file(folder, RosterChange("eject", "b").to_dict())
    (written,) = (folder / CHANGES_FOLDER).glob("[0-9]*.json")
    unfinished = written.with_name(f".fedlap-04115b94-1-8db275dd32bd992c-{written.name}")
    unfinished.write_bytes(written.read_bytes()[:9])
    allowed, remarks = [], []
    transport = SimpleNamespace(allow=allowed.append)
    DeploymentServer(deployment.coordinator, transport, deployment.log, say=remarks.append)._take_changes()
    assert (allowed, remarks) == ([["a", "c", "d"]], [])
    assert unfinished.exists()
    assert not written.exists()
