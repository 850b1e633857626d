"""Killed processes and broken connections change nothing: the end of a run is that of the simulation.

`make torture` kills processes at twenty random times each.
"""

import os
import random
import struct
import time

import pytest
import torch

from deployment_processes import SERVER, build_federation, describe_plan, write_rows
from deployments import simulate
from fedlap.deploy.client_storage import MODEL_FILE
from fedlap.deploy.failpoints import CLIENT_POINTS, SERVER_POINTS
from fedlap.deploy.transport import ExitCode
from relay import Relay

pytestmark = pytest.mark.deploy
KILLS = int(os.environ.get("FEDLAP_KILLS", "3"))


def check_end(deployment):
    """Check that every round counted every client, and that the models are those of the simulation."""
    assert deployment.round == deployment.plan.rounds
    assert not deployment.list_events("left-out")
    answers = [(event.round, event.name) for event in deployment.list_events("answered")]
    assert len(answers) == len(set(answers)), "a reply that the server had on disk was asked for again"
    assert torch.equal(deployment.models, simulate(deployment.plan, build_federation()).models)


# Killed processes.


@pytest.mark.parametrize("algorithm", ["scaffold", "fedu"])
@pytest.mark.parametrize(("owner", "points"), [(SERVER, SERVER_POINTS), ("b", CLIENT_POINTS)])
def test_a_process_that_is_killed_anywhere_changes_nothing(owner, points, algorithm, deploy):
    """One run passes all points: after each kill, the restarted process is killed at the next one."""
    deployment = deploy(describe_plan(algorithm, rounds=40, evaluate_every=2))
    deployment.start_server(points[0] if owner == SERVER else "")
    for name in "abcd":
        deployment.start_client(name, points[0] if owner == name else "")
    assert deployment.supervise({owner: points}) == list(points)
    check_end(deployment)


def test_processes_that_are_killed_at_random_times_change_nothing(deploy):
    draw = random.Random(f"kills {KILLS}")
    deployment = deploy(describe_plan("scaffold", rounds=20 + 20 * KILLS, evaluate_every=3))
    slow = deployment.slow_down(0.05)
    deployment.start_all(**dict.fromkeys("abcd", slow))
    for number in range(KILLS):
        # The last round merged before each kill is known; the time after it is random.
        deployment.wait_for_round(20 * number + draw.randint(5, 15))
        victims = draw.choice([[SERVER], ["b"], [SERVER, "c"], ["a", "d"]])
        time.sleep(draw.uniform(0.0, 0.1))
        deployment.kill(*victims)
        for victim in victims:
            deployment.start_server() if victim == SERVER else deployment.start_client(victim, change=slow)
    deployment.finish()
    check_end(deployment)


# Broken connections.


def test_a_broken_connection_changes_nothing(deploy):
    deployment = deploy(describe_plan("scaffold", rounds=80, evaluate_every=10))
    deployment.start_all(without="b", a=deployment.slow_down(0.1))
    with Relay(deployment.port) as relay:
        deployment.start_client("b", port=relay.port)
        deployment.wait_for_round(3)
        breaks = [
            ("cut", "up", 700),
            ("cut", "down", 1100),
            ("truncate", "up", 1500),
            ("truncate", "down", 90),
        ]
        for number, (kind, direction, count) in enumerate(breaks, start=1):
            (relay.cut_after if kind == "cut" else relay.truncate_after)(direction, count)
            deployment.wait(lambda number=number: relay.ended >= number, f"{kind} {direction}")
            deployment.wait_for_round(deployment.round + 2)
        for disturb in (relay.stall, lambda: relay.hold("down", 1), lambda: relay.hold("up", 1)):
            disturb()
            wait_for_standstill(deployment)
            before = deployment.round
            relay.release()
            deployment.wait_for_round(before + 2)
        assert deployment.round < 80, "the run ended before its last fault"
        deployment.finish()
        assert relay.ended == len(breaks)
        assert relay.accepted > len(breaks)
    assert deployment.list_events("unreachable", "b")
    check_end(deployment)


