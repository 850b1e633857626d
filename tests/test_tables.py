import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import fedlap as fl
from conftest import random_arrays
from fedlap import parts
from fedlap.partition import Dirichlet, Iid
from fedlap.parts import Part, Scale
from fedlap.tables import Table, owners

CPU = torch.device("cpu")
law = settings(max_examples=50, deadline=None, derandomize=True)
from_table, from_arrays = fl.Federation.from_table, fl.Federation.from_arrays
from_dataset, from_flower = fl.Federation.from_dataset, fl.Federation.from_flower


def refused(message, call, *args, **settings):
    with pytest.raises(fl.InputError, match=message) as error:
        call(*args, **settings)
    assert "\n" not in str(error.value)


def same(one, other):
    """Whether two federations hold the same clients and rows, to the last digit."""
    assert (one.clients, one.labels) == (other.clients, other.labels)
    for a, b in ((one.train, other.train), (one.test, other.test)):
        assert a.x.dtype == b.x.dtype
        assert a.y.dtype == b.y.dtype
        assert torch.equal(a.x, b.x)
        assert torch.equal(a.y, b.y)
        assert torch.equal(a.count, b.count)
    return True


counts_of = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any)
shapes = st.sampled_from([(2,), (3, 4), (1, 2, 2)])


def scattered(counts, shape, seed):
    """A store, labels, and each client's places in it, in no order; some rows belong to nobody."""
    rng = np.random.default_rng(seed)
    store, y = rng.normal(size=(sum(counts) + 5, *shape)), rng.integers(0, 3, sum(counts) + 5)
    return store, y, np.split(rng.permutation(len(y))[: sum(counts)], np.cumsum(counts)[:-1])


def chosen(store, y, rows):
    row, y = torch.from_numpy(np.concatenate(rows)), torch.from_numpy(y)
    return Part(torch.from_numpy(store), row, y[row], torch.tensor([len(own) for own in rows]))


def holds(part, store, y, rows):
    """Whether a part's clients hold these rows of a NumPy store."""
    flat = np.concatenate(rows)
    assert part.row.tolist() == flat.tolist()
    assert np.array_equal(part.x, store[flat])
    assert np.array_equal(part.y, y[flat])
    assert part.count.tolist() == [len(own) for own in rows]
    assert part.owner().tolist() == np.repeat(np.arange(len(rows)), [len(own) for own in rows]).tolist()
    for k, own in enumerate(rows):
        assert int(part.first[k]) == sum(len(before) for before in rows[:k])
        assert np.array_equal(part.client(k)[0], store[own])
        assert np.array_equal(part.client(k)[1], y[own])
    return True


@law
@given(counts_of, shapes, st.integers(0, 9), st.data())
def test_a_part_is_rows_of_a_store(counts, shape, seed, data):
    store, y, rows = scattered(counts, shape, seed)
    part = chosen(store, y, rows)
    assert holds(part, store, y, rows)
    keep = np.random.default_rng(seed + 1).random(sum(counts)) < 0.5
    masks = np.split(keep, np.cumsum(counts)[:-1])
    some = part.kept(torch.from_numpy(keep))
    assert holds(some, store, y, [own[mask] for own, mask in zip(rows, masks, strict=True)])
    order = data.draw(st.permutations(range(len(counts))))
    moved = part.reordered(order)
    assert holds(moved, store, y, [rows[place] for place in order])
    assert some.store is moved.store is part.store


@law
@given(counts_of, shapes)
def test_a_part_with_a_store_of_its_own_is_in_order(counts, shape):
    store, y, _ = scattered(counts, shape, 0)
    store, y = store[: sum(counts)], y[: sum(counts)]
    part = Part.of(torch.from_numpy(store), torch.from_numpy(y), torch.tensor(counts))
    assert holds(part, store, y, np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1]))
    assert part.store.data_ptr() == store.ctypes.data


