"""Mistakes in commands of a run without a server: one line says what is wrong and what to do."""

import json
import os

import pytest

from fedlap.deploy.change_files import take_change_files
from fedlap.deploy.peers.storage import PeerStorage
from peer_networks import PeerNetwork
from peer_plans import build_peer_plan, build_peer_rows

PLAN = """\
name = "test"
clients = ["a", "b"]
[algorithm]
name = "dfedu"
[data]
label = "y"
features = ["u"]
task = "regression"
[peers.addresses]
a = "127.0.0.1:7001"
"""


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return str(path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of peer a, whose neighbours are b and d."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    network = PeerNetwork(tmp_path, build_peer_plan(), build_peer_rows()).reach(1)
    network.runs["a"].storage.write_identity("a", None)
    return tmp_path / "a"


def read_error(call, *words):
    """Return the one line with which a command ends."""
    code, out, err = call(*words, out=False)
    assert (code, out) == (2, "")
    assert err.endswith("\n")
    line = " ".join(err.split())  # a console folds long lines
    assert line.startswith("error: ")
    return line


def test_a_missing_plan_is_named_once(call, tmp_path):
    path = str(tmp_path / "nope.toml")
    line = read_error(call, "peer", path, "--name", "a", "--data", "a.csv", "--insecure")
    assert line.count("nope.toml") == 1
    assert line.endswith("cannot be read: No such file or directory; pass the file of the plan")


def test_a_mistyped_name_takes_no_folder(call, plan, tmp_path):
    words = ("--data", "a.csv", "--insecure", "--folder", str(tmp_path / "peer"))
    line = read_error(call, "peer", plan, "--name", "aa", *words)
    assert "'aa' is not in the plan; expected one of a, b" in line
    assert not (tmp_path / "peer").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "names at least one neighbour; add --neighbours"),
        (("--neighbours", "a=0"), "the weight of the edge to 'a'"),
        (("--neighbours", "a=x"), "'x' is not a number"),
    ],
)
def test_a_request_that_nobody_could_admit_is_not_written(words, expected, call, plan, tmp_path):
    request = tmp_path / "c.json"
    ask = ("peer", plan, "--name", "c", "--insecure", "--request-join", str(request))
    assert expected in read_error(call, *ask, *words)
    assert not request.exists()
    code, out, err = call(*ask, "--neighbours", "a,B=0.5", out=False)
    assert code == 0
    assert "'B' is not in the plan; did you mean 'b'? otherwise it must be a newcomer, too" in err
    code, out, err = call(*ask, "--neighbours", "a,west", out=False)
    assert "'west' is not in the plan, so it must be a newcomer, too" in err
    code, out, _ = call(*ask, "--neighbours", "a,b=0.5", out=False)
    assert code == 0
    assert "give it to a, b" in out
    assert json.loads(request.read_text())["neighbours"] == {"a": 1.0, "b": 0.5}


def test_only_a_neighbour_is_ejected(call, folder):
    line = read_error(call, "eject", str(folder), "c")
    assert line == "error: 'c' is no neighbour of 'a'; expected one of b, d"
    assert "fedlap peer --leave" in read_error(call, "eject", str(folder), "a")
    assert not list(take_change_files(folder))
    assert call("eject", str(folder), "b", out=False)[0] == 0
    (change,) = take_change_files(folder)
    assert (change["kind"], change["name"]) == ("eject", "b")


def test_a_peer_admits_the_file_of_a_request(call, folder, tmp_path):
    missing = read_error(call, "admit", str(folder), "e")
    assert "cannot be read: No such file or directory" in missing
    assert "--request-join" in missing
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert "is not a request to join" in read_error(call, "admit", str(folder), str(other))
    line = read_error(call, "admit", str(folder), str(other), "--neighbours", "b")
    assert "--neighbours is for a run with a server" in line


def test_a_forgotten_peer_says_who_keeps_models(call, folder, plan):
    words = ("peer", plan, "--name", "a", "--folder", str(folder), "--forget")
    code, out, _ = call(*words, out=False)
    assert code == 0
    assert not folder.exists()
    assert "neighbours keep the last model" in " ".join(out.split())
    assert "nothing was deleted" in read_error(call, *words)


def test_the_folder_among_several_that_is_no_peer_s_is_named(call, folder, tmp_path):
    other, waiting = tmp_path / "other", tmp_path / "waiting"
    other.mkdir()
    PeerStorage(waiting).prepare()
    PeerStorage(waiting).write_identity("x", None)  # It has never met its neighbours.
    for words, named in (
        ((folder, other), other),
        ((waiting, folder), waiting),
        ((waiting, waiting), waiting),
    ):
        line = read_error(call, "report", *map(str, words))
        assert f"{str(named)!r} is no folder of a peer that has started" in line


def test_a_neighbour_of_a_peer_that_compresses_is_ejected(call, tmp_path, monkeypatch):
    """The command reads the neighbours of a checkpoint, whose state has tuples of the method."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    plan = build_peer_plan(algorithm={"name": "dfedu", "compression": "int8"})
    PeerNetwork(tmp_path, plan, build_peer_rows()).reach(1)
    PeerStorage(tmp_path / "a").write_identity("a", None)
    assert call("eject", str(tmp_path / "a"), "b", out=False)[0] == 0
    assert "expected one of b, d" in read_error(call, "eject", str(tmp_path / "a"), "c")
