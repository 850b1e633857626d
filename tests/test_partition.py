import math
from functools import cache
from importlib.resources import files
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

import fedlap as fl
from fedlap.experiment import Experiment
from fedlap.partition import PARTITIONS, Dirichlet, Iid, Labels, Quantity
from fedlap.randomness import draws
from fedlap.tables import Table

law = settings(max_examples=50, deadline=None, derandomize=True)
spreads = st.sampled_from([0.0, 0.7, 3.0, 500.0])
each_kind = pytest.mark.parametrize("kind", PARTITIONS.values(), ids=PARTITIONS)


def labelled(counts, seed=0):
    """This many rows of each label, shuffled."""
    rows = np.repeat(np.arange(len(counts)), counts)
    return torch.from_numpy(np.random.default_rng(seed).permutation(rows))


@st.composite
def cuts(draw):
    """A partition, and labels that it can cut."""
    kind, clients = draw(st.sampled_from(list(PARTITIONS.values()))), draw(st.integers(1, 12))
    if kind is Labels:
        counts = draw(st.lists(st.integers(clients, 40), min_size=1, max_size=6))
        each = draw(st.integers(1, len(counts)))
        assume(len(counts) <= clients + each - 1)
        return Labels(clients, each, draw(spreads)), labelled(counts)
    counts = draw(st.lists(st.integers(0, 30), min_size=1, max_size=6))
    assume(sum(counts) >= clients)
    settings = {"clients": clients}
    if kind is not Iid:
        settings["spread"] = draw(spreads)
    if kind is Dirichlet:
        settings["alpha"] = draw(st.sampled_from([1e-6, 1e-3, 0.01, 0.5, 10.0, 1e6]))
    return kind(**settings), labelled(counts)


def sizes_of(own):
    return [len(rows) for rows in own]


def label_shares(own, y, labels):
    """Each client's mix of labels, one row a client."""
    return torch.stack([torch.bincount(y[rows], minlength=labels) / len(rows) for rows in own])


def everything(federation):
    """Where in the store all training and test rows are."""
    return sorted(torch.cat([federation.train.row, federation.test.row]).tolist())


def refused(message, call, *args, **settings):
    with pytest.raises(fl.InputError, match=message) as error:
        call(*args, **settings)
    assert "\n" not in str(error.value)


@law
@given(cuts(), st.integers(0, 5))
def test_every_row_goes_to_one_client_and_every_client_gets_some(case, seed):
    partition, y = case
    own = partition.cut(y, seed)
    assert len(own) == partition.clients
    assert min(sizes_of(own)) >= 1
    assert sorted(torch.cat(own).tolist()) == list(range(len(y)))
    for rows in own:
        assert rows.tolist() == sorted(rows.tolist())


@law
@given(cuts(), st.integers(0, 5), st.floats(0, 0.99))
def test_a_federation_holds_what_was_given_out(case, seed, share):
    partition, y = case
    table = Table.of((torch.zeros(len(y), 1), y))
    federation = fl.Federation.from_table(table, partition, share, seed)
    assert federation.clients == tuple(str(k) for k in range(partition.clients))
    for k, rows in enumerate(partition.cut(y, seed)):
        train, test = (part.row[part.places(k)].tolist() for part in (federation.train, federation.test))
        assert sorted(train + test) == rows.tolist()
        assert len(test) == min(math.floor(share * len(rows) + 0.5), len(rows) - 1)
    assert everything(federation) == list(range(len(y)))


@law
@given(
    st.lists(st.integers(40, 80), min_size=1, max_size=5), st.integers(1, 9), spreads,
    st.floats(0.5, 1), st.integers(0, 5), st.data(),
)  # fmt: skip
def test_as_many_rows_as_asked_the_same_share_of_each_label(counts, clients, spread, share, seed, data):
    each = data.draw(st.integers(max(1, len(counts) - clients + 1), len(counts)))
    y, rows = labelled(counts), math.ceil(share * sum(counts))
    partition = Labels(clients, each, spread, rows)
    own = torch.cat(partition.cut(y, seed))
    assert len(own) == len(own.unique()) == rows
    given_out = torch.bincount(y[own], minlength=len(counts))
    assert (given_out - torch.tensor(counts) * rows / sum(counts)).abs().max() < 1
    federation = fl.Federation.from_table(Table.of((torch.zeros(len(y), 1), y)), partition, 0.25, seed)
    assert everything(federation) == sorted(own.tolist())


@law
@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 6), spreads, st.integers(0, 3))
def test_a_client_holds_each_of_its_labels_however_small_its_share(labels, clients, each, spread, seed):
    assume(each <= labels <= clients + each - 1)
    y = labelled([15] * labels, seed)
    for k, rows in enumerate(Labels(clients, each, spread).cut(y, seed)):
        assert set(y[rows].tolist()) == {(k + j) % labels for j in range(each)}


