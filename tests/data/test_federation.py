"""Federations of given rows: what kind they are, how they are split, and what is refused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedlap as fl
from fedlap.data.client_rows import ClientRows
from fedlap.models import CrossEntropy, SquaredError
from property_settings import short_law as law
from random_inputs import random_arrays
from table_rows import from_arrays, of


def check_refusal(message, *args, **settings):
    with pytest.raises(fl.InputError, match=message) as error:
        from_arrays(*args, **settings)
    assert "\n" not in str(error.value)


def make_numbered_rows(counts):
    """Return clients a, b, … whose rows hold numbers found nowhere else."""
    total = iter(range(10_000))
    arrays = {}
    for place, count in enumerate(counts):
        x = np.array([[next(total), -1.0] for _ in range(count)])
        arrays[chr(ord("a") + place)] = (x, x[:, 0].astype(int) % 3)
    return arrays


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_rows_stay_as_given(kind):
    arrays = random_arrays([4, 1, 7])
    given_rows = {name: (kind(x), kind(y)) for name, (x, y) in arrays.items()}
    federation = from_arrays(given_rows, test_share=0)
    assert federation.clients == ("a", "b", "c")
    assert federation.train.count.tolist() == [4, 1, 7]
    assert federation.train.first.tolist() == [0, 4, 5]
    assert federation.train.find_owners().tolist() == [0] * 4 + [1] + [2] * 7
    assert federation.test.count.tolist() == [0, 0, 0]
    assert federation.scale.kind == "none"
    for name, (x, y) in arrays.items():
        own_x, own_y = of(federation.train, federation, name)
        assert np.array_equal(own_x, x)
        assert np.array_equal(own_y, y)


def test_what_kind_of_data_it_is():
    classes = from_arrays(random_arrays([5, 6], features=4, labels=3), labels=["x", "y", "z"])
    assert (classes.inputs, classes.outputs, classes.labels) == ((4,), 3, ("x", "y", "z"))
    assert isinstance(classes.loss, CrossEntropy)
    targets = from_arrays(random_arrays([5, 6], features=4, labels=2, real=True))
    assert (targets.inputs, targets.outputs, targets.labels) == ((4,), 2, None)
    assert isinstance(targets.loss, SquaredError)
    plain = from_arrays({"a": (np.arange(6.0), np.arange(6.0))}, test_share=0)
    assert (plain.inputs, plain.outputs) == ((1,), 1)
    assert torch.equal(plain.train.x, plain.train.y)
    images = from_arrays({"a": (np.full((4, 3, 8, 8), 255, dtype=np.uint8), np.array([0, 1, 1, 0]))})
    assert (images.inputs, images.outputs, images.train.x.dtype) == ((3, 8, 8), 2, torch.uint8)


def test_how_many_labels_there_are():
    x = np.zeros((4, 2))
    assert from_arrays({"a": (x, np.array([0, 3, 1, 0]))}, test_share=0).labels == ("0", "1", "2", "3")
    assert from_arrays({"a": (x, np.zeros(4, dtype=int))}, test_share=0).outputs == 2
    assert from_arrays({"a": (x, np.zeros(4, dtype=int))}, labels=7).outputs == 7
    assert from_arrays({"a": (x, np.array([True, False, True, True]))}).outputs == 2
    unseen = from_arrays({"a": (x, np.zeros(4, dtype=int))}, test={"a": (x, np.array([4, 0, 0, 0]))})
    assert unseen.outputs == 5


@law
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.floats(0, 0.99), st.integers(0, 5))
def test_a_split_loses_and_doubles_nothing(counts, share, seed):
    arrays = make_numbered_rows(counts)
    federation = from_arrays(arrays, share, seed)
    for name, (x, y) in arrays.items():
        n = len(x)
        train, test = (of(part, federation, name) for part in (federation.train, federation.test))
        assert len(test[0]) == min(math.floor(share * n + 0.5), n - 1)
        for rows in (train, test):
            assert rows[0][:, 0].tolist() == sorted(rows[0][:, 0].tolist())  # both keep their order
            assert torch.equal(rows[0][:, 0].long() % 3, rows[1])  # labels stay with features
        assert sorted(train[0][:, 0].tolist() + test[0][:, 0].tolist()) == x[:, 0].tolist()
        assert len(train[1]) + len(test[1]) == len(y)


def test_a_split_depends_on_seed_and_name_alone():
    arrays = make_numbered_rows([20, 20, 12])
    federation = from_arrays(arrays, 0.3, 4)
    for subset in (["c", "a", "b"], ["b"], ["c", "b"]):
        other = from_arrays({name: arrays[name] for name in subset}, 0.3, 4)
        for name in subset:
            assert torch.equal(of(other.test, other, name)[0], of(federation.test, federation, name)[0])
    reseeded = from_arrays(arrays, 0.3, 5)
    assert not torch.equal(reseeded.test.x, federation.test.x)
    places = [(of(federation.test, federation, name)[0][:, 0] % 20).tolist() for name in "ab"]
    assert places[0] != places[1]
    renamed = from_arrays({"z": arrays["a"]}, 0.3, 4)
    assert not torch.equal(renamed.test.x, of(federation.test, federation, "a")[0])


def test_splits_are_fair():
    """Every row is held out about equally often."""
    x = np.arange(20.0)
    arrays = {str(k): (x, x.astype(int) % 2) for k in range(600)}
    held = torch.bincount(from_arrays(arrays, 0.25).test.x.flatten().long(), minlength=20)
    assert ((held - 150).square() / 150).sum() < 50  # 19 degrees of freedom


def test_test_rows_may_be_given():
    arrays, test = make_numbered_rows([6, 4, 5]), {name: make_numbered_rows([9, 2])[name] for name in "ab"}
    federation = from_arrays(arrays, 0.9, test={"b": test["b"], "a": test["a"]})
    assert federation.train.count.tolist() == [6, 4, 5]
    assert federation.test.count.tolist() == [9, 2, 0]
    for name, (x, _) in test.items():
        assert np.array_equal(of(federation.test, federation, name)[0], x)
    assert from_arrays(arrays, test={}).test.count.tolist() == [0, 0, 0]


def corrupt_value(client, row, column, value):
    arrays = random_arrays([4, 6, 5])
    arrays[client][0][row, column] = value
    return arrays


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_missing_numbers_are_named(value):
    arrays = corrupt_value("b", 2, 3, value)
    check_refusal("client 'b', row 2: a feature is NaN", arrays, test_share=0)
    check_refusal("client 'b', test row 2: a feature is NaN", random_arrays([4, 6, 5]), test=arrays)
    real = random_arrays([4, 6, 5], real=True)
    real["c"][1][4, 1] = value
    check_refusal("client 'c', row 4: a label is NaN", real, test_share=0)


def test_wrong_labels_are_named():
    arrays = random_arrays([4, 6, 5])
    arrays["b"][1][5] = 7
    message = "client 'b', row 5: a label is out of range; expected 0 to 2"
    check_refusal(message, arrays, test_share=0, labels=3)
    check_refusal("client 'b', test row 5: a label", random_arrays([4, 6, 5]), test=arrays, labels=3)
    arrays["b"][1][5] = -1
    check_refusal("client 'b', row 5: a label", arrays, test_share=0)
    check_refusal("labels are named but targets are real", random_arrays([4], real=True), labels=2)


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, math.nan])
def test_a_share_that_cannot_be(share):
    check_refusal("test_share = .*; expected a number in", random_arrays([4]), test_share=share)


X, Y = np.zeros((3, 2)), np.array([0, 1, 0])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((X[:0], Y[:0]), "client 'b' has no training rows"),
        ((X, Y[:2]), r"client 'b' has features of shape \(3, 2\) and labels of shape \(2,\)"),
        ((np.zeros((3, 4)), Y), r"client 'b' has real features \(4,\) and labels; expected real fea"),
        ((X.astype(np.uint8), Y), r"client 'b' has byte features \(2,\)"),
        ((X, Y.astype(float)), r"client 'b' has .* real targets \(1,\); expected .* labels, as client 'a'"),
        ((X, np.zeros((3, 2), dtype=int)), r"client 'b' has .* labels of shape \(3, 2\); integer labels"),
        ((X * 1j, Y), "client 'b' has .*real numbers"),
        ((X.astype(str), Y), r"client 'b': features are text; turn them into numbers first"),
        ((X.astype(object), Y), "client 'b' needs .* as arrays of numbers"),
    ],
)
def test_rows_that_cannot_be(rows, message):
    check_refusal(message, {"a": (X, Y), "b": rows}, test_share=0)
    if len(rows[0]):
        check_refusal(message, {"a": (X, Y), "b": (X, Y)}, test={"b": rows})


def test_clients_that_cannot_be():
    check_refusal("there are no clients", {})
    check_refusal(
        "client 'z' has test rows but no training rows", {"a": (X, Y)}, test={"a": (X, Y), "z": (X, Y)}
    )
    one = from_arrays({"a": (X, Y)}, test_share=0)
    twice = ClientRows.of(one.train.x, one.train.y, torch.tensor([2, 1]))
    empty = ClientRows.of(one.test.x, one.test.y, torch.tensor([0, 0]))
    with pytest.raises(fl.InputError, match="client 'a' appears twice"):
        fl.Federation(("a", "a"), twice, empty, one.labels)
