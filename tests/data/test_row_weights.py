"""Weights of rows in users' arrays, frames and files: the same values, and errors on one line."""

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.data.standardize import Standardizer
from fedlap.data.user_files import load_file
from fedlap.experiments.content_digest import digest_content
from user_tables import ROWS, TABLE, arrays, write

WEIGHTS = np.random.default_rng(2).uniform(0.5, 3, len(ROWS))
FRAME = ROWS.assign(share=WEIGHTS)


def list_weights(federation):
    """Return the weight of each training row by its features."""
    rows = federation.train
    return {tuple(x): w for x, w in zip(rows.x.tolist(), rows.weight.tolist(), strict=True)}


EXPECTED = {(row.age, row.dose): row.share for row in FRAME.itertuples()}


@pytest.mark.parametrize("form", ["csv", "parquet", "npz"])
def test_weights_are_a_column_or_an_array_but_no_feature(form, tmp_path):
    path = tmp_path / f"my.{form}"
    if form == "npz":
        write(path, {**arrays(ROWS), "share": WEIGHTS})
    else:
        write(path, FRAME)
    table = load_file(str(path), client="hospital", label="outcome", weight="share")
    federation = fl.Federation.from_table(table, seed=3)
    assert federation.inputs == (2,)
    found = list_weights(federation)
    assert len(found) == len(federation.train.row) == 24
    assert all(EXPECTED[row] == weight for row, weight in found.items())
    assert federation.test.weight is None


def test_an_array_called_weight_needs_no_option(tmp_path):
    path = write(tmp_path / "my.npz", {**arrays(ROWS), "weight": WEIGHTS.astype(np.float32)})
    table = load_file(path, client="hospital", label="outcome")
    assert torch.equal(table.weight, torch.from_numpy(WEIGHTS.astype(np.float32)).double())


def test_a_frame_gives_the_weights_of_arrays():
    by_column = fl.Federation.from_dataframe(FRAME, "hospital", "outcome", weight="share", seed=3)
    groups = dict(list(FRAME.groupby("hospital", sort=False)))
    pairs = {
        name: (part[["age", "dose"]].to_numpy(float), (part.outcome == "well").to_numpy(int))
        for name, part in groups.items()
    }
    weights = {name: part.share.to_numpy() for name, part in groups.items()}
    by_array = fl.Federation.from_arrays(pairs, seed=3, weight=weights)
    assert list_weights(by_column) == list_weights(by_array)
    assert torch.allclose(by_column.scale.shift, by_array.scale.shift)


