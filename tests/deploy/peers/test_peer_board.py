"""The status of a peer: itself and its neighbours, in every stage, in a file and in the command."""

import io
import json
import os
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from fedlap.deploy.peers.changes import EdgeChange
from fedlap.deploy.peers.peer_board import PeerBoard
from fedlap.deploy.status import read_status, write_status
from fedlap.deploy.status_display import describe_refusals, describe_waiting, render_status
from fedlap.deploy.transport import ExitCode
from peer_networks import TICK, PeerNetwork
from peer_plans import build_peer_plan, build_peer_rows


@pytest.fixture(autouse=True)
def no_waits_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


PATIENT = {"staleness": "any", "deadline": 15.0}


def observe(network, name):
    return PeerBoard(network.runs[name], None, None).observe(network.now)


def list_states(network, name):
    return {other: client.state for other, client in observe(network, name).clients.items()}


def test_before_the_first_round_a_peer_waits_for_neighbours_and_for_records(tmp_path):
    network = PeerNetwork(tmp_path, build_peer_plan(), build_peer_rows(), names="ab")
    network.sweep()
    network.sweep()
    status = observe(network, "a")
    assert (status.peer, status.phase, status.round, status.rounds) == ("a", "gathering", 0, 6)
    assert {name: client.state for name, client in status.clients.items()} == {
        "a": "idle", "b": "idle", "d": "absent",
    }  # fmt: skip
    assert (status.awaited, status.unheard) == (("b", "d"), ("c",))
    assert describe_waiting(status, network.now).endswith("and c (its record has not arrived)")
    assert "d (not connected yet)" in describe_waiting(status, network.now)
    assert [client.rows for client in status.clients.values()] == [7, 0, 0]
    assert status.clients["b"].last_seen == network.now


def test_a_restarted_peer_waits_for_its_neighbours_alone(tmp_path):
    """The records of the first round are not needed any more, nor one of the peer itself."""
    network = PeerNetwork(tmp_path, build_peer_plan(), build_peer_rows()).reach(3)
    network.kill("a")
    network.start("a")
    status = observe(network, "a")
    assert (status.phase, status.awaited, status.unheard) == ("gathering", ("b", "d"), ())


def test_in_the_rounds_the_numbers_are_those_of_the_run(tmp_path):
    network = PeerNetwork(tmp_path, build_peer_plan(), build_peer_rows()).reach(3)
    run, status = network.runs["a"], observe(network, "a")
    assert (status.phase, status.round) == ("training", run.round + 1)
    rows = dict(zip("abcd", build_peer_rows().train.count.tolist(), strict=True))
    for name in "bd":
        neighbour, client = run.peer.neighbours[name], status.clients[name]
        assert (client.rows, client.round, client.age) == (rows[name], neighbour.newest.round, 0)
        assert (client.bytes_up, client.bytes_down) == (neighbour.bytes_up, neighbour.bytes_down)
        assert client.bytes_down > 0
    assert status.bytes_down == sum(one.bytes_down for one in run.peer.neighbours.values())
    assert (status.clients["a"].bytes_up, status.clients["a"].round) == (0, run.round)
    assert status.scored_round == 2
    assert status.scores["loss"] == pytest.approx(
        float(run.last_tally[1].test[0] / run.last_tally[1].test[2]), rel=1e-12
    )
    assert set(status.scores) == {"loss", "accuracy"}


def test_a_peer_trains_waits_and_finishes(tmp_path):
    network = PeerNetwork(tmp_path, build_peer_plan(), build_peer_rows()).reach(2)
    run = network.runs["a"]
    run.advance(network.now)
    network.kill("b")
    network.kill("d")
    while run.peer.turn is None:
        assert list_states(network, "a")["a"] == "training"
        network.sweep()
    assert list_states(network, "a")["a"] == "waiting"
    for name in "bd":
        network.start(name)
    network.run()
    assert list_states(network, "a") == {"a": "done", "b": "done", "d": "done"}


def test_a_dead_neighbour_is_absent_or_late(tmp_path):
    for name, peers in (("absent", {"staleness": 0}), ("late", PATIENT)):
        network = PeerNetwork(tmp_path / name, build_peer_plan(peers=peers), build_peer_rows()).reach(2)
        network.kill("b")
        board = PeerBoard(network.runs["a"], None, None)
        for _ in range(6):
            network.sweep()
            status = board.observe(network.now)
        assert status.clients["b"].state == name
        assert status.clients["b"].since < network.now - 2 * TICK  # since then, whatever the round
        assert status.clients["d"].state != name
        run = network.runs["a"]
        assert status.clients["b"].age == run.round - run.peer.neighbours["b"].newest.round
        assert (status.clients["b"].age > 0) == (name == "late")


