"""Standardisation across clients: each sends count, sum and squared deviations, and no row.

A client sends, per feature and per real target, the sum over its training rows, as two numbers whose sum is
exact to twice the usual precision, and the sum of squared deviations from its mean. Together with the count
they are equivalent to count, sum and sum of squares, but nothing cancels where a mean is far above the
deviation. All sums are rounded once, from the exact sum (`math.fsum`): they do not depend on the order of
rows. A sum relative to one of the rows would be as precise, but its last digits would reveal that row.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final, NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fedlap.data.client_rows import ClientRows
from fedlap.data.federation import Federation
from fedlap.data.standardize import UNSCALED, Scaling, Standardizer
from fedlap.data.target_scale import TargetScale
from fedlap.deploy.data_plan import DataPlan
from fedlap.errors import InputError

MOST_SUM: Final = 1e140  # Squares of such sums, times the rows of all clients, are still finite.
LEAST_ROWS: Final = 3  # Count, sum and squares reveal one row, and both of two rows.


class ColumnSums(NamedTuple):
    """Sums over a client's training rows, one entry per feature or target."""

    total: Float64[Tensor, "column"]
    rest: Float64[Tensor, "column"]  # the exact sum minus `total`, rounded
    spread: Float64[Tensor, "column"]  # the sum of squared deviations from the mean


class Moments(NamedTuple):
    """Moments of one client, for the standardisation. They are a state, so that they can be encoded."""

    rows: Int64[Tensor, "1"]  # the number of training rows
    features: ColumnSums | None  # None unless scale = pooled
    targets: ColumnSums | None  # None for classes, or if scale = none


class ScalingConstants(NamedTuple):
    """Constants of the whole federation, which the server sends to all clients. It is a state as well."""

    features: tuple[Float64[Tensor, "1 feature"], Float64[Tensor, "1 feature"]] | None  # shift, factor
    targets: tuple[Float64[Tensor, "output"], Float64[Tensor, "output"]] | None  # mean, deviation


MOMENT_TYPES: Final = (Moments, ColumnSums)  # for decode_state
CONSTANT_TYPES: Final = (ScalingConstants,)


def compute_moments(site: Federation, scale: Scaling) -> Moments:
    """Compute what the client sends for this scale; raise InputError if that would reveal a row.

    Real targets have constants of all clients unless nothing is scaled, as in `Federation.standardize`.
    """
    has_features, has_targets = scale == "pooled", scale != "none" and site.labels is None
    rows = len(site.train.row)
    if rows < LEAST_ROWS and (has_features or has_targets):
        raise InputError(
            f"client {site.clients[0]!r} has {rows} training rows, which their count, sum and squares would "
            f"reveal; expected at least {LEAST_ROWS}; add rows, or set scale = "
            f"{'none' if site.labels is None else 'client'} in the plan",
            scope="data",
        )
    return Moments(
        torch.tensor([rows]),
        _sum_columns(site.train.x.double(), "feature") if has_features else None,
        _sum_columns(site.train.y.double(), "target") if has_targets else None,
    )


def combine_moments(moments: Mapping[str, Moments], clients: Sequence[str]) -> ScalingConstants:
    """Compute the constants of all clients, which must have sent the same kinds of sums.

    The result does not depend on the order in which clients answer: sums are exact, and rounded once.
    """
    parts = [moments[name] for name in clients]
    counts = [int(part.rows) for part in parts]
    features = [part.features for part in parts if part.features is not None]
    targets = [part.targets for part in parts if part.targets is not None]
    if any(len(columns) not in (0, len(parts)) for columns in (features, targets)):
        raise InputError("some clients sent moments of features or targets and others did not; use one plan")
    scale = target_scale = None
    if features:
        mean, deviation = _combine_columns(counts, features)
        scale = mean.unsqueeze(0), torch.where(deviation > 0, 1 / deviation, 1.0).unsqueeze(0)
    if targets:
        mean, deviation = _combine_columns(counts, targets)
        target_scale = mean, torch.where(deviation > 0, deviation, 1.0)
    return ScalingConstants(scale, target_scale)


def apply_constants(site: Federation, scale: Scaling, constants: ScalingConstants | None) -> Federation:
    """Return the site (or a simulated federation) standardised by constants of the whole federation.

    Constants per client come from its own rows, and nothing is sent for them.
    """
    features, targets = (None, None) if constants is None else constants
    if (features is None) == (scale == "pooled") or (targets is None) == (
        scale != "none" and site.labels is None
    ):
        raise InputError(
            f"the constants do not match scale = {scale}; use those that the server of this plan sent",
            scope="data",
        )
    standardizer = (
        Standardizer.of(scale, site.train) if features is None else Standardizer("pooled", *features)
    )
    return replace(site, scale=standardizer, target_scale=None if targets is None else TargetScale(*targets))


def standardize_by_moments(federation: Federation, scale: Scaling) -> Federation:
    """Return a simulated federation with the constants of its deployment, equal to the last bit."""
    moments = {name: compute_moments(_cut_client(federation, name), scale) for name in federation.clients}
    return apply_constants(federation, scale, combine_moments(moments, federation.clients))