@pytest.mark.slow
def test_a_delayed_connection_changes_nothing(deploy):
    """The relay keeps the last chunk of each direction back until another one follows it."""
    deployment = deploy(describe_plan("scaffold", rounds=6, evaluate_every=3))
    deployment.start_all(without="b")
    with Relay(deployment.port) as relay:
        deployment.start_client("b", port=relay.port)
        deployment.wait(lambda: deployment.list_events("registered", name="b"), "b registers")
        for direction in ("up", "down"):
            relay.hold(direction, 1)
        before = deployment.round
        deployment.wait_for_round(before + 2)
        assert relay.accepted == 2, "the connection of b breaks"  # One more takes the limit of the plan over.
        relay.release()
        deployment.finish()
    assert before < 4
    assert not deployment.list_events("unreachable", "b")
    check_end(deployment)


@pytest.mark.slow
def test_a_stall_beyond_the_lease_changes_nothing(deploy):
    """Both sides of Zenoh close the connection, and the client dials again when the path is back."""
    deployment = deploy(describe_plan("scaffold", rounds=40, evaluate_every=10))
    deployment.start_all(without="b", a=deployment.slow_down(0.2))
    with Relay(deployment.port) as relay:
        deployment.start_client("b", port=relay.port)
        deployment.wait_for_round(3)
        before = relay.accepted
        relay.stall()
        deployment.wait(lambda: relay.accepted > before, "b dials again")
        stalled = deployment.round
        deployment.wait(lambda: deployment.list_events("unreachable", "b"), "b has no answer")
        assert deployment.round == stalled < 40
        relay.release()
        deployment.finish()
    check_end(deployment)


def wait_for_standstill(deployment):
    """Wait until no round was merged for a second."""
    seen, since = deployment.round, time.monotonic()

    def is_still():
        nonlocal seen, since
        if deployment.round != seen:
            seen, since = deployment.round, time.monotonic()
        return time.monotonic() - since > 1.0

    deployment.wait(is_still, "the run stands still")


# Values of rows.

SECRET_NUMBER, SECRET_TEXT = 8123.456789012, "Vogelsang-4711"


def test_no_value_of_a_row_is_in_any_log_message_or_file(deploy):
    """A marked row with an error in it is refused, and without it trained on; no trace has its values."""
    deployment = deploy(describe_plan("scaffold", rounds=4, evaluate_every=2))
    rows = deployment.folder / "b.csv"
    write_rows(rows, "b", extra=SECRET_TEXT)
    good = rows.read_text().replace("\n", f"\n{SECRET_NUMBER!r},1.5,-0.5,0.25,x,{SECRET_TEXT}\n", 1)
    dump = ("dump_messages", str(deployment.folder / "messages.dump"))
    deployment.start_all(without="b")
    for wrong in (
        good.replace(f",x,{SECRET_TEXT}", f",{SECRET_TEXT},{SECRET_TEXT}"),  # a label that the plan has not
        good.replace("1.5,-0.5", f"{SECRET_TEXT},-0.5"),  # no number
        good.replace("1.5,-0.5", f'"{SECRET_TEXT},-0.5'),  # a quotation mark without its end
    ):
        assert wrong != good
        rows.write_text(wrong)
        deployment.start_client("b", change=dump)
        deployment.wait(lambda: deployment.poll("b") is not None, "b refuses its file", without="b")
        assert deployment.poll("b") == ExitCode.OTHER_PLAN
    rows.write_text(good)
    deployment.start_client("b", change=dump)
    deployment.finish()
    traces = [
        path for path in deployment.folder.rglob("*")
        if path.is_file() and path.suffix != ".csv" and not path.name.startswith(MODEL_FILE.split(".")[0])
    ]  # fmt: skip
    names = {path.name for path in traces}
    assert {"messages.dump", "log.jsonl", "status.json", "checkpoint.state", "plan.json", "b.out"} <= names
    number = repr(SECRET_NUMBER)
    marks = [SECRET_TEXT, "Vogelsang", number, number[:8], f"{SECRET_NUMBER:g}", f"{SECRET_NUMBER:.4f}"]
    forms = [mark.encode() for mark in marks]
    forms += [struct.pack(kind, SECRET_NUMBER) for kind in ("<f", ">f", "<d", ">d")]
    for path in traces:
        content = path.read_bytes()
        for form in forms:
            assert form not in content, f"{path.relative_to(deployment.folder)} has {form!r}"
