"""Compression of differences: exact answers, bounds on the error, bytes, and numbers that are not finite."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedlap as fl
from fedlap.algorithms.compression import (
    BLOCK,
    BlockScaling,
    HalfPrecision,
    LargestValues,
    TopK,
    parse_compression,
)
from fedlap.training.state import count_bytes, gather_rows, list_tensors
from fedlap.training.state_bytes import decode_state, encode_state, list_state_types
from property_settings import law

ALL = {"float16": HalfPrecision(), "int8": BlockScaling(), "top-k": TopK(0.1)}
every_one = pytest.mark.parametrize("how", ALL.values(), ids=ALL)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def draw(rows, size, dtype=torch.float64, seed=0):
    """Differences whose parameters and blocks have very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, size, generator=generator, dtype=dtype)
    return values * 10 ** (4 * torch.rand(rows, size, generator=generator, dtype=dtype) - 3)


def restore(how, difference):
    return how.decompress(how.compress(difference), difference)


# Exact answers


def test_float16_rounds_to_eleven_bits():
    values = torch.tensor([[1.0, 1 + 2**-11, 1 + 3 * 2**-11, -(2.0**-24), 2.0**-25, 1e-9, 0.0]])
    expected = torch.tensor([[1.0, 1.0, 1 + 2**-9, -(2.0**-24), 0.0, 0.0, 0.0]])
    assert torch.equal(restore(HalfPrecision(), values), expected)


def test_int8_has_a_scale_per_block():
    """A block of halves and wholes, a block of zeros, and a last block of three parameters."""
    values = torch.zeros(1, 2 * BLOCK + 3)
    values[0, :4] = torch.tensor([254.0, -127.0, 1.0, 3.0])  # multiples of 2: 127, -63.5, 0.5 and 1.5
    values[0, -3:] = torch.tensor([0.0, -1.27e-6, 1e-8])
    message = BlockScaling().compress(values)
    assert message.scales.shape == (1, 3)
    assert message.scales[0, 0] == 2
    assert message.scales[0, 1] == 0
    assert message.values[0, :5].tolist() == [127, -64, 0, 2, 0]
    assert message.values[0, -3:].tolist() == [0, -127, 1]
    restored = BlockScaling().decompress(message, values)
    assert restored[0, :4].tolist() == [254, -128, 0, 4]
    assert not restored[0, BLOCK : 2 * BLOCK].any()


def test_top_k_sends_the_largest_and_of_equal_ones_the_first():
    values = torch.tensor([[1.0, -3.0, 2.0, 3.0, 0.0, -2.0], [0.0, 0.0, 0.0, 0.0, 0.0, 5.0]])
    message = TopK(0.5).compress(values)
    assert message.places.tolist() == [[1, 2, 3], [0, 1, 5]]
    assert message.values.tolist() == [[-3, 2, 3], [0, 0, 5]]
    assert TopK(0.5).decompress(message, values).tolist() == [[0, -3, 2, 3, 0, 0], [0, 0, 0, 0, 0, 5]]


@every_dtype
def test_top_k_does_not_see_rounding_errors(dtype):
    """Opposite numbers with the rounding errors of sums in another order; the first of each pair is sent."""
    generator = torch.Generator().manual_seed(0)
    pairs = torch.rand(50, 8, generator=generator, dtype=dtype) + 0.1
    noise = 1 + 4 * torch.finfo(dtype).eps * torch.randint(-1, 2, (50, 16), generator=generator).to(dtype)
    values = torch.cat((pairs, -pairs), 1) * noise
    exact = TopK(1 / 16).compress(torch.cat((pairs, -pairs), 1)).places
    assert (exact < 8).all()
    assert (TopK(1 / 16).compress(values).places == exact).double().mean() > 0.95
    plain = values.abs().argmax(1, keepdim=True)
    assert (plain == exact).double().mean() < 0.8  # what comparing all bits would do


@pytest.mark.parametrize(
    ("size", "share", "count"), [(15, 0.1, 2), (15, 0.01, 1), (3, 1.0, 3), (10, 0.25, 3)]
)
def test_the_number_of_values_is_rounded(size, share, count):
    message = TopK(share).compress(draw(2, size))
    assert message.places.shape == message.values.shape == (2, count)


# Laws


@every_one
@every_dtype
def test_rows_together_are_rows_apart(how, dtype):
    values = draw(5, 2 * BLOCK + 17, dtype)
    together = how.compress(values)
    apart = [how.compress(row) for row in values.split(1)]
    for one, others in zip(together, zip(*apart, strict=True), strict=True):
        assert torch.equal(one, torch.cat(others))
    single = torch.cat([how.decompress(message, values[:1]) for message in apart])
    assert torch.equal(how.decompress(together, values), single)


