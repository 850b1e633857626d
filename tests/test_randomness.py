import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap import randomness
from fedlap.randomness import Draws, digest_name, digest_names, draws, philox

ONES = 0xFFFFFFFF
PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((ONES,) * 4, (ONES,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (*PI, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_published_answers_of_philox(counter, key, answer):
    words = philox(tuple(torch.tensor([c]) for c in counter), key)
    assert " ".join(f"{int(word):08x}" for word in words) == answer


def test_draws_are_the_published_generator():
    """Counter: the client's two halves, then block and step."""
    (low, high, block, step), key = PI
    client = torch.tensor((high << 32 | low) - 2**64)  # as a signed number
    words = Draws(key).blocks(client, torch.tensor(step), torch.tensor(block))
    assert [f"{int(word):08x}" for word in words] == ["d16cfe09", "94fdcceb", "5001e420", "24126ea1"]


def test_draws_are_pure():
    stream, names = draws(3, "batches", 2), digest_names(["a", "b"])
    assert torch.equal(stream.words(names, 4, 9), stream.words(names, 4, 9))
    assert torch.equal(stream.words(names, 4, 9), draws(3, "batches", 2).words(names, 4, 9))


@pytest.mark.parametrize("count", range(1, 14))
def test_words_do_not_depend_on_how_many_are_asked_for(count):
    stream, names = draws(3, "batches", 2), digest_names(["a", "b"])
    assert torch.equal(stream.words(names, 1, 13)[:, :count], stream.words(names, 1, count))
    assert torch.equal(stream.uniform(7, 1, 13)[:count], stream.uniform(7, 1, count))


def test_words_do_not_depend_on_company():
    stream, names = draws(3, "batches", 2), digest_names(["a", "b", "c"])
    together = stream.words(names, 5, 6)
    for place in (2, 0, 1):
        assert torch.equal(stream.words(names[place : place + 1], 5, 6)[0], together[place])
    steps = torch.tensor([5, 0, 9])
    for place, step in enumerate(steps.tolist()):
        assert torch.equal(stream.words(names, steps, 6)[place], stream.words(names, step, 6)[place])
    assert torch.equal(stream.keys(names)[[2, 0]], stream.keys(names[[2, 0]]))


def test_everything_that_names_a_draw_changes_it():
    def first(seed=0, purpose="batches", round=1, name="a", step=0):
        return tuple(draws(seed, purpose, round).words(torch.tensor(digest_name(name)), step, 4).tolist())

    purposes = ["start", "sample", "batches", "split", "partition", "data"]
    seen = [first(purpose=purpose) for purpose in purposes]
    seen += [first(seed=seed) for seed in (1, 2, -1, 2**40)] + [first(round=round) for round in (0, 2, 10)]
    seen += [first(name=name) for name in ("b", "aa", "", "é")] + [first(step=step) for step in (1, 2, 2**31)]
    words = [word for four in seen for word in four]
    assert len(set(words)) == len(words)


def test_seed_and_round_do_not_run_together():
    assert draws(1, "batches", 11).key != draws(11, "batches", 1).key


def test_words_fill_their_range():
    words = draws(0, "data").words(torch.tensor(0), 0, 40_000)
    assert words.min() >= 0
    assert words.max() < 2**32
    bits = (words.unsqueeze(-1) >> torch.arange(32) & 1).double().mean(0)
    assert (bits - 0.5).abs().max() < 0.0125  # five standard deviations


def test_keys_are_distinct_and_not_negative():
    stream, clients = draws(0, "sample", 1), torch.arange(10_000)
    keys, (high, low) = stream.keys(clients), stream.words(clients, 0, 2).unbind(-1)
    assert torch.equal(keys, high // 2 * 2**32 + low)
    assert keys.min() >= 0
    assert len(keys.unique()) == 10_000


@pytest.mark.parametrize("seed", range(4))
def test_uniform_moments(seed):
    u = draws(seed, "data").uniform(1, 2, 40_000)
    assert 0 < u.min() < 1e-3
    assert 1 - 1e-3 < u.max() < 1
    assert abs(u.mean() - 1 / 2) < 0.007
    assert abs(u.var() - 1 / 12) < 0.002
    observed = torch.histc(u, 20, 0, 1)
    assert ((observed - 2000).square() / 2000).sum() < 50  # 19 degrees of freedom
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.025


@pytest.mark.parametrize("seed", range(4))
def test_normal_moments(seed):
    z = draws(seed, "data").normal(1, 2, 40_001)
    assert z.shape == (40_001,)
    for power, expected, bound in ((1, 0, 0.025), (2, 1, 0.036), (3, 0, 0.1), (4, 3, 0.25)):
        assert abs(z.pow(power).mean() - expected) < bound
    assert abs((z.abs() > 1.959964).double().mean() - 0.05) < 0.006
    halves = z[:40_000].view(2, -1)
    assert abs(np.corrcoef(halves)[0, 1]) < 0.035  # the two outputs of Box and Muller's map


def test_permutations_are_uniform():
    stream = draws(0, "split")
    orders = [tuple(stream.permutation(5, step, 3).tolist()) for step in range(1200)]
    counts = {order: orders.count(order) for order in set(orders)}
    assert len(counts) == 6
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 25  # 5 degrees of freedom


@pytest.mark.parametrize("make", [fl.models.linear, fl.models.mlp], ids=["linear", "mlp"])
def test_global_generators_are_neither_read_nor_changed(make, federation, graph):
    results = []
    with torch.random.fork_rng(devices=[]):
        for seed in (1, 2):
            torch.manual_seed(seed)
            before, legacy = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
            method = fl.FedU(graph, strength=0.1)
            results.append(fl.fit(method, federation, make(), rounds=3, batch=4, sample=0.5, seed=9))
            fl.data.load("digits"), fl.data.load("synthetic")
            assert torch.equal(torch.get_rng_state(), before)
            assert str(np.random.get_state()) == legacy  # noqa: NPY002
    assert torch.equal(results[0].models, results[1].models)


def test_keys_of_many_clients_are_those_of_a_few(monkeypatch):
    """Clients are drawn in chunks, with one key for all or with one per round and seed."""
    clients = torch.arange(10)
    several = Draws((torch.tensor([[[1]], [[2]]]), torch.tensor([[[3]], [[4]]])))
    expected = [draws(0, "sample").keys(clients), several.keys(clients.expand(2, 1, 10))]
    monkeypatch.setattr(randomness, "CLIENTS_PER_CHUNK", 4)
    assert torch.equal(draws(0, "sample").keys(clients), expected[0])
    assert torch.equal(several.keys(clients.expand(2, 1, 10)), expected[1])
