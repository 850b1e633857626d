"""Exact answers for graphs of given shapes, graphs by name, and mistakes."""

import math

import numpy as np
import pytest

import fedlap as fl
from fedlap.graph import (
    Graph,
    blocks,
    builders,
    equal,
    erdos_renyi,
    grid,
    kernel,
    nearest,
    random,
    similar,
    watts_strogatz,
    weight_by_rows,
)
from graphs import edges_of, matrix_of
from random_inputs import random_arrays


def names(number):
    return [f"client {k}" for k in range(number)]


# Shapes


def test_equal_is_a_complete_graph_of_halves():
    graph = equal(names(4))
    assert np.array_equal(matrix_of(graph), 0.5 * (1 - np.eye(4)))
    assert equal(names(100_000)).rho == 50_000


def test_random_fills_the_unit_interval():
    values = matrix_of(random(names(60), 3))[np.triu_indices(60, 1)]
    assert (values.min(), values.max()) == (0, 1)
    # Shifted and scaled, values are still normal: as far apart as equally many normal draws.
    standard = (values - values.mean()) / values.std()
    assert np.quantile(standard, [0.16, 0.5, 0.84]) == pytest.approx([-1, 0, 1], abs=0.1)
    assert np.array_equal(matrix_of(random(names(2))), [[0, 0.5], [0.5, 0]])
    assert random(names(1)).edges == 0


def test_grids():
    assert edges_of(grid(names(4))) == {(0, 1), (2, 3), (0, 2), (1, 3)}
    # 0 1 2 3 / 4 5 6 7 / 8 9
    right = {(0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7), (8, 9)}
    assert edges_of(grid(names(10))) == right | {(k, k + 4) for k in range(6)}
    assert edges_of(grid(names(2))) == {(0, 1)}
    assert grid(names(1)).edges == 0
    square = grid(names(49), weight=2.0)  # the product of two paths, so eigenvalues are sums of theirs
    assert square.rho == pytest.approx(2 * 2 * (2 - 2 * math.cos(math.pi * 6 / 7)))
    assert square.lambda2 == pytest.approx(2 * (2 - 2 * math.cos(math.pi / 7)))
    assert all(grid(names(n)).components == 1 for n in range(1, 40))