def test_all_parts_of_a_federation_share_one_store():
    table = Table.of((torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3))
    federation = from_table(table, Dirichlet(5))
    ways = [
        federation, federation.scaled("client"), federation.pooled(), federation.reordered("42031"),
        federation.scarce(), federation.scaled("pooled").scarce(cut_test=True).pooled(),
    ]  # fmt: skip
    for made in ways:
        assert made.train.store is made.test.store is table.x
    resident = federation.resident(CPU, torch.float32)
    assert resident.train.store is resident.test.store


def mapped(path, values):
    """These values in a file that is mapped into memory."""
    on_disk = np.lib.format.open_memmap(path, mode="w+", dtype=values.dtype, shape=values.shape)
    on_disk[:] = values
    on_disk.flush()
    return np.lib.format.open_memmap(path, mode="r+")


@pytest.mark.parametrize(
    ("dtype", "scale"), [("uint8", "none"), ("uint8", "pooled"), ("uint8", "client"), ("float32", "none")]
)
def test_features_stay_in_the_file_that_is_mapped(tmp_path, dtype, scale):
    rng = np.random.default_rng(0)
    values, y = rng.integers(0, 256, (60, 1, 4, 5)).astype(dtype), torch.from_numpy(rng.integers(0, 3, 60))
    x = mapped(tmp_path / "x.npy", values)
    on_disk, in_memory = (
        from_table(Table(torch.from_numpy(own), y, ("a", "b", "c")), Iid(5)).scaled(scale)
        for own in (x, values.copy())
    )
    moved = on_disk.resident(CPU, torch.float32)
    ways = [on_disk, moved, on_disk.scarce(), on_disk.reordered("42031")]
    for made in ways if scale == "client" else [*ways, moved.pooled()]:
        assert made.train.store.data_ptr() == made.test.store.data_ptr() == x.ctypes.data
    for method in (fl.Global(lr=1e-4), fl.Local(lr=1e-4), fl.FedU(fl.Graph.ring(on_disk.clients), lr=1e-4)):
        results = [
            fl.fit(method, federation, fl.models.linear(), rounds=2, batch=4)
            for federation in (on_disk, in_memory)
        ]
        assert torch.equal(results[0].models, results[1].models)
        assert results[0].scores[-1].loss == results[1].scores[-1].loss
    assert np.array_equal(x, values)


def test_features_that_must_change_are_copied_once(tmp_path):
    values = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    x = mapped(tmp_path / "x.npy", values)
    federation = from_table(Table(torch.from_numpy(x), torch.arange(40) % 2, ("a", "b")), Iid(4))
    for other, dtype in ((federation, torch.float64), (federation.scaled("pooled"), torch.float32)):
        resident = other.resident(CPU, dtype)
        assert resident.train.store.dtype == dtype
        assert resident.train.store.data_ptr() != x.ctypes.data
        assert len(resident.train.store) + len(resident.test.store) == 40
    assert np.array_equal(x, values)


KINDS = {
    "bytes (H, W)": ((41, 4, 5), "uint8", (0, 1, 2)),
    "bytes (C, H, W)": ((41, 3, 4, 5), "uint8", (0, 2, 3)),
    "bytes": ((41, 7), "uint8", (0,)),
    "reals": ((41, 6), "float64", (0,)),
    "single reals": ((41, 6), "float32", (0,)),
    "reals (2, 3)": ((41, 2, 3), "float64", (0,)),
}  # what is stored, and the axes that constants do not depend on
each_sort = pytest.mark.parametrize(("shape", "dtype", "axes"), KINDS.values(), ids=KINDS)


def unequal(shape, dtype):
    rng = np.random.default_rng(1)
    values = rng.integers(0, 256, shape) if dtype == "uint8" else 100 + rng.normal(size=shape)
    names = list("aaabcccccccbbddddddddddddddddacccdddddcca")
    given_rows = values.astype(dtype), rng.integers(0, 2, len(values))
    return from_table(Table.of(given_rows, names), test_share=0.3)


