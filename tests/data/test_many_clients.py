"""Work on many clients at once gives the same numbers as work on one client after another."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array

import fedlap as fl
from fedlap.data import partition, synthetic_clients
from fedlap.data.client_rows import ClientRows, concatenate_ranges, group_rows
from fedlap.data.partition import Dirichlet, Iid, Labels, Quantity
from fedlap.data.splits import draw_test_rows
from fedlap.data.standardize import Standardizer
from fedlap.data.table import Table
from fedlap.graph import sparse_weights
from fedlap.graph.spectrum import (
    EIGENVALUE_TOLERANCE,
    _build_start_vector,
    _run_lanczos,
    build_laplacian,
    compute_rho,
)
from fedlap.graph.weights import CompleteWeights, SparseWeights
from fedlap.randomness import digest_names, draws
from property_settings import law

counts_of = st.lists(st.integers(0, 70), max_size=12)
MANY = 100_000


def name_clients(number):
    return [f"client {k}" for k in range(number)]


@law
@given(counts_of, st.integers(0, 9), st.integers(0, 3))
def test_orders_of_many_clients_are_those_of_each(counts, seed, step):
    stream, clients = draws(seed, "split"), digest_names(name_clients(len(counts)))
    orders = [
        stream.permutation(client, step, count)
        for client, count in zip(clients.tolist(), counts, strict=True)
    ]
    together = stream.permutations(clients, step, torch.tensor(counts, dtype=torch.int64))
    assert together.tolist() == [place for order in orders for place in order.tolist()]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 31])
def test_numbers_of_many_clients_are_those_of_each(count):
    stream, clients = draws(4, "data"), digest_names(name_clients(5))
    for many, one in ((stream.uniforms, stream.uniform), (stream.normals, stream.normal)):
        numbers = torch.stack([one(client, 2, count) for client in clients.tolist()])
        assert torch.equal(many(clients, 2, count), numbers)


@law
@given(counts_of.filter(any), st.floats(0, 0.99), st.integers(0, 5))
def test_rows_are_held_out_as_for_each_client_alone(counts, share, seed):
    names, expected = name_clients(len(counts)), []
    for client, count in zip(digest_names(names).tolist(), counts, strict=True):
        held = min(math.floor(share * count + 0.5), max(0, count - 1))
        smallest = set(draws(seed, "split").permutation(client, 0, count)[:held].tolist())
        expected += [row in smallest for row in range(count)]
    assert draw_test_rows(digest_names(names), torch.tensor(counts), share, seed).tolist() == expected


@law
@given(st.lists(st.integers(-1, 6), max_size=50))
def test_grouping_is_a_stable_sort(owners):
    owner = torch.tensor(owners, dtype=torch.int64)
    rows, count = group_rows(owner, 7)
    assert rows.tolist() == [row for k in range(7) for row, client in enumerate(owners) if client == k]
    assert count.tolist() == [owners.count(k) for k in range(7)]


def test_spans():
    assert concatenate_ranges(torch.tensor([7, 0, 3]), torch.tensor([2, 0, 3])).tolist() == [7, 8, 3, 4, 5]
    assert (
        concatenate_ranges(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)).tolist()
        == []
    )


@law
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=8).filter(lambda counts: sum(counts) > 80),
    st.integers(1, 80), st.sampled_from([1e-6, 0.01, 0.5, 1e6]), st.sampled_from([0.0, 1.0, 500.0]),
)  # fmt: skip
def test_labels_are_taken_at_once_as_one_after_another(counts, clients, alpha, spread):
    left = torch.tensor([count for count in counts if count])
    stream = draws(0, "partition")
    sizes = partition._compute_sizes(int(left.sum()), spread, stream.normal(0, 0, clients))
    mix = Dirichlet(clients, alpha)._draw_log_mixes(stream, left.double() / left.sum())
    together = partition._take_in_turn(sizes, mix, left)
    for size, label_shares, taken in zip(sizes.tolist(), mix, together, strict=True):
        assert torch.equal(partition._take_rows(size, label_shares, left), taken)
        left = left - taken
    assert left.tolist() == [0] * len(left)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 4), (3, 2, 2), (2, 30, 40)], ids=str)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
def test_scales_of_many_clients_are_those_of_each(shape, dtype):
    counts = [3, 1, 5, 3, 3, 40, 1, 2]
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (sum(counts), *shape))).to(dtype)
    part = ClientRows.of(x, torch.zeros(len(x)), torch.tensor(counts))
    together = Standardizer.of("client", part)
    for k, count in enumerate(counts):
        rows = ClientRows.of(part.client(k)[0], torch.zeros(count), torch.tensor([count]))
        alone = Standardizer.of("pooled", rows)
        assert torch.equal(together.shift[k], alone.shift[0])
        assert torch.equal(together.factor[k], alone.factor[0])


def test_many_clients_are_made_without_a_loop_over_them():
    """A hundred thousand clients: were anything done for each, or for each pair, this would not end."""
    names, rng = name_clients(MANY), np.random.default_rng(0)
    owner, y = rng.integers(0, MANY, 3 * MANY), rng.integers(0, 4, 3 * MANY)
    owner[:MANY] = np.arange(MANY)
    table = Table.of((rng.normal(size=(3 * MANY, 2)), y), [names[k] for k in owner])
    federation = fl.Federation.from_table(table)
    assert len(federation.clients) == MANY
    assert sorted(torch.cat([federation.train.row, federation.test.row]).tolist()) == list(range(3 * MANY))
    assert len(federation.scarce(cut_test=True).standardize("client").reorder(names).clients) == MANY
    assert len(federation.list_warnings()) == 2
    ring = fl.Graph.ring(names)
    assert ring.align(federation.clients).edges == MANY
    fl.FedU(ring, strength=0.1).check_sampling(1000, MANY)


@pytest.mark.parametrize("kind", [Iid, Quantity, Labels, Dirichlet])
def test_rows_are_dealt_to_many_clients(kind):
    y = torch.from_numpy(np.random.default_rng(0).integers(0, 4, 4 * MANY))
    owner = kind(MANY // 4).assign_owners(y, 0)
    assert len(owner.unique()) == MANY // 4
    assert owner.min() == 0


def test_graphs_of_many_clients():
    names = name_clients(MANY)
    for make, edges in ((fl.Graph.path, MANY - 1), (fl.Graph.star, MANY - 1), (fl.Graph.empty, 0)):
        assert make(names).edges == edges
    complete = fl.Graph.complete(names)
    near, weights = complete.neighbours(7)
    assert complete.edges == MANY * (MANY - 1) // 2
    assert near.tolist() == [k for k in range(MANY) if k != 7]
    assert weights.tolist() == [1.0] * (MANY - 1)
    k = torch.arange(MANY)
    both = torch.stack([torch.cat([k, (k + 1) % MANY]), torch.cat([(k + 1) % MANY, k])])
    ring = torch.sparse_coo_tensor(both, torch.ones(2 * MANY), (MANY, MANY), check_invariants=True)
    assert fl.Graph.from_matrix(ring).edges == MANY
    with pytest.raises(fl.InputError, match="client 'client 5' is named twice"):
        fl.Graph.ring([*names, "client 5"])


@law
@given(st.integers(1, 12), st.sampled_from([0.0, 1.5]), st.data())
def test_a_complete_graphs_neighbours_are_those_of_its_matrix(size, weight, data):
    complete = CompleteWeights(size, weight)
    matrix, place = complete.matrix().toarray(), data.draw(st.integers(0, size - 1))
    near, weights = complete.neighbours(place)
    assert near.tolist() == np.flatnonzero(matrix[place]).tolist()
    assert weights.tolist() == matrix[place, near].tolist()


def hubs(size, seed=0):
    """A sparse graph where a few vertices have very many neighbours, and some none."""
    rng = np.random.default_rng(seed)
    k, o = np.arange(size), (size * rng.random(size) ** 6).astype(int)
    k, o = k[k > o], o[k > o]
    values = rng.random(len(k))
    return csr_array(coo_array((np.tile(values, 2), (np.append(k, o), np.append(o, k))), shape=(size,) * 2))


@pytest.mark.parametrize("piece", [1, 3, 128])
@pytest.mark.parametrize("chosen", [1, 2, 40, 399, 400])
def test_sums_over_long_and_short_lists_of_neighbours(chosen, piece, monkeypatch):
    monkeypatch.setattr(sparse_weights, "PIECE_LENGTH", piece)
    a, rng = hubs(400), np.random.default_rng(chosen)
    graph = fl.Graph(None, SparseWeights(a))
    W, ids = torch.from_numpy(rng.normal(size=(400, 3))), torch.from_numpy(rng.permutation(400)[:chosen])
    w = torch.from_numpy(rng.normal(size=(chosen, 3)))
    full = a.toarray()
    for elsewhere in (None, W):
        models, weights = W.clone(), full.copy()
        models[ids] = w
        if elsewhere is None:
            weights[:, np.setdiff1d(np.arange(400), ids)] = 0
        expected = (np.diag(weights.sum(1)) - weights) @ models.numpy()
        assert np.abs(graph.pull(ids, w, elsewhere).numpy() - expected[ids]).max() < 1e-11
    assert np.abs(graph.weights.multiply(W).numpy() - full @ W.numpy()).max() < 1e-11


def test_models_that_are_no_longer_finite_spoil_their_neighbours_alone():
    graph = fl.Graph.ring(name_clients(2500))
    W = torch.zeros(2500, 2)
    W[0] = math.inf
    ids = torch.tensor([0, 700, 701, 1])
    assert graph.pull(ids, W[ids], W).isfinite().all(1).tolist() == [False, True, True, False]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("chosen", [1, 40, 399, 400])
def test_a_gpu_sums_the_same_every_time_and_waits_for_nobody(chosen):
    a, rng = hubs(400), np.random.default_rng(chosen)
    graph = fl.Graph(None, SparseWeights(a))
    W, ids = torch.from_numpy(rng.normal(size=(400, 3))), torch.from_numpy(rng.permutation(400)[:chosen])
    W, ids, w = (there.to("cuda") for there in (W, ids, W[ids] + 1))
    for elsewhere in (None, W):
        expected = graph.pull(ids.cpu(), w.cpu(), None if elsewhere is None else W.cpu())
        first = graph.pull(ids, w, elsewhere)
        assert (first.cpu() - expected).abs().max() < 1e-11
        torch.cuda.set_sync_debug_mode("error")
        try:
            again = graph.pull(ids, w, elsewhere)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.equal(first, again)


RINGS = {"ring": [1], "circle": [1, 2, 3], "torus": [1, 21]}


@pytest.mark.parametrize("steps", RINGS.values(), ids=RINGS)
def test_eigenvalues_that_are_close_to_others(steps):
    """The largest of a circulant graph is known: Σ_s 2 − 2 cos(2πks/N), at the worst k."""
    size = 441
    matrix = sum(np.eye(size, k=s) + np.eye(size, k=s - size) for s in steps)
    weights = SparseWeights(csr_array(matrix + matrix.T))
    wave = 2 * math.pi * np.arange(size) / size
    known = sum(2 - 2 * np.cos(s * wave) for s in steps).max()
    found = _run_lanczos(build_laplacian(weights), _build_start_vector(weights), "largest", 10_000)
    for rho in (found, compute_rho(weights)):
        assert known * (1 - EIGENVALUE_TOLERANCE) <= rho <= known * (1 + 1e-12)


def test_a_long_rings_models_are_those_of_the_matrix(monkeypatch):
    one = fl.data.synthetic(clients=101, seed=2)
    monkeypatch.setattr(synthetic_clients, "DENSE_UP_TO", 100)
    other = fl.data.synthetic(clients=101, seed=2)
    assert (one.models - other.models).abs().max() < 1e-12
    assert torch.equal(one.federation.train.y, other.federation.train.y)
    assert torch.equal(one.federation.test.x, other.federation.test.x)