def test_weights_follow_their_rows():
    federation = fl.Federation.from_dataframe(FRAME, "hospital", "outcome", weight="share", scale="none")
    others = [
        federation.reorder(["west", "east", "north", "south"]),
        federation.scarce(0.5, 0.5),
        federation.fold(3, 1),
        federation.pool_clients(),
        federation.standardize("client").to_device(torch.device("cpu"), torch.float64).pool_clients(),
        fl.Federation.from_dataframe(
            FRAME, None, "outcome", drop=["hospital"], weight="share", scale="none",
            partition=fl.partition.Iid(3),
        ),
        fl.Federation.from_dataframe(
            FRAME.assign(day=np.arange(32)), "hospital", "outcome", weight="share", scale="none",
            split="time", time="day",
        ),
        fl.Federation.from_dataframe(
            FRAME.assign(who=np.arange(32) // 8), "hospital", "outcome", weight="share", scale="none",
            group="who",
        ),
    ]  # fmt: skip
    for other in others:
        found = list_weights(other)
        assert len(found) == len(other.train.row)
        if other is not others[4]:
            assert found.items() <= EXPECTED.items()
        assert other.test.weight is None
    assert sorted(others[4].train.weight.tolist()) == sorted(federation.train.weight.tolist())


def test_weights_are_relative_to_the_mean_of_the_client():
    federation = fl.Federation.from_dataframe(FRAME, "hospital", "outcome", weight="share")
    relative = federation.train.relative_weight
    owner = federation.train.find_owners()
    for k in range(4):
        mine = relative[owner == k]
        assert mine.mean() == pytest.approx(1)
        assert torch.allclose(
            mine / mine[0], federation.train.weight[owner == k] / federation.train.weight[owner == k][0]
        )


def test_test_rows_need_no_weights():
    held = fl.Federation.from_dataframe(FRAME, "hospital", "outcome", weight="share", test=ROWS)
    assert len(held.train.row) == len(held.test.row) == 32
    assert len(list_weights(held)) == 32


@pytest.mark.filterwarnings("ignore::fedlap.errors.DataWarning")
def test_rows_without_a_weight_can_be_dropped():
    frame = FRAME.assign(share=FRAME.share.where(FRAME.index != 5))
    federation = fl.Federation.from_dataframe(frame, "hospital", "outcome", weight="share", missing="drop")
    assert len(federation.train.row) + len(federation.test.row) == 31


@pytest.mark.filterwarnings("ignore::fedlap.errors.DataWarning")
def test_filled_cells_and_levels_follow_weights():
    frame = FRAME.assign(
        share=np.where(np.arange(32) < 16, 2.0, np.where(np.arange(32) < 31, 1.0, 0.0)),
        city=np.where(np.arange(32) < 31, "Oslo", "Bergen"),
        age=FRAME.age.where(np.arange(32) != 3),
    )
    one = fl.Federation.from_dataframe(
        frame, "hospital", "outcome", weight="share", missing="mean", test_share=0, scale="none"
    )
    assert one.features == ("age", "dose", "city=Oslo")  # no row with a weight is from Bergen
    known = frame.age.notna()
    expected = np.average(frame.age[known], weights=frame.share[known])
    assert one.encoding.columns[0].fill == pytest.approx(expected, rel=1e-12)


def test_images_of_bytes_are_standardised_by_weights():
    rng = np.random.default_rng(0)
    for shape in ((2, 3, 5), (3, 5)):
        x, y, weight = rng.integers(0, 256, (9, *shape)).astype(np.uint8), np.arange(9) % 2, np.arange(9)
        one = fl.Federation.from_arrays({"a": (x, y)}, 0, weight={"a": weight})
        other = fl.Federation.from_arrays({"a": (np.repeat(x, weight, 0), np.repeat(y, weight))}, 0)
        for kind in ("pooled", "client"):
            found, expected = (Standardizer.of(kind, data.train) for data in (one, other))
            assert found.shift.shape == expected.shift.shape
            assert torch.allclose(found.shift, expected.shift, rtol=1e-12)
            assert torch.allclose(found.factor, expected.factor, rtol=1e-12)


def test_a_feature_that_varies_only_at_weight_zero_is_constant():
    x = np.full((5, 1), 0.1)
    x[0] = 7.0
    federation = fl.Federation.from_arrays({"a": (x, np.arange(5) % 2)}, 0, weight={"a": [0, 0.3, 0.7, 1, 2]})
    assert federation.scale.factor.item() == 1
    assert federation.scale.shift.item() == 0.1


def test_the_digest_depends_on_weights():
    federations = [
        fl.Federation.from_dataframe(frame, "hospital", "outcome", drop=drop, weight=weight, scale="none")
        for frame, drop, weight in (
            (ROWS, [], None), (FRAME, ["share"], None), (FRAME, [], "share"),
            (FRAME.assign(share=WEIGHTS + 1), [], "share"),
        )
    ]  # fmt: skip
    digests = [digest_content(federation) for federation in federations]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def change(row, value):
    column = FRAME.share.astype(object)
    column[row] = value
    return FRAME.assign(share=column)


X, Y = np.zeros((3, 2)), np.array([0, 1, 0])
WRONG = {
    "negative": (lambda: by_frame(change(4, -1.0)), ["row 4, column 'share'", "negative", "at least 0"]),
    "missing": (lambda: by_frame(change(4, None)), ["row 4", "'share'", "missing = drop"]),
    "infinite": (lambda: by_frame(change(4, np.inf)), ["row 4", "infinite", "finite"]),
    "text": (lambda: by_frame(change(4, "much")), ["row 4", "'share'", "no numbers"]),
    "unknown": (lambda: by_frame(FRAME, weight="shar"), ["'share'"]),
    "label": (lambda: by_frame(FRAME, weight="outcome"), ["'outcome'", "label", "use it for one"]),
    "feature": (lambda: by_frame(FRAME, features=["age", "share"]), ["'share'", "feature", "use it for one"]),
    "unknown client": (lambda: by_arrays({"a": np.ones(3), "b": np.ones(3)}), ["unknown client", "'b'"]),
    "no weights": (lambda: by_arrays({}), ["'a'", "no weights"]),
    "too few": (lambda: by_arrays({"a": [1.0, 2.0]}), ["'a'", "(2,)", "(3,)"]),
    "NaN": (lambda: by_arrays({"a": [1.0, 2.0, np.nan]}), ["'a'", "row 2", "missing or infinite"]),
    "words": (lambda: by_arrays({"a": ["1", "x", "2"]}), ["'a'", "row 0", "not a number"]),
    "zero": (lambda: by_arrays({"a": [0, 0, 0]}), ["'a'", "weight zero", "positive"]),
}  # fmt: skip


def by_frame(frame, weight="share", **settings):
    return fl.Federation.from_dataframe(frame, "hospital", "outcome", weight=weight, **settings)


def by_arrays(weight):
    return fl.Federation.from_arrays({"a": (X, Y)}, 0, weight=weight)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_weights_are_an_error_on_one_line(name):
    attempt, words = WRONG[name]
    with pytest.raises(fl.InputError) as caught:
        attempt()
    text = str(caught.value)
    assert "\n" not in text
    assert [word for word in words if word not in text] == []


def test_wrong_weights_of_arrays_in_a_file(tmp_path):
    path = write(tmp_path / "my.npz", {**arrays(ROWS), "weight": np.append(WEIGHTS[1:], -2)})
    with pytest.raises(
        fl.InputError, match=r"my.npz, array 'weight', row 31: the weight is negative; expected"
    ):
        load_file(path, client="hospital", label="outcome")
    with pytest.raises(fl.InputError, match=r"unknown array of .*my.npz 'heft'"):
        load_file(path, client="hospital", label="outcome", weight="heft")


def test_the_command_line_names_the_cell(call, tmp_path):
    path = write(tmp_path / "my.csv", FRAME.assign(share=WEIGHTS - 1))
    code, _, err = call("run", "--data", path, *TABLE, "--weight", "share")
    assert code == 2
    assert "my.csv, row " in err
    assert "column 'share': the weight is negative" in err.replace("\n", " ")
