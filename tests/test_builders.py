"""Exact answers for graphs of given shapes and graphs made from data."""

import math

import numpy as np
import pytest
import torch

import fedlap as fl
from conftest import random_arrays
from fedlap.experiment import Experiment
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
    weighted,
)
from fedlap.graph.vectors import feature_means, label_shares, metadata, vectors


def names(number):
    return [f"client {k}" for k in range(number)]


def matrix_of(graph):
    return graph.weights.matrix().toarray()


def edges_of(graph):
    return {(int(k), int(o)) for k, o in np.argwhere(np.triu(matrix_of(graph)))}


def owning(*labels, rows=12, classes=4):
    """A federation whose client k has these labels, equally often."""
    rng = np.random.default_rng(0)
    arrays = {
        f"client {k}": (rng.normal(size=(rows, 2)), np.resize(np.array(own), rows))
        for k, own in enumerate(labels)
    }
    return fl.Federation.from_arrays(arrays, test_share=0.0, labels=classes)


def sized(*rows):
    return fl.Federation.from_arrays(random_arrays(rows), test_share=0.0, labels=3)


def located(*points):
    """A federation whose client k has this mean of features."""
    arrays = {
        f"client {k}": (np.array([point, point], dtype=float), [0, 1]) for k, point in enumerate(points)
    }
    return fl.Federation.from_arrays(arrays, test_share=0.0, labels=2)


# Shapes


def test_equal_is_a_complete_graph_of_halves():
    graph = equal(names(4))
    assert np.array_equal(matrix_of(graph), 0.5 * (1 - np.eye(4)))
    assert equal(names(100_000)).rho == 50_000


