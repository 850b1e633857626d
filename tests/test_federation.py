import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedlap as fl
from conftest import random_arrays
from fedlap.models import CrossEntropy, SquaredError
from fedlap.parts import Part
from fedlap.randomness import digest

CPU = torch.device("cpu")
law = settings(max_examples=40, deadline=None, derandomize=True)
from_arrays = fl.Federation.from_arrays


def refused(message, *args, **settings):
    with pytest.raises(fl.InputError, match=message) as error:
        from_arrays(*args, **settings)
    assert "\n" not in str(error.value)


def numbered(counts):
    """Clients a, b, … whose rows hold numbers found nowhere else."""
    total = iter(range(10_000))
    arrays = {}
    for place, count in enumerate(counts):
        x = np.array([[next(total), -1.0] for _ in range(count)])
        arrays[chr(ord("a") + place)] = (x, x[:, 0].astype(int) % 3)
    return arrays


def of(part, federation, name):
    return part.client(federation.clients.index(name))


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_rows_stay_as_given(kind):
    arrays = random_arrays([4, 1, 7])
    given_rows = {name: (kind(x), kind(y)) for name, (x, y) in arrays.items()}
    federation = from_arrays(given_rows, test_share=0)
    assert federation.clients == ("a", "b", "c")
    assert federation.train.count.tolist() == [4, 1, 7]
    assert federation.train.first.tolist() == [0, 4, 5]
    assert federation.train.owner().tolist() == [0] * 4 + [1] + [2] * 7
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
    arrays = numbered(counts)
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
    arrays = numbered([20, 20, 12])
    federation = from_arrays(arrays, 0.3, 4)
    for some in (["c", "a", "b"], ["b"], ["c", "b"]):
        other = from_arrays({name: arrays[name] for name in some}, 0.3, 4)
        for name in some:
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
    arrays, test = numbered([6, 4, 5]), {name: numbered([9, 2])[name] for name in "ab"}
    federation = from_arrays(arrays, 0.9, test={"b": test["b"], "a": test["a"]})
    assert federation.train.count.tolist() == [6, 4, 5]
    assert federation.test.count.tolist() == [9, 2, 0]
    for name, (x, _) in test.items():
        assert np.array_equal(of(federation.test, federation, name)[0], x)
    assert from_arrays(arrays, test={}).test.count.tolist() == [0, 0, 0]


def spoiled(client, row, column, value):
    arrays = random_arrays([4, 6, 5])
    arrays[client][0][row, column] = value
    return arrays


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_missing_numbers_are_named(value):
    arrays = spoiled("b", 2, 3, value)
    refused("client 'b', row 2: a feature is NaN", arrays, test_share=0)
    refused("client 'b', test row 2: a feature is NaN", random_arrays([4, 6, 5]), test=arrays)
    real = random_arrays([4, 6, 5], real=True)
    real["c"][1][4, 1] = value
    refused("client 'c', row 4: a label is NaN", real, test_share=0)


def test_wrong_labels_are_named():
    arrays = random_arrays([4, 6, 5])
    arrays["b"][1][5] = 7
    message = "client 'b', row 5: label 7 is out of range; labels are 0 to 2"
    refused(message, arrays, test_share=0, labels=3)
    refused("client 'b', test row 5: label 7", random_arrays([4, 6, 5]), test=arrays, labels=3)
    arrays["b"][1][5] = -1
    refused("client 'b', row 5: label -1", arrays, test_share=0)
    refused("labels were named but targets are real", random_arrays([4], real=True), labels=2)


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, math.nan])
def test_a_share_that_cannot_be(share):
    refused("test_share = .*must be in", random_arrays([4]), test_share=share)