@each_sort
@pytest.mark.parametrize("kind", ["pooled", "client"])
def test_scale_is_numpys_mean_and_deviation_in_blocks_of_any_size(shape, dtype, axes, kind, monkeypatch):
    federation = unequal(shape, dtype)
    places = range(len(federation.clients))
    groups = [federation.train.x] if kind == "pooled" else [federation.train.client(k)[0] for k in places]
    groups = [rows.numpy().astype(np.float64) for rows in groups]
    mean, std = (
        np.concatenate([f(own, axis=axes, keepdims=True) for own in groups]) for f in (np.mean, np.std)
    )
    scale = Scale.of(kind, federation.train)
    assert scale.shift.shape == scale.factor.shape == mean.shape
    assert np.allclose(scale.shift, mean, rtol=1e-10, atol=0)
    assert np.allclose(1 / scale.factor, std, rtol=1e-10, atol=0)
    seen = federation.scaled(kind).resident(CPU, torch.float64)
    for block in (1, 7, 100):
        monkeypatch.setattr(parts, "BLOCK", block)
        again = Scale.of(kind, federation.train)
        assert np.allclose(again.shift, scale.shift, rtol=1e-12, atol=0)
        assert np.allclose(again.factor, scale.factor, rtol=1e-12, atol=0)
        anew = federation.scaled(kind).resident(CPU, torch.float64)
        assert np.allclose(anew.train.x, seen.train.x, atol=1e-10)
        assert np.allclose(anew.test.x, seen.test.x, atol=1e-10)


@each_sort
@pytest.mark.parametrize("kind", ["pooled", "client"])
@pytest.mark.parametrize("block", [1, 4_000_000])
def test_what_never_changes_is_only_shifted(shape, dtype, axes, kind, block, monkeypatch):
    monkeypatch.setattr(parts, "BLOCK", block)
    store = (federation := unequal(shape, dtype)).train.store
    at = (...,) if axes == (0, 1, 2) else (slice(None), 0)  # the only channel, the first one, or features
    store[at] = 77 if dtype == "uint8" else 0.1
    scale = Scale.of(kind, federation.train)
    assert (scale.factor[at] == 1).all()
    assert (scale.shift[at] == store[at].flatten()[0].double()).all()


@law
@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=30))
def test_clients_come_in_the_order_in_which_they_first_appear(names):
    table = Table.of((np.arange(len(names)), np.zeros(len(names), dtype=int)), names)
    own = table.cut(None, 0)
    assert list(own) == list(table.clients) == sorted(set(names), key=names.index)
    for name, rows in own.items():
        assert rows.tolist() == [at for at, other in enumerate(names) if other == name]


@pytest.mark.parametrize("kind", [list, tuple, iter, np.array, torch.tensor], ids=lambda kind: kind.__name__)
def test_names_of_clients_may_be_anything(kind):
    names, owner = owners(kind([7, 3, 7, 7, 10]), 5, "here")
    assert names == ("7", "3", "10")
    assert owner.tolist() == [0, 1, 0, 0, 2]


