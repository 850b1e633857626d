"""Nearest neighbours by products: what a k-d tree and a plain search give, ties and outliers included."""

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.graph import nearest_neighbours, similarity
from random_inputs import random_arrays

NEAR = 5


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Make few points take the code path of many points."""
    monkeypatch.setattr(nearest_neighbours, "MANY_POINTS", 100)
    monkeypatch.setattr(nearest_neighbours, "MANY_VALUES", 0)
    monkeypatch.setattr(nearest_neighbours, "POINTS_PER_LEAF", 30)
    monkeypatch.setattr(nearest_neighbours, "FIRST_CANDIDATES", 60)
    monkeypatch.setattr(nearest_neighbours, "COLUMNS_PER_PRODUCT", 64)


def plain(points, near):
    """The nearest by all distances, each computed by itself."""
    found = []
    for place, point in enumerate(points):
        distance = np.square(points - point).sum(1)
        distance[place] = np.inf
        found.append(np.sort(np.argsort(distance, kind="stable")[:near]))
    return np.stack(found)


def by_blocks(points, near):
    """Return the neighbours that products find, and the points that they leave to the tree."""
    found, rest = np.zeros((len(points), near), dtype=np.int64), np.ones(len(points), dtype=bool)
    nearest_neighbours.PointLeaves.of(points).search(near, found, rest)
    return np.sort(found), rest


def points_of(kind, values, size=700):
    random = np.random.default_rng(values)
    points = random.normal(size=(size, values))
    if kind == "far":  # a few are a million times farther out than others, and all far from zero
        points[:9] *= 1e6
        points += 1e4
    if kind == "groups":
        points = points * 1e-5 + random.normal(size=(12, values))[random.integers(12, size=size)]
    return points


@pytest.mark.parametrize("kind", ["round", "far", "groups"])
@pytest.mark.parametrize("values", [2, 10, 40])
def test_products_find_what_a_plain_search_finds(kind, values):
    points = points_of(kind, values)
    found, rest = by_blocks(points, NEAR)
    assert (found[~rest] == plain(points, NEAR)[~rest]).all()
    assert (np.sort(nearest_neighbours.find_nearest(points, NEAR)) == plain(points, NEAR)).all()
    if kind == "round":
        assert not rest.any()


def test_equally_near_points_are_left_to_the_tree():
    grid = np.stack(np.meshgrid(*[np.arange(9.0)] * 3), -1).reshape(-1, 3)
    found, rest = by_blocks(grid, NEAR)
    assert rest.any()
    assert (found[~rest] == plain(grid, NEAR)[~rest]).all()
    # The inner ones have six neighbours at distance 1, five of which cannot be chosen by distance.
    assert rest[((grid > 0) & (grid < 8)).all(1)].all()


def test_same_points_are_left_to_the_tree_before_all_pairs_are_compared():
    points = np.repeat(np.random.default_rng(0).normal(size=(3, 10)), 2_000, axis=0)
    _, rest = by_blocks(points, 1)
    assert rest.all()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_graph_is_the_same_by_products_and_by_the_tree(monkeypatch, threads):
    # Some clients have the same rows, so that names decide between them.
    arrays = random_arrays([2] * 300, 9, 2)
    arrays |= {f"again {name}": arrays[name] for name in list(arrays)[:40]}
    federation = fl.Federation.from_arrays(arrays, test_share=0, labels=2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    by_products = similarity.nearest(federation, "means")
    monkeypatch.setattr(nearest_neighbours, "MANY_POINTS", 10_000)
    by_tree = similarity.nearest(federation, "means")
    assert (by_products.weights.matrix() != by_tree.weights.matrix()).nnz == 0


def test_more_neighbours_than_are_tried_first():
    points = points_of("round", 9, 150)
    assert (np.sort(nearest_neighbours.find_nearest(points, 149)) == plain(points, 149)).all()
