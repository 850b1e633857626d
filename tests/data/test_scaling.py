"""Scaled features, and what is left of them when clients are pooled or reordered."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedlap as fl
from fedlap.randomness import digest_name
from property_settings import short_law as law
from random_inputs import random_arrays
from table_rows import from_arrays, of

CPU = torch.device("cpu")


def test_pooled_scale_is_numpys():
    arrays = random_arrays([7, 9, 4])
    federation = from_arrays(arrays, 0.3)
    scaled = federation.standardize("pooled").to_device(CPU, torch.float64)
    train = federation.train.x.numpy()
    mean, std = train.mean(0), train.std(0)
    assert np.allclose(scaled.train.x, (train - mean) / std, atol=1e-12)
    assert np.allclose(scaled.test.x, (federation.test.x.numpy() - mean) / std, atol=1e-12)
    assert scaled.scale.kind == "none"  # it is applied once


def test_each_clients_scale_is_numpys():
    federation = from_arrays(random_arrays([7, 9, 4]), 0.3)
    scaled = federation.standardize("client").to_device(CPU, torch.float64)
    for name in federation.clients:
        train, test = (of(part, federation, name)[0].numpy() for part in (federation.train, federation.test))
        mean, std = train.mean(0), train.std(0)
        assert np.allclose(of(scaled.train, scaled, name)[0], (train - mean) / std, atol=1e-12)
        assert np.allclose(of(scaled.test, scaled, name)[0], (test - mean) / std, atol=1e-12)


@pytest.mark.parametrize("kind", ["pooled", "client"])
def test_scales_come_from_training_rows_only(kind):
    arrays = random_arrays([7, 9, 4])
    scales = [
        from_arrays(arrays, test={"b": (factor * arrays["b"][0], arrays["b"][1])}).standardize(kind).scale
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
    scaled = from_arrays(arrays, test=test).standardize(kind).to_device(CPU, torch.float64)
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
    pooled, by_client = federation.standardize("pooled").scale, federation.standardize("client").scale
    assert pooled.shift.shape == (1, 2, 1, 1)
    assert np.allclose(pooled.shift.flatten(), pixels.mean((0, 2, 3)))
    assert np.allclose(1 / pooled.factor.flatten(), pixels.std((0, 2, 3)))
    for place, client_pixels in enumerate((pixels[:6], pixels[6:])):
        assert np.allclose(by_client.shift[place].flatten(), client_pixels.mean((0, 2, 3)))
        assert np.allclose(1 / by_client.factor[place].flatten(), client_pixels.std((0, 2, 3)))


def test_images_stay_bytes_until_they_are_used():
    scaled = from_arrays(images(), test_share=0).standardize("client")
    resident = scaled.to_device(CPU, torch.float64)
    assert resident.train.x.dtype == torch.uint8
    seen = resident.scale.apply(resident.train.x[:6].unsqueeze(0), torch.tensor([0]), torch.float64)[0]
    assert np.allclose(seen.mean((0, 2, 3)), 0, atol=1e-12)
    assert np.allclose(seen.std((0, 2, 3), correction=0), 1)


def test_byte_tables_are_scaled_by_feature():
    x = np.random.default_rng(0).integers(0, 256, (30, 3), dtype=np.uint8)
    scale = from_arrays({"a": (x, np.arange(30) % 2)}, test_share=0).standardize("pooled").scale
    assert np.allclose(scale.shift[0], x.mean(0))
    assert np.allclose(1 / scale.factor[0], x.std(0))


def test_no_scale():
    federation = from_arrays(random_arrays([7, 9]), 0.3)
    again = federation.standardize("pooled").standardize("none").to_device(CPU, torch.float64)
    assert torch.equal(again.train.x, federation.train.x)
    assert torch.equal(again.test.x, federation.test.x)
    single = federation.to_device(CPU, torch.float32)
    assert single.train.x.dtype == torch.float32
    assert torch.equal(single.train.y, federation.train.y)


@pytest.mark.parametrize("kind", ["none", "pooled", "client"])
def test_pooled_rows_keep_their_values(kind):
    """Pooling and then taking the rows gives what each client would have seen."""
    federation = from_arrays(random_arrays([7, 9, 4, 8]), 0.3).standardize(kind)
    pooled = federation.pool_clients().to_device(CPU, torch.float64)
    apart = federation.to_device(CPU, torch.float64)
    names = sorted(federation.clients, key=digest_name)
    assert pooled.clients == ("pooled",)
    for whole, part in ((pooled.train, apart.train), (pooled.test, apart.test)):
        assert whole.count.tolist() == [int(part.count.sum())]
        for at, values in enumerate((whole.x, whole.y)):
            assert torch.allclose(
                values, torch.cat([of(part, apart, name)[at] for name in names]), atol=1e-12
            )


def test_pooled_images_keep_bytes_and_scale():
    federation = from_arrays(images()).standardize("pooled")
    pooled = federation.pool_clients()
    assert pooled.train.x.dtype == torch.uint8
    assert torch.equal(pooled.scale.shift, federation.scale.shift)


@law
@given(st.permutations("abcd"), st.sampled_from(["none", "pooled", "client"]))
def test_reordering(order, kind):
    federation = from_arrays(random_arrays([7, 9, 4, 8]), 0.3).standardize(kind)
    other = federation.reorder(order)
    assert other.clients == tuple(order)
    before, after = (f.to_device(CPU, torch.float64) for f in (federation, other))
    for name in order:
        for one, two in ((before.train, after.train), (before.test, after.test)):
            for values, again in zip(of(one, before, name), of(two, after, name), strict=True):
                assert torch.equal(values, again)
    one, two = federation.pool_clients(), other.pool_clients()
    assert torch.equal(one.train.x, two.train.x)
    assert torch.equal(one.test.x, two.test.x)


@pytest.mark.parametrize("order", [["a"], ["a", "a"], ["a", "b", "c"], ["a", "z"]])
def test_an_order_names_everyone_once(order):
    with pytest.raises(fl.InputError, match="each client exactly once"):
        from_arrays(random_arrays([3, 4])).reorder(order)
