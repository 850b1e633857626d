"""An edge is removed by a signed statement or by silence alone, and both its ends get to know it."""

import os

import pytest

from fedlap.deploy.peers.asking import note_failure
from fedlap.deploy.peers.changes import EdgeChange
from fedlap.deploy.peers.run_record import PeersRecord
from fedlap.deploy.peers.storage import PeerStorage
from fedlap.deploy.transport import ExitCode
from fedlap.deploy.wire import encode_message, refuse
from peer_networks import PeerNetwork, decode_answer
from peer_plans import build_peer_plan, build_peer_rows

ANY = {"staleness": "any", "deadline": 15.0}


@pytest.fixture(autouse=True)
def no_waits_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def network(tmp_path):
    """Four peers on a ring, in their third round."""

    def start(peers=ANY, rounds=40):
        plan = build_peer_plan(peers=peers, rounds=rounds, evaluate_every=0)
        return PeerNetwork(tmp_path, plan, build_peer_rows()).reach(2)

    return start


def refuse_certificates(network, one, other):
    """Make the transport of two peers refuse each other's certificates."""

    def disturb(network, run, neighbour, content):
        if {run.name, neighbour} != {one, other}:
            return network.carry(run, neighbour, content)
        note_failure(run, neighbour, "the certificate is refused", ExitCode.REFUSED, network.now)
        return b""

    network.disturb = disturb


def reconnect(network):
    network.disturb = PeerNetwork.carry


def eject(network, name, neighbour):
    network.runs[name].request_change(EdgeChange("eject", neighbour))


def list_removals(network):
    """Return which peer has removed the edge to which neighbour, and by which event."""
    kinds = ("left", "ejected", "excluded", "forgotten-edge")
    return [(name, event, facts["name"]) for name, event, facts in network.events if event in kinds]


# Refused certificates.


def test_a_refused_certificate_removes_no_edge_and_the_link_comes_back(network):
    network = network()
    begin = network.runs["a"].round
    refuse_certificates(network, "a", "b")
    network.run_until(lambda: network.runs["a"].round > begin + 8)  # each round takes more than a deadline
    refused = network.list_events("refused", "a")
    assert [facts["name"] for facts in refused] == ["b"]  # once, for as long as the problem is the same
    assert ("a", "b: the certificate is refused") in network.texts
    assert network.list_events("stands-in", "a")
    reconnect(network)
    network.run_until(lambda: network.list_events("returned", "a") and network.list_events("returned", "b"))
    network.reach(network.runs["a"].round + 2)
    for one, other in ("ab", "ba"):
        neighbour = network.runs[one].peer.neighbours[other]
        assert neighbour.is_active(network.runs[one].peer.next_turn)
        assert not neighbour.is_late
    assert list_removals(network) == []


def test_with_staleness_zero_a_refused_certificate_stops_the_run_until_it_is_accepted(network, tmp_path):
    network = network({"staleness": 0, "deadline": 15.0}, rounds=6)
    refuse_certificates(network, "a", "b")
    for _ in range(20):
        network.sweep()
    assert max(run.round for run in network.runs.values()) < 6
    assert network.runs["a"].list_awaited(network.now) == ["b"]
    reconnect(network)
    network.run()
    assert list_removals(network) == []
    assert not network.list_events("stands-in")


def test_refused_neighbours_are_forgotten_like_silent_ones(network):
    network = network({**ANY, "forget": 3})
    refuse_certificates(network, "a", "b")
    network.run_until(lambda: len(list_removals(network)) == 2)
    assert sorted(list_removals(network)) == [("a", "forgotten-edge", "b"), ("b", "forgotten-edge", "a")]


# Statements that the neighbour has to hear.


@pytest.mark.parametrize("staleness", [0, "any"])
def test_a_peer_that_is_ejected_while_it_is_away_hears_so_when_it_returns(staleness, network, tmp_path):
    network = network({"staleness": staleness, "deadline": 15.0})
    network.kill("b")
    eject(network, "a", "b")
    for _ in range(8):
        network.sweep()
    network.kill("a")  # Its checkpoint has the statement that b has not heard.
    PeerStorage(tmp_path / "a").write_identity("a", None)
    edge = next(
        edge for edge in PeersRecord.read([tmp_path / "a"]).edges if {edge.one, edge.other} == {"a", "b"}
    )
    assert edge.removed is not None
    network.start("a")
    for _ in range(4):
        network.sweep()
    assert list_removals(network) == [("a", "ejected", "b")]
    assert "b" not in network.runs["a"].list_awaited(network.now)
    network.start("b")
    network.run_until(lambda: len(list_removals(network)) == 2)
    assert list_removals(network)[1] == ("b", "excluded", "a")
    network.run_until(lambda: "b" not in network.runs["a"].links)
    assert PeerStorage(tmp_path / "a").list_neighbours() == ["d"]
    assert PeerStorage(tmp_path / "b").list_neighbours() == ["c"]
    network.run()
    assert {run.round for run in network.runs.values()} == {40}


def test_a_question_of_an_ejected_peer_is_refused_and_brings_it_the_statement_at_once(network):
    network = network()
    refuse_certificates(network, "a", "b")
    eject(network, "a", "b")
    for _ in range(3):
        network.sweep()
    link, kinds = network.runs["a"].links["b"], []
    link.next_ask = network.now + 1e6  # without the question, it would hear nothing for long

    def disturb(network, run, neighbour, content):
        answer = network.carry(run, neighbour, content)
        if (run.name, neighbour) == ("b", "a"):
            facts = decode_answer(answer).facts
            kinds.append((facts["reason"], facts["code"]))
        return answer

    network.disturb = disturb
    network.run_until(lambda: ("b", "excluded", "a") in list_removals(network))
    assert kinds == [("'a' has removed its edge to 'b'", ExitCode.REFUSED)]


def test_the_statement_is_repeated_until_it_is_stored(network):
    """An answer is lost, the neighbour's disk is full, and then it has heard it."""
    network = network()
    answers = [b"", encode_message(refuse("the disk is full; ask again")), None]

    def disturb(network, run, neighbour, content):
        if (run.name, neighbour) != ("a", "b") or not run.is_removed("b") or run.links["b"].asked != "change":
            return network.carry(run, neighbour, content)
        answer = answers.pop(0)
        return network.carry(run, neighbour, content) if answer is None else answer

    network.disturb = disturb
    eject(network, "a", "b")
    network.run_until(lambda: not answers)
    assert ("b", "excluded", "a") in list_removals(network)
    assert "b" not in network.runs["a"].links


def test_two_peers_that_eject_each_other_are_done_with_it(network):
    network = network()
    eject(network, "a", "b")
    eject(network, "b", "a")
    network.run_until(lambda: "b" not in network.runs["a"].links and "a" not in network.runs["b"].links)
    assert list_removals(network) == [("a", "ejected", "b"), ("b", "ejected", "a")]


def test_an_edge_is_ejected_once(network):
    network = network()
    refuse_certificates(network, "a", "b")
    eject(network, "a", "b")
    eject(network, "a", "b")
    assert network.runs["a"].is_removed("b")  # It is still to hear it.
    assert list_removals(network) == [("a", "ejected", "b")]