def test_random_fills_the_unit_interval():
    values = matrix_of(random(names(60), 3))[np.triu_indices(60, 1)]
    assert (values.min(), values.max()) == (0, 1)
    # Shifted and scaled, values are still normal: as far apart as those of so many draws are.
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
    pairs = builders._pair(np.arange(45)).T.tolist()
    assert pairs == [[k, other] for other in range(1, 10) for k in range(other)]
    size = 100_000
    last = np.array([size * (size - 1) // 2 - 1, (size - 1) * (size - 2) // 2])
    assert builders._pair(last).T.tolist() == [[size - 2, size - 1], [0, size - 1]]


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
        kept = (np.minimum(step, n - step) <= near // 2).sum() / 2 / graph.edges
        assert kept == pytest.approx(1 - rewire, abs=0.03)
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


# The paper's graphs from data


def test_weighted():
    federation = sized(100, 10, 90, 20, 110)
    assert matrix_of(weighted(federation)).tolist() == [
        [0, 0.5, 1, 0.5, 1],
        [0.5, 0, 0.5, 0, 0.5],
        [1, 0.5, 0, 0.5, 1],
        [0.5, 0, 0.5, 0, 0.5],
        [1, 0.5, 1, 0.5, 0],
    ]
    assert np.array_equal(matrix_of(weighted(federation, little=0.0)), 1 - np.eye(5))
    assert weighted(sized(8, 9, 10)).rho == 3


@pytest.mark.parametrize("clients", [9, 10, 30])
def test_scarce_clients_are_those_with_little(clients):
    full = sized(*np.random.default_rng(0).integers(70, 130, clients).tolist())
    scarce = full.scarce(seed=2)
    little = (scarce.train.count < full.train.count).numpy()
    a = matrix_of(weighted(scarce))
    assert little.sum() == math.floor(clients / 2 + 0.5)
    assert np.array_equal(a == 0, np.outer(little, little) | np.eye(clients, dtype=bool))


def test_similar_of_pairs_of_labels():
    graph = similar(owning([0, 1], [1, 2], [2, 3], [0, 1], [3, 0]))
    assert matrix_of(graph).tolist() == [
        [0, 0.5, 0, 1, 0.5],
        [0.5, 0, 0.5, 0.5, 0],
        [0, 0.5, 0, 0, 0.5],
        [1, 0.5, 0, 0, 0.5],
        [0.5, 0, 0.5, 0.5, 0],
    ]


def test_similar_of_unequal_numbers_of_labels():
    graph = similar(owning([0], [0, 1], [0, 1, 2, 3]))
    assert matrix_of(graph).tolist() == [[0, 0.5, 0.25], [0.5, 0, 0.5], [0.25, 0.5, 0]]


def test_only_training_rows_count():
    one, other = owning([0, 1], [1, 2]), owning([0, 1], [1, 2])
    test = fl.Federation.from_arrays(
        {name: one.train.client(k) for k, name in enumerate(one.clients)},
        test={name: (np.full((3, 2), 1e6), [3, 3, 3]) for name in one.clients},
        labels=4,
    )
    for make in (similar, nearest, kernel, weighted):
        assert np.array_equal(matrix_of(make(test)), matrix_of(make(other)))
    assert np.array_equal(feature_means(test), feature_means(other))


# Neighbours and kernels


def test_label_shares():
    assert label_shares(owning([0, 1], [2, 2, 3])).tolist() == pytest.approx(
        np.array([[0.5, 0.5, 0, 0], [0, 0, 2 / 3, 1 / 3]])
    )


@pytest.mark.parametrize("scale", ["none", "pooled", "client"])
def test_feature_means_are_of_what_models_see(scale):
    federation = sized(30, 7, 50).scaled(scale)
    ready = federation.resident(torch.device("cpu"), torch.float64)
    expected = np.stack([ready.train.client(k)[0].numpy().mean(0) for k in range(3)])
    assert feature_means(federation) == pytest.approx(expected, abs=1e-12)


def test_feature_means_of_images():
    federation = fl.data.load("digits")
    means = feature_means(federation)
    assert means.shape == (len(federation.clients), math.prod(federation.inputs))
    ready = federation.resident(torch.device("cpu"), torch.float64, as_bytes=False)
    expected = ready.train.client(3)[0].flatten(1).mean(0).numpy()
    assert means[3] == pytest.approx(expected, abs=1e-12)


def test_nearest_on_a_line():
    federation = located([0], [1], [3], [10], [12])
    assert edges_of(nearest(federation, "means", neighbours=1)) == {(0, 1), (1, 2), (3, 4)}
    assert edges_of(nearest(federation, "means", neighbours=2)) == {
        (0, 1),
        (0, 2),
        (1, 2),
        (2, 3),
        (2, 4),
        (3, 4),
    }
    every = nearest(federation, "means", neighbours=9)
    assert np.array_equal(matrix_of(every), 1 - np.eye(5))
    a = matrix_of(nearest(federation, "means", neighbours=1, weights="gaussian"))
    assert a[0, 1] == pytest.approx(math.exp(-1 / 8))  # distances 1, 2, 2: their median is σ
    assert a[3, 4] == pytest.approx(math.exp(-1 / 2))
    a = matrix_of(nearest(federation, "means", neighbours=1, weights="gaussian", bandwidth=0.5))
    assert a[0, 1] == pytest.approx(math.exp(-2))


def test_nearest_against_plain_distances():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(60, 3))
    found = matrix_of(nearest(located(*points), "means", neighbours=4))
    apart = np.linalg.norm(points[:, None] - points[None], axis=2) + np.diag(np.full(60, np.inf))
    expected = np.zeros((60, 60))
    np.put_along_axis(expected, apart.argsort(1)[:, :4], 1.0, axis=1)
    assert np.array_equal(found, np.maximum(expected, expected.T))


def test_the_same_clients_are_a_chain_not_a_star():
    federation = owning(*[[0, 1]] * 40, [2, 3])
    graph = nearest(federation, neighbours=2)
    degree = matrix_of(graph)[:40, :40].sum(1)
    assert degree.max() <= 4
    assert degree.min() >= 2
    assert graph.components <= 15


def test_kernel_on_a_line():
    federation = located([0], [3], [4])
    a = matrix_of(kernel(federation, "means", bandwidth=2.0, threshold=0.0))
    assert a[0].tolist() == pytest.approx([0, math.exp(-9 / 8), math.exp(-2)])
    a = matrix_of(kernel(federation, "means", threshold=0.0))  # the median of 1, 3, 4
    assert a[0].tolist() == pytest.approx([0, math.exp(-1 / 2), math.exp(-8 / 9)])
    cut = matrix_of(kernel(federation, "means", bandwidth=2.0, threshold=0.2))
    assert (cut > 0).tolist() == [[False, True, False], [True, False, True], [False, True, False]]
    same = located([1], [1], [1])
    assert np.array_equal(matrix_of(kernel(same, "means")), 1 - np.eye(3))


def test_noise_has_the_size_that_was_asked_for():
    federation = owning(*[[k % 4, 3] for k in range(200)])
    plain, noisy = vectors(federation, "labels"), vectors(federation, "labels", noise=0.3, seed=1)
    added = (noisy - plain) / 0.3
    assert (added.mean(), added.std()) == pytest.approx((0, 1), abs=0.1)
    again = vectors(federation.reordered(federation.clients[::-1]), "labels", noise=0.3, seed=1)
    assert np.array_equal(again[::-1], noisy)


def test_metadata(tmp_path):
    file = tmp_path / "about.csv"
    file.write_text("who, age,height,same\n\nb,30,1.5,7\nstranger,1,1,1\na, 10,1.5,7\n", encoding="utf-8-sig")
    assert metadata(("a", "b"), str(file)).tolist() == [[-1, 0, 0], [1, 0, 0]]


def test_neighbours_by_metadata(tmp_path):
    federation = owning(*[[0, 1]] * 4)
    file = tmp_path / "places.csv"
    lines = [f"client {k},{east},{north}" for k, (east, north) in enumerate([(0, 0), (9, 9), (0, 1), (9, 8)])]
    file.write_text("\n".join(["client,east,north", *lines]), encoding="utf-8")
    graph = nearest(federation, "metadata", str(file), neighbours=1)
    assert edges_of(graph) == {(0, 2), (1, 3)}


# Mistakes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1 must name the columns"),
        ("client\na\n", "line 1 must name the columns"),
        ("a,1\nb,2\n", "line 1 must name the columns"),
        ("client,age\na,1\n", "client 'b' has no line in .*; every client needs one"),
        ("client,age\na,1\nb,old\n", "line 3: age = 'old'; it must be a finite number"),
        ("client,age\na,1\nb,nan\n", "line 3: age = 'nan'; it must be a finite number"),
        ("client,age\na,1\nb,\n", "line 3: age = ''; it must be a finite number"),
        ("client,age\na,1\n\nb,2,3\n", "line 4 has 3 columns, line 1 has 2"),
        ("client,age\na,1\na,2\n", "line 3: client 'a' has a line already"),
    ],
)
def test_metadata_that_cannot_be(tmp_path, content, message):
    file = tmp_path / "about.csv"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(fl.InputError, match=message) as error:
        metadata(("a", "b"), str(file))
    assert "\n" not in str(error.value)
    assert "about.csv" in str(error.value)


