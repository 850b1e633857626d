"""Standardise real targets with constants from training rows, one pair per target for all clients.

Models of different clients are compared with each other, so that clients never have separate constants.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fedlap.data.client_rows import ClientRows, describe_tensor
from fedlap.data.standardize import compute_feature_moments
from fedlap.errors import InputError
from fedlap.summaries import summarise_fields


@dataclass(frozen=True, eq=False)
class TargetScale:
    """y ← (y − mean) / deviation for each target."""

    mean: Float64[Tensor, "output"]
    deviation: Float64[Tensor, "output"]  # positive

    __repr__ = summarise_fields

    @staticmethod
    def of(train: ClientRows) -> "TargetScale":
        """Compute the mean and population deviation of pooled training targets; constant ones are shifted."""
        weight = None if train.weight is None else train.weight.unsqueeze(0)
        mean, deviation = compute_feature_moments(train.y, torch.arange(len(train.y)).unsqueeze(0), weight)
        return TargetScale(mean[0], torch.where(deviation[0] > 0, deviation[0], 1.0))

    def check(self, outputs: int, labels: tuple[str, ...] | None) -> None:
        """Raise InputError unless the constants match the targets."""
        constants = self.mean, self.deviation
        fits = all(c.shape == (outputs,) and c.dtype == torch.float64 for c in constants)
        if labels is not None or not fits:
            found = " and ".join(map(describe_tensor, constants))
            expected = "none for classes" if labels is not None else f"torch.float64 of shape ({outputs},)"
            raise InputError(
                f"constants of the target scale are {found}; expected {expected}; "
                "use federation.standardize(...)",
                scope="data",
            )

    def apply(self, y: Float[Tensor, "row output"]) -> Float64[Tensor, "row output"]:
        """Standardise targets."""
        mean, deviation = (c.to(y.device) for c in (self.mean, self.deviation))
        return (y.double() - mean) / deviation

    def scale_rows(self, client_rows: ClientRows) -> ClientRows:
        """Return the rows with standardised targets."""
        return replace(client_rows, y=self.apply(client_rows.y))

    def restore(self, scores: Float[Tensor, "*batch output"]) -> Float[Tensor, "*batch output"]:
        """Return predictions in the unit of the data, computed in double precision."""
        mean, deviation = (c.to(scores.device) for c in (self.mean, self.deviation))
        return (scores.double() * deviation + mean).to(scores.dtype)

    def is_close(self, other: "TargetScale", tolerance: float) -> bool:
        """Return whether the constants are equal up to rounding."""
        pairs = (self.mean, other.mean), (self.deviation, other.deviation)
        return all(a.shape == b.shape and torch.allclose(a, b, tolerance, tolerance) for a, b in pairs)
