"""Plans of peers: wrong settings are found when the plan is read, before any peer meets another."""

import pytest

from deployment_processes import format_toml
from fedlap.deploy.plan import Plan
from fedlap.errors import InputError
from peer_plans import build_peer_plan

ADDRESSES = {"a": "127.0.0.1:7001", "c": "127.0.0.1:7003"}


def write_plan(path, addresses=None, **changes):
    """Write a plan of four peers on a ring, with changes, and return its path."""
    values = build_peer_plan().describe()
    values = {key: value for key, value in values.items() if key not in ("peers", "algorithm", "graph")}
    values["data"] = {key: value for key, value in values["data"].items() if value is not None}
    values |= {"algorithm": {"name": "dfedu"}, "graph": {"name": "ring"}}
    values["peers"] = {"addresses": ADDRESSES if addresses is None else addresses}
    lines = [f"{key} = {format_toml(value)}" for key, value in (values | changes).items()]
    path.write_text("\n".join(lines) + "\n")
    return path


WRONG = [
    ({"algorithm": {"lr": -1.0}}, "algorithm.lr", "expected a finite number above zero"),
    ({"algorithm": {"compression": "float8"}}, "algorithm.compression", "use 'float16', 'int8'"),
    ({"algorithm": {"strength": 500.0}}, "algorithm.strength", "is too large"),
    ({"algorithm": {"strength": -1.0}}, "algorithm.strength", "-1"),
    ({"algorithm": {"local_steps": 0}}, "algorithm.local_steps", "at least 1"),
    ({"algorithm": {"exchanges": 0}}, "algorithm.exchanges", "at least 1"),
    ({"algorithm": {"exchanges": 2}}, "algorithm.exchanges", "mixing"),
    ({"model": {"name": "linear", "l2": -1.0}}, "model.l2", "-1"),
    ({"model": {"name": "mlp", "hidden": [0]}}, "model.hidden", "0"),
    ({"graph": {"name": "grid", "rows": 3}}, "graph", "rows"),
]


def describe_wrong(case):
    """Return changes of a plan; the method of all is dfedu."""
    changes = dict(case)
    if "algorithm" in changes:
        changes["algorithm"] = {"name": "dfedu", **changes["algorithm"]}
    return changes


@pytest.mark.parametrize(("case", "field", "words"), WRONG, ids=[str(case) for case, _, _ in WRONG])
def test_a_wrong_setting_is_refused_with_its_name(case, field, words, tmp_path):
    with pytest.raises(InputError) as caught:
        Plan.load(write_plan(tmp_path / "plan.toml", **describe_wrong(case)))
    assert field in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("command", ["check", "peer"])
def test_the_commands_refuse_it_before_there_is_a_folder(command, tmp_path, call):
    path = write_plan(tmp_path / "plan.toml", algorithm={"name": "dfedu", "lr": -1.0})
    plan = ["--plan", str(path)] if command == "check" else [str(path)]
    words = ["--name", "a", "--data", "a.csv", "--insecure", "--folder", str(tmp_path / "a")]
    code, out, err = call(command, *plan, *words, out=False)
    assert (code, out) == (2, "")
    assert "algorithm.lr = -1.0; expected a finite number above zero" in err
    assert not (tmp_path / "a").exists()


def test_an_edge_needs_an_address_at_one_end(tmp_path):
    Plan.load(write_plan(tmp_path / "plan.toml"))
    with pytest.raises(InputError, match=r"neither 'b' nor 'c' has an address, but they are neighbours"):
        Plan.load(write_plan(tmp_path / "plan.toml", addresses={"a": "127.0.0.1:7001"}))
    edges = tmp_path / "edges.csv"
    edges.write_text("from,to\na,b\na,d\na,c\n")
    graph = {"name": "file", "path": str(edges)}
    plan = Plan.load(write_plan(tmp_path / "plan.toml", addresses={"a": "127.0.0.1:7001"}, graph=graph))
    edges.unlink()
    assert Plan.of(plan.describe()).digest == plan.digest  # A stored plan needs no file.


def test_two_peers_with_one_address_are_named(tmp_path):
    addresses = {"a": "peer.example.org:7001", "b": "peer.example.org:7002", "c": "Peer.example.org:7001"}
    with pytest.raises(
        InputError, match=r"'a' and 'c' have one address, 'Peer\.example\.org:7001'"
    ) as caught:
        Plan.load(write_plan(tmp_path / "plan.toml", addresses=addresses))
    assert caught.value.field == "peers.addresses"
    Plan.load(write_plan(tmp_path / "plan.toml", addresses={**addresses, "c": "peer.example.org:7003"}))