X, Y = np.zeros((3, 2)), np.array([0, 1, 0])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((X[:0], Y[:0]), "client 'b' has no training rows"),
        ((X, Y[:2]), r"client 'b' has features of shape \(3, 2\) and labels of shape \(2,\)"),
        ((np.zeros((3, 4)), Y), r"client 'b' has real features \(4,\) and labels, client 'a' has real fea"),
        ((X.astype(np.uint8), Y), r"client 'b' has byte features \(2,\)"),
        ((X, Y.astype(float)), r"client 'b' has .* real targets \(1,\), client 'a' has .* labels; make them"),
        ((X, np.zeros((3, 2), dtype=int)), r"client 'b' has .* labels of shape \(3, 2\); whole-number"),
        ((X * 1j, Y), "client 'b' has .*real numbers"),
        ((X.astype(str), Y), "client 'b' needs .* as arrays of numbers"),
        ((X.astype(object), Y), "client 'b' needs .* as arrays of numbers"),
    ],
)
def test_rows_that_cannot_be(rows, message):
    refused(message, {"a": (X, Y), "b": rows}, test_share=0)
    if len(rows[0]):
        refused(message, {"a": (X, Y), "b": (X, Y)}, test={"b": rows})


def test_clients_that_cannot_be():
    refused("there are no clients", {})
    refused("client 'z' has test rows but no training rows", {"a": (X, Y)}, test={"a": (X, Y), "z": (X, Y)})
    one = from_arrays({"a": (X, Y)}, test_share=0)
    twice = Part.of(one.train.x, one.train.y, torch.tensor([2, 1]))
    empty = Part.of(one.test.x, one.test.y, torch.tensor([0, 0]))
    with pytest.raises(fl.InputError, match="client 'a' appears twice"):
        fl.Federation(("a", "a"), twice, empty, one.labels)


def test_pooled_scale_is_numpys():
    arrays = random_arrays([7, 9, 4])
    federation = from_arrays(arrays, 0.3)
    scaled = federation.scaled("pooled").resident(CPU, torch.float64)
    train = federation.train.x.numpy()
    mean, std = train.mean(0), train.std(0)
    assert np.allclose(scaled.train.x, (train - mean) / std, atol=1e-12)
    assert np.allclose(scaled.test.x, (federation.test.x.numpy() - mean) / std, atol=1e-12)
    assert scaled.scale.kind == "none"  # it is applied once


def test_each_clients_scale_is_numpys():
    federation = from_arrays(random_arrays([7, 9, 4]), 0.3)
    scaled = federation.scaled("client").resident(CPU, torch.float64)
    for name in federation.clients:
        train, test = (of(part, federation, name)[0].numpy() for part in (federation.train, federation.test))
        mean, std = train.mean(0), train.std(0)
        assert np.allclose(of(scaled.train, scaled, name)[0], (train - mean) / std, atol=1e-12)
        assert np.allclose(of(scaled.test, scaled, name)[0], (test - mean) / std, atol=1e-12)


@pytest.mark.parametrize("kind", ["pooled", "client"])
def test_scales_come_from_training_rows_only(kind):
    arrays = random_arrays([7, 9, 4])
    scales = [
        from_arrays(arrays, test={"b": (factor * arrays["b"][0], arrays["b"][1])}).scaled(kind).scale
        for factor in (1, 1e6)
    ]
    assert torch.equal(scales[0].shift, scales[1].shift)
    assert torch.equal(scales[0].factor, scales[1].factor)


@pytest.mark.parametrize("kind", ["pooled", "client"])
@pytest.mark.parametrize("value", [0.1, 1e8 / 3, 0.0])
def test_a_constant_feature_is_only_shifted(kind, value):
    arrays = random_arrays([33, 1, 5])
    for x, _ in arrays.values():
        x[:, 1] = value
    test = {"a": (np.full((2, 4), value + 3.0), np.array([0, 1]))}
    scaled = from_arrays(arrays, test=test).scaled(kind).resident(CPU, torch.float64)
    assert scaled.train.x[:, 1].abs().max() == 0
    assert np.allclose(scaled.test.x[:, 1], 3, atol=1e-7)
    assert bool(scaled.train.x.isfinite().all())


def images(counts=(6, 3)):
    rng = np.random.default_rng(0)
    return {
        chr(ord("a") + k): (rng.integers(0, 256, (n, 2, 4, 5), dtype=np.uint8), np.arange(n) % 2)
        for k, n in enumerate(counts)
    }