def test_a_partition_numbers_its_clients_whosever_rows_they_were():
    table = Table.of((np.zeros((12, 1)), np.arange(12) % 2), list("ab" * 6))
    own = table.cut(Iid(4), 3)
    assert list(own) == ["0", "1", "2", "3"]
    assert all(torch.equal(a, b) for a, b in zip(own.values(), Iid(4).cut(table.y, 3), strict=True))


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
        ({"given": (np.zeros((0, 2)), np.zeros(0, dtype=int))}, "here has no rows; give it some"),
        ({"client": "ab"}, "here: 2 client names for 3 rows; each row needs one"),
        ({"labels": 2}, "here, row 2: label 2 is out of range; labels are 0 to 1"),
        ({"labels": ["x", "y"]}, "here, row 2: label 2 is out of range; labels are 0 to 1"),
        ({"given": (np.zeros((3, 2)), np.zeros(2))}, r"here has features of shape \(3, 2\) and labels"),
        ({"given": (np.array([[0], [np.nan]]), np.zeros(2, dtype=int))}, "here, row 1: a feature is NaN"),
        ({"given": (np.zeros((3, 2)), np.zeros(3)), "labels": 2}, "labels were named but targets are real"),
        ({"given": (np.array([["x"]] * 3), np.zeros(3))}, "here needs .* as arrays of numbers"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be(settings, message):
    settings = {"given": (np.zeros((3, 2)), np.arange(3)), "where": "here", **settings}
    refused(message, Table.of, **settings)


def test_somebody_must_own_the_rows():
    refused("nothing says whose rows are whose", from_table, Table.of((np.zeros((3, 2)), np.arange(3))))


class Items(Dataset):
    """Items that are made when asked for."""

    def __init__(self, items, make=tuple):
        self.items, self.make = items, make

    def __len__(self):
        return len(self.items)

    def __getitem__(self, at):
        return self.make(self.items[at])


def picture(item):
    pixels, label = item
    return Image.fromarray(pixels), int(label)


OWN = {"b": [6, 3, 0], "a": [8, 1], "é": [2]}  # nobody gets items 4, 5 and 7


def by_arrays(x, y, **settings):
    return from_arrays({name: (x[sorted(at)], y[sorted(at)]) for name, at in OWN.items()}, **settings)


PIXELS = np.random.default_rng(0).integers(0, 256, (9, 5, 6, 3), dtype=np.uint8)
REALS = np.random.default_rng(1).normal(size=(9, 4))
LABELS = np.arange(9) % 3
NINE = TensorDataset(torch.from_numpy(REALS), torch.from_numpy(LABELS))
FIRST = np.ascontiguousarray(PIXELS.transpose(0, 3, 1, 2))


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
    assert same(from_dataset(dataset, OWN, 0.3, 2), by_arrays(x, y, test_share=0.3, seed=2))
    names = list("abacbbcaa")
    at = {name: [k for k, other in enumerate(names) if other == name] for name in "abc"}
    arrays = {name: (x[own], y[own]) for name, own in at.items()}
    for client in (names, np.array(names), iter(names), at):
        assert same(from_dataset(dataset, client, 0.3, 2), from_arrays(arrays, 0.3, 2))


def test_the_labels_of_a_dataset_may_be_named_or_counted():
    for labels in (["x", "y", "z"], 7):
        assert same(from_dataset(NINE, OWN, labels=labels), by_arrays(REALS, LABELS, labels=labels))
    refused("the dataset, row 2: label 2 is out of range", from_dataset, NINE, ["a"] * 9, labels=2)


def test_clients_of_a_dataset_keep_their_order():
    assert from_dataset(NINE, {"b": [3, 4], "a": [0, 1], "c": [2]}).clients == ("b", "a", "c")
    assert from_dataset(NINE, "baabbccab").clients == ("b", "a", "c")


GIVEN = "client 'b' is given an item that does not exist or is given already; items are 0 to 8, each for one"


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"a": [0, 1], "b": [2, 1]}, GIVEN),
        ({"b": [2, 2]}, GIVEN),
        ({"b": [9]}, GIVEN),
        ({"b": [-1]}, GIVEN),
        ({"b": [0.5]}, "client 'b'"),
        ({"b": ["x"]}, "client 'b'"),
        ({"a": [0, 1], "b": []}, "client 'b' has no training rows"),
        ({1: [0], "1": [1]}, "client '1' appears twice"),
        ({}, "(no rows|no clients)"),
        (["a"] * 8, "8 client names for 9 rows; each row needs one"),
    ],
    ids=str,
)
def test_clients_of_a_dataset_that_cannot_be(client, message):
    refused(message, from_dataset, NINE, client, 0)


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
        Items([(1.0, "cat"), (2.0, "dog")]),
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
    ids=["unequal features", "unequal labels", "text", "words", "nothing", "three", "one", "empty", "short",
         "a mapping", "no labels", "endless", "no dataset"],
)  # fmt: skip
def test_items_that_cannot_be(dataset):
    refused(r"data: a dataset needs a length, and items that are pairs", from_dataset, dataset, ["a"] * 2)


class Partition:
    """What Flower Datasets' `load_partition` gives: columns by name."""

    def __init__(self, columns, classes):
        self.columns, self.column_names = columns, list(columns)
        self.features = dict.fromkeys(columns) | {"label": classes}

    def __len__(self):
        return len(self.columns["label"])

    def __getitem__(self, column):
        return self.columns[column]


