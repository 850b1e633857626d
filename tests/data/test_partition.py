"""Rows dealt out to clients: every row goes to one, sizes are as drawn, and what is refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import fedlap as fl
from fedlap.data.partition import PARTITIONS, Dirichlet, Iid, Labels, Quantity
from fedlap.data.table import Table
from fedlap.randomness import draws
from partitions import draw_labels, each_kind, everything, sizes_of
from property_settings import law
from table_rows import check_refusal

spreads = st.sampled_from([0.0, 0.7, 3.0, 500.0])


@st.composite
def cuts(draw):
    """A partition, and labels that it can cut."""
    kind, clients = draw(st.sampled_from(list(PARTITIONS.values()))), draw(st.integers(1, 12))
    if kind is Labels:
        counts = draw(st.lists(st.integers(clients, 40), min_size=1, max_size=6))
        labels_per_client = draw(st.integers(1, len(counts)))
        assume(len(counts) <= clients + labels_per_client - 1)
        return Labels(clients, labels_per_client, draw(spreads)), draw_labels(counts)
    counts = draw(st.lists(st.integers(0, 30), min_size=1, max_size=6))
    assume(sum(counts) >= clients)
    settings = {"clients": clients}
    if kind is not Iid:
        settings["spread"] = draw(spreads)
    if kind is Dirichlet:
        settings["alpha"] = draw(st.sampled_from([1e-6, 1e-3, 0.01, 0.5, 10.0, 1e6]))
    return kind(**settings), draw_labels(counts)


@law
@given(cuts(), st.integers(0, 5))
def test_every_row_goes_to_one_client_and_every_client_gets_some(case, seed):
    partition, y = case
    parts = partition.cut(y, seed)
    assert len(parts) == partition.clients
    assert min(sizes_of(parts)) >= 1
    assert sorted(torch.cat(parts).tolist()) == list(range(len(y)))
    for rows in parts:
        assert rows.tolist() == sorted(rows.tolist())


@law
@given(cuts(), st.integers(0, 5), st.floats(0, 0.99))
def test_a_federation_holds_what_was_given_out(case, seed, share):
    partition, y = case
    table = Table.of((torch.zeros(len(y), 1), y))
    federation = fl.Federation.from_table(table, partition, share, seed)
    assert federation.clients == tuple(str(k) for k in range(partition.clients))
    for k, rows in enumerate(partition.cut(y, seed)):
        train, test = (
            part.row[part.locate_client(k)].tolist() for part in (federation.train, federation.test)
        )
        assert sorted(train + test) == rows.tolist()
        assert len(test) == min(math.floor(share * len(rows) + 0.5), len(rows) - 1)
    assert everything(federation) == list(range(len(y)))


@law
@given(
    st.lists(st.integers(40, 80), min_size=1, max_size=5), st.integers(1, 9), spreads,
    st.floats(0.5, 1), st.integers(0, 5), st.data(),
)  # fmt: skip
def test_as_many_rows_as_asked_the_same_share_of_each_label(counts, clients, spread, share, seed, data):
    labels_per_client = data.draw(st.integers(max(1, len(counts) - clients + 1), len(counts)))
    y, rows = draw_labels(counts), math.ceil(share * sum(counts))
    partition = Labels(clients, labels_per_client, spread, rows)
    chosen = torch.cat(partition.cut(y, seed))
    assert len(chosen) == len(chosen.unique()) == rows
    given_out = torch.bincount(y[chosen], minlength=len(counts))
    assert (given_out - torch.tensor(counts) * rows / sum(counts)).abs().max() < 1
    federation = fl.Federation.from_table(Table.of((torch.zeros(len(y), 1), y)), partition, 0.25, seed)
    assert everything(federation) == sorted(chosen.tolist())


@law
@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 6), spreads, st.integers(0, 3))
def test_a_client_holds_each_of_its_labels_however_small_its_share(
    labels, clients, labels_per_client, spread, seed
):
    assume(labels_per_client <= labels <= clients + labels_per_client - 1)
    y = draw_labels([15] * labels, seed)
    for k, rows in enumerate(Labels(clients, labels_per_client, spread).cut(y, seed)):
        assert set(y[rows].tolist()) == {(k + j) % labels for j in range(labels_per_client)}


@each_kind
def test_a_cut_depends_on_the_seed_and_no_global_generator(kind):
    y, results = torch.arange(400) % 4, []
    with torch.random.fork_rng(devices=[]):
        legacy = np.random.get_state()  # noqa: NPY002
        for chance, seed in ((1, 4), (2, 4), (1, 5)):
            torch.manual_seed(chance)
            np.random.seed(chance)  # noqa: NPY002
            before = torch.get_rng_state()
            results.append(kind(8).cut(y, seed))
            assert torch.equal(torch.get_rng_state(), before)
        np.random.set_state(legacy)  # noqa: NPY002
    one, again, other = results
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@law
@given(st.integers(1, 20), st.integers(0, 200), st.integers(0, 3))
def test_equal_clients_differ_by_one_row_at_most(clients, more, seed):
    y = torch.zeros(clients + more, dtype=torch.int64)
    for partition in (Iid(clients), Quantity(clients, 0.0), Dirichlet(clients, 0.5), Labels(clients, 1, 0.0)):
        sizes = sizes_of(partition.cut(y, seed))
        assert max(sizes) - min(sizes) <= 1


def test_equal_shares_of_each_label_without_spread():
    y = torch.arange(120) % 3
    assert sizes_of(Labels(6, 1, 0.0).cut(y, 0)) == [20] * 6
    assert sorted(sizes_of(Labels(6, 1, 0.0).cut(y[:-1], 0))) == [19] + [20] * 5


def test_iid_clients_are_quantitys_without_spread():
    y = torch.arange(100) % 4
    one, other = Iid(7).cut(y, 3), Quantity(7, 0.0).cut(y, 3)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_sizes_follow_the_drawn_normals(spread):
    """One row for each client, and the rest in proportion to exp(spread·z)."""
    y = torch.zeros(3000, dtype=torch.int64)
    weight = (spread * draws(2, "partition").normal(0, 0, 25)).exp()
    expected = 1 + (3000 - 25) * weight / weight.sum()
    for partition in (Quantity(25, spread), Dirichlet(25, 0.5, spread), Labels(25, 1, spread)):
        assert (torch.tensor(sizes_of(partition.cut(y, 2))) - expected).abs().max() < 1


@pytest.mark.parametrize("spread", [0.2, 0.6])
@pytest.mark.parametrize("seed", [0, 1])
def test_sizes_of_many_clients_are_log_normal(spread, seed):
    sizes = torch.tensor(sizes_of(Quantity(2000, spread).cut(torch.zeros(400_000), seed)))
    z = (sizes.log() - sizes.log().mean()) / spread
    assert abs(z.std() - 1) < 0.06
    assert abs(z.pow(3).mean()) < 0.25


@pytest.mark.parametrize(
    "partition",
    [Quantity(10, 500.0), Dirichlet(10, 0.5, 500.0), Labels(10, 1, 500.0),
     Quantity(10, 1.7e308), Dirichlet(10, 0.5, 1.7e308), Labels(10, 1, 1.7e308)],
    ids=repr,
)  # fmt: skip
def test_a_client_that_would_get_nothing_gets_one_row(partition):
    for seed in range(5):
        assert sorted(sizes_of(partition.cut(torch.zeros(1000, dtype=torch.int64), seed))) == [1] * 9 + [991]


@pytest.mark.parametrize("kind", [Dirichlet, Quantity, Iid])
def test_more_clients_than_rows_are_refused(kind):
    assert sizes_of(kind(5).cut(torch.arange(5) % 2, 0)) == [1] * 5
    check_refusal("partition: 5 clients for 4 rows; use at most", kind(5).cut, torch.arange(4) % 2, 0)


@each_kind
def test_there_must_be_rows(kind):
    check_refusal("partition: .* (no|0) rows", kind().cut, torch.zeros(0, dtype=torch.int64), 0)


@pytest.mark.parametrize("targets", [torch.zeros(30, 1), torch.zeros(30, 2, dtype=torch.float64)])
def test_real_targets_are_dealt_out_only_where_labels_are_not_needed(targets):
    for name in ("labels", "dirichlet"):
        check_refusal(
            f"partition: {name} needs labels, but targets are real numbers; use iid or quantity",
            PARTITIONS[name](5).cut, targets, 0,
        )  # fmt: skip
    for kind in (Iid, Quantity):
        assert sorted(torch.cat(kind(5).cut(targets, 0)).tolist()) == list(range(30))


@pytest.mark.parametrize(
    ("kind", "setting", "values", "message"),
    [
        *[(kind, "clients", [0, -1, True], "an integer of at least 1") for kind in PARTITIONS.values()],
        *[(kind, "spread", [-0.1, math.nan, math.inf, True], "a finite number of at least zero")
          for kind in (Labels, Dirichlet, Quantity)],
        (Dirichlet, "alpha", [0.0, -1.0, math.nan, math.inf], "a finite number above zero"),
        (Labels, "labels_per_client", [0, -2], "an integer of at least 1"),
        (Labels, "rows", [-1], "an integer of at least 0"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(kind, setting, values, message):
    for value in values:
        check_refusal(f"partition: {setting} = {value}; expected {message}", kind, **{setting: value})


@pytest.mark.parametrize(
    ("clients", "labels_per_client", "rows", "message"),
    [
        (5, 5, 0, "labels_per_client = 5; expected 1 to 4"),
        (1, 3, 0, "do not cover all 4 labels"),
        (12, 4, 0, "label 0 has 10 rows for 12 clients; use fewer clients"),
        (8, 4, 28, "label 0 has 7 rows for 8 clients; use fewer clients"),
        (8, 4, 41, "rows = 41; expected at most 40"),
    ],
)
def test_cuts_that_cannot_be(clients, labels_per_client, rows, message):
    check_refusal(message, Labels(clients, labels_per_client, 1.0, rows).cut, torch.arange(40) % 4, 0)


def test_a_label_without_rows_cannot_be_held():
    check_refusal("label 1 has 0 rows", Labels(2, 2, 1.0).cut, torch.tensor([0, 0, 2, 2]), 0)
