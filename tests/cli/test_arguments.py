"""Options that describe graphs: one graph for a run, several for a comparison."""

import pytest

import fedlap as fl
from fedlap.comparisons.graphs import list_graphs
from fedlap.experiments.fields import parse_graph

KNOWN = {"name": "known"}
FILE = {"name": "file", "path": "roads.csv"}


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        ("known", [KNOWN]),
        ("known,shuffled", [KNOWN, {**KNOWN, "shuffled": True}]),
        ("known, shuffled, complete", [KNOWN, {**KNOWN, "shuffled": True}, {"name": "complete"}]),
        ("known,complete,shuffled", [KNOWN, {"name": "complete"}, {**KNOWN, "shuffled": True}]),
        ("roads.csv,shuffled", [FILE, {**FILE, "shuffled": True}]),
    ],
)
def test_shuffled_stands_for_the_last_graph_that_it_changes(text, sections):
    assert [graph.section for graph in list_graphs(text)] == sections


def test_a_file_with_a_comma_in_its_name_is_one_graph(tmp_path):
    file = tmp_path / "roads,rails.csv"
    file.write_text("a,b", encoding="utf-8")
    assert [graph.section for graph in list_graphs(str(file))] == [{"name": "file", "path": str(file)}]


def test_a_run_has_one_graph():
    assert parse_graph("roads.csv") == FILE
    with pytest.raises(fl.InputError, match="expected one graph; for the shuffled graph, use --set"):
        parse_graph("known,shuffled")
    with pytest.raises(fl.InputError, match=r"--graph known,ring: expected one graph$"):
        parse_graph("known,ring")
    with pytest.raises(fl.InputError, match="'shuffled' follows the graph to shuffle"):
        parse_graph("shuffled")
