"""Exact answers for graphs built from data: from rows, labels, features and metadata."""

import math

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.experiments.experiment import Experiment
from fedlap.graph import kernel, nearest, similar, weight_by_rows
from fedlap.graph.client_vectors import (
    compute_feature_means,
    compute_label_shares,
    compute_vectors,
    read_metadata,
)
from graphs import edges_of, matrix_of
from random_inputs import random_arrays


def owning(*labels, rows=12, classes=4):
    """A federation whose client k has these labels, equally often."""
    rng = np.random.default_rng(0)
    arrays = {
        f"client {k}": (rng.normal(size=(rows, 2)), np.resize(np.array(client_labels), rows))
        for k, client_labels in enumerate(labels)
    }
    return fl.Federation.from_arrays(arrays, test_share=0.0, labels=classes, scale="none")


def make_sized_clients(*rows):
    return fl.Federation.from_arrays(random_arrays(rows), test_share=0.0, labels=3, scale="none")


def place_clients(*points):
    """Return a federation whose client k has the mean `points[k]` of features."""
    arrays = {
        f"client {k}": (np.array([point, point], dtype=float), [0, 1]) for k, point in enumerate(points)
    }
    return fl.Federation.from_arrays(arrays, test_share=0.0, labels=2, scale="none")


# The paper's graphs from data


def test_weighted():
    federation = make_sized_clients(100, 10, 90, 20, 110)
    assert matrix_of(weight_by_rows(federation)).tolist() == [
        [0, 0.5, 1, 0.5, 1],
        [0.5, 0, 0.5, 0, 0.5],
        [1, 0.5, 0, 0.5, 1],
        [0.5, 0, 0.5, 0, 0.5],
        [1, 0.5, 1, 0.5, 0],
    ]
    assert np.array_equal(matrix_of(weight_by_rows(federation, little=0.0)), 1 - np.eye(5))
    assert weight_by_rows(make_sized_clients(8, 9, 10)).rho == 3


@pytest.mark.parametrize("clients", [9, 10, 30])
def test_scarce_clients_are_those_with_little(clients):
    full = make_sized_clients(*np.random.default_rng(0).integers(70, 130, clients).tolist())
    scarce = full.scarce(seed=2)
    little = (scarce.train.count < full.train.count).numpy()
    a = matrix_of(weight_by_rows(scarce))
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
        scale="none",
    )
    for make in (similar, nearest, kernel, weight_by_rows):
        assert np.array_equal(matrix_of(make(test)), matrix_of(make(other)))
    assert np.array_equal(compute_feature_means(test), compute_feature_means(other))


# Neighbours and kernels


def test_label_shares():
    assert compute_label_shares(owning([0, 1], [2, 2, 3])).tolist() == pytest.approx(
        np.array([[0.5, 0.5, 0, 0], [0, 0, 2 / 3, 1 / 3]])
    )


@pytest.mark.parametrize("scale", ["none", "pooled", "client"])
def test_feature_means_are_of_what_models_see(scale):
    federation = make_sized_clients(30, 7, 50).standardize(scale)
    ready = federation.to_device(torch.device("cpu"), torch.float64)
    expected = np.stack([ready.train.client(k)[0].numpy().mean(0) for k in range(3)])
    assert compute_feature_means(federation) == pytest.approx(expected, abs=1e-12)


def test_feature_means_of_images():
    federation = fl.data.load("digits")
    means = compute_feature_means(federation)
    assert means.shape == (len(federation.clients), math.prod(federation.inputs))
    ready = federation.to_device(torch.device("cpu"), torch.float64, as_bytes=False)
    expected = ready.train.client(3)[0].flatten(1).mean(0).numpy()
    assert means[3] == pytest.approx(expected, abs=1e-12)


def test_nearest_on_a_line():
    federation = place_clients([0], [1], [3], [10], [12])
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
    found = matrix_of(nearest(place_clients(*points), "means", neighbours=4))
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
    federation = place_clients([0], [3], [4])
    a = matrix_of(kernel(federation, "means", bandwidth=2.0, threshold=0.0))
    assert a[0].tolist() == pytest.approx([0, math.exp(-9 / 8), math.exp(-2)])
    a = matrix_of(kernel(federation, "means", threshold=0.0))  # the median of 1, 3, 4
    assert a[0].tolist() == pytest.approx([0, math.exp(-1 / 2), math.exp(-8 / 9)])
    cut = matrix_of(kernel(federation, "means", bandwidth=2.0, threshold=0.2))
    assert (cut > 0).tolist() == [[False, True, False], [True, False, True], [False, True, False]]
    same = place_clients([1], [1], [1])
    assert np.array_equal(matrix_of(kernel(same, "means")), 1 - np.eye(3))


def test_noise_has_the_size_that_was_asked_for():
    federation = owning(*[[k % 4, 3] for k in range(200)])
    plain, noisy = (
        compute_vectors(federation, "labels"),
        compute_vectors(federation, "labels", noise=0.3, seed=1),
    )
    added = (noisy - plain) / 0.3
    assert (added.mean(), added.std()) == pytest.approx((0, 1), abs=0.1)
    again = compute_vectors(federation.reorder(federation.clients[::-1]), "labels", noise=0.3, seed=1)
    assert np.array_equal(again[::-1], noisy)


def test_metadata(tmp_path):
    file = tmp_path / "about.csv"
    file.write_text("who, age,height,same\n\nb,30,1.5,7\nstranger,1,1,1\na, 10,1.5,7\n", encoding="utf-8-sig")
    assert read_metadata(("a", "b"), str(file)).tolist() == [[-1, 0, 0], [1, 0, 0]]


def test_neighbours_by_metadata(tmp_path):
    federation = owning(*[[0, 1]] * 4)
    file = tmp_path / "places.csv"
    lines = [f"client {k},{east},{north}" for k, (east, north) in enumerate([(0, 0), (9, 9), (0, 1), (9, 8)])]
    file.write_text("\n".join(["client,east,north", *lines]), encoding="utf-8")
    graph = nearest(federation, "metadata", str(file), neighbours=1)
    assert edges_of(graph) == {(0, 2), (1, 3)}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1 does not name the columns; expected a header"),
        ("client\na\n", "line 1 does not name the columns; expected a header"),
        ("a,1\nb,2\n", "line 1 does not name the columns; expected a header"),
        ("client,age\na,1\n", "client 'b' has no line in .*; add one line per client"),
        ("client,age\na,1\nb,old\n", "line 3: age = 'old'; expected a finite number"),
        ("client,age\na,1\nb,nan\n", "line 3: age = 'nan'; expected a finite number"),
        ("client,age\na,1\nb,\n", "line 3: age = ''; expected a finite number"),
        ("client,age\na,1\n\nb,2,3\n", "line 4 has 3 columns; expected 2 as in line 1"),
        ("client,age\na,1\na,2\n", "line 3: client 'a' has a line already"),
    ],
)
def test_metadata_that_cannot_be(tmp_path, content, message):
    file = tmp_path / "about.csv"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(fl.InputError, match=message) as error:
        read_metadata(("a", "b"), str(file))
    assert "\n" not in str(error.value)
    assert "about.csv" in str(error.value)


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
    with pytest.raises(fl.InputError, match="has another SHA-256 than the file of this experiment"):
        experiment.build()
