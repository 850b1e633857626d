"""Splits by time and by groups, and their folds."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedlap as fl
from fedlap.data.splits import GroupSplit, SplitRows, TimeSplit
from fedlap.randomness import digest_names


def build_rows(counts):
    count = torch.tensor(counts)
    names = [f"client {k}" for k in range(len(counts))]
    return SplitRows(torch.arange(int(count.sum())), count, digest_names(names))


clients = st.lists(st.integers(1, 12), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(counts=clients, share=st.sampled_from([0.0, 0.25, 0.5, 0.9]), seed=st.integers(0, 99))
def test_no_training_row_is_later_than_a_test_row(counts, share, seed):
    rows = build_rows(counts)
    times = torch.from_numpy(np.random.default_rng(seed).integers(0, 5, len(rows.row)).astype(float))
    is_test = TimeSplit(times).draw_test(rows, share, seed)
    for k, count in enumerate(counts):
        mine = rows.owner == k
        late, early = times[mine & is_test], times[mine & ~is_test]
        assert len(late) == min(int(share * count + 0.5), count - 1)
        assert not len(late) or late.min() >= early.max()


def test_ties_are_split_in_the_order_of_rows():
    is_test = TimeSplit(torch.ones(4).double()).draw_test(build_rows([4]), 0.5, 0)
    assert is_test.tolist() == [False, False, True, True]


@settings(max_examples=60, deadline=None)
@given(counts=clients, number=st.integers(2, 5), seed=st.integers(0, 99))
def test_a_fold_by_time_trains_on_the_past_only(counts, number, seed):
    rows = build_rows(counts)
    times = torch.from_numpy(np.random.default_rng(seed).permutation(len(rows.row)).astype(float))
    held_out = []
    for fold in range(number):
        trains, is_test = TimeSplit(times).draw_fold(rows, number, fold, seed)
        assert not bool((trains & is_test).any())
        for k in range(len(counts)):
            mine = rows.owner == k
            assert bool((trains & mine).any())
            if bool((is_test & mine).any()):
                assert times[is_test & mine].min() > times[trains & mine].max()
        held_out.append(is_test)
    assert int(torch.stack(held_out).sum(0).max()) <= 1  # no row is held out twice


@settings(max_examples=100, deadline=None)
@given(counts=clients, groups=st.integers(1, 8), seed=st.integers(0, 99), shared=st.booleans())
def test_rows_of_a_group_stay_on_one_side(counts, groups, seed, shared):
    rows = build_rows(counts)
    group = torch.from_numpy(np.random.default_rng(seed).integers(0, groups, len(rows.row)))
    group = group if shared else group + groups * rows.owner
    split = GroupSplit(group, digest_names([f"g{n}" for n in range(int(group.max()) + 1)]))
    sides = [split.draw_test(rows, 0.25, seed), *(split.draw_fold(rows, 3, n, seed)[1] for n in range(3))]
    for is_test in sides:
        assert not set(group[is_test].tolist()) & set(group[~is_test].tolist())
        assert bool(torch.zeros(len(counts)).index_add_(0, rows.owner, (~is_test).float()).min() > 0)
    if not shared:
        for k, count in enumerate(counts):
            mine = rows.owner == k
            sizes = group[mine].unique(return_counts=True)[1]
            test = [int(is_test[mine].sum()) for is_test in sides]
            assert abs(test[0] - 0.25 * count) <= max(0.25 * count, float(sizes.max()) / 2)
            assert sum(test[1:]) == (count if len(sizes) > 1 else 0)  # every group is held out once


def test_groups_of_single_rows_meet_the_share():
    rows = build_rows([400, 8])
    split = GroupSplit(torch.arange(408), digest_names([str(n) for n in range(408)]))
    is_test = split.draw_test(rows, 0.25, 0)
    assert (int(is_test[:400].sum()), int(is_test[400:].sum())) == (100, 2)
    assert not torch.equal(is_test, split.draw_test(rows, 0.25, 1))


FRAME = pd.DataFrame(
    {
        "hospital": np.repeat(["a", "b"], 20),
        "x": np.arange(40.0),
        "day": pd.date_range("2020-01-01", periods=40)[::-1].strftime("%Y-%m-%d"),
        "patient": np.arange(40) // 4,
        "outcome": np.tile(["ill", "well"], 20),
    }
)


@pytest.mark.filterwarnings("ignore::fedlap.errors.DataWarning")
def test_a_federation_uses_and_keeps_its_split():
    drop = {"drop": ["patient"], "scale": "none"}
    federation = fl.Federation.from_dataframe(FRAME, "hospital", "outcome", split="time", time="day", **drop)
    assert federation.features == ("x",)
    assert federation.test.x.flatten().tolist() == [*range(5), *range(20, 25)]  # the last days come first
    fold = federation.fold(2, 0)
    assert fold.test.x.flatten().tolist() == [*range(10, 15), *range(30, 35)]
    assert fold.train.x.flatten().tolist() == [*range(15, 20), *range(35, 40)]
    federation = fl.Federation.from_dataframe(FRAME, "hospital", "outcome", group="patient", drop=["day"])
    assert federation.features == ("x",)
    for part in (federation, federation.fold(3, 1), federation.reorder(["b", "a"]).fold(3, 0)):
        train, test = ({int(x) // 4 for x in rows.x} for rows in (part.train, part.test))
        assert len(test) >= 2
        assert not train & test


def test_options_of_the_command_line_split_alike(call, tmp_path):
    path = tmp_path / "my.csv"
    FRAME.to_csv(path, index=False)
    for words, arguments in (
        (["--split", "time", "--time", "day"], {"split": "time", "time": "day"}),
        (["--group", "patient"], {"group": "patient"}),
    ):
        drop = [name for name in ("day", "patient") if name not in words]
        code, out, err = call(
            *("data", "describe", str(path), "--client", "hospital", "--label", "outcome", "--json"),
            *(*words, "--drop", *drop),
        )
        assert code == 0, err
        expected = fl.Federation.from_dataframe(FRAME, "hospital", "outcome", drop=drop, **arguments)
        assert f'"test_rows": {len(expected.test.row)}' in out
        federation = fl.data.load(
            "file", path=str(path), client="hospital", label="outcome", drop=drop, **arguments
        )
        assert torch.equal(federation.test.x, expected.test.x)
