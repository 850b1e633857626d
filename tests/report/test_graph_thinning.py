"""Thinned drawings of graphs: nobody with an edge looks isolated, and the caption says what is drawn."""

import io

import numpy as np
import pytest
from matplotlib import image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

import fedlap as fl
from fedlap.report import graph_figure
from fedlap.report.graph_figure import draw_graph
from fedlap.report.graph_thinning import thin_graph
from fedlap.report.page.client_figures import ClientGains, build_graph_sections
from fedlap.report.page.sections import EVEN


def names_of(graph, drawn):
    """Drawn edges by the names of their ends."""
    at = [graph.clients[place] for place in drawn.vertices]
    return {frozenset((at[one], at[other])) for one, other in drawn.ends.T}


def components(drawn):
    size = len(drawn.vertices)
    edges = coo_array((np.ones(drawn.ends.shape[1]), tuple(drawn.ends)), shape=(size, size))
    return connected_components(edges, directed=False)[0]


def test_all_edges_of_48_clients_are_drawn_on_a_page():
    (section,) = build_graph_sections("fedu", fl.Graph.complete([f"c{k}" for k in range(48)]), None, "")
    assert len(section.edges) == 1_128
    assert section.about.startswith("48 clients, 1,128 edges, complete graph")


@pytest.mark.parametrize("most", [48, 100, 1_000, 1_127])
def test_edges_of_equal_weight_leave_nobody_alone(most):
    graph = fl.Graph.complete([f"c{k}" for k in range(48)])
    drawn = thin_graph(graph, 48, most)
    assert drawn.ends.shape == (2, most)
    assert components(drawn) == 1
    assert drawn.about == (
        f"48 clients; {most:,} of 1,128 edges drawn: a spanning forest with the heaviest edge of every "
        "client, then the heaviest other edges"
    )


def test_every_client_keeps_its_heaviest_edge_in_any_order_of_clients():
    rng = np.random.default_rng(0)
    weights = np.triu(rng.integers(1, 6, (40, 40)), 1).astype(float)
    weights += weights.T
    names = [f"c{k:02}" for k in range(40)]
    graph = fl.Graph.from_matrix(weights, names)
    drawn = thin_graph(graph, 40, 100)
    assert (np.diff(drawn.weight) >= 0).all()
    joined = np.zeros((40, 40))
    joined[tuple(drawn.ends)] = drawn.weight
    joined = np.maximum(joined, joined.T)
    np.testing.assert_array_equal(joined.max(0), weights.max(0))
    order = rng.permutation(40)
    moved = fl.Graph.from_matrix(weights[order][:, order], [names[k] for k in order])
    assert names_of(moved, thin_graph(moved, 40, 100)) == names_of(graph, drawn)


def test_of_many_clients_those_near_one_are_drawn():
    graph = fl.Graph.ring([f"c{k:04}" for k in range(3_000)])
    drawn = thin_graph(graph, 101, 200)
    assert [graph.clients[place] for place in drawn.vertices] == [
        *(f"c{k:04}" for k in range(51)), *(f"c{k:04}" for k in range(2_950, 3_000)),
    ]  # fmt: skip
    assert components(drawn) == 1
    assert drawn.about == ("101 of 3,000 clients drawn (the nearest to c0000); 100 of 3,000 edges drawn")


def test_of_many_components_the_largest_come_first():
    sizes = [3, 9, 5, 5, 2]
    edges = [
        (f"{c}{k}", f"{c}{k + 1}") for c, size in zip("abcde", sizes, strict=True) for k in range(size - 1)
    ]
    graph = fl.Graph.from_edges(edges)
    drawn = thin_graph(graph, 16, 20)
    assert sorted({graph.clients[place][0] for place in drawn.vertices}) == ["b", "c", "d"]
    assert components(drawn) == 3
    assert "(2 components, the largest first)" in drawn.about
    assert len(thin_graph(fl.Graph.empty([str(k) for k in range(50)]), 10, 10).vertices) == 10


def test_the_server_is_among_those_drawn():
    graph = fl.Graph.star([str(k) for k in range(30)], server=True)
    drawn = thin_graph(graph, 10, 10)
    assert drawn.vertices[-1] == graph.size - 1
    assert drawn.about.startswith(
        "9 of 30 clients drawn (the nearest to server) and the server; 9 of 30 edges"
    )


def test_large_graphs_are_drawn_in_part_and_said_to_be(monkeypatch):
    laid_out, titles = [], []
    layout = graph_figure.compute_layout
    monkeypatch.setattr(
        graph_figure, "compute_layout", lambda matrix: (laid_out.append(matrix.shape[0]), layout(matrix))[1]
    )
    monkeypatch.setattr(graph_figure, "MAX_VERTICES", 300)
    monkeypatch.setattr("matplotlib.axes.Axes.set_title", lambda self, text, **more: titles.append(text))
    colours = graph_figure.ClientColours("rows", np.arange(20_000.0))
    drawn = draw_graph("any", fl.Graph.ring([str(k) for k in range(20_000)]), colours, np.arange(20_000))
    assert image.imread(io.BytesIO(drawn)).std() > 0
    assert laid_out == [300]
    assert "300 of 20,000 clients drawn (the nearest to 0)" in " ".join(titles[0].split())


def test_a_page_draws_a_part_of_a_large_graph():
    names = [str(k) for k in range(5_000)]
    sides = ClientGains("local", dict.fromkeys(names, 1.0), "seed 0")
    (section,) = build_graph_sections("fedu", fl.Graph.ring(names), sides, "")
    assert len(section.nodes) == 400
    assert len(section.edges) == 399
    assert "400 of 5,000 clients drawn (the nearest to 0); 399 of 5,000 edges drawn." in section.about
    assert "gain against local (400)" in section.about
    assert section.about.endswith("; counts are of drawn clients.")


def test_components_beyond_the_colours_are_grey():
    graph = fl.Graph.from_edges([(f"{c}0", f"{c}1") for c in "abcdefghi"])
    (section,) = build_graph_sections("fedu", graph, None, "")
    assert sorted({group for *_, group in section.nodes}) == [EVEN, 0, 1, 2, 3, 4, 5]
    assert "Colours: the 6 largest components; clients of the 3 others are grey." in section.about
