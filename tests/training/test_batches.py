from collections import Counter
from itertools import chain, combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedlap as fl
from fedlap.algorithms.local_work import LocalWork
from fedlap.randomness import Draws, derive_keys, digest_names, draws
from fedlap.training.batches import (
    MAX_CHOSEN_BATCH,
    Cohort,
    choose_rows,
    draw_batches,
    plan_pass,
    shuffle_rows,
)
from property_settings import short_law as law
from random_inputs import random_arrays

STREAM = draws(1, "batches", 1)

falling = st.lists(st.integers(1, 30), min_size=1, max_size=6).map(lambda c: sorted(c, reverse=True))
wide = st.lists(st.integers(1, 150), min_size=1, max_size=4).map(lambda c: sorted(c, reverse=True))
repeats = st.integers(1, 3)


def plan_of(counts, batch, work, places=None, stream=STREAM):
    """The plan of some clients of a federation with these counts."""
    count = torch.tensor(counts)
    first = count.cumsum(0) - count
    names = digest_names([f"client {k}" for k in range(len(counts))])
    at = torch.arange(len(counts)) if places is None else torch.tensor(places)
    return draw_batches(stream, Cohort(at, names[at], first[at], count[at], count[at]), work, batch)[0]


def cohort_of(counts):
    count = torch.tensor(counts)
    at = torch.arange(len(counts))
    return Cohort(
        at, digest_names([str(k) for k in range(len(counts))]), count.cumsum(0) - count, count, count
    )


def batches(plan, place):
    """The rows of each of a client's mini-batches, sorted, since a mean knows no order."""
    result = []
    for step, active in enumerate(plan.active):
        if place < active:
            weight = plan.weight[step, place]
            rows = plan.rows[step, place][weight > 0]
            assert torch.allclose(weight[weight > 0], torch.tensor(1 / len(rows), dtype=torch.float64))
            result += [sorted(rows.tolist())] * plan.repeat
    return result


def chi_square(observed, expected):
    return sum((count - expected) ** 2 / expected for count in observed)


@law
@given(falling, st.integers(1, 12), repeats)
def test_chosen_rows_are_distinct_and_in_range(counts, batch, steps):
    names = digest_names([str(k) for k in range(len(counts))])
    picked = choose_rows(STREAM, names.unsqueeze(0), torch.tensor([counts]), steps, batch)
    assert picked.shape == (steps, len(counts), batch)
    for step in picked:
        for rows, count in zip(step, counts, strict=True):
            chosen = rows[:count].tolist()
            assert len(set(chosen)) == min(count, batch)
            assert set(chosen) <= set(range(count))


@pytest.mark.parametrize(("count", "batch"), [(5, 2), (6, 3), (5, 4)])
def test_every_subset_is_chosen_equally_often(count, batch):
    steps = 6000
    picked = choose_rows(STREAM, digest_names(["a"]).unsqueeze(0), torch.tensor([[count]]), steps, batch)[
        :, 0
    ]
    seen = Counter(tuple(sorted(rows)) for rows in picked.tolist())
    subsets = list(combinations(range(count), batch))
    assert set(seen) == set(subsets)
    # Up to 19 degrees of freedom; chi-square stays below 50 with probability 0.9999.
    assert chi_square(seen.values(), steps / len(subsets)) < 50


def test_inclusion_is_uniform_for_large_batches():
    count, batch, steps = 70, MAX_CHOSEN_BATCH + 2, 2000
    plan = plan_of([count], batch, LocalWork(steps, False))
    inside = torch.bincount(plan.rows.flatten(), minlength=count)
    left_out = (steps - inside).tolist()
    assert chi_square(left_out, steps * (count - batch) / count) < 130  # 69 degrees of freedom


def test_a_client_with_few_rows_keeps_their_order_next_to_larger_ones():
    batch = MAX_CHOSEN_BATCH + 2
    plan = plan_of([200, 50], batch, LocalWork(3, False))
    for rows, weight in zip(plan.rows[:, 1], plan.weight[:, 1], strict=True):
        assert rows[weight > 0].tolist() == list(range(200, 250))


