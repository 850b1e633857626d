"""Scarce clients: which clients are chosen, which rows they keep, and how they are loaded."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedlap as fl
from fedlap.data.table import Table
from fedlap.experiments.experiment import Experiment
from property_settings import law
from table_rows import check_refusal


@cache
def named_clients(*counts):
    """Clients a, b, … with this many rows."""
    rng = np.random.default_rng(0)
    names = [chr(ord("a") + k) for k, count in enumerate(counts) for _ in range(count)]
    table = Table.of((rng.normal(size=(len(names), 2)), rng.integers(0, 3, len(names))), names, labels=3)
    return fl.Federation.from_table(table)


def rows_by_name(part, clients):
    return {name: part.row[part.locate_client(k)].tolist() for k, name in enumerate(clients)}


def same_rows(one, other):
    return all(
        rows_by_name(getattr(one, part), one.clients) == rows_by_name(getattr(other, part), other.clients)
        for part in ("train", "test")
    )


@law
@given(
    st.lists(st.integers(14, 40), min_size=1, max_size=7), st.floats(0, 1), st.floats(0, 0.9),
    st.integers(0, 5), st.booleans(),
)  # fmt: skip
def test_scarce_clients_keep_their_share_and_others_everything(counts, share, keep, seed, cut_test):
    federation = named_clients(*counts)
    scarce = federation.scarce(share, keep, seed, cut_test=cut_test)
    assert (scarce.clients, scarce.labels) == (federation.clients, federation.labels)
    before, after = (rows_by_name(f.train, f.clients) for f in (federation, scarce))
    chosen = [name for name in before if len(after[name]) < len(before[name])]
    assert len(chosen) == math.floor(share * len(counts) + 0.5)
    tests = [rows_by_name(f.test, f.clients) for f in (federation, scarce)]
    for name in federation.clients:
        for rows, left, cut in ((before, after, True), (*tests, cut_test)):
            n = len(rows[name])
            assert left[name] == [row for row in rows[name] if row in left[name]]  # a subset, in order
            assert len(left[name]) == (max(1, math.floor(keep * n + 0.5)) if cut and name in chosen else n)
    for k, name in enumerate(scarce.clients):
        x, y = scarce.train.client(k)
        assert torch.equal(x, federation.train.store[after[name]])
        assert len(x) == len(y) == int(scarce.train.count[k])


@law
@given(st.permutations("abcdef"), st.integers(0, 5), st.booleans())
def test_scarcity_depends_on_seed_and_names_not_on_places(order, seed, cut_test):
    federation = named_clients(14, 30, 22, 40, 17, 25)
    scarce = federation.scarce(seed=seed, cut_test=cut_test)
    moved = federation.reorder(order).scarce(seed=seed, cut_test=cut_test)
    assert moved.clients == tuple(order)
    assert same_rows(moved, scarce)
    assert torch.equal(moved.train.row, scarce.reorder(order).train.row)


def test_scarcity_is_drawn_anew_for_another_seed_or_name():
    federation = named_clients(*[40] * 8)
    chosen = {tuple((federation.scarce(seed=seed).train.count < 30).tolist()) for seed in range(8)}
    assert len(chosen) > 4
    one, other = (
        rows_by_name(federation.scarce(1.0, seed=seed).train, federation.clients) for seed in (0, 1)
    )
    assert all(one[name] != other[name] for name in federation.clients)
    first = federation.train.first.tolist()
    places = {
        tuple(federation.train.row.tolist().index(row) - first[k] for row in one[name])
        for k, name in enumerate(federation.clients)
    }
    assert len(places) == 8  # clients of one size keep rows of different places


def test_a_scarce_clients_rows_do_not_depend_on_other_clients():
    federation, fewer = (named_clients(*counts) for counts in ([20, 30, 25, 18], [20, 30]))
    both = [rows_by_name(f.scarce(1.0, 0.3).train, f.clients) for f in (federation, fewer)]
    assert all(both[0][name] == both[1][name] for name in fewer.clients)


def test_who_is_scarce_is_fair():
    federation = named_clients(*[14] * 10)
    times = sum((federation.scarce(0.3, 0.1, seed).train.count < 5).double() for seed in range(100))
    assert ((times - 30).square() / 30).sum() < 25  # less than 9 degrees of freedom


@pytest.mark.parametrize("kind", ["none", "pooled", "client"])
def test_scale_is_made_of_what_is_left(kind):
    federation = named_clients(14, 30, 22, 40).standardize(kind)
    scarce = federation.scarce(0.5, 0.2, 1, cut_test=True)
    assert scarce.scale.kind == kind
    again = scarce.standardize(kind).scale
    assert torch.equal(scarce.scale.shift, again.shift)
    assert torch.equal(scarce.scale.factor, again.factor)
    if kind == "pooled":
        assert np.allclose(scarce.scale.shift[0], scarce.train.x.numpy().mean(0), atol=1e-12)
        assert not np.allclose(scarce.scale.shift, federation.scale.shift, atol=1e-3)


def test_scarce_settings_at_their_ends():
    federation = named_clients(14, 30, 22, 40, 1, 2)
    assert same_rows(federation.scarce(0.0), federation)
    assert same_rows(federation.scarce(1.0, 1.0, cut_test=True), federation)
    nothing = federation.scarce(1.0, 0.0, cut_test=True)
    assert nothing.train.count.tolist() == [1] * 6
    assert nothing.test.count.tolist() == [min(1, n) for n in federation.test.count.tolist()]
    assert same_rows(federation.scarce(0, 0), federation)
    assert same_rows(federation.scarce(), federation.scarce(0.5, 0.2, 0, cut_test=False))


@pytest.mark.parametrize("name", ["share_of_clients", "keep"])
@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf, True])
def test_scarce_settings_that_cannot_be(name, value):
    check_refusal(f"scarce: {name} = {value}; expected", named_clients(14).scarce, **{name: value})


@pytest.mark.parametrize("scarce", [{}, {"keep": 0.1}, {"share_of_clients": 0.25, "cut_test": True}], ids=str)
def test_data_may_be_loaded_scarce(scarce):
    whole = fl.data.load("digits", seed=3)
    expected = whole.scarce(**scarce, seed=3)
    chosen = round(20 * scarce.get("share_of_clients", 0.5))
    n = whole.train.count
    left = (scarce.get("keep", 0.2) * n + 0.5).floor().clamp(min=1).long()
    assert int((expected.train.count < n).sum()) == chosen
    assert bool(((expected.train.count == n) | (expected.train.count == left)).all())
    loaded, graph = fl.data.load_with_graph("digits", 3, scarce=scarce)
    described, _ = Experiment.of({"scarce": scarce, "seed": 3}).load()
    assert graph is None
    for federation in (loaded, described):
        assert same_rows(federation, expected)
        assert torch.equal(federation.scale.shift, expected.scale.shift)
        assert not torch.equal(federation.scale.shift, whole.scale.shift)


@pytest.mark.parametrize(
    ("scarce", "message"),
    [
        ({"keep": 2.0}, r"scarce.*keep = 2.0; expected a number in"),
        ({"kep": 0.1}, "'kep'; did you mean 'keep'"),
        ({"seed": 1}, "unknown setting of .* 'seed'"),
    ],
)
def test_loading_scarce_data_names_mistakes(scarce, message):
    check_refusal(message, lambda: Experiment.of({"scarce": scarce}).load())
    check_refusal(message, fl.data.load_with_graph, "digits", scarce=scarce)
