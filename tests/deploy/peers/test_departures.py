"""Departures: all neighbours hear of them at the same time, and a repeated command asks only the others."""

import os
import threading

import pytest
import typer

import fedlap.cli.peer as command
from fedlap.cli.exit_codes import EXIT_FAILED
from fedlap.deploy.peers.answering import answer_question
from fedlap.deploy.peers.run_record import PeersRecord
from fedlap.deploy.peers.storage import PeerStorage
from fedlap.deploy.transport import UnreachableError
from fedlap.deploy.wire import encode_message, refuse
from memory_links import MemoryLinks
from peer_networks import PeerNetwork
from peer_plans import build_peer_plan, build_peer_rows


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(command, "LEAVE_PATIENCE", 1.0)
    monkeypatch.setattr(command, "LEAVE_PAUSE", 0.01)


@pytest.fixture
def network(tmp_path):
    """Four peers in a complete graph, in their third round; each has three neighbours."""
    plan = build_peer_plan(peers={"staleness": "any"}, graph={"name": "complete"}, rounds=30)
    network = PeerNetwork(tmp_path, plan, build_peer_rows()).reach(2)
    for name in plan.clients:
        network.runs[name].storage.write_identity(name, None)
    return network


class AnsweringTransport:
    """A transport whose questions the peers of a network answer; others are absent."""

    def __init__(self, network, absent=()):
        self.network, self.absent, self.asked = network, absent, []

    def ask(self, neighbour, content, timeout):
        self.asked.append(neighbour)
        if neighbour in self.absent:
            raise UnreachableError(f"{neighbour} has not connected")
        return encode_message(
            answer_question(self.network.runs[neighbour], "a", content, self.network.now)[1]
        )


def leave(network, transport, capsys):
    """Return whether all neighbours of a know that it leaves, and what is printed."""
    code = 0
    try:
        command.leave_run(network.runs["a"], transport)
    except typer.Exit as error:
        code = error.exit_code
    printed = capsys.readouterr()
    assert code in (0, EXIT_FAILED)
    return code == 0, printed.out + printed.err


def test_absent_neighbours_are_waited_for_at_the_same_time(network, capsys, monkeypatch):
    """Each question waits until all neighbours are asked: one after another, nobody would get an answer."""
    everybody = threading.Barrier(3)
    monkeypatch.setattr(command, "LEAVE_PATIENCE", 60.0)

    class Meeting(AnsweringTransport):
        def ask(self, neighbour, content, timeout):
            everybody.wait(30.0)
            return super().ask(neighbour, content, timeout)

    assert leave(network, Meeting(network), capsys)[0]


def test_a_repeated_command_tells_those_alone_who_do_not_know(network, capsys, tmp_path):
    has_left, text = leave(network, AnsweringTransport(network, absent="cd"), capsys)
    assert not has_left
    assert "a: 1 of 3 neighbours know; repeat the command for c, d" in text
    assert text.count("c has not connected") == text.count("d has not connected") == 1
    assert "c: c" not in text
    network.start("a")
    assert set(network.runs["a"].links) == {"c", "d"}
    transport = AnsweringTransport(network)
    has_left, text = leave(network, transport, capsys)
    assert has_left
    assert "a: 2 of 2 neighbours know" in text
    assert sorted(transport.asked) == ["c", "d"]
    assert PeerStorage(tmp_path / "a").list_neighbours() == []
    assert {facts["name"] for facts in network.list_events("left")} == {"a"}
    edges = PeersRecord.read([tmp_path / name for name in "abcd"]).edges
    assert [edge.changes[0][1] for edge in edges if edge.removed is not None] == ["a leaves"] * 3
    assert [len(edge.changes) for edge in edges if edge.removed is not None] == [1] * 3


def test_a_refusal_is_no_knowledge(network, capsys):
    """A neighbour whose disk is full is asked again."""
    answers = [encode_message(refuse("the disk is full; ask again"))] * 2

    class Full(AnsweringTransport):
        def ask(self, neighbour, content, timeout):
            if neighbour == "b" and answers:
                self.asked.append("b")
                return answers.pop()
            return super().ask(neighbour, content, timeout)

    transport = Full(network)
    assert leave(network, transport, capsys)[0]
    assert transport.asked.count("b") == 3


def test_nobody_is_reached(network, capsys):
    has_left, text = leave(network, MemoryLinks().open("a"), capsys)
    assert not has_left
    assert "a: 0 of 3 neighbours know; repeat the command for b, c, d" in text
    assert set(network.runs["a"].links) == set("bcd")
    assert not network.list_events("left")
