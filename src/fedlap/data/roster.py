"""The roster of a federation: everything that may be known about clients without their rows."""

from dataclasses import dataclass

from jaxtyping import Int64
from torch import Tensor

from fedlap.summaries import summarise_fields


@dataclass(frozen=True, eq=False)
class Roster:
    """The clients of a federation: names, digests of the names, training row counts, and the labels.

    is_weighted: whether the training rows of a client have different weights.
    """

    clients: tuple[str, ...]
    digests: Int64[Tensor, "client"]
    counts: Int64[Tensor, "client"]
    labels: tuple[str, ...] | None  # None where targets are real numbers
    is_weighted: bool = False

    __repr__ = summarise_fields
