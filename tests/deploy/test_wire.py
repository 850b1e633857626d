"""Messages survive the wire exactly, and damaged ones are refused before they do harm."""

import json
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlap.deploy.transport import ExitCode, PermanentError
from fedlap.deploy.wire import (
    ANSWERS,
    MAGIC,
    REQUESTS,
    WIRE_FORMAT,
    Message,
    WireError,
    decode_message,
    encode_message,
    measure_norm,
)
from fedlap.errors import InputError
from fedlap.training.state import describe_shapes, list_tensors
from fedlap.training.state_bytes import decode_state, encode_state
from property_settings import law


class Pair(NamedTuple):
    one: object
    other: object


DTYPES = st.sampled_from([torch.float32, torch.float64, torch.int64])
SHAPES = st.lists(st.integers(0, 4), max_size=3)


@st.composite
def tensors(draw):
    shape, dtype = draw(SHAPES), draw(DTYPES)
    count = int(torch.tensor(shape).prod()) if shape else 1
    values = draw(st.lists(st.integers(-(2**40), 2**40), min_size=count, max_size=count))
    return (torch.tensor(values, dtype=torch.float64) / 7).to(dtype).view(shape)


STATES = st.recursive(
    st.none() | tensors(),
    lambda inner: st.builds(Pair, inner, inner) | st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)
FACTS = {
    str: st.text(max_size=20),
    int: st.integers(-(2**60), 2**60),
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    dict: st.dictionaries(st.text(max_size=5), st.integers(-5, 5) | st.text(max_size=5), max_size=3),
}


@st.composite
def messages(draw):
    known = draw(st.sampled_from([REQUESTS, ANSWERS]))
    kind = draw(st.sampled_from(sorted(known)))
    facts = {name: draw(FACTS[fact]) for name, fact in known[kind].items()}
    return known, Message(kind, facts, draw(STATES))


def assert_same(one, other):
    assert describe_shapes(one) == describe_shapes(other)
    assert all(torch.equal(a, b) for a, b in zip(list_tensors(one), list_tensors(other), strict=True))


@law
@given(messages())
def test_a_message_survives_exactly(pair):
    known, message = pair
    found = decode_message(encode_message(message), known, [Pair])
    assert (found.kind, found.facts) == (message.kind, message.facts)
    assert_same(found.state, message.state)


@law
@given(messages(), st.data())
def test_damaged_bytes_never_raise_anything_else(pair, data):
    """A damaged message is refused, or is valid: it may differ in a number that no check can know."""
    known, message = pair
    content = bytearray(encode_message(message))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    cut = bytes(content[: data.draw(st.integers(0, len(content)))])
    for damaged in (bytes(content), cut):
        try:
            decode_message(damaged, known, [Pair], most_bytes=1_000_000)
        except (WireError, PermanentError):
            continue


@pytest.mark.parametrize(
    "header",
    [
        {"kind": "reply"}, {"kind": "reply", "round": 1.0, "setup": 1},
        {"kind": "reply", "round": True, "setup": 1},
        {"kind": "train", "round": 1, "setup": 1, "merged": 0}, {"round": 1}, [], 3, {"kind": ["reply"]},
    ],
)  # fmt: skip
def test_headers_that_nobody_sends_are_refused(header):
    content = MAGIC + b"%d\n" % WIRE_FORMAT + json.dumps(header).encode() + b"\nnull\n" + bytes(8)
    with pytest.raises(WireError):
        decode_message(content, REQUESTS)


@law
@given(messages(), st.dictionaries(st.text(max_size=10), st.integers() | st.text(max_size=5), max_size=3))
def test_facts_that_a_kind_does_not_have_are_dropped(pair, others):
    known, message = pair
    found = decode_message(encode_message(message._replace(facts={**others, **message.facts})), known, [Pair])
    assert found.facts == message.facts


def test_a_tensor_that_is_named_twice_is_refused():
    """Each name would take memory of its own: a message of 60 MB could take any amount."""
    tensor = torch.zeros(1000)
    line, end, tensors = encode_state(tensor).partition(b"\n")
    assert torch.equal(decode_state(line + end + tensors), tensor)
    with pytest.raises(InputError, match="are not a state"):
        decode_state(b"[null, 0, 0]" + end + tensors)


def test_long_messages_are_refused_by_their_length_alone():
    content = encode_message(Message("poll", {}, torch.zeros(1, 100)))
    decode_message(content, REQUESTS, most_bytes=len(content))
    with pytest.raises(WireError, match="expected at most"):
        decode_message(content, REQUESTS, most_bytes=len(content) - 1)


def test_another_format_ends_the_process():
    content = encode_message(Message("poll")).replace(b"%d\n" % WIRE_FORMAT, b"%d\n" % (WIRE_FORMAT + 1), 1)
    with pytest.raises(PermanentError, match="wire format") as caught:
        decode_message(content, REQUESTS)
    assert caught.value.code is ExitCode.OTHER_VERSION


def test_a_tuple_of_an_unknown_type_is_refused():
    content = encode_message(Message("poll", {}, Pair(torch.zeros(1), None)))
    with pytest.raises(WireError, match="Pair"):
        decode_message(content, REQUESTS)


def test_the_norm_is_that_of_all_numbers():
    assert measure_norm(Pair(torch.tensor([3.0]), (torch.tensor([[4.0]]), None))) == 5.0
    assert measure_norm(None) == 0.0
    assert not measure_norm(torch.tensor([float("nan")])) < float("inf")
