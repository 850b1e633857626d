"""Rows for graphs, the control by a shuffled graph, and the advice where FedU does not lead."""

import json

import numpy as np
import pytest

import fedlap as fl
from example_scores import run
from fedlap.report import Comparison

DATA = ("--data", "synthetic", "--set", "data.clients=8", "--rounds", "3", "--seeds", "0-2")


def test_every_graph_is_a_row(call):
    words = ("--graph", "known,complete,shuffled", "--algorithms", "fedu,local", "--set", "graph.weight=0.5")
    code, out, _ = call("compare", *DATA, *words, "--json")
    assert code == 0
    facts = json.loads(out)
    assert list(facts["algorithms"]) == ["fedu (known)", "fedu (complete)", "fedu (shuffled)", "local"]
    assert facts["control_rows"] == [["fedu (known)", "fedu (shuffled)"]]
    (control,) = facts["comparisons"]["controls"]
    gap = [
        one["accuracy"] - other["accuracy"]
        for one, other in zip(
            *(facts["algorithms"][f"fedu ({name})"] for name in ("known", "shuffled")), strict=True
        )
    ]
    assert control["difference"] == pytest.approx(np.mean(gap))
    assert any(line.startswith("fedu (known) − fedu (shuffled) = ") for line in facts["verdict"])
    code, out, _ = call("report", facts["folder"], out=False)
    assert code == 0


def test_python_has_the_rows_of_the_command_line(call):
    _, out, _ = call("compare", *DATA, "--graph", "known,shuffled", "--algorithms", "fedu,local", "--json")
    data = {"name": "synthetic", "clients": 8}
    result = fl.compare(["fedu", "local"], data, graph=["known", "shuffled"], seeds=range(3), rounds=3)
    objects = fl.compare(
        {"fedu": lambda federation, graph: fl.FedU(graph), "local": fl.Local()},
        lambda seed: fl.data.synthetic(clients=8, seed=seed),
        graph=("known", "shuffled"),
        seeds=range(3),
        rounds=3,
    )
    wanted = json.loads(out)["comparisons"]
    assert json.loads(json.dumps(result.comparison.as_dict()))["comparisons"] == wanted
    assert json.loads(json.dumps(objects.comparison.as_dict()))["comparisons"] == wanted
    pair = ["fedu (known)", "fedu (shuffled)"]
    assert sorted(pair) in result.tests[["leader", "other"]].apply(sorted, axis=1).tolist()


def test_a_users_graph_is_shuffled_by_the_seed():
    clients = fl.data.synthetic(clients=8, seed=1)
    ring = fl.Graph.ring(clients.federation.clients)
    result = fl.compare(
        [fl.FedU], clients.federation, graph={"mine": ring, "control": "shuffled"}, seeds=[4], rounds=1
    )
    assert list(result.comparison.runs) == ["fedu (mine)", "fedu (control)"]
    used = list(result.results.values())[1][4].algorithm.graph
    assert np.array_equal(used.weights.matrix().toarray(), ring.shuffle(4).weights.matrix().toarray())


@pytest.mark.parametrize(
    ("known", "answer"),
    [
        ([0.81, 0.82, 0.80, 0.83], "this graph helps"),
        ([0.61, 0.62, 0.60, 0.63], "this graph harms"),
        ([0.70, 0.72, 0.70, 0.72], "not significant, so this graph is not shown to help"),
    ],
)
def test_the_verdict_answers_whether_the_graph_helps(known, answer):
    """Neither row leads, so the line is not among the leader's."""
    rows = {"known": known, "shuffled": [0.71, 0.72, 0.70, 0.71], "leader": [0.95, 0.94, 0.96, 0.93]}
    comparison = Comparison(
        "data",
        [0, 1, 2, 3],
        {name: [run(value) for value in values] for name, values in rows.items()},
        controls=(("known", "shuffled"),),
    )
    lines = [line for line in comparison.describe_verdict() if line.startswith("known − shuffled = ")]
    assert len(lines) == 1
    assert lines[0].endswith(answer)
    (test,) = comparison.compare_controls()
    assert test.pair.mean == pytest.approx(np.mean(known) - np.mean(rows["shuffled"]))


def test_advice_can_be_typed(call):
    words = ("compare", "--data", "digits", "--algorithms", "fedu,local", "--rounds", "2", "--seeds", "0,1")
    code, out, _ = call(*words, "--strength", "0.02")
    assert code == 0
    (line,) = [line for line in out.splitlines() if "does not lead" in line]
    assert line.startswith(
        "fedu does not lead; to improve it, tune every method (`fedlap compare --data digits"
    )
    assert "--tune`)" in line
    assert "--graph nearest" in line
    assert "--strength auto" in line
    assert call(*words, "--graph", "nearest", "--strength", "auto")[0] == 0


def test_a_leading_fedu_needs_no_advice():
    result = fl.compare(
        {"best": {"name": "fedu", "lr": 0.1}, "worst": {"name": "global", "lr": 1e-6}},
        "digits", seeds=[0, 1], rounds=3,
    )  # fmt: skip
    assert result.comparison.best == "best"
    assert result.advice == []


def test_a_sweep_varies_the_graph_as_a_comparison_does(call):
    """Rows, runs and the test of the graph against its shuffled form are those of `compare`."""
    words = ("--data", "radon", "--seeds", "0-1", "--rounds", "2", "--json")
    swept = json.loads(call("sweep", *words, "--vary", "graph=known,shuffled,ring,shuffled")[1])
    graphs = ("--graph", "known,shuffled,ring,shuffled")
    compared = json.loads(call("compare", *words, "--algorithms", "fedu", *graphs)[1])
    assert [row["values"]["graph"] for row in swept["runs"]] == ["known", "shuffled", "ring", "ring shuffled"]
    assert list(swept["kept"].values()) == list(compared["kept"].values())
    assert [row["scores"] for row in swept["runs"]] == list(compared["algorithms"].values())
    tests, wanted = swept["comparisons"]["controls"], compared["comparisons"]["controls"]
    named = [("known", "shuffled"), ("ring", "ring shuffled")]
    assert [(test["graph"]["graph"], test["shuffled"]["graph"]) for test in tests] == named
    numbers = [{key: test[key] for key in test if key not in ("graph", "shuffled")} for test in tests]
    assert numbers == [
        {key: test[key] for key in test if key not in ("graph", "shuffled")} for test in wanted
    ]
    again = fl.sweep("fedu", "radon", vary={"graph": ["known", "shuffled"]}, seeds=[0, 1], rounds=2)
    assert list(again.comparison.controls) == [("graph = known", "graph = shuffled")]
    code, _, err = call("sweep", *words, "--vary", "graph=shuffled,ring")
    assert code == 2
    assert (
        err
        == "error: graph: 'shuffled' needs a graph before it that shuffling changes, as in 'known,shuffled'\n"
    )
