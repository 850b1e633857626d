"""The embedded digits: all there, and cut as asked."""

from importlib.resources import files

import numpy as np
import torch
from sklearn.datasets import load_digits

import fedlap as fl
from fedlap.data.partition import Labels
from partitions import each_kind, everything


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


@each_kind
def test_digits_are_all_there_however_they_are_cut(kind):
    assert everything(fl.data.load("digits", seed=1, partition=kind(15))) == list(range(1797))
