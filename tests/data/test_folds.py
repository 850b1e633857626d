"""Folds of a federation: every training row is held out once, and test rows are gone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedlap as fl
from fedlap.experiments.content_digest import digest_content
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import prepare
from random_inputs import random_arrays

COUNTS = [9, 23, 2, 12, 40, 1]


def make_federation(counts, test=3):
    """Clients whose rows are all different, so that a row is known by its one feature."""
    names = [chr(ord("a") + place) for place in range(len(counts))]
    begin = np.cumsum([0, *counts])
    train = {
        name: (np.arange(begin[k], begin[k + 1], dtype=float)[:, None], np.arange(counts[k]) % 2)
        for k, name in enumerate(names)
    }
    held = {name: (-1.0 - np.arange(test)[:, None], np.arange(test) % 2) for name in names}
    return fl.Federation.from_arrays(train, test=held, labels=2, scale="none")


def rows(part, client):
    """A client's rows with their labels."""
    x, y = part.client(client)
    return [(float(feature), int(label)) for feature, label in zip(x[:, 0], y, strict=True)]


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    number=st.integers(2, 6),
    seed=st.integers(0, 2**40),
)
def test_held_out_rows_are_a_partition_of_the_training_rows(counts, number, seed):
    whole = make_federation([30, *counts])  # so that no fold is empty
    folds = [whole.fold(number, held_out, seed) for held_out in range(number)]
    for client, count in enumerate(whole.train.count.tolist()):
        everything = rows(whole.train, client)
        held = [rows(fold.test, client) for fold in folds]
        for fold, out in zip(folds, held, strict=True):
            train_rows = rows(fold.train, client)
            assert train_rows  # something to train on
            assert train_rows == [
                row for row in everything if row not in out
            ]  # in their order, with their labels
        sizes = [len(out) for out in held]
        if count == 1:
            assert sum(sizes) == 0
        else:
            assert sorted(row for out in held for row in out) == sorted(everything)
            assert max(sizes) - min(sizes) <= 1


def test_test_rows_are_gone():
    whole = make_federation(COUNTS)
    assert (whole.test.x < 0).all()
    for held_out in range(3):
        fold = whole.fold(3, held_out)
        assert (fold.train.x >= 0).all()
        assert (fold.test.x >= 0).all()
        assert fold.clients == whole.clients


def test_a_client_s_folds_depend_on_its_name_and_the_seed_alone():
    whole = make_federation(COUNTS)
    order = ["d", "a", "f", "c", "e", "b"]
    one, other = whole.reorder(order).fold(4, 1, 7), whole.fold(4, 1, 7).reorder(order)
    for a, b in ((one.train, other.train), (one.test, other.test)):
        assert torch.equal(a.row, b.row)
        assert torch.equal(a.count, b.count)
    alone = make_federation(COUNTS[:2]).fold(4, 1, 7)
    assert [rows(alone.test, k) for k in (0, 1)] == [rows(whole.fold(4, 1, 7).test, k) for k in (0, 1)]
    assert not torch.equal(whole.fold(4, 1, 7).test.row, whole.fold(4, 1, 8).test.row)


def test_folds_are_about_equally_large_however_small_clients_are():
    whole = make_federation([3] * 25 + [2])  # names run from a to z
    sizes = [len(whole.fold(5, held_out).test.row) for held_out in range(5)]
    assert sum(sizes) == 77
    assert min(sizes) > 5


@pytest.mark.parametrize("scale", ["pooled", "client"])
def test_features_are_scaled_by_the_rows_that_train(scale):
    whole = fl.Federation.from_arrays(random_arrays([20, 11, 8]), labels=3).standardize(scale)
    fold = whole.fold(4, 2, 1)
    seen = fold.scale.standardize_rows(fold.train, torch.float64)
    groups = [seen] if scale == "pooled" else [seen[fold.train.locate_client(k)] for k in range(3)]
    for group in groups:
        torch.testing.assert_close(group.mean(0), torch.zeros(4).double(), atol=1e-12, rtol=0)
        torch.testing.assert_close(group.std(0, correction=0), torch.ones(4).double())
    assert not torch.equal(fold.scale.shift, whole.scale.shift)


