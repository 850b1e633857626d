"""PyTorch's datasets as federations: what their arrays give, or refused."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import fedlap as fl
from table_rows import FIRST, LABELS, PIXELS, REALS, check_refusal, from_arrays, same

from_dataset = fl.Federation.from_dataset


class Items(Dataset):
    """Items that are computed on request."""

    def __init__(self, items, make=tuple):
        self.items, self.make = items, make

    def __len__(self):
        return len(self.items)

    def __getitem__(self, at):
        return self.make(self.items[at])


def picture(item):
    pixels, label = item
    return Image.fromarray(pixels), int(label)


ITEMS = {"b": [6, 3, 0], "a": [8, 1], "é": [2]}  # nobody gets items 4, 5 and 7


def by_arrays(x, y, **settings):
    return from_arrays({name: (x[sorted(at)], y[sorted(at)]) for name, at in ITEMS.items()}, **settings)


NINE = TensorDataset(torch.from_numpy(REALS), torch.from_numpy(LABELS))


@pytest.mark.parametrize(
    ("dataset", "x", "y"),
    [
        (NINE, REALS, LABELS),
        (TensorDataset(torch.from_numpy(REALS).float(), torch.from_numpy(LABELS)), np.float32(REALS), LABELS),
        (TensorDataset(torch.from_numpy(FIRST), torch.from_numpy(LABELS)), FIRST, LABELS),
        (TensorDataset(torch.from_numpy(REALS), torch.from_numpy(REALS[:, :2])), REALS, REALS[:, :2]),
        (Items(list(zip(REALS, LABELS, strict=True))), REALS, LABELS),
        (Items(list(zip(REALS.tolist(), LABELS.tolist(), strict=True))), REALS, LABELS),
        (Items(list(zip(REALS, REALS[:, 0].tolist(), strict=True))), REALS, REALS[:, 0]),
        (Items(list(zip(PIXELS, LABELS, strict=True)), picture), FIRST, LABELS),
        (Items(list(zip(PIXELS, LABELS, strict=True))), FIRST, LABELS),
        (Items(list(zip(PIXELS[..., 0], LABELS, strict=True)), picture), PIXELS[..., 0], LABELS),
        (list(zip(REALS[:, 0].tolist(), LABELS.tolist(), strict=True)), REALS[:, 0], LABELS),
    ],
    ids=["tensors", "single tensors", "byte tensors", "real targets", "arrays", "lists", "real numbers",
         "pictures", "byte arrays", "grey pictures", "a list"],
)  # fmt: skip
def test_a_dataset_gives_what_its_arrays_give(dataset, x, y):
    assert same(from_dataset(dataset, ITEMS, 0.3, 2), by_arrays(x, y, test_share=0.3, seed=2))
    names = list("abacbbcaa")
    at = {name: [k for k, other in enumerate(names) if other == name] for name in "abc"}
    arrays = {name: (x[places], y[places]) for name, places in at.items()}
    for client in (names, np.array(names), iter(names), at):
        assert same(from_dataset(dataset, client, 0.3, 2), from_arrays(arrays, 0.3, 2))


def test_the_labels_of_a_dataset_may_be_named_or_counted():
    for labels in (["x", "y", "z"], 7):
        assert same(from_dataset(NINE, ITEMS, labels=labels), by_arrays(REALS, LABELS, labels=labels))
    check_refusal("the dataset, row 2: a label is out of range", from_dataset, NINE, ["a"] * 9, labels=2)


def test_clients_of_a_dataset_keep_their_order():
    assert from_dataset(NINE, {"b": [3, 4], "a": [0, 1], "c": [2]}).clients == ("b", "a", "c")
    assert from_dataset(NINE, "baabbccab").clients == ("b", "a", "c")


WRONG_ITEM = (
    r"client 'b' has item .+, which does not exist or has a client already; "
    r"expected items 0 to 8, each for one"
)


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"a": [0, 1], "b": [2, 1]}, WRONG_ITEM),
        ({"b": [2, 2]}, WRONG_ITEM),
        ({"b": [9]}, WRONG_ITEM),
        ({"b": [-1]}, WRONG_ITEM),
        ({"b": [0.5]}, "client 'b'"),
        ({"b": ["x"]}, "client 'b'"),
        ({"a": [0, 1], "b": []}, "client 'b' has no training rows"),
        ({1: [0], "1": [1]}, "client '1' appears twice"),
        ({}, "(no rows|no clients)"),
        (["a"] * 8, "8 client names for 9 rows; expected one per row"),
    ],
    ids=str,
)
def test_clients_of_a_dataset_that_cannot_be(client, message):
    check_refusal(message, from_dataset, NINE, client, 0)


class Endless(IterableDataset):
    def __iter__(self):
        return iter([(1.0, 0)])


class Short(Items):
    def __len__(self):
        return 9


@pytest.mark.parametrize(
    "dataset",
    [
        Items([(np.zeros(3), 0), (np.zeros(2), 1)]),
        Items([(np.zeros(3), 0), (np.zeros(3), [1, 2])]),
        Items([("some", 0), ("text", 1)]),
        Items([(1.0, None), (2.0, None)]),
        Items([(1.0, 2.0, 3.0)] * 2),
        Items([1.0, 2.0], float),
        Items([]),
        Short([(1.0, 0)] * 2),
        {"a": (1.0, 0)},
        TensorDataset(torch.zeros(3, 2)),
        Endless(),
        7,
    ],
    ids=["unequal features", "unequal labels", "text", "nothing", "three", "one", "empty", "short",
         "a mapping", "no labels", "endless", "no dataset"],
)  # fmt: skip
def test_items_that_cannot_be(dataset):
    message = r"data: the dataset cannot be read \(.*\); it needs a length, and items that are pairs"
    check_refusal(message, from_dataset, dataset, ["a"] * 2)


def test_labels_that_are_words():
    check_refusal(r"data: labels are text", from_dataset, Items([(1.0, "cat"), (2.0, "dog")]), ["a"] * 2)