def test_the_dual_method_is_the_same_in_both_engines_with_large_batches():
    """Coordinates are visited in the order of a batch, and only the largest client is drawn from."""
    federation = fl.Federation.from_arrays(random_arrays([200, 50, 90]), labels=3, scale="none")
    method = fl.Mocha(fl.Graph.complete(federation.clients), strength=0.1, least_work=0.4)
    settings = {"rounds": 5, "batch": 100, "dtype": "float64"}
    one, other = (
        fl.fit(method, federation, fl.models.linear(l2=0.1), engine=engine, **settings).models
        for engine in ("stacked", "one_by_one")
    )
    assert float((one - other).abs().max()) < 1e-12


def test_every_order_of_an_epoch_is_equally_likely():
    orders = shuffle_rows(STREAM, cohort_of([4]), 4800)
    seen = Counter(map(tuple, orders.tolist()))
    assert len(seen) == 24
    assert chi_square(seen.values(), 200) < 60  # 23 degrees of freedom


@law
@given(falling, repeats)
def test_shuffled_holds_each_row_once_an_epoch(counts, epochs):
    orders = shuffle_rows(STREAM, cohort_of(counts), epochs)
    begin = 0
    for count in counts:
        for order in orders:
            assert sorted(order[begin : begin + count].tolist()) == list(range(count))
        begin += -(-count // 4) * 4


@law
@given(falling, st.integers(1, 35), repeats)
def test_epochs_use_each_row_once_and_keep_the_short_batch(counts, batch, epochs):
    plan = plan_of(counts, batch, LocalWork(epochs, True))
    begin = 0
    for place, count in enumerate(counts):
        drawn = batches(plan, place)
        per_epoch = -(-count // batch)
        assert len(drawn) == epochs * per_epoch
        for epoch in range(epochs):
            epoch_batches = drawn[epoch * per_epoch : (epoch + 1) * per_epoch]
            assert sorted(chain(*epoch_batches)) == list(range(begin, begin + count))
            assert [len(rows) for rows in epoch_batches] == [batch] * (per_epoch - 1) + [
                count - batch * (per_epoch - 1)
            ]
        begin += count


@law
@given(wide, st.one_of(st.integers(1, 12), st.integers(65, 100), st.just("all")), repeats, st.booleans())
def test_weights_sum_to_one_at_the_active_prefix(counts, batch, number, epochs):
    plan = plan_of(counts, batch, LocalWork(number, epochs))
    assert list(plan.active) == sorted(plan.active, reverse=True)
    assert plan.active[0] == len(counts)
    assert len(plan.active) == len(plan.rows) == len(plan.weight)
    count = torch.tensor(counts)
    first = (count.cumsum(0) - count).view(1, -1, 1)
    assert bool(((first <= plan.rows) & (plan.rows < first + count.view(1, -1, 1))).all())  # padding too
    for step, active in enumerate(plan.active):
        total = plan.weight[step].sum(-1)
        assert torch.allclose(total[:active], torch.ones(active, dtype=torch.float64))
        assert not total[active:].any()


@law
@given(wide, st.integers(1, 100), repeats)
def test_steps_hold_distinct_rows(counts, batch, steps):
    plan = plan_of(counts, batch, LocalWork(steps, False))
    for place, count in enumerate(counts):
        drawn = batches(plan, place)
        assert len(drawn) == steps
        assert [len(set(rows)) for rows in drawn] == [min(batch, count)] * steps


@pytest.mark.parametrize("batch", [MAX_CHOSEN_BATCH, MAX_CHOSEN_BATCH + 1])
def test_either_side_of_the_branch(batch):
    counts = [200, 66, 65, 64, 3]
    plan = plan_of(counts, batch, LocalWork(4, False))
    for place, count in enumerate(counts):
        assert [len(set(rows)) for rows in batches(plan, place)] == [min(batch, count)] * 4
    assert len({tuple(rows) for rows in batches(plan, 0)}) == 4  # steps are independent


@law
@given(
    wide,
    st.one_of(st.integers(1, 12), st.integers(60, 100), st.just("all")),
    repeats,
    st.booleans(),
    st.data(),
)
def test_batches_do_not_depend_on_the_stack(counts, batch, number, epochs, data):
    work = LocalWork(number, epochs)
    together = plan_of(counts, batch, work)
    subset = sorted(data.draw(st.sets(st.integers(0, len(counts) - 1), min_size=1)))
    stack = plan_of(counts, batch, work, subset)
    for at, place in enumerate(subset):
        expected = batches(together, place)
        assert batches(stack, at) == expected
        assert batches(plan_of(counts, batch, work, [place]), 0) == expected


def test_rounds_and_names_draw_other_batches():
    one = plan_of([40, 40], 5, LocalWork(3, False))
    other = plan_of([40, 40], 5, LocalWork(3, False), stream=draws(1, "batches", 2))
    assert batches(one, 0) != batches(other, 0)
    assert batches(one, 0) != [[row - 40 for row in rows] for rows in batches(one, 1)]


@law
@given(falling, st.integers(1, 35))
def test_in_order_is_one_pass(counts, batch):
    count = torch.tensor([*counts, 0])
    first = count.cumsum(0) - count
    plan = plan_pass(first, count, count, batch)
    assert [list(chain(*batches(plan, place))) for place in range(len(counts))] == [
        list(range(a, a + n)) for a, n in zip(first.tolist(), counts, strict=False)
    ]
    assert batches(plan, len(counts)) == []


def test_how_much_work():
    assert LocalWork.of(None, None) == LocalWork(5, False)
    assert LocalWork.of(3, None) == LocalWork(3, False)
    assert LocalWork.of(None, 2) == LocalWork(2, True)
    assert LocalWork.of(3, None).multiply(4) == LocalWork(12, False)
    assert LocalWork.of(None, 3).multiply(4) == LocalWork(3, True)


@pytest.mark.parametrize(
    ("steps", "epochs", "message"),
    [
        (3, 2, "local_steps = 3 and local_epochs = 2 are both set"),
        (0, None, "local_steps = 0; expected an integer of at least 1"),
        (None, 0, "local_epochs = 0; expected an integer of at least 1"),
        (None, -2, "local_epochs = -2; expected an integer of at least 1"),
    ],
)
def test_work_that_cannot_be(steps, epochs, message):
    with pytest.raises(fl.InputError, match=message):
        LocalWork.of(steps, epochs)
    with pytest.raises(fl.InputError, match=message):
        fl.Local(local_steps=steps, local_epochs=epochs)


@pytest.mark.parametrize("batch", [3, 70, "all", 1000])
@pytest.mark.parametrize("epochs", [False, True])
def test_several_rounds_at_once_are_each_of_them(batch, epochs):
    """With one key for all clients, or with a run's own for each."""
    cohort, work = cohort_of([90, 75, 4]), LocalWork(2, epochs)
    keys = derive_keys([5, 6], "batches", [3, 4, 7], torch.device("cpu"))
    run = torch.tensor([0, 1, 0])
    several = draw_batches(Draws(tuple(key[:, run] for key in keys)), cohort, work, batch)
    shared = draw_batches(Draws(tuple(key[:, :1] for key in keys)), cohort, work, batch)
    assert len(several) == len(shared) == 3
    for place, round in enumerate([3, 4, 7]):
        by_seed = [draw_batches(draws(seed, "batches", round), cohort, work, batch)[0] for seed in (5, 6)]
        for client in range(3):
            assert batches(several[place], client) == batches(by_seed[run[client]], client)
            assert batches(shared[place], client) == batches(by_seed[0], client)


def test_clients_in_any_order_of_whom_only_a_bound_is_known():
    """As on a device that draws who works: shapes go by the most rows that anybody has."""
    known, ids = cohort_of([90, 40, 7, 3]), torch.tensor([[2, 0], [3, 1]])
    keys = derive_keys([5], "batches", [1, 2], torch.device("cpu"))
    loose = Cohort(ids, known.digests[ids], known.first[ids], known.count[ids], torch.tensor([90, 90]))
    for batch in (5, 70, "all"):
        plans = draw_batches(Draws(keys), loose, LocalWork(3, False), batch)
        for round, chosen_ids in enumerate(ids.tolist()):
            alone = draw_batches(draws(5, "batches", round + 1), known, LocalWork(3, False), batch)[0]
            for place, client in enumerate(chosen_ids):
                assert batches(plans[round], place) == batches(alone, client)