def test_those_with_nothing_held_out_do_not_count():
    whole = make_federation([30, 1, 3])
    fold = next(f for k in range(5) if int((f := whole.fold(5, k)).test.count[2]) == 0)
    assert fold.test.count.tolist() == [6, 0, 0]
    last = fl.fit(fl.Local(lr=1e-4), fold, fl.models.linear(), rounds=1).scores[-1]
    assert last.accuracy == last.accuracy_mean  # of the one client that is tested
    assert last.accuracy_std == 0


@pytest.mark.parametrize(
    ("number", "held_out", "says"),
    [
        (1, 0, "fold: number = 1; expected an integer of at least 2"),
        (3, 3, "fold: held_out = 3; expected 0 to 2, for 3 folds"),
        (3, -1, "fold: held_out = -1"),
    ],
)
def test_what_is_no_fold_is_refused(number, held_out, says):
    with pytest.raises(fl.InputError, match=says):
        make_federation(COUNTS).fold(number, held_out)


def test_a_fold_that_holds_nothing_is_refused():
    with pytest.raises(fl.InputError, match="fold 0 of 2 is empty"):
        make_federation([1, 1]).fold(2, 0)


def test_an_experiment_may_hold_out_a_fold():
    described = {"data": {"name": "digits"}, "scarce": {}, "seed": 4, "rounds": 2}
    whole = Experiment.of(described)
    assert "fold" not in whole.describe()
    fold = Experiment.of({**described, "fold": {"number": 4, "held_out": 3}})
    assert fold.digest != whole.digest
    assert Experiment.of(fold.describe()) == fold
    assert fold.describe()["fold"] == {"number": 4, "held_out": 3}
    federation, _ = fold.load()
    assert digest_content(federation) == digest_content(whole.load()[0].fold(4, 3, seed=4))
    (ready,) = prepare([fold])
    assert ready.experiment.content == digest_content(federation)


def test_the_digest_of_an_experiment_without_folds_is_what_it_was():
    described = Experiment.of({"data": {"name": "synthetic"}, "graph": {"name": "ring"}}).describe()
    assert "fold" not in described
    assert sorted(described) == [
        "algorithm", "batch", "content", "data", "device", "dtype", "engine", "evaluate_every", "graph",
        "keep", "model", "partition", "precision", "rounds", "sample", "seed",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fold", "says"),
    [
        ({"number": 3}, "fold.held_out is missing"),
        ({"number": 3, "held_out": 0, "seed": 1}, "fold.seed: unknown setting of fold"),
        ({"number": "many", "held_out": 0}, "fold.number = 'many'"),
        ({"number": True, "held_out": 0}, "fold.number = True"),
        (3, "fold = 3"),
    ],
)
def test_a_wrong_section_is_one_line(fold, says):
    with pytest.raises(fl.InputError, match=says):
        Experiment.of({"fold": fold})


def test_a_wrong_number_is_one_line():
    for fold, says in (
        ({"number": 1, "held_out": 0}, "^fold.number = 1;"),
        ({"number": 2, "held_out": 2}, "^fold.held_out = 2;"),
        ({"number": 10**6, "held_out": 0}, "^fold: fold 0 of 1000000 is empty"),
    ):
        with pytest.raises(fl.InputError, match=says):
            Experiment.of({"fold": fold}).load()


def test_a_fold_may_be_set_on_the_command_line(call):
    words = ("--set", "fold.number=3", "--set", "fold.held_out=1", "--json")
    code, out, err = call("run", "--rounds", "1", *words)
    assert code == 0, err
    assert '"fold": {"number": 3, "held_out": 1}' in out
