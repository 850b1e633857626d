"""Partitions of Flower Datasets as federations: by its documented interface, and the package where it is."""

import warnings

import numpy as np
import pytest

import fedlap as fl
from flower_partitions import COLUMNS, STAMPS, Partitioner
from table_rows import FIRST, LABELS, REALS, check_refusal, from_arrays, same

from_flower = fl.Federation.from_flower


def in_turn(x, y, **settings):
    ends = [0, 4, 7, 9]
    return from_arrays(
        {str(k): (x[ends[k] : ends[k + 1]], y[ends[k] : ends[k + 1]]) for k in range(3)}, **settings
    )


FLOWER = {
    "pictures": ("image", "label", FIRST, LABELS),
    "vectors": ("vector", "label", REALS, LABELS),
    "one column": ("height", "label", REALS[:, 0], LABELS),
    "columns": (["time", "height"], "label", np.stack([STAMPS, REALS[:, 0]], 1), LABELS),
    "whole columns": (["time", "label"], "label", np.stack([STAMPS, LABELS], 1), LABELS),
    "real targets": ("vector", "target", REALS, REALS[:, 1]),
}
each_flower = pytest.mark.parametrize(("features", "label", "x", "y"), FLOWER.values(), ids=FLOWER)


@each_flower
def test_flowers_partitions_give_what_their_arrays_give(features, label, x, y):
    federation = from_flower(Partitioner(COLUMNS), features, label, 0.3, 2)
    assert same(federation, in_turn(x, y, test_share=0.3, seed=2))


def test_flowers_names_of_labels_are_kept():
    assert from_flower(Partitioner(COLUMNS, names=["x", "y", "z"])).labels == ("x", "y", "z")
    assert from_flower(Partitioner(COLUMNS, names=["x", "y", "z"]), labels="pqr").labels == ("p", "q", "r")
    assert from_flower(Partitioner(COLUMNS), labels=5).labels == tuple("01234")
    message = "the partitions, row 2: a label is out of range"
    check_refusal(message, from_flower, Partitioner(COLUMNS, names=["x", "y"]))


@pytest.mark.parametrize(
    ("features", "label", "message"),
    [
        ("picture", "label", "there is no column 'picture'; use one of image, vector"),
        (["height", "width"], "label", "there is no column 'width'"),
        ("image", "class", "there is no column 'class'"),
        ("text", "label", "numbers"),
        (["height", "text"], "label", "numbers"),
        ("hole", "label", "numbers"),
        ("ragged", "label", "features of one shape"),
        (["height", "ragged"], "label", "features of one shape"),
        ("vector", "text", "labels are text"),
        ("vector", "hole", "numbers as labels"),
    ],
)
def test_columns_of_partitions_that_cannot_be(features, label, message):
    check_refusal(message, from_flower, Partitioner(COLUMNS), features, label)


def test_a_partition_without_rows_is_refused():
    check_refusal("client '1' has no training rows", from_flower, Partitioner(COLUMNS, sizes=(4, 0, 5)))


@pytest.fixture(scope="module")
def flower():
    """The real package; warnings as it is imported are its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        partitioners = pytest.importorskip("flwr_datasets.partitioner")
        datasets = pytest.importorskip("datasets")
    columns = {name: values for name, values in COLUMNS.items() if name not in ("hole", "ragged")}
    dataset = datasets.Dataset.from_dict(columns).cast_column(
        "label", datasets.ClassLabel(names=["x", "y", "z"])
    )

    def make():
        partitioner = partitioners.IidPartitioner(num_partitions=3)
        partitioner.dataset = dataset
        return partitioner

    return make


@each_flower
def test_real_partitions_give_what_their_arrays_give(flower, features, label, x, y):
    federation = from_flower(flower(), features, label, 0.3, 2)
    rows = np.array_split(np.arange(9), 3)
    arrays = {str(k): (x[places], y[places]) for k, places in enumerate(rows)}
    assert same(federation, from_arrays(arrays, 0.3, 2, labels=["x", "y", "z"] if label == "label" else None))


@pytest.mark.parametrize("features", ["picture", "text", ["height", "text"]], ids=str)
def test_real_columns_that_cannot_be(flower, features):
    check_refusal("data: ", from_flower, flower(), features)
