"""Factorisation of sparse matrices, against dense algebra."""

import numpy as np
import pytest
import torch
from scipy.sparse import csc_array, csr_array, tril

from fedlap.graph import factorisation
from fedlap.graph.factorisation import (
    SparseFactor,
    bound_entries,
    compute_inverse_diagonal,
    factorise,
    order_by_levels,
)


def build_matrix(form, size=60, seed=0):
    """A Laplacian plus a small diagonal."""
    rng = np.random.default_rng(seed)
    a = np.zeros((size, size))
    if form == "path":
        a[np.arange(size - 1), np.arange(1, size)] = rng.uniform(0.5, 2, size - 1)
    elif form == "star":
        a[0, 1:] = rng.uniform(0.5, 2, size - 1)
    elif form != "no edges":
        density = {"sparse": 3, "dense": size}[form] / size
        a = np.triu(rng.exponential(size=(size, size)) * (rng.random((size, size)) < density), 1)
    a = a + a.T
    return csc_array(np.diag(a.sum(1) + 0.01) - a)


FORMS = ["path", "star", "sparse", "dense", "no edges"]
over_forms = pytest.mark.parametrize("form", FORMS)


@pytest.mark.parametrize(("least", "most"), [(8, 1_500), (8, 0), (1, 0), (10**9, 10**9)])
@over_forms
def test_it_solves_for_many_columns(form, least, most, monkeypatch):
    """By levels only, with a dense block only, and with both."""
    monkeypatch.setattr(factorisation, "LEAST_LEVEL", least)
    monkeypatch.setattr(factorisation, "MOST_DENSE", most)
    matrix, rng = build_matrix(form), np.random.default_rng(1)
    b = csr_array(rng.normal(size=(60, 7)) * (rng.random((60, 7)) < 0.3))
    x = rng.normal(size=(7, 5))
    factor = SparseFactor.of(matrix)
    found = factor.solve(b, torch.from_numpy(x)).numpy()
    expected = np.linalg.solve(matrix.toarray(), b @ x)[factor.order.numpy()]
    assert np.abs(found - expected).max() < 1e-10
    single = factor.solve(b, torch.from_numpy(x).float())
    assert single.dtype == torch.float32
    assert np.abs(single.numpy() - expected).max() < 1e-3 * np.abs(expected).max()


@over_forms
def test_rows_of_a_level_depend_on_earlier_levels_only(form):
    lower = csc_array(tril(factorise(build_matrix(form)).L, -1))
    order, ends = order_by_levels(lower)
    assert sorted(order.tolist()) == list(range(60))
    place = np.argsort(order)
    level = np.searchsorted(ends, place, side="right")  # rows of the last block have the same one
    entries = lower.tocoo()
    below, left = level[entries.row], level[entries.col]
    assert (place[entries.row] > place[entries.col]).all()
    assert ((below > left) | (below == len(ends))).all()


@over_forms
def test_the_diagonal_of_the_inverse(form):
    matrix = build_matrix(form)
    expected = np.linalg.inv(matrix.toarray()).diagonal()
    assert np.abs(compute_inverse_diagonal(factorise(matrix)) / expected - 1).max() < 1e-10


def test_weights_whose_products_underflow_do_not_break_the_pattern():
    """Entries of a factor that are rounded to zero are missing in it."""
    matrix = build_matrix("sparse").toarray()
    small = np.random.default_rng(2).random((60, 60)) < 0.3
    scale = np.where(small | small.T, 1e-200, 1.0)
    matrix = csc_array(matrix * np.where(np.eye(60) == 1, 1.0, scale) + np.eye(60))
    expected = np.linalg.inv(matrix.toarray()).diagonal()
    assert np.abs(compute_inverse_diagonal(factorise(matrix)) / expected - 1).max() < 1e-10


def test_entries_are_bounded_without_a_factor():
    """In the order of Cuthill and McKee, all entries of a factor lie between the first one of a row and D."""
    assert bound_entries(csr_array(build_matrix("path"))) == 59
    assert bound_entries(csr_array(build_matrix("star"))) <= 2 * 59
    assert bound_entries(csr_array(build_matrix("dense"))) > 60 * 59 / 4
    assert bound_entries(csr_array(build_matrix("no edges"))) == 0
