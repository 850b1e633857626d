"""Graphs as they are shown: any is drawn, neighbours are near, kinds have colours; a learned one in words."""

import io
import re

import numpy as np
import pytest
from matplotlib import image

import fedlap as fl
from fedlap.report.graph_figure import CATEGORY_COLOURS, ClientColours, draw_graph
from fedlap.report.graph_layout import compute_layout


def name_clients(size):
    return [str(k) for k in range(size)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "graph",
    [
        fl.Graph.complete("a"),
        fl.Graph.complete("ab"),
        fl.Graph.empty("abc"),
        fl.Graph.star("abcd", server=True),
        fl.Graph.ring([f"hospital of $ome long name {k}" for k in range(40)]),
        fl.Graph.complete(name_clients(120)),
        fl.Graph.ring(name_clients(700)),
        fl.Graph.path(name_clients(2_100)),
    ],
    ids=lambda graph: f"{graph.size} vertices, {graph.edges} edges",
)
def test_every_kind_of_graph_is_drawn(graph):
    drawn = draw_graph("any", graph, None)
    assert image.imread(io.BytesIO(drawn)).std() > 0
    at = compute_layout(graph.weights.matrix())
    assert np.isfinite(at).all()
    assert len(np.unique(at.round(6), axis=0)) == graph.size  # nobody is hidden behind another


def test_neighbours_are_drawn_near_each_other_and_components_apart():
    inside = [(f"{c}{k}", f"{c}{n}") for c in "abc" for k in range(6) for n in range(k)]
    graph = fl.Graph.from_edges([*inside, ("a0", "b0")])
    at = compute_layout(graph.weights.matrix())
    place = {name: at[k] for k, name in enumerate(graph.clients)}

    def apart(one, other):
        return [np.linalg.norm(place[f"{one}{k}"] - place[f"{other}{n}"]) for k in range(6) for n in range(6)]

    near = np.mean([np.linalg.norm(place[a] - place[b]) for a, b in inside])
    assert near < 0.5 * np.mean(apart("a", "b"))
    assert near < 0.5 * np.mean(apart("a", "c"))
    assert min(apart("c", "a") + apart("c", "b")) > 0.3


def test_many_kinds_keep_the_most_common_ones():
    kinds = np.array([k for k in range(14) for _ in range(1 + (k in (2, 13)))])
    colours = ClientColours.by_category("label", kinds, [f"label {k}" for k in range(15)])
    assert len(colours.categories) == len(CATEGORY_COLOURS) + 1
    assert {"label 2", "label 13"} < set(colours.categories)
    assert colours.categories[-1] == "4 more"
    for kind, value in zip(kinds, colours.values, strict=True):
        assert colours.categories[int(value)] in (f"label {kind}", "4 more")
    few = ClientColours.by_category("label", np.array([4, 0, 4]), list("uvwxyz"))
    assert (few.categories, few.values.tolist()) == (("u", "y"), [1, 0, 1])


def test_a_run_says_what_graph_it_has_learned(call):
    words = "run --data synthetic --set data.clients=12 --set data.clusters=3 --rounds 12"
    method = "--algorithm fedu-learned --set algorithm.nearest=2"
    code, out, _ = call(*words.split(), *method.split())
    assert code == 0
    assert re.search(r"learned graph: 12 clients, \d+ edges, (connected|in \d+ components)", out)
