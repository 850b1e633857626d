"""Leaks, by poison: other cells in test rows change nothing that is learned; in training rows they do."""

import numpy as np
import pandas as pd
import pytest
import torch

import fedlap as fl

pytestmark = pytest.mark.filterwarnings("ignore::fedlap.errors.DataWarning")

_rng = np.random.default_rng(5)
ROWS = 120
FRAME = pd.DataFrame(
    {
        "hospital": _rng.choice(["north", "south", "east"], ROWS),
        "age": np.where(_rng.random(ROWS) < 0.1, np.nan, _rng.normal(50, 9, ROWS)),
        "city": np.where(_rng.random(ROWS) < 0.1, None, _rng.choice(["Oslo", "Rome", "Bonn"], ROWS)),
        "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(_rng.integers(0, 300, ROWS), "D"),
        "patient": _rng.integers(0, 25, ROWS),
        "cost": _rng.normal(size=ROWS),
    }
)
LATER = pd.Timestamp("2031-01-01")

SPLITS = {
    "random": {"drop": ["patient"]},
    "time": {"split": "time", "time": "day", "features": ["age", "city", "day"]},
    "group": {"group": "patient"},
}
POISONS = {
    "values": {"age": 1e6},
    "levels": {"city": "poison"},
    "gaps": {"age": np.nan, "city": None},
    "targets": {"cost": -1e6},
    "later times": {"day": LATER},
}


def build(frame, split, scale="pooled"):
    return fl.Federation.from_dataframe(
        frame, "hospital", "cost", missing="mean", scale=scale, task="regression", **SPLITS[split]
    )


def poison(rows, cells):
    """Return the frame with other cells in some rows."""
    frame = FRAME.copy()
    for column, value in cells.items():
        frame.loc[np.asarray(rows), column] = value
    return frame


def learn(federation):
    """Return everything that is learned from a federation: encoding, scaling, training rows and models."""
    method = fl.FedU(fl.Graph.complete(federation.clients), strength=0.01, lr=0.01, local_steps=2)
    models = fl.fit(method, federation, fl.models.linear(), rounds=2, batch=8, seed=1).models
    scale = federation.scale
    return federation.encoding, [scale.shift, scale.factor, federation.train.x, federation.train.y, models]


def is_equal(one, other):
    return one[0] == other[0] and all(map(torch.equal, one[1], other[1]))


def assert_no_leak(build_part, train_rows, other_rows, cells):
    """Assert that cells of other rows change nothing, and those of a training row do."""
    clean = learn(build_part(FRAME))
    assert is_equal(learn(build_part(poison(other_rows, cells))), clean)
    assert not is_equal(learn(build_part(poison(train_rows[:1], cells))), clean)


@pytest.mark.parametrize("scale", ["pooled", "client"])
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", POISONS)
def test_nothing_is_learned_from_test_rows(kind, split, scale):
    federation = build(FRAME, split)
    test, train = federation.test.row, federation.train.row
    if kind == "later times":
        # The first day is the origin of the feature, so a training row that has it must change it.
        train = train[FRAME.day.to_numpy()[train].argsort()]
    assert 15 < len(test) < 45
    assert_no_leak(lambda frame: build(frame, split, scale), train, test, POISONS[kind])


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("kind", ["values", "levels", "gaps", "targets"])
def test_nothing_is_learned_from_held_out_rows_and_the_future(kind, split):
    def build_part(frame):
        return build(frame, split).fold(3, 1, seed=2)

    fold = build_part(FRAME)
    others = sorted(set(range(ROWS)) - set(fold.train.row.tolist()))
    assert set(fold.test.row.tolist()) <= set(others)
    assert_no_leak(build_part, fold.train.row, others, POISONS[kind])


@pytest.mark.parametrize("kind", ["values", "levels", "gaps", "targets"])
def test_nothing_is_learned_from_rows_that_scarce_clients_lose(kind):
    def build_part(frame):
        return build(frame, "random").scarce(1.0, 0.5, seed=3)

    part = build_part(FRAME)
    others = sorted(set(range(ROWS)) - set(part.train.row.tolist()))
    assert len(others) > ROWS / 2
    assert_no_leak(build_part, part.train.row, others, POISONS[kind])


@pytest.mark.parametrize("kind", POISONS)
def test_nothing_is_learned_from_a_frame_of_test_rows(kind):
    train, test = FRAME[:80], FRAME[80:]

    def build_pair(train, test):
        return fl.Federation.from_dataframe(
            train, "hospital", "cost", test=test, missing="mean", task="regression", drop=["patient"]
        )

    clean = learn(build_pair(train, test))
    poisoned = poison(np.arange(80, ROWS), POISONS[kind])
    assert is_equal(learn(build_pair(train, poisoned[80:])), clean)
    first = int(FRAME.day[:80].argmin())
    assert not is_equal(learn(build_pair(poison([first], POISONS[kind])[:80], test)), clean)


def test_groups_and_the_future_are_not_split():
    """The poison test above relies on the split; here the split itself is checked, fold by fold."""
    grouped, timed = build(FRAME, "group"), build(FRAME, "time")
    patient, day, hospital = FRAME.patient.to_numpy(), FRAME.day.to_numpy(), FRAME.hospital.to_numpy()
    for part in (grouped, *(grouped.fold(4, n) for n in range(4))):
        assert not set(patient[part.train.row]) & set(patient[part.test.row])
    for part in (timed, *(timed.fold(4, n) for n in range(4))):
        for name in part.clients:
            early = part.train.row[torch.from_numpy(hospital[part.train.row] == name)]
            late = part.test.row[torch.from_numpy(hospital[part.test.row] == name)]
            assert day[early].max() <= day[late].min()


def test_dropped_rows_change_nothing_else():
    """A row with a gap is dropped by itself: the other rows stay as they are."""
    rows = FRAME.dropna().reset_index(drop=True)
    held = rows[60:]
    settings = {"missing": "drop", "task": "regression", "drop": ["patient"]}
    one = fl.Federation.from_dataframe(rows[:60], "hospital", "cost", test=held, **settings)
    gap = held.assign(age=held.age.where(held.index != 70))
    other = fl.Federation.from_dataframe(rows[:60], "hospital", "cost", test=gap, **settings)
    assert len(other.test.row) == len(one.test.row) - 1
    assert is_equal(learn(one), learn(other))