@every_one
@every_dtype
@pytest.mark.parametrize("size", [1, 255, 256, 257, 1000])
def test_bytes_are_real(how, dtype, size):
    values = draw(3, size, dtype)
    message = how.compress(values)
    width, count = values.element_size(), max(1, int(0.1 * size + 0.5))
    per_client = {"float16": 2 * size, "int8": size + 4 * -(-size // BLOCK), "top-k": count * (4 + width)}
    name = next(name for name, known in ALL.items() if known is how)
    assert count_bytes(message) == 3 * per_client[name]
    content = encode_state(message)
    assert 0 < len(content) - count_bytes(message) < 400  # the names and shapes of the tensors
    again = decode_state(content, list_state_types(fl.DFedU))
    assert type(again) is type(message)
    assert all(torch.equal(one, other) for one, other in zip(again, message, strict=True))


# The largest ‖d − D(C(d))‖ / ‖d‖, without float16's smallest numbers; for top-k see `TopK`.
ERRORS = {"float16": 2.0**-11, "int8": BLOCK**0.5 / 254, "top-k": 0.9**0.5}


@pytest.mark.parametrize("name", ALL)
@law
@given(seed=st.integers(0, 10**6), size=st.integers(1, 700), power=st.integers(-4, 4), flat=st.booleans())
def test_the_error_is_bounded(name, seed, size, power, flat):
    """The worst case of int8 is one large value and many that are half a step; of top-k, equal values."""
    for dtype, slack in ((torch.float64, 1e-6), (torch.float32, 2**-7)):
        values = torch.ones(1, size, dtype=dtype) if flat else draw(1, size, dtype, seed)
        values = values * 10.0**power
        lost = (values - restore(ALL[name], values)).norm()
        floor = size**0.5 * 2**-25 if name == "float16" else 0.0
        share = TopK(0.1).count_values(size) / size
        bound = (1 - share) ** 0.5 if name == "top-k" else ERRORS[name]
        assert lost <= (bound * values.norm() + floor) * (1 + slack) + slack * share * values.norm()


def test_the_bound_of_int8_is_nearly_reached():
    values = torch.full((1, BLOCK), 0.4999 / 127, dtype=torch.float64)
    values[0, 0] = 1
    lost = (values - restore(BlockScaling(), values)).norm() / values.norm()
    assert 0.9 * ERRORS["int8"] < lost <= ERRORS["int8"]


@every_one
@every_dtype
def test_what_is_lost_is_sent_later(how, dtype):
    """Messages reach a model that stands still; top-k has sent every value after 1/share messages."""
    w, public = draw(2, 600, dtype), torch.zeros(2, 600, dtype=dtype)
    for _ in range(10):
        before = (w - public).norm()
        public = public + restore(how, w - public)
        assert (w - public).norm() <= before
    if how == ALL["float16"]:
        assert (w - public).abs().max() <= 2**-25 + torch.finfo(dtype).eps * w.abs().max()
    else:
        assert (w - public).abs().max() <= 2 * torch.finfo(dtype).eps * w.abs().max()


# Numbers that no compression can hold


@every_dtype
def test_float16_clamps_what_is_too_large(dtype):
    w, public = torch.tensor([[1e5, -2e5, 65519.0, 1.0]], dtype=dtype), torch.zeros(1, 4, dtype=dtype)
    sent = restore(HalfPrecision(), w)
    assert sent.tolist() == [[65504, -65504, 65504, 1]]
    for _ in range(5):
        public = public + restore(HalfPrecision(), w - public)
    assert torch.equal(public, w)


@every_one
@every_dtype
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 300, 599])
def test_models_that_are_not_finite_stay_so(how, dtype, bad, place):
    w, public = draw(2, 600, dtype), torch.zeros(2, 600, dtype=dtype)
    w[1, place] = bad
    message = how.compress(w - public)
    public = public + how.decompress(message, w)
    assert not public[1].isfinite().all()
    assert not public[1, place].isfinite()
    assert public[0].isfinite().all()
    assert public[1].isfinite().sum() >= 600 - BLOCK  # at most its block
    assert torch.equal(how.decompress(gather_rows(message, torch.tensor([0])), w[:1]), restore(how, w[:1]))


def test_tiny_and_huge_numbers_have_a_scale():
    for value, dtype in ((1e-44, torch.float32), (3e38, torch.float32), (1e-300, torch.float64)):
        values = torch.tensor([[value, -value / 3, 0.0]], dtype=dtype)
        restored = restore(BlockScaling(), values)
        assert restored.isfinite().all()
        assert (restored - values).norm() <= values.norm()


# Settings and messages of others


def test_settings_are_parsed():
    assert parse_compression(None) is parse_compression("none") is None
    assert parse_compression("top-k") == TopK(0.1)
    assert parse_compression("top-k:0.02") == TopK(0.02)
    assert parse_compression("int8") == BlockScaling()
    assert parse_compression("float16") == HalfPrecision()


@pytest.mark.parametrize(
    "text", ["", "zip", "int8:2", "none:1", "top-k:", "top-k:0", "top-k:1.1", "top-k:nan"]
)
def test_other_settings_are_refused(text):
    with pytest.raises(fl.InputError, match=r"compression = .*; (use 'float16'|expected a share)") as caught:
        fl.DFedU(fl.Graph.ring(["a", "b", "c"]), compression=text)
    assert caught.value.field == "compression"


def test_compression_needs_explicit_mixing():
    graph = fl.Graph.ring(["a", "b", "c"])
    with pytest.raises(fl.InputError, match=r"compression = int8; .* set mixing = explicit"):
        fl.DFedU(graph, mixing="implicit", compression="int8")
    assert fl.DFedU(graph, mixing="implicit", exchanges=2, compression="none").exchanges == 2


@pytest.mark.parametrize("places", [[[0, 4]], [[-1, 2]], [[2, 1]], [[1, 1]]])
def test_places_of_no_parameters_are_refused(places):
    method = fl.DFedU(fl.Graph.ring(["a", "b", "c"]), compression="top-k:0.5")
    known = torch.zeros(1, 4)
    message = LargestValues(torch.tensor(places, dtype=torch.int32), torch.ones(1, 2))
    with pytest.raises(fl.InputError, match=r"has places .*; expected ascending places from 0 to 3"):
        method.receive(known, message)
    good = LargestValues(torch.tensor([[0, 3]], dtype=torch.int32), torch.ones(1, 2))
    assert method.receive(known, good).tolist() == [[1, 0, 0, 1]]
    assert not known.any()
    assert all(isinstance(part, torch.Tensor) for part in list_tensors(good))