REAL = fl.Federation.from_arrays(random_arrays([9, 8], real=True))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: similar(REAL), "targets are numbers, so clients share no labels"),
        (lambda: nearest(REAL), "targets are numbers, so clients have no labels; use by = 'means'"),
        (lambda: nearest(REAL, "metadata"), "path is missing"),
        (lambda: nearest(REAL, "metadata", "none.csv"), "there is no file 'none.csv'"),
        (lambda: nearest(REAL, "means", "none.csv"), "path = 'none.csv' is for by = 'metadata'"),
        (
            lambda: nearest(REAL, "means", neighbours=0),
            "neighbours = 0; it must be a whole number, at least 1",
        ),
        (
            lambda: nearest(REAL, "means", noise=-1.0),
            "noise = -1.0; it must be a finite number, zero or more",
        ),
        (lambda: nearest(REAL, "means", weights="gaussian", bandwidth=0.0), "bandwidth = 0.0"),
        (lambda: kernel(REAL, "means", bandwidth=-1.0), "bandwidth = -1.0; .* above zero"),
        (lambda: kernel(REAL, "means", threshold=1.5), r"threshold = 1.5; it must be in \[0, 1\]"),
        (lambda: weighted(REAL, -1.0), "little = -1.0"),
        (lambda: erdos_renyi(names(3), 1.5), r"probability = 1.5; it must be in \[0, 1\]"),
        (lambda: erdos_renyi(names(100_000)), "erdos-renyi joins about 5e.08 pairs of clients"),
        (lambda: random(names(10_000)), "random joins about 5e.07 pairs of clients"),
        (lambda: watts_strogatz(names(6), 3), "neighbours = 3; .* it must be even, and below 6"),
        (lambda: watts_strogatz(names(6), 6), "neighbours = 6; .* below 6"),
        (lambda: watts_strogatz(names(6), 4, -0.1), "rewire = -0.1"),
        (lambda: blocks(names(6), 0), "clusters = 0; it must be a whole number, at least 1"),
        (lambda: blocks(names(6), 7), "clusters = 7; there are only 6 clients"),
        (lambda: blocks(names(6), 2, 0.5, 2.0), "between = 2.0"),
        (lambda: grid([]), "no clients"),
        (lambda: grid(names(3), -1.0), "weights must be finite and not negative"),
    ],
)
def test_what_cannot_be_made(make, message):
    with pytest.raises(fl.InputError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


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
        (["nearest", "--set", "graph.by=label"], "error: graph.by = 'label': input should be 'labels'"),
        (
            ["nearest", "--set", "graph.neighbours=0"],
            "error: graph.neighbours = 0; it must be a whole number",
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


def test_an_experiment_keeps_the_content_of_metadata(tmp_path):
    file = tmp_path / "about.csv"
    federation = fl.data.load("digits")
    lines = [f"{name},{k % 5}" for k, name in enumerate(federation.clients)]
    file.write_text("\n".join(["client,room", *lines]), encoding="utf-8")
    section = {"name": "nearest", "by": "metadata", "path": str(file)}
    experiment = Experiment.of({"graph": section})
    assert len(experiment.graph["sha256"]) == 64
    assert "seed" not in experiment.graph
    experiment.build()
    file.write_text("client,room\n", encoding="utf-8")
    with pytest.raises(fl.InputError, match="not the file that this experiment was made with"):
        experiment.build()
