"""Parts of a federation: rows of one store that is never copied without need, and how they are scaled."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedlap as fl
from fedlap.data import standardize
from fedlap.data.client_rows import ClientRows
from fedlap.data.partition import Dirichlet, Iid
from fedlap.data.standardize import Standardizer
from fedlap.data.table import Table
from property_settings import law
from table_rows import from_table

CPU = torch.device("cpu")
counts_of = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any)
shapes = st.sampled_from([(2,), (3, 4), (1, 2, 2)])


def scatter_rows(counts, shape, seed):
    """Return a store, labels, and each client's places in it, in no order; some rows belong to nobody."""
    rng = np.random.default_rng(seed)
    store, y = rng.normal(size=(sum(counts) + 5, *shape)), rng.integers(0, 3, sum(counts) + 5)
    return store, y, np.split(rng.permutation(len(y))[: sum(counts)], np.cumsum(counts)[:-1])


def build_client_rows(store, y, rows):
    row, y = torch.from_numpy(np.concatenate(rows)), torch.from_numpy(y)
    return ClientRows(torch.from_numpy(store), row, y[row], torch.tensor([len(places) for places in rows]))


def holds(part, store, y, rows):
    """Return True if a part's clients hold these rows of a NumPy store."""
    flat = np.concatenate(rows)
    assert part.row.tolist() == flat.tolist()
    assert np.array_equal(part.x, store[flat])
    assert np.array_equal(part.y, y[flat])
    assert part.count.tolist() == [len(places) for places in rows]
    assert (
        part.find_owners().tolist()
        == np.repeat(np.arange(len(rows)), [len(places) for places in rows]).tolist()
    )
    for k, places in enumerate(rows):
        assert int(part.first[k]) == sum(len(before) for before in rows[:k])
        assert np.array_equal(part.client(k)[0], store[places])
        assert np.array_equal(part.client(k)[1], y[places])
    return True


@law
@given(counts_of, shapes, st.integers(0, 9), st.data())
def test_a_part_is_rows_of_a_store(counts, shape, seed, data):
    store, y, rows = scatter_rows(counts, shape, seed)
    part = build_client_rows(store, y, rows)
    assert holds(part, store, y, rows)
    keep = np.random.default_rng(seed + 1).random(sum(counts)) < 0.5
    masks = np.split(keep, np.cumsum(counts)[:-1])
    selected = part.select(torch.from_numpy(keep))
    assert holds(selected, store, y, [places[mask] for places, mask in zip(rows, masks, strict=True)])
    order = data.draw(st.permutations(range(len(counts))))
    moved = part.reorder(order)
    assert holds(moved, store, y, [rows[place] for place in order])
    assert selected.store is moved.store is part.store


@law
@given(counts_of, shapes)
def test_a_part_with_a_store_of_its_own_is_in_order(counts, shape):
    store, y, _ = scatter_rows(counts, shape, 0)
    store, y = store[: sum(counts)], y[: sum(counts)]
    part = ClientRows.of(torch.from_numpy(store), torch.from_numpy(y), torch.tensor(counts))
    assert holds(part, store, y, np.split(np.arange(sum(counts)), np.cumsum(counts)[:-1]))
    assert part.store.data_ptr() == store.ctypes.data


def test_all_parts_of_a_federation_share_one_store():
    table = Table.of((torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3))
    federation = from_table(table, Dirichlet(5))
    ways = [
        federation, federation.standardize("client"), federation.pool_clients(), federation.reorder("42031"),
        federation.scarce(), federation.standardize("pooled").scarce(cut_test=True).pool_clients(),
    ]  # fmt: skip
    for variant in ways:
        assert variant.train.store is variant.test.store is table.x
    resident = federation.to_device(CPU, torch.float32)
    assert resident.train.store is resident.test.store


def write_memmap(path, values):
    """Write values to a file and map it into memory."""
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
    x = write_memmap(tmp_path / "x.npy", values)
    on_disk, in_memory = (
        from_table(Table(torch.from_numpy(array), y, ("a", "b", "c")), Iid(5)).standardize(scale)
        for array in (x, values.copy())
    )
    moved = on_disk.to_device(CPU, torch.float32)
    ways = [on_disk, moved, on_disk.scarce(), on_disk.reorder("42031")]
    for variant in ways if scale == "client" else [*ways, moved.pool_clients()]:
        assert variant.train.store.data_ptr() == variant.test.store.data_ptr() == x.ctypes.data
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
    x = write_memmap(tmp_path / "x.npy", values)
    federation = from_table(Table(torch.from_numpy(x), torch.arange(40) % 2, ("a", "b")), Iid(4))
    for other, dtype in ((federation, torch.float64), (federation.standardize("pooled"), torch.float32)):
        resident = other.to_device(CPU, dtype)
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
        np.concatenate([f(group, axis=axes, keepdims=True) for group in groups]) for f in (np.mean, np.std)
    )
    scale = Standardizer.of(kind, federation.train)
    assert scale.shift.shape == scale.factor.shape == mean.shape
    assert np.allclose(scale.shift, mean, rtol=1e-10, atol=0)
    assert np.allclose(1 / scale.factor, std, rtol=1e-10, atol=0)
    seen = federation.standardize(kind).to_device(CPU, torch.float64)
    for block in (1, 7, 100):
        monkeypatch.setattr(standardize, "VALUES_PER_BLOCK", block)
        again = Standardizer.of(kind, federation.train)
        assert np.allclose(again.shift, scale.shift, rtol=1e-12, atol=0)
        assert np.allclose(again.factor, scale.factor, rtol=1e-12, atol=0)
        rescaled = federation.standardize(kind).to_device(CPU, torch.float64)
        assert np.allclose(rescaled.train.x, seen.train.x, atol=1e-10)
        assert np.allclose(rescaled.test.x, seen.test.x, atol=1e-10)


@each_sort
@pytest.mark.parametrize("kind", ["pooled", "client"])
@pytest.mark.parametrize("block", [1, 4_000_000])
def test_what_never_changes_is_only_shifted(shape, dtype, axes, kind, block, monkeypatch):
    monkeypatch.setattr(standardize, "VALUES_PER_BLOCK", block)
    store = (federation := unequal(shape, dtype)).train.store
    at = (...,) if axes == (0, 1, 2) else (slice(None), 0)  # the only channel, the first one, or features
    store[at] = 77 if dtype == "uint8" else 0.1
    scale = Standardizer.of(kind, federation.train)
    assert (scale.factor[at] == 1).all()
    assert (scale.shift[at] == store[at].flatten()[0].double()).all()