def check_moments(moments: Any, plan: DataPlan, train_rows: int) -> Moments:
    """Return the moments of a message; raise InputError unless they are valid and those of the plan."""
    if not isinstance(moments, Moments) or not _is_vector(moments.rows, 1, torch.int64):
        raise InputError("the message has no moments of a client; use one version of fedlap")
    if int(moments.rows) != train_rows:
        raise InputError(
            f"moments of {int(moments.rows)} training rows; expected {train_rows}, as at the start"
        )
    for name, columns, size in (
        ("features", moments.features, plan.inputs if plan.scale == "pooled" else None),
        ("targets", moments.targets, 1 if plan.classes is None and plan.scale != "none" else None),
    ):
        if (columns is None) != (size is None):
            raise InputError(f"moments of {name} do not match scale = {plan.scale}; use the plan of this run")
        if size is None:
            continue
        if (
            not isinstance(columns, ColumnSums)
            or not all(_is_vector(vector, size, torch.float64) for vector in columns)
            or not all(bool((vector.abs() <= MOST_SUM).all()) for vector in columns)
            or bool((columns.spread < 0).any())
        ):
            raise InputError(
                f"moments of {name} are invalid; expected sums of {size} columns within ±{MOST_SUM:g}"
            )
    return moments


def check_constants(constants: Any, plan: DataPlan) -> ScalingConstants:
    """Return the constants of a message; raise InputError unless they are valid and those of the plan."""
    if not isinstance(constants, ScalingConstants):
        raise InputError("the message has no constants of the server; use one version of fedlap")
    shapes: dict[str, tuple[int, ...] | None] = {
        "features": (1, plan.inputs) if plan.scale == "pooled" else None,
        "targets": (1,) if plan.classes is None and plan.scale != "none" else None,
    }
    for name, shape in shapes.items():
        pair = getattr(constants, name)
        if (pair is None) != (shape is None):
            raise InputError(f"constants of {name} do not match the plan; use the plan of this run")
        if pair is None:
            continue
        if not isinstance(pair, tuple) or len(pair) != 2 or not all(_is_finite(c, shape) for c in pair):
            raise InputError(f"constants of {name} are invalid; expected two of shape {shape}")
        if not bool((pair[1] > 0).all()):
            raise InputError(f"constants of {name} are invalid; expected factors and deviations above zero")
    return constants


def _sum_columns(x: Float64[Tensor, "row column"], what: str) -> ColumnSums:
    """Return the sums of each column, each rounded once from the exact sum."""
    totals, rests, spreads = [], [], []
    for column in x.T:
        values = column.tolist()
        try:
            total = math.fsum(values)
            rest = math.fsum([*values, -total])
            mean = float((Fraction(total) + Fraction(rest)) / len(values))
            deviations = column - mean
            spread = math.fsum((deviations * deviations).tolist())
        except (OverflowError, ValueError):  # A sum is beyond the largest number.
            total = spread = math.inf
        if not max(abs(total), spread) <= MOST_SUM:
            raise InputError(f"a {what} has values too large to square; divide the column by a constant")
        totals.append(total)
        rests.append(rest)
        spreads.append(spread)
    return ColumnSums(*(torch.tensor(values, dtype=torch.float64) for values in (totals, rests, spreads)))


def _combine_columns(
    counts: Sequence[int], parts: Sequence[ColumnSums]
) -> tuple[Float64[Tensor, "column"], Float64[Tensor, "column"]]:
    """Return the mean and the population deviation of each column over the rows of all clients.

    With n_k rows, mean m_k and spread s_k at client k and the mean m of all n rows, the variance is
    (Σ s_k + Σ n_k (m_k − m)²) / n. Fractions are exact, so that equal means differ by exactly zero.
    """
    rows = sum(counts)
    means, deviations = [], []
    columns = zip(*(zip(*(vector.tolist() for vector in part), strict=True) for part in parts), strict=True)
    for column in columns:
        totals = [Fraction(total) + Fraction(rest) for total, rest, _ in column]
        mean = sum(totals, Fraction(0)) / rows
        distances = [float(total / count - mean) for total, count in zip(totals, counts, strict=True)]
        between = [count * distance * distance for count, distance in zip(counts, distances, strict=True)]
        means.append(float(mean))
        deviations.append(math.sqrt(math.fsum([*(spread for _, _, spread in column), *between]) / rows))
    return torch.tensor(means, dtype=torch.float64), torch.tensor(deviations, dtype=torch.float64)


def _cut_client(federation: Federation, name: str) -> Federation:
    """Return one client of an unscaled federation."""
    k = federation.clients.index(name)
    train, test = (
        ClientRows.of(*rows.client(k), rows.count[k : k + 1]) for rows in (federation.train, federation.test)
    )
    return replace(
        federation, clients=(name,), train=train, test=test, scale=UNSCALED, target_scale=None, places=None
    )


def _is_vector(value: Any, size: int, dtype: torch.dtype) -> bool:
    return isinstance(value, Tensor) and value.shape == (size,) and value.dtype == dtype


def _is_finite(value: Any, shape: tuple[int, ...] | None) -> bool:
    return (
        isinstance(value, Tensor)
        and tuple(value.shape) == shape
        and value.dtype == torch.float64
        and bool(value.isfinite().all())
    )
