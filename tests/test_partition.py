from importlib.resources import files

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

import fedlap as fl
from fedlap.partition import Labels

law = settings(max_examples=50, deadline=None, derandomize=True)


@law
@given(
    st.integers(1, 6),
    st.integers(1, 12),
    st.integers(1, 6),
    st.sampled_from([0.0, 1.0, 3.0]),
    st.integers(0, 3),
    st.integers(12, 40),
)
def test_no_row_is_lost_or_given_twice(labels, clients, each, spread, seed, rows):
    assume(each <= labels <= clients + each - 1)
    y = torch.from_numpy(np.random.default_rng(seed).permutation(np.arange(labels * rows) % labels))
    own = Labels(clients, each, spread).cut(y, seed)
    assert len(own) == clients
    assert sorted(torch.cat(own).tolist()) == list(range(len(y)))
    for k, at in enumerate(own):
        assert at.tolist() == sorted(at.tolist())
        assert set(y[at].tolist()) == {(k + j) % labels for j in range(each)}


def test_equal_shares_without_spread():
    y = torch.arange(120) % 3
    assert [len(at) for at in Labels(6, 1, 0.0).cut(y, 0)] == [20] * 6
    assert sorted(len(at) for at in Labels(6, 1, 0.0).cut(y[:-1], 0)) == [19] + [20] * 5


def test_a_seed_fixes_the_cut():
    y = torch.arange(200) % 4
    one, again, other = (Labels(8, 2, 1.0).cut(y, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert [len(at) for at in one] != [len(at) for at in other]


@pytest.mark.parametrize(
    ("clients", "each", "message"),
    [
        (5, 0, "labels_per_client = 0; it must be a whole number, at least 1"),
        (5, 5, "labels_per_client = 5; it must be 1 to 4"),
        (1, 3, "leave some of 4 labels to nobody"),
        (0, 4, "clients = 0; it must be a whole number"),
        (12, 4, "label 0 has 10 rows for 12 clients; take fewer clients"),
    ],
)
def test_cuts_that_cannot_be(clients, each, message):
    with pytest.raises(fl.InputError, match=message):
        Labels(clients, each, 1.0).cut(torch.arange(40) % 4, 0)


def test_a_label_without_rows():
    with pytest.raises(fl.InputError, match="label 1 has 0 rows"):
        Labels(2, 2, 1.0).cut(torch.tensor([0, 0, 2, 2]), 0)


def test_embedded_digits_are_scikit_learns():
    theirs = load_digits()
    with files("fedlap.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        assert arrays["images"].dtype == np.uint8
        assert np.array_equal(arrays["images"], theirs.images)
        assert np.array_equal(arrays["labels"], theirs.target)


def row_bytes(federation):
    parts = (federation.train, federation.test)
    return sorted(
        (bytes(x.flatten().tolist()), int(y)) for part in parts for x, y in zip(part.x, part.y, strict=True)
    )


def test_digits_are_all_there_and_unlike():
    federation = fl.data.load("digits")
    theirs = load_digits()
    pixels = theirs.images.astype(np.uint8)
    assert row_bytes(federation) == sorted(
        (image.tobytes(), int(label)) for image, label in zip(pixels, theirs.target, strict=True)
    )
    assert federation.clients == tuple(str(k) for k in range(20))
    assert (federation.inputs, federation.outputs) == ((1, 8, 8), 10)
    assert federation.scale.kind == "pooled"
    total = federation.train.count + federation.test.count
    assert total.max() >= 5 * total.min()
    for k in range(20):
        assert set(federation.train.client(k)[1].tolist()) <= {k % 10, (k + 1) % 10, (k + 2) % 10}


def test_a_seed_fixes_the_digits():
    one, again, other = (fl.data.load("digits", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.train.x, again.train.x)
    assert torch.equal(one.test.y, again.test.y)
    assert one.train.count.tolist() != other.train.count.tolist()


def test_digits_cut_otherwise():
    federation = fl.data.load("digits", partition=Labels(12, 1, 0.0), test_share=0.0)
    assert len(federation.clients) == 12
    assert int(federation.train.count.sum()) == 1797
    assert federation.test.count.sum() == 0
    assert [federation.train.client(k)[1].unique().tolist() for k in range(12)] == [
        [k % 10] for k in range(12)
    ]