def test_images_are_scaled_by_channel():
    federation = from_arrays(images(), test_share=0)
    pixels = federation.train.x.numpy().astype(float)
    pooled, each = federation.scaled("pooled").scale, federation.scaled("client").scale
    assert pooled.shift.shape == (1, 2, 1, 1)
    assert np.allclose(pooled.shift.flatten(), pixels.mean((0, 2, 3)))
    assert np.allclose(1 / pooled.factor.flatten(), pixels.std((0, 2, 3)))
    for place, own in enumerate((pixels[:6], pixels[6:])):
        assert np.allclose(each.shift[place].flatten(), own.mean((0, 2, 3)))
        assert np.allclose(1 / each.factor[place].flatten(), own.std((0, 2, 3)))


def test_images_stay_bytes_until_they_are_used():
    scaled = from_arrays(images(), test_share=0).scaled("client")
    resident = scaled.resident(CPU, torch.float64)
    assert resident.train.x.dtype == torch.uint8
    seen = resident.scale.apply(resident.train.x[:6].unsqueeze(0), torch.tensor([0]), torch.float64)[0]
    assert np.allclose(seen.mean((0, 2, 3)), 0, atol=1e-12)
    assert np.allclose(seen.std((0, 2, 3), correction=0), 1)


def test_byte_tables_are_scaled_by_feature():
    x = np.random.default_rng(0).integers(0, 256, (30, 3), dtype=np.uint8)
    scale = from_arrays({"a": (x, np.arange(30) % 2)}, test_share=0).scaled("pooled").scale
    assert np.allclose(scale.shift[0], x.mean(0))
    assert np.allclose(1 / scale.factor[0], x.std(0))


def test_no_scale():
    federation = from_arrays(random_arrays([7, 9]), 0.3)
    again = federation.scaled("pooled").scaled("none").resident(CPU, torch.float64)
    assert torch.equal(again.train.x, federation.train.x)
    assert torch.equal(again.test.x, federation.test.x)
    single = federation.resident(CPU, torch.float32)
    assert single.train.x.dtype == torch.float32
    assert torch.equal(single.train.y, federation.train.y)


@pytest.mark.parametrize("kind", ["none", "pooled", "client"])
def test_pooled_rows_keep_their_values(kind):
    """Pooling and then taking the rows gives what each client would have seen."""
    federation = from_arrays(random_arrays([7, 9, 4, 8]), 0.3).scaled(kind)
    pooled = federation.pooled().resident(CPU, torch.float64)
    apart = federation.resident(CPU, torch.float64)
    names = sorted(federation.clients, key=digest)
    assert pooled.clients == ("pooled",)
    for whole, part in ((pooled.train, apart.train), (pooled.test, apart.test)):
        assert whole.count.tolist() == [int(part.count.sum())]
        for at, values in enumerate((whole.x, whole.y)):
            assert torch.allclose(
                values, torch.cat([of(part, apart, name)[at] for name in names]), atol=1e-12
            )


def test_pooled_images_keep_bytes_and_scale():
    federation = from_arrays(images()).scaled("pooled")
    pooled = federation.pooled()
    assert pooled.train.x.dtype == torch.uint8
    assert torch.equal(pooled.scale.shift, federation.scale.shift)


@law
@given(st.permutations("abcd"), st.sampled_from(["none", "pooled", "client"]))
def test_reordering(order, kind):
    federation = from_arrays(random_arrays([7, 9, 4, 8]), 0.3).scaled(kind)
    other = federation.reordered(order)
    assert other.clients == tuple(order)
    before, after = (f.resident(CPU, torch.float64) for f in (federation, other))
    for name in order:
        for one, two in ((before.train, after.train), (before.test, after.test)):
            for values, again in zip(of(one, before, name), of(two, after, name), strict=True):
                assert torch.equal(values, again)
    for one, two in zip((federation.pooled().train.x, federation.pooled().test.x),
                        (other.pooled().train.x, other.pooled().test.x), strict=True):  # fmt: skip
        assert torch.equal(one, two)


@pytest.mark.parametrize("order", [["a"], ["a", "a"], ["a", "b", "c"], ["a", "z"]])
def test_an_order_names_everyone_once(order):
    with pytest.raises(fl.InputError, match="each client exactly once"):
        from_arrays(random_arrays([3, 4])).reordered(order)
