"""Constants from sums of clients are those of a simulation. Sums reveal no row; wrong ones are refused."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedlap as fl
from fedlap.deploy.data_plan import DataPlan
from fedlap.deploy.moments import (
    CONSTANT_TYPES,
    MOMENT_TYPES,
    MOST_SUM,
    ColumnSums,
    Moments,
    ScalingConstants,
    apply_constants,
    check_constants,
    check_moments,
    combine_moments,
    compute_moments,
    standardize_by_moments,
)
from fedlap.training.state_bytes import decode_state, encode_state
from property_settings import short_law
from worker_processes import cut_client

REAL = DataPlan.of({"label": "y", "features": ["a", "b", "c"]})
NONE, CLIENT = (DataPlan.of({**REAL.to_dict(), "scale": scale}) for scale in ("none", "client"))
CLASSES = DataPlan.of({**REAL.to_dict(), "task": "classification", "labels": ["no", "yes"]})


def build(seed, offset=0.0, *, classes=False, counts=(40, 3, 17, 130), features=3):
    """Return an unscaled federation of clients whose features have different means and deviations."""
    rng = np.random.default_rng(seed)
    width = 10.0 ** rng.integers(-3, 4, features)
    arrays = {}
    for k, count in enumerate(counts):
        x = (rng.normal(size=(count, features)) + rng.normal(size=features) + offset) * width
        y = rng.integers(0, 2, count) if classes else 7 * (rng.normal(size=count) + offset)
        arrays[f"client {k}"] = x, y
    return fl.Federation.from_arrays(arrays, test_share=0, labels=2 if classes else None, scale="none")


def collect(federation, scale="pooled"):
    """Return the moments of all clients, as they travel."""
    return {
        name: decode_state(
            encode_state(compute_moments(cut_client(federation, k), scale)), [Moments, ColumnSums]
        )
        for k, name in enumerate(federation.clients)
    }


def assert_close(one, other, unit):
    """Compare means, up to 1e-12 of their size or of the unit."""
    assert bool(((one - other).abs() <= 1e-12 * torch.maximum(other.abs(), unit)).all())


@short_law
@given(st.integers(0, 2**20), st.sampled_from([0.0, 1.0, 1e4, -1e4]), st.booleans())
def test_constants_are_those_of_the_simulation(seed, offset, classes):
    federation = build(seed, offset, classes=classes)
    expected, found = federation.standardize("pooled"), standardize_by_moments(federation, "pooled")
    assert_close(found.scale.shift, expected.scale.shift, 1 / expected.scale.factor)
    assert torch.allclose(found.scale.factor, expected.scale.factor, rtol=1e-12, atol=0)
    assert (found.target_scale is None) == (expected.target_scale is None) == classes
    if not classes:
        one, other = found.target_scale, expected.target_scale
        assert_close(one.mean, other.mean, other.deviation)
        assert torch.allclose(one.deviation, other.deviation, rtol=1e-12, atol=0)


@short_law
@given(st.integers(0, 2**20), st.randoms(use_true_random=False))
def test_constants_do_not_depend_on_the_order_of_answers_clients_or_rows(seed, random):
    federation = build(seed, 1e4)
    clients = list(federation.clients)
    expected = combine_moments(collect(federation), clients)
    shuffled = {}
    for k in random.sample(range(len(clients)), len(clients)):
        site = cut_client(federation, k)
        order = torch.tensor(random.sample(range(len(site.train.row)), len(site.train.row)))
        rows = {clients[k]: (site.train.x[order], site.train.y[order])}
        again = fl.Federation.from_arrays(rows, test_share=0, scale="none")
        shuffled[clients[k]] = compute_moments(again, "pooled")
    found = combine_moments(shuffled, random.sample(clients, len(clients)))
    for one, other in zip(
        (*found.features, *found.targets), (*expected.features, *expected.targets), strict=True
    ):
        assert torch.equal(one, other)


@short_law
@given(st.integers(0, 2**20), st.sampled_from([0.1, 1 / 3, 1e6 + 0.1, -1e-9, 0.0]))
def test_a_constant_feature_is_only_shifted(seed, value):
    federation = build(seed)
    federation.train.store[:, 1] = value
    federation.train.y[:] = value
    scaled = standardize_by_moments(federation, "pooled")
    assert (float(scaled.scale.shift[0, 1]), float(scaled.scale.factor[0, 1])) == (value, 1.0)
    assert (float(scaled.target_scale.mean), float(scaled.target_scale.deviation)) == (value, 1.0)


def test_sums_are_exact_and_nothing_else_leaves():
    """Moments are functions of count, sum and squares alone, so that no digit tells of a single row."""
    federation = build(3, 1e4)
    site = cut_client(federation, 0)
    moments = compute_moments(site, "pooled")
    for columns, values in ((moments.features, site.train.x), (moments.targets, site.train.y)):
        for n, column in enumerate(values.double().T.tolist()):
            exact = sum(map(Fraction, column))
            assert float(columns.total[n]) == float(exact)
            assert float(columns.rest[n]) == float(exact - Fraction(float(columns.total[n])))
            mean = exact / len(column)
            spread = sum((Fraction(value) - mean) ** 2 for value in column)
            assert math.isclose(float(columns.spread[n]), float(spread), rel_tol=1e-15)
    assert moments.rows.tolist() == [40]
    assert len(encode_state(moments)) < 1_000


def test_only_pooled_constants_need_sums():
    real, classes = (cut_client(build(0, classes=classes), 0) for classes in (False, True))
    sent = {
        (scale, site.labels is None): [part is not None for part in compute_moments(site, scale)[1:]]
        for scale in ("none", "client", "pooled")
        for site in (real, classes)
    }
    nothing, targets, features, both = [False, False], [False, True], [True, False], [True, True]
    assert sent == {
        ("none", True): nothing, ("client", True): targets, ("pooled", True): both,
        ("none", False): nothing, ("client", False): nothing, ("pooled", False): features,
    }  # fmt: skip


@pytest.mark.parametrize("scale", ["none", "client", "pooled"])
@pytest.mark.parametrize("classes", [False, True], ids=["targets", "classes"])
def test_a_site_trains_on_the_rows_of_the_simulation(scale, classes):
    federation = build(8, 10.0, classes=classes)
    constants = combine_moments(collect(federation, scale), federation.clients)
    constants = decode_state(encode_state(constants), CONSTANT_TYPES)
    simulated = standardize_by_moments(federation, scale).to_device(torch.device("cpu"), torch.float32)
    for k in range(len(federation.clients)):
        site = apply_constants(cut_client(federation, k), scale, constants)
        rows = site.to_device(torch.device("cpu"), torch.float32).train
        assert all(
            torch.equal(mine, row)
            for mine, row in zip(rows.client(0), simulated.train.client(k), strict=True)
        )
    if scale != "pooled" and (classes or scale == "none"):  # nothing to agree on
        assert constants == ScalingConstants(None, None)
        assert apply_constants(federation, scale, None).scale.kind == scale
        exact = federation.standardize(scale).scale
        assert torch.equal(exact.shift, standardize_by_moments(federation, scale).scale.shift)


# Wrong values.


@pytest.mark.parametrize("rows", [1, 2])
def test_too_few_rows_are_not_summed(rows):
    site = build(0, counts=(rows,))
    for scale in ("pooled", "client"):
        with pytest.raises(
            fl.InputError, match=f"has {rows} training rows.*expected at least 3.*scale = none"
        ):
            compute_moments(site, scale)
    assert compute_moments(site, "none") == Moments(torch.tensor([rows]), None, None)
    classes = build(0, counts=(rows,), classes=True)
    assert compute_moments(classes, "client")[1:] == (None, None)
    with pytest.raises(fl.InputError, match="scale = client"):
        compute_moments(classes, "pooled")


@pytest.mark.parametrize("value", [1e155, 1e308, -1e308])
def test_values_too_large_to_square_are_refused(value):
    federation = build(0, counts=(5,))
    federation.train.store[:3, 1] = value
    with pytest.raises(fl.InputError, match="a feature has values too large to square"):
        compute_moments(federation, "pooled")


GOOD = compute_moments(cut_client(build(1), 0), "pooled")
CHANGES = {
    "rows": (lambda m: m._replace(rows=torch.tensor([41])), "moments of 41 training rows; expected 40"),
    "dtype of rows": (lambda m: m._replace(rows=torch.tensor([40.0])), "no moments"),
    "no features": (lambda m: m._replace(features=None), "moments of features do not match scale = pooled"),
    "no targets": (lambda m: m._replace(targets=None), "moments of targets do not match"),
    "another tuple": (lambda m: m.features, "no moments"),
    "a tensor": (lambda m: m.rows, "no moments"),
    "a tensor for sums": (lambda m: m._replace(features=m.rows), "moments of features are invalid"),
    "shape": (lambda m: m._replace(features=m.targets), "expected sums of 3 columns"),
    "dtype": (
        lambda m: m._replace(features=ColumnSums(*(part.float() for part in m.features))),
        "moments of features are invalid",
    ),
    **{
        f"{name} = {value}": (
            lambda m, name=name, value=value: m._replace(
                targets=m.targets._replace(**{name: torch.tensor([value], dtype=torch.float64)})
            ),
            "moments of targets are invalid",
        )
        for name, value in [
            ("total", math.nan),
            ("rest", math.inf),
            ("spread", -1.0),
            ("total", 2 * MOST_SUM),
        ]
    },
}  # fmt: skip


def decode_moments(content, plan, rows):
    return check_moments(decode_state(content, MOMENT_TYPES), plan, rows)


def decode_constants(content, plan):
    return check_constants(decode_state(content, CONSTANT_TYPES), plan)


@pytest.mark.parametrize("case", CHANGES)
def test_wrong_moments_are_refused(case):
    change, words = CHANGES[case]
    assert decode_moments(encode_state(GOOD), REAL, 40).rows.tolist() == [40]
    with pytest.raises(fl.InputError, match=re.escape(words)):
        decode_moments(encode_state(change(GOOD)), REAL, 40)


def test_moments_that_a_plan_does_not_ask_for_are_refused():
    for plan in (NONE, CLIENT, CLASSES):
        with pytest.raises(fl.InputError, match="do not match scale"):
            decode_moments(encode_state(GOOD), plan, 40)
    decode_moments(encode_state(Moments(torch.tensor([40]), None, None)), NONE, 40)
    decode_moments(encode_state(GOOD._replace(features=None)), CLIENT, 40)
    decode_moments(encode_state(GOOD._replace(targets=None)), CLASSES, 40)
    with pytest.raises(fl.InputError, match="are not a state"):
        decode_moments(encode_state(GOOD)[:-9], REAL, 40)
    with pytest.raises(fl.InputError, match="some clients sent moments"):
        combine_moments({"a": GOOD, "b": GOOD._replace(features=None)}, ["a", "b"])


def test_the_largest_sums_are_combined():
    big, small = (
        GOOD._replace(features=ColumnSums(*torch.full((3, 3), value, dtype=torch.float64)))
        for value in (MOST_SUM, 0.0)
    )
    features = combine_moments({"a": big, "b": small}, ["a", "b"]).features
    assert bool(features[0].isfinite().all())
    assert bool(((features[1] > 0) & features[1].isfinite()).all())


def test_wrong_constants_are_refused():
    good = combine_moments({"a": GOOD}, ["a"])
    assert torch.equal(decode_constants(encode_state(good), REAL).features[0], good.features[0])
    (shift, factor), (mean, deviation) = good
    wrong = {
        "constants of features do not match": good._replace(features=None),
        "constants of targets do not match": good._replace(targets=None),
        "no constants": good.features,
        "expected two of shape (1, 3)": good._replace(features=(shift[:, :2], factor)),
        "constants of features are invalid": good._replace(features=(shift,)),
        "factors and deviations above zero": good._replace(targets=(mean, -deviation)),
        "constants of targets are invalid": good._replace(targets=(mean / 0, deviation)),
    }
    for words, constants in wrong.items():
        with pytest.raises(fl.InputError, match=re.escape(words)):
            decode_constants(encode_state(constants), REAL)
    federation = build(1)
    for scale, constants in (("none", good), ("client", good), ("pooled", None), ("client", None)):
        with pytest.raises(fl.InputError, match=f"do not match scale = {scale}"):
            apply_constants(federation, scale, constants)
