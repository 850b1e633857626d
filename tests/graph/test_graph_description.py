"""The description of a graph: closed forms, small answers by hand, and laws."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array
from sklearn.metrics import average_precision_score

import fedlap as fl
from fedlap.errors import InputError
from fedlap.graph.description import (
    GraphDescription,
    MixingSpeed,
    count_rounds_to_halve,
    find_smallest_positive_eigenvalue,
    label_components,
)
from fedlap.graph.model_fit import RANDOM_ORDERS, GraphFit, compute_average_precision, list_edges
from graphs import laplacian
from random_inputs import random_weights


def names(number):
    return [f"n{k}" for k in range(number)]


def three_parts():
    """A ring of five, a path of three and one alone, with their clients mixed up."""
    ring = [("a", "d"), ("d", "f"), ("f", "b"), ("b", "h"), ("h", "a")]
    return fl.Graph.from_edges([*ring, ("c", "i"), ("i", "e")], "abcdefghi")


@pytest.mark.parametrize("size", [3, 8, 31])
def test_the_facts_of_a_ring(size):
    facts = GraphDescription.of(fl.Graph.ring(names(size), weight=0.5))
    assert (facts.clients, facts.edges, facts.components, facts.isolated) == (size, size, (size,), ())
    assert facts.neighbours == (2, 2, 2)
    assert facts.degrees == (1, 1, 1)
    assert facts.weights == (0.5, 0.5)
    assert facts.is_connected
    assert facts.lambda2 == facts.slowest == pytest.approx(0.5 * (2 - 2 * math.cos(2 * math.pi / size)))
    assert facts.rho == pytest.approx(0.5 * (2 - 2 * math.cos(2 * math.pi * (size // 2) / size)))


def test_a_complete_graph_of_a_million_is_described_without_its_pairs():
    facts = GraphDescription.of(fl.Graph.complete(names(1_000_000), weight=2.0))
    assert facts.edges == 1_000_000 * 999_999 // 2
    assert facts.components == (1_000_000,)
    assert facts.neighbours == (999_999,) * 3
    assert facts.lambda2 == facts.rho == 2e6


def test_a_graph_in_parts():
    facts = GraphDescription.of(three_parts())
    assert facts.components == (5, 3, 1)
    assert facts.isolated == ("g",)
    assert facts.neighbours == (0, 2, 2)
    assert facts.lambda2 == 0
    assert facts.slowest == pytest.approx(1)  # of the path; the ring's is 1.38
    text = "\n".join(facts.format_lines())
    assert "3 components with 5, 3, 1 clients" in text
    assert "1 without neighbours: g" in text
    assert "0, since the graph is not connected; smallest positive eigenvalue 1" in text


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_graph_without_edges(weight):
    alone = names(1 if weight else 4)
    for graph in (fl.Graph.empty(alone), fl.Graph.complete(alone, weight=weight)):
        facts = GraphDescription.of(graph)
        assert facts.edges == facts.slowest == facts.rho == 0
        assert facts.weights is None
        assert facts.isolated == tuple(alone)
        assert facts.components == (1,) * len(alone)


def test_a_server_is_a_vertex_and_no_client():
    facts = GraphDescription.of(fl.Graph.star(names(4), server=True))
    assert facts.clients == 4
    assert facts.components == (5,)
    assert facts.slowest == pytest.approx(1)
    assert facts.rho == pytest.approx(5)
    assert "4 and a server vertex" in next(facts.format_lines())


@pytest.mark.parametrize("seed", range(20))
def test_the_smallest_positive_eigenvalue_is_that_of_the_whole_laplacian(seed):
    graph = fl.Graph.from_matrix(random_weights(names(17), seed, density=0.02 + 0.01 * seed))
    values = np.linalg.eigvalsh(laplacian(graph))
    components = int(label_components(graph.weights).max()) + 1
    assert (np.abs(values[:components]) < 1e-9).all()
    wanted = values[components] if components < 17 else 0
    assert find_smallest_positive_eigenvalue(graph.weights) == pytest.approx(wanted)


def test_components_are_numbered_from_the_largest():
    numbers = label_components(three_parts().weights)
    assert [int(number) for number in numbers] == [0, 0, 1, 0, 1, 0, 2, 0, 1]


def test_large_graphs_that_mix_fast_and_slowly():
    """A hypercube, whose λ₂ is 2 in every dimension, and a ring, both too large for all eigenvalues."""
    nodes = np.arange(2**12)
    ends = np.concatenate([np.stack([nodes, nodes ^ (1 << bit)]) for bit in range(12)], 1)
    cube = coo_array((np.ones(ends.shape[1]), tuple(ends)), shape=(len(nodes),) * 2)
    assert find_smallest_positive_eigenvalue(fl.Graph.from_matrix(cube).weights) == pytest.approx(2, rel=1e-4)
    ring = fl.Graph.ring(names(2_500)).weights
    assert find_smallest_positive_eigenvalue(ring) == pytest.approx(
        2 - 2 * math.cos(2 * math.pi / 2_500), rel=1e-4
    )


@pytest.mark.parametrize("strength", [0.02, 0.3, 0.9, 1.3])
def test_speed_is_what_mixing_does(graph, strength):
    """The largest singular value of a round of mixing on models whose mean is zero."""
    facts, length = GraphDescription.of(graph), 0.25
    L, centre = laplacian(graph), np.eye(graph.size) - 1 / graph.size
    speed = MixingSpeed.of(facts, strength, length)
    step = strength * length
    explicit = graph.mix_(torch.eye(graph.size, dtype=torch.float64), step).numpy()
    assert speed.explicit == pytest.approx(np.linalg.norm(centre @ explicit, 2))
    assert speed.implicit == pytest.approx(
        np.linalg.norm(centre @ np.linalg.inv(np.eye(len(L)) + step * L), 2)
    )
    assert speed.product == pytest.approx(step * np.linalg.eigvalsh(L)[-1])
    assert (speed.explicit > 1) == (speed.product > 2)
    assert speed.implicit < 1


def test_a_round_at_the_largest_stable_strength_never_halves_what_explicit_mixing_leaves():
    facts = GraphDescription.of(fl.Graph.path(names(7)))
    speed = MixingSpeed.of(facts, 2 / facts.rho / 0.15, 0.15).as_dict()
    assert speed["explicit"] == pytest.approx(1)
    assert speed["explicit_rounds_to_halve"] is None
    assert speed["implicit"] ** speed["implicit_rounds_to_halve"] == pytest.approx(0.5)


def test_rounds_to_halve():
    assert [count_rounds_to_halve(share) for share in (0.5, 0.25, 0.0, 1.0, 1.5)] == [
        1,
        0.5,
        0,
        math.inf,
        math.inf,
    ]


def test_the_fit_of_three_clients_by_hand():
    graph, models = fl.Graph.path("abc"), torch.tensor([[0.0], [1.0], [3.0]])
    fit = GraphFit.of(graph, models)
    assert fit.smoothness == pytest.approx(1 + 4)
    assert fit.by_chance == pytest.approx(2 * (1 + 4 + 9) / 3)  # two edges
    assert fit.neighbours_apart == pytest.approx(math.sqrt(5 / 2))
    assert fit.all_apart == pytest.approx(math.sqrt(14 / 3))
    assert 15 < fit.as_smooth < 60  # two of six orders are


def test_chance_is_the_mean_over_all_orders(federation, graph):
    models = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    every = [float(graph.smoothness(models[list(order)])) for order in itertools.permutations(range(6))]
    fit = GraphFit.of(graph, models)
    assert fit.by_chance == pytest.approx(np.mean(every))
    share = np.mean(np.array(every) <= fit.smoothness + 1e-12)
    assert fit.as_smooth / RANDOM_ORDERS == pytest.approx(share, abs=0.2)


def test_on_a_complete_graph_every_order_is_as_smooth():
    models = torch.randn(9, 5, generator=torch.Generator().manual_seed(1))
    dense = fl.Graph.from_matrix(0.5 * (np.ones((9, 9)) - np.eye(9)))
    for graph in (fl.Graph.complete(names(9), weight=0.5), dense):
        fit = GraphFit.of(graph, models)
        assert fit.smoothness == pytest.approx(fit.by_chance)
        assert fit.neighbours_apart == pytest.approx(fit.all_apart)
        assert fit.as_smooth == RANDOM_ORDERS
        assert "100 % of its mean over random permutations" in next(fit.format_lines())


def test_models_that_are_smooth_on_their_ring_fit_it_better_than_chance():
    problem = fl.data.synthetic(seed=3)
    fit = GraphFit.of(problem.graph, problem.models)
    assert fit.smoothness < 0.2 * fit.by_chance
    assert fit.neighbours_apart < 0.5 * fit.all_apart
    assert fit.as_smooth == 0


def test_a_fit_of_nothing():
    alike, apart = torch.ones(3, 2), torch.arange(6.0).view(3, 2)
    assert list(GraphFit.of(fl.Graph.ring("abc"), alike).format_lines()) == ["models     all equal"]
    assert list(GraphFit.of(fl.Graph.empty("abc"), apart).format_lines()) == [
        "models     no edge joins any two of them"
    ]
    with pytest.raises(
        InputError, match="a server vertex, whose model is not stored; use a graph of clients only"
    ):
        GraphFit.of(fl.Graph.star("abc", server=True), apart)


def test_pairs_are_every_edge_once(graph):
    (begin, end), weight = list_edges(graph)
    assert (begin < end).all()
    assert len(weight) == graph.edges
    assert np.array_equal(graph.weights.matrix().toarray()[begin, end], weight)


def learned_and_true(more=()):
    learned = [("a", "b", 0.9), ("a", "c", 0.8), ("b", "c", 0.7), ("c", "d", 0.5), ("a", "d", 0.5)]
    true = [("a", "b"), ("b", "c"), ("a", "d"), *more]
    return fl.Graph.from_edges(learned, "abcd"), fl.Graph.from_edges(true, "abcd")


def test_average_precision_by_hand():
    """Right, wrong, right, then a wrong and a right one of the same weight; and one that was not found."""
    assert compute_average_precision(*learned_and_true()) == pytest.approx((1 + 2 / 3 + 3 / 5) / 3)
    assert compute_average_precision(*learned_and_true([("b", "d")])) == pytest.approx(
        (1 + 2 / 3 + 3 / 5 + 4 / 6) / 4
    )


def test_average_precision_of_the_truth_and_of_nothing():
    _, true = learned_and_true()
    assert compute_average_precision(true, true) == 1
    for useless in (fl.Graph.empty("abcd"), fl.Graph.complete("abcd")):
        assert compute_average_precision(useless, true) == pytest.approx(
            3 / 6
        )  # the share of pairs that are edges
    with pytest.raises(InputError, match="the true graph has no edges; expected at least one"):
        compute_average_precision(true, fl.Graph.empty("abcd"))


@pytest.mark.parametrize("seed", range(10))
def test_average_precision_is_that_of_scikit_learn(seed):
    scores, true = random_weights(names(12), seed).round(1), random_weights(names(12), 100 + seed, 0.3) > 0
    upper = np.triu_indices(12, 1)
    precision = compute_average_precision(
        fl.Graph.from_matrix(scores), fl.Graph.from_matrix(true.astype(float))
    )
    assert precision == pytest.approx(average_precision_score(true[upper], scores[upper]))
