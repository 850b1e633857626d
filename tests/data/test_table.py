"""Tables: whose rows are whose, which are for testing, and what is refused or remarked on."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlap.data.partition import Iid
from fedlap.data.table import Table, index_clients
from property_settings import law
from random_inputs import random_arrays
from table_rows import check_refusal, from_arrays, from_table


@law
@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=30))
def test_clients_come_in_the_order_in_which_they_first_appear(names):
    table = Table.of((np.arange(len(names)), np.zeros(len(names), dtype=int)), names)
    rows_by_client = table.cut(None, 0)
    assert list(rows_by_client) == list(table.clients) == sorted(set(names), key=names.index)
    for name, rows in rows_by_client.items():
        assert rows.tolist() == [at for at, other in enumerate(names) if other == name]


@pytest.mark.parametrize("kind", [list, tuple, iter, np.array, torch.tensor], ids=lambda kind: kind.__name__)
def test_names_of_clients_may_be_anything(kind):
    names, owner = index_clients(kind([7, 3, 7, 7, 10]), 5, "here")
    assert names == ("7", "3", "10")
    assert owner.tolist() == [0, 1, 0, 0, 2]


def test_a_partition_numbers_its_clients_whosever_rows_they_were():
    table = Table.of((np.zeros((12, 1)), np.arange(12) % 2), list("ab" * 6))
    rows_by_client = table.cut(Iid(4), 3)
    assert list(rows_by_client) == ["0", "1", "2", "3"]
    assert all(
        torch.equal(a, b) for a, b in zip(rows_by_client.values(), Iid(4).cut(table.y, 3), strict=True)
    )


def test_test_rows_may_be_marked():
    test = torch.arange(12) % 4 == 1
    table = Table.of((np.zeros((12, 1)), np.arange(12) % 2), list("ab" * 6), test=test)
    for partition in (None, Iid(3)):
        federation = from_table(table, partition, 0.9)
        assert sorted(federation.test.row.tolist()) == [1, 5, 9]
        assert sorted(federation.train.row.tolist()) == [0, 2, 3, 4, 6, 7, 8, 10, 11]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pair": (np.zeros((0, 2)), np.zeros(0, dtype=int))}, "here has no rows; expected at least one"),
        ({"client": "ab"}, "here: 2 client names for 3 rows; expected one per row"),
        ({"labels": 2}, "here, row 2: a label is out of range; expected 0 to 1"),
        ({"labels": ["x", "y"]}, "here, row 2: a label is out of range; expected 0 to 1"),
        ({"pair": (np.zeros((3, 2)), np.zeros(2))}, r"here has features of shape \(3, 2\) and labels"),
        ({"pair": (np.array([[0], [np.nan]]), np.zeros(2, dtype=int))}, "here, row 1: a feature is NaN"),
        ({"pair": (np.zeros((3, 2)), np.zeros(3)), "labels": 2}, "labels are named but targets are real"),
        ({"pair": (np.array([["x"]] * 3), np.zeros(3))}, "here: features are text"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be(settings, message):
    settings = {"pair": (np.zeros((3, 2)), np.arange(3)), "where": "here", **settings}
    check_refusal(message, Table.of, **settings)


def test_somebody_must_own_the_rows():
    check_refusal("the rows have no clients", from_table, Table.of((np.zeros((3, 2)), np.arange(3))))


def test_surprises_are_remarked_on():
    one, both = np.zeros(4, dtype=int), np.arange(4) % 2
    rows = {"a": (np.zeros(4), one), "b": (np.zeros(4), both), "c": (np.zeros(1), one[:1])}
    assert from_arrays(rows).list_warnings() == [
        "2 of 3 clients have training rows of one label only, so their local models know no other: a, c",
        "1 of 3 clients have no test rows and do not count in test scores: c",
    ]
    assert from_arrays({"b": rows["b"]}, test={"b": rows["b"]}).list_warnings() == []


def test_remarks_name_a_few_clients_and_know_targets_from_labels():
    assert from_arrays(random_arrays([3] * 8, real=True), test_share=0).list_warnings() == [
        "8 of 8 clients have no test rows and do not count in test scores: a, b, c, d, e, …"
    ]
    assert from_arrays(random_arrays([9] * 3, real=True)).list_warnings() == []