@each_kind
def test_a_cut_depends_on_the_seed_and_no_global_generator(kind):
    y, own = torch.arange(400) % 4, []
    with torch.random.fork_rng(devices=[]):
        legacy = np.random.get_state()  # noqa: NPY002
        for chance, seed in ((1, 4), (2, 4), (1, 5)):
            torch.manual_seed(chance)
            np.random.seed(chance)  # noqa: NPY002
            before = torch.get_rng_state()
            own.append(kind(8).cut(y, seed))
            assert torch.equal(torch.get_rng_state(), before)
        np.random.set_state(legacy)  # noqa: NPY002
    one, again, other = own
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


@pytest.mark.parametrize("counts", [[40], [0, 0, 0, 40], [38, 0, 0, 1, 1], [0, 500, 3], [1] * 12], ids=str)
def test_labels_may_be_rare_or_absent(counts):
    y = labelled(counts)
    for alpha, spread in product((1e-6, 0.01, 0.5, 1e6), (0.0, 500.0)):
        own = Dirichlet(12, alpha, spread).cut(y, 0)
        assert sorted(torch.cat(own).tolist()) == list(range(len(y)))
        assert min(sizes_of(own)) >= 1


@pytest.mark.parametrize("counts", [[100] * 8, [400, 240, 120, 40]], ids=["balanced", "unbalanced"])
def test_a_large_alpha_gives_everybody_the_same_mix(counts):
    y, overall = labelled(counts), torch.tensor(counts) / 800
    for seed in range(5):
        shares = label_shares(Dirichlet(8, 1e6).cut(y, seed), y, len(counts))
        assert (shares - overall).abs().max() < 0.03


@pytest.mark.parametrize(("alpha", "most"), [(1e-6, 0.8), (1e-3, 0.8), (0.01, 0.6)])
def test_a_tiny_alpha_gives_most_clients_one_label(alpha, most):
    y = labelled([500] * 10)
    for seed in range(3):
        largest = label_shares(Dirichlet(100, alpha).cut(y, seed), y, 10).max(1).values
        assert (largest > 0.95).double().mean() > most


@pytest.mark.parametrize(("alpha", "least"), [(1e-6, 1.0), (1e-3, 0.95)])
def test_a_client_whose_label_has_run_out_takes_the_next_of_its_mix(alpha, least):
    """As many clients as labels, all of one size: whoever comes late finds another label whole."""
    y = labelled([100] * 10)
    for seed in range(5):
        assert label_shares(Dirichlet(10, alpha).cut(y, seed), y, 10).max(1).values.mean() >= least


def mixes(alpha, share, clients=1000, seed=0):
    stream = draws(seed, "partition")
    return Dirichlet(clients, alpha)._log_mixes(stream, torch.tensor(share).double()).exp()


@pytest.mark.parametrize(
    ("alpha", "share"), [(0.1, [0.6, 0.3, 0.1]), (1.0, [0.25] * 4), (20.0, [0.6, 0.3, 0.1])], ids=str
)
def test_mixes_have_the_moments_of_a_dirichlet_distribution(alpha, share):
    mix, p = mixes(alpha, share), torch.tensor(share).double()
    variance = p * (1 - p) / (alpha * len(share) + 1)
    assert torch.allclose(mix.sum(1), torch.ones(()).double())
    assert ((mix.mean(0) - p).abs() < 4 * (variance / len(mix)).sqrt()).all()
    assert ((mix.var(0) / variance - 1).abs() < 0.2).all()
    covariance = -p[0] * p[1] / (alpha * len(share) + 1)
    assert abs(mix[:, :2].T.cov()[0, 1] / covariance - 1) < 0.2


@pytest.mark.parametrize("alpha", [5e-324, 1e-308, 1e-6, 1e6, 1e300, 1.7e308])
def test_mixes_are_shares_whatever_alpha(alpha):
    mix = mixes(alpha, [0.5, 0.3, 0.2], clients=50)
    assert bool((mix >= 0).all())
    assert torch.allclose(mix.sum(1), torch.ones(()).double())


@pytest.mark.parametrize("kind", [Dirichlet, Quantity, Iid])
def test_more_clients_than_rows_are_refused(kind):
    assert sizes_of(kind(5).cut(torch.arange(5) % 2, 0)) == [1] * 5
    refused("partition: 5 clients cannot share 4 rows; take fewer", kind(5).cut, torch.arange(4) % 2, 0)


@each_kind
def test_there_must_be_rows(kind):
    refused("partition: .* (no|0) rows", kind().cut, torch.zeros(0, dtype=torch.int64), 0)