class Partitioner:
    """Flower Datasets' interface of partitioners, as far as it is documented, over rows in turn."""

    def __init__(self, columns, sizes=(4, 3, 2), names=None):
        self.columns, self.ends = columns, np.cumsum([0, *sizes])
        self.classes = None if names is None else type("ClassLabel", (), {"names": names})()

    @property
    def num_partitions(self):
        return len(self.ends) - 1

    def load_partition(self, k):
        own = slice(self.ends[k], self.ends[k + 1])
        return Partition({name: values[own] for name, values in self.columns.items()}, self.classes)


STAMPS = np.arange(9) + 1_700_000_000  # whole numbers of more digits than single precision has
COLUMNS = {
    "image": [Image.fromarray(pixels) for pixels in PIXELS],
    "vector": REALS.tolist(),
    "height": REALS[:, 0].tolist(),
    "time": STAMPS.tolist(),
    "text": ["x"] * 9,
    "hole": [None] * 9,
    "ragged": [[0.0] * (1 + k % 2) for k in range(9)],
    "label": LABELS.tolist(),
    "target": REALS[:, 1].tolist(),
}


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
    made = from_flower(Partitioner(COLUMNS), features, label, 0.3, 2)
    assert same(made, in_turn(x, y, test_share=0.3, seed=2))


def test_flowers_names_of_labels_are_kept():
    assert from_flower(Partitioner(COLUMNS, names=["x", "y", "z"])).labels == ("x", "y", "z")
    assert from_flower(Partitioner(COLUMNS, names=["x", "y", "z"]), labels="pqr").labels == ("p", "q", "r")
    assert from_flower(Partitioner(COLUMNS), labels=5).labels == tuple("01234")
    message = "the partitions, row 2: label 2 is out of range"
    refused(message, from_flower, Partitioner(COLUMNS, names=["x", "y"]))


@pytest.mark.parametrize(
    ("features", "label", "message"),
    [
        ("picture", "label", "there is no column 'picture'; columns: image, vector"),
        (["height", "width"], "label", "there is no column 'width'"),
        ("image", "class", "there is no column 'class'"),
        ("text", "label", "numbers"),
        (["height", "text"], "label", "numbers"),
        ("hole", "label", "numbers"),
        ("ragged", "label", "features of one shape"),
        (["height", "ragged"], "label", "features of one shape"),
        ("vector", "text", "numbers as labels"),
        ("vector", "hole", "numbers as labels"),
    ],
)
def test_columns_of_partitions_that_cannot_be(features, label, message):
    refused(message, from_flower, Partitioner(COLUMNS), features, label)


def test_a_partition_without_rows_is_refused():
    refused("client '1' has no training rows", from_flower, Partitioner(COLUMNS, sizes=(4, 0, 5)))


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
    made = from_flower(flower(), features, label, 0.3, 2)
    rows = np.array_split(np.arange(9), 3)
    arrays = {str(k): (x[own], y[own]) for k, own in enumerate(rows)}
    assert same(made, from_arrays(arrays, 0.3, 2, labels=["x", "y", "z"] if label == "label" else None))


@pytest.mark.parametrize("features", ["picture", "text", ["height", "text"]], ids=str)
def test_real_columns_that_cannot_be(flower, features):
    refused("data: ", from_flower, flower(), features)


def test_surprises_are_remarked_on():
    one, both = np.zeros(4, dtype=int), np.arange(4) % 2
    rows = {"a": (np.zeros(4), one), "b": (np.zeros(4), both), "c": (np.zeros(1), one[:1])}
    assert from_arrays(rows).remarks() == [
        "2 of 3 clients have training rows of one label only, so a model of their own knows no other: a, c",
        "1 of 3 clients have no test rows, and do not count in test scores: c",
    ]
    assert from_arrays({"b": rows["b"]}, test={"b": rows["b"]}).remarks() == []


def test_remarks_name_a_few_clients_and_know_targets_from_labels():
    assert from_arrays(random_arrays([3] * 8, real=True), test_share=0).remarks() == [
        "8 of 8 clients have no test rows, and do not count in test scores: a, b, c, d, e, …"
    ]
    assert from_arrays(random_arrays([9] * 3, real=True)).remarks() == []