def test_pairs_are_counted_without_a_gap():
    pairs = builders._unrank_pairs(np.arange(45)).T.tolist()
    assert pairs == [[k, other] for other in range(1, 10) for k in range(other)]
    size = 100_000
    last = np.array([size * (size - 1) // 2 - 1, (size - 1) * (size - 2) // 2])
    assert builders._unrank_pairs(last).T.tolist() == [[size - 2, size - 1], [0, size - 1]]


def test_erdos_renyi():
    assert edges_of(erdos_renyi(names(9), 1.0)) == edges_of(Graph.complete(names(9)))
    assert erdos_renyi(names(9), 0.0).edges == 0
    for n, p in ((400, 0.02), (400, 0.7), (30_000, 1e-4)):
        pairs = n * (n - 1) / 2
        found = erdos_renyi(names(n), p, seed=2)
        assert abs(found.edges - p * pairs) < 4 * math.sqrt(pairs * p * (1 - p))
        degree = np.asarray(found.weights.matrix().sum(1)).ravel()
        assert degree.var() == pytest.approx(n * p * (1 - p), rel=0.25)


def test_watts_and_strogatz():
    ring = edges_of(watts_strogatz(names(10), 4, 0.0))
    assert ring == {tuple(sorted((k, (k + step) % 10))) for k in range(10) for step in (1, 2)}
    for rewire in (0.3, 1.0):
        n, near = 3000, 6
        graph = watts_strogatz(names(n), near, rewire, seed=1)
        assert graph.edges == n * near // 2  # no edge is lost, none is there twice
        k, other = graph.weights.matrix().nonzero()
        step = np.abs(k - other)
        share = (np.minimum(step, n - step) <= near // 2).sum() / 2 / graph.edges
        assert share == pytest.approx(1 - rewire, abs=0.03)
        assert graph.weights.matrix().sum(1).min() >= near // 2  # one end of each edge stays
    # Where hardly a pair is free, edges stay.
    assert watts_strogatz(names(7), 6, 1.0).edges == 21


def test_blocks():
    parts = blocks(names(7), 3, 1.0, 0.0)
    assert parts.components == 3
    assert edges_of(parts) == {(0, 1), (0, 2), (1, 2), (3, 4), (5, 6)}
    assert edges_of(blocks(names(7), 3, 0.0, 1.0)) == edges_of(Graph.complete(names(7))) - edges_of(parts)
    n, clusters, inside, between = 2500, 5, 0.06, 0.004
    k, other = blocks(names(n), clusters, inside, between, seed=4).weights.matrix().nonzero()
    same = k // (n // clusters) == other // (n // clusters)
    pairs = clusters * math.comb(n // clusters, 2)
    for number, of, p in (
        (same.sum() / 2, pairs, inside),
        ((~same).sum() / 2, math.comb(n, 2) - pairs, between),
    ):
        assert abs(number - p * of) < 4 * math.sqrt(of * p * (1 - p))


# Mistakes


REAL = fl.Federation.from_arrays(random_arrays([9, 8], real=True), scale="none")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: similar(REAL), "similar needs classes, but the targets are numbers; use nearest"),
        (lambda: nearest(REAL), "by = 'labels' needs classes, but the targets are numbers; set by = 'means'"),
        (lambda: nearest(REAL, "metadata"), "path is missing"),
        (
            lambda: nearest(REAL, "metadata", "none.csv"),
            "no file 'none.csv'; set path to an existing .csv file",
        ),
        (
            lambda: nearest(REAL, "means", "none.csv"),
            "path = 'none.csv' with by = 'means'; remove path, or set by = 'metadata'",
        ),
        (
            lambda: nearest(REAL, "means", neighbours=0),
            "neighbours = 0; expected an integer of at least 1",
        ),
        (
            lambda: nearest(REAL, "means", noise=-1.0),
            "noise = -1.0; expected a finite number of at least zero",
        ),
        (lambda: nearest(REAL, "means", weights="gaussian", bandwidth=0.0), "bandwidth = 0.0"),
        (lambda: kernel(REAL, "means", bandwidth=-1.0), "bandwidth = -1.0; .* above zero"),
        (lambda: kernel(REAL, "means", threshold=1.5), r"threshold = 1.5; expected a number in \[0, 1\]"),
        (lambda: weight_by_rows(REAL, -1.0), "little = -1.0"),
        (lambda: erdos_renyi(names(3), 1.5), r"probability = 1.5; expected a number in \[0, 1\]"),
        (lambda: erdos_renyi(names(100_000)), "erdos-renyi has about 5e.08 edges; expected at most 2e.07"),
        (lambda: random(names(10_000)), "random has about 5e.07 edges; expected at most 2e.07"),
        (
            lambda: watts_strogatz(names(6), 3),
            "neighbours = 3; expected an even number below 6, the number of clients",
        ),
        (lambda: watts_strogatz(names(6), 6), "neighbours = 6; .* below 6"),
        (lambda: watts_strogatz(names(6), 4, -0.1), "rewire = -0.1"),
        (lambda: blocks(names(6), 0), "clusters = 0; expected an integer of at least 1"),
        (lambda: blocks(names(6), 7), "clusters = 7; expected at most 6, the number of clients"),
        (lambda: blocks(names(6), 2, 0.5, 2.0), "between = 2.0"),
        (lambda: grid([]), "clients is empty; pass at least one name"),
        (lambda: grid(names(3), -1.0), "weight = -1.0; expected a finite number of at least zero"),
    ],
)
def test_what_cannot_be_made(make, message):
    with pytest.raises(fl.InputError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_booleans_are_no_weights():
    for make in (fl.Graph.complete, grid):
        with pytest.raises(fl.InputError, match="weight = True"):
            make(names(3), True)


# From the command line


@pytest.mark.parametrize(
    "words",
    [
        ["similar"],
        ["nearest", "--set", "graph.by=labels", "--set", "graph.neighbours=3"],
        ["weighted", "--scarce"],
        ["random"],
    ],
    ids=lambda words: words[0],
)
def test_graphs_by_name(call, words):
    code, out, _ = call("run", "--data", "digits", "--rounds", "2", "--graph", *words)
    assert code == 0
    assert "J(W)" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nearst"], "error: graph.name: unknown graph 'nearst'; did you mean 'nearest'?"),
        (
            ["nearest", "--set", "graph.by=label"],
            "error: graph.by = 'label'; expected 'labels', 'means', 'metadata' or 'places'",
        ),
        (
            ["nearest", "--set", "graph.neighbours=0"],
            "error: graph.neighbours = 0; expected an integer",
        ),
        (["nearest", "--set", "graph.by=metadata"], "error: graph: path is missing"),
        (["random", "--set", "graph.seed=3"], "error: graph.seed: unknown setting of graph 'random'"),
        (["none.mtx"], "error: graph: 'none.mtx' cannot be read: No such file"),
    ],
    ids=lambda words: words[-1] if isinstance(words, list) else "",
)
def test_graphs_that_are_mistyped(call, words, message):
    code, _, err = call("run", "--data", "digits", "--rounds", "2", "--graph", *words)
    assert code == 2
    assert err.startswith(message)
    assert err.count("\n") <= 2  # a console of 100 columns may break the one line