@pytest.mark.parametrize("targets", [torch.zeros(30, 1), torch.zeros(30, 2, dtype=torch.float64)])
def test_real_targets_are_dealt_out_only_where_labels_are_not_needed(targets):
    for name in ("labels", "dirichlet"):
        refused(
            f"partition: {name} needs labels, but targets are real numbers; use iid or quantity",
            PARTITIONS[name](5).cut, targets, 0,
        )  # fmt: skip
    for kind in (Iid, Quantity):
        assert sorted(torch.cat(kind(5).cut(targets, 0)).tolist()) == list(range(30))


@pytest.mark.parametrize(
    ("kind", "setting", "values", "message"),
    [
        *[(kind, "clients", [0, -1, True], "a whole number, at least 1") for kind in PARTITIONS.values()],
        *[(kind, "spread", [-0.1, math.nan, math.inf, True], "a finite number, zero or more")
          for kind in (Labels, Dirichlet, Quantity)],
        (Dirichlet, "alpha", [0.0, -1.0, math.nan, math.inf], "a finite number, above zero"),
        (Labels, "labels_per_client", [0, -2], "a whole number, at least 1"),
        (Labels, "rows", [-1], "a whole number, at least 0"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(kind, setting, values, message):
    for value in values:
        refused(f"partition: {setting} = {value}; it must be {message}", kind, **{setting: value})


@pytest.mark.parametrize(
    ("clients", "each", "rows", "message"),
    [
        (5, 5, 0, "labels_per_client = 5; it must be 1 to 4"),
        (1, 3, 0, "leave some of 4 labels to nobody"),
        (12, 4, 0, "label 0 has 10 rows for 12 clients; take fewer clients"),
        (8, 4, 28, "label 0 has 7 rows for 8 clients; take fewer clients"),
        (8, 4, 41, "rows = 41, but there are only 40; ask for fewer"),
    ],
)
def test_cuts_that_cannot_be(clients, each, rows, message):
    refused(message, Labels(clients, each, 1.0, rows).cut, torch.arange(40) % 4, 0)


def test_a_label_without_rows_cannot_be_held():
    refused("label 1 has 0 rows", Labels(2, 2, 1.0).cut, torch.tensor([0, 0, 2, 2]), 0)


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


@cache
def named_clients(*counts):
    """Clients a, b, … with this many rows."""
    rng = np.random.default_rng(0)
    names = [chr(ord("a") + k) for k, count in enumerate(counts) for _ in range(count)]
    table = Table.of((rng.normal(size=(len(names), 2)), rng.integers(0, 3, len(names))), names, labels=3)
    return fl.Federation.from_table(table)


def rows_by_name(part, clients):
    return {name: part.row[part.places(k)].tolist() for k, name in enumerate(clients)}


def same_rows(one, other):
    return all(
        rows_by_name(getattr(one, part), one.clients) == rows_by_name(getattr(other, part), other.clients)
        for part in ("train", "test")
    )


@law
@given(
    st.lists(st.integers(14, 40), min_size=1, max_size=7), st.floats(0, 1), st.floats(0, 0.9),
    st.integers(0, 5), st.booleans(),
)  # fmt: skip
def test_scarce_clients_keep_their_share_and_others_everything(counts, share, keep, seed, cut_test):
    federation = named_clients(*counts)
    scarce = federation.scarce(share, keep, seed, cut_test=cut_test)
    assert (scarce.clients, scarce.labels) == (federation.clients, federation.labels)
    before, after = (rows_by_name(f.train, f.clients) for f in (federation, scarce))
    chosen = [name for name in before if len(after[name]) < len(before[name])]
    assert len(chosen) == math.floor(share * len(counts) + 0.5)
    tests = [rows_by_name(f.test, f.clients) for f in (federation, scarce)]
    for name in federation.clients:
        for rows, left, cut in ((before, after, True), (*tests, cut_test)):
            n = len(rows[name])
            assert left[name] == [row for row in rows[name] if row in left[name]]  # a subset, in order
            assert len(left[name]) == (max(1, math.floor(keep * n + 0.5)) if cut and name in chosen else n)
    for k, name in enumerate(scarce.clients):
        x, y = scarce.train.client(k)
        assert torch.equal(x, federation.train.store[after[name]])
        assert len(x) == len(y) == int(scarce.train.count[k])


@law
@given(st.permutations("abcdef"), st.integers(0, 5), st.booleans())
def test_scarcity_depends_on_seed_and_names_not_on_places(order, seed, cut_test):
    federation = named_clients(14, 30, 22, 40, 17, 25)
    scarce = federation.scarce(seed=seed, cut_test=cut_test)
    moved = federation.reordered(order).scarce(seed=seed, cut_test=cut_test)
    assert moved.clients == tuple(order)
    assert same_rows(moved, scarce)
    assert torch.equal(moved.train.row, scarce.reordered(order).train.row)


def test_scarcity_is_drawn_anew_for_another_seed_or_name():
    federation = named_clients(*[40] * 8)
    chosen = {tuple((federation.scarce(seed=seed).train.count < 30).tolist()) for seed in range(8)}
    assert len(chosen) > 4
    one, other = (
        rows_by_name(federation.scarce(1.0, seed=seed).train, federation.clients) for seed in (0, 1)
    )
    assert all(one[name] != other[name] for name in federation.clients)
    first = federation.train.first.tolist()
    kept = {
        tuple(federation.train.row.tolist().index(row) - first[k] for row in one[name])
        for k, name in enumerate(federation.clients)
    }
    assert len(kept) == 8  # clients of one size keep rows of different places


def test_a_scarce_clients_rows_do_not_depend_on_other_clients():
    federation, fewer = (named_clients(*counts) for counts in ([20, 30, 25, 18], [20, 30]))
    both = [rows_by_name(f.scarce(1.0, 0.3).train, f.clients) for f in (federation, fewer)]
    assert all(both[0][name] == both[1][name] for name in fewer.clients)


def test_who_is_scarce_is_fair():
    federation = named_clients(*[14] * 10)
    times = sum((federation.scarce(0.3, 0.1, seed).train.count < 5).double() for seed in range(100))
    assert ((times - 30).square() / 30).sum() < 25  # less than 9 degrees of freedom


@pytest.mark.parametrize("kind", ["none", "pooled", "client"])
def test_scale_is_made_of_what_is_left(kind):
    federation = named_clients(14, 30, 22, 40).scaled(kind)
    scarce = federation.scarce(0.5, 0.2, 1, cut_test=True)
    assert scarce.scale.kind == kind
    again = scarce.scaled(kind).scale
    assert torch.equal(scarce.scale.shift, again.shift)
    assert torch.equal(scarce.scale.factor, again.factor)
    if kind == "pooled":
        assert np.allclose(scarce.scale.shift[0], scarce.train.x.numpy().mean(0), atol=1e-12)
        assert not np.allclose(scarce.scale.shift, federation.scale.shift, atol=1e-3)


def test_scarce_settings_at_their_ends():
    federation = named_clients(14, 30, 22, 40, 1, 2)
    assert same_rows(federation.scarce(0.0), federation)
    assert same_rows(federation.scarce(1.0, 1.0, cut_test=True), federation)
    nothing = federation.scarce(1.0, 0.0, cut_test=True)
    assert nothing.train.count.tolist() == [1] * 6
    assert nothing.test.count.tolist() == [min(1, n) for n in federation.test.count.tolist()]
    assert same_rows(federation.scarce(0, 0), federation)
    assert same_rows(federation.scarce(), federation.scarce(0.5, 0.2, 0, cut_test=False))


@pytest.mark.parametrize("name", ["share_of_clients", "keep"])
@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf, True])
def test_scarce_settings_that_cannot_be(name, value):
    refused(f"scarce: {name} = {value}; it must be", named_clients(14).scarce, **{name: value})


@pytest.mark.parametrize("scarce", [{}, {"keep": 0.1}, {"share_of_clients": 0.25, "cut_test": True}], ids=str)
def test_data_may_be_loaded_scarce(scarce):
    whole = fl.data.load("digits", seed=3)
    expected = whole.scarce(**scarce, seed=3)
    chosen = round(20 * scarce.get("share_of_clients", 0.5))
    n = whole.train.count
    left = (scarce.get("keep", 0.2) * n + 0.5).floor().clamp(min=1).long()
    assert int((expected.train.count < n).sum()) == chosen
    assert bool(((expected.train.count == n) | (expected.train.count == left)).all())
    loaded, graph = fl.data.load_with_graph("digits", 3, scarce=scarce)
    described, _ = Experiment.of({"scarce": scarce, "seed": 3}).load()
    assert graph is None
    for federation in (loaded, described):
        assert same_rows(federation, expected)
        assert torch.equal(federation.scale.shift, expected.scale.shift)
        assert not torch.equal(federation.scale.shift, whole.scale.shift)


@pytest.mark.parametrize(
    ("scarce", "message"),
    [
        ({"keep": 2.0}, r"scarce.*keep = 2.0; it must be in"),
        ({"kep": 0.1}, "'kep'; did you mean 'keep'"),
        ({"seed": 1}, "unknown setting of .* 'seed'"),
    ],
)
def test_loading_scarce_data_names_mistakes(scarce, message):
    refused(message, lambda: Experiment.of({"scarce": scarce}).load())
    refused(message, fl.data.load_with_graph, "digits", scarce=scarce)