def test_a_neighbour_with_another_plan_or_a_bad_model_is_refused(tmp_path):
    network = PeerNetwork(tmp_path, build_peer_plan(peers=PATIENT), build_peer_rows()).reach(2)

    def spoil(sender, receiver, message):
        is_chosen = message.kind == "model" and (sender, receiver) == ("b", "a")
        return message._replace(state=torch.full_like(message.state, torch.nan)) if is_chosen else message

    network.change = spoil
    network.run_until(lambda: network.list_events("refused", "a"))
    states = list_states(network, "a")
    assert states["b"] == "refused"
    assert states["d"] != "refused"
    network.runs["c"].links["b"].note_failure("another plan", network.now, ExitCode.OTHER_PLAN)
    assert list_states(network, "c")["b"] == "refused"
    network.change = lambda sender, receiver, message: message
    network.reach(5)
    assert list_states(network, "a")["b"] != "refused"


def test_neighbours_whose_edges_are_removed_are_listed_and_their_bytes_count(tmp_path):
    network = PeerNetwork(tmp_path, build_peer_plan(peers=PATIENT), build_peer_rows()).reach(2)
    network.runs["a"].request_change(EdgeChange("eject", "b"))
    network.reach(4)
    assert list_states(network, "a")["b"] == list_states(network, "b")["a"] == "removed"
    assert list_states(network, "a")["d"] not in ("left", "removed")
    # The neighbour knows that the edge is removed, and that its end is still in the run.
    assert [facts["name"] for facts in network.list_events("excluded", "b")] == ["a"]
    assert not network.list_events("left")
    network.runs["a"].request_change(EdgeChange("leave", "d"))
    assert list_states(network, "a")["d"] == "left"
    sent, received = network.runs["a"].peer.former_bytes
    status = observe(network, "a")
    assert (status.bytes_up, status.bytes_down) == (sent, received)
    assert min(sent, received) > 0
    write_status(tmp_path / "a", status, network.now)
    stored = read_status(tmp_path / "a")
    assert (stored.bytes_up, stored.bytes_down) == (sent, received)


def test_the_status_names_the_cause_of_a_refusal(tmp_path):
    network = PeerNetwork(tmp_path, build_peer_plan(peers=PATIENT), build_peer_rows()).reach(2)
    link, cause = network.runs["a"].links["b"], "the certificate b:6 of b is revoked; copy the register"
    link.note_failure(cause, network.now, ExitCode.REFUSED)
    network.runs["a"].links["d"].note_failure("it does not answer", network.now, 0)
    write_status(tmp_path / "a", observe(network, "a"), network.now)
    stored = read_status(tmp_path / "a")
    assert (stored.clients["b"].state, stored.clients["b"].problem) == ("refused", cause)
    assert describe_refusals(stored) == [f"b: {cause}"]
    console = Console(file=io.StringIO(), width=200)
    console.print(render_status(stored, network.now))
    assert f"b: {cause}" in console.file.getvalue()
    link.note_answer(network.now)
    assert describe_refusals(observe(network, "a")) == []


def test_the_board_writes_the_file_that_the_command_shows(tmp_path, call):
    console = Console(file=io.StringIO(), width=200)
    network = PeerNetwork(tmp_path, build_peer_plan(), build_peer_rows()).reach(3)
    run = network.runs["a"]
    with PeerBoard.show(tmp_path / "a", run, console, clock=lambda: network.now) as board:
        assert read_status(tmp_path / "a").phase == "training"
        code, out, err = call("status", str(tmp_path / "a"), out=False)
        assert (code, err) == (0, "")
        assert "test, peer a: round 4/6" in out
        assert "a (this peer)" in out
        assert "received" in out
        board.update(network.now)
        network.run()
    assert read_status(tmp_path / "a").phase == "done"
    assert "test, peer a: round 6/6, done; sent 720 B" in console.file.getvalue().splitlines()[-1]
    code, out, err = call("status", str(tmp_path / "a"), "--json", out=False)
    facts = json.loads(out)
    assert (facts["peer"], facts["phase"], facts["bytes_up"]) == ("a", "done", 720)
    assert [name for name, client in facts["clients"].items() if client["state"] == "done"] == ["a", "b", "d"]


def test_a_stopped_peer_says_so(tmp_path):
    network = PeerNetwork(tmp_path, build_peer_plan(), build_peer_rows(), names="a")
    console = Console(file=io.StringIO(), width=200)
    with PeerBoard.show(tmp_path / "a", network.runs["a"], console, clock=lambda: network.now):
        pass
    status = read_status(tmp_path / "a")
    assert (status.phase, status.awaited, status.unheard) == ("stopped", (), ())
    old = replace(status, phase="training", written=network.now - 300.0)
    console.print(render_status(old, network.now))
    assert "the peer does not run, or its disk is full" in console.file.getvalue()


def test_an_unknown_refusal_code_is_shown_as_refused(tmp_path):
    network = PeerNetwork(tmp_path, build_peer_plan(), build_peer_rows(), names="a")
    link = network.runs["a"].links["b"]
    link.note_failure("not admitted", 1.0, ExitCode.REFUSED)
    assert list_states(network, "a")["b"] == "refused"
    link.note_answer(2.0)
    assert list_states(network, "a")["b"] == "idle"
