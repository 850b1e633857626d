"""Compression of what peers send: a difference of models in fewer bytes.

A compression loses a part of a difference. The receiver adds the rest to the sender's last public model, so
the next difference still contains the part that was lost (error feedback). Rows never affect each other, and
no value decides in Python which operations run, so a GPU can capture them.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float16, Float32, Int8, Int32
from torch import Tensor
from torch.nn.functional import pad

from fedlap.errors import InputError
from fedlap.models.model import Stack

BLOCK = 256  # parameters that share a scale
INT8_LARGEST = 127
FLOAT16_LARGEST = 65504.0
DEFAULT_SHARE = 0.1  # of the parameters that top-k sends


class HalfValues(NamedTuple):
    """A difference in half precision: 2 bytes per parameter."""

    values: Float16[Tensor, "client param"]


class ScaledBytes(NamedTuple):
    """A difference as multiples of a scale per block: a little more than 1 byte per parameter."""

    values: Int8[Tensor, "client param"]
    scales: Float32[Tensor, "client block"]


class LargestValues(NamedTuple):
    """The largest values of a difference and their places, in ascending order; all other values are 0."""

    places: Int32[Tensor, "client largest"]
    values: Float[Tensor, "client largest"]


@runtime_checkable
class Compression(Protocol):
    """A way to send a difference in fewer bytes."""

    def compress(self, difference: Stack) -> Any:
        """Return the message, with clients on the first axis of its tensors."""
        ...

    def decompress(self, message: Any, like: Stack) -> Stack:
        """Return the difference that a message stands for, with the shape and dtype of `like`."""
        ...

    def check(self, message: Any, like: Stack) -> None:
        """Raise InputError for a message of the right shapes that `decompress` cannot read."""
        ...


@dataclass(frozen=True)
class HalfPrecision:
    """Rounding to float16, with a relative error of 2⁻¹¹, or an absolute error of 2⁻²⁵ for small values."""

    def compress(self, difference: Stack) -> HalfValues:
        """Round; larger numbers than float16 has are clamped, NaN and infinity stay."""
        clamped = difference.clamp(-FLOAT16_LARGEST, FLOAT16_LARGEST)
        return HalfValues(torch.where(difference.isfinite(), clamped, difference).half())

    def decompress(self, message: HalfValues, like: Stack) -> Stack:
        """Return the rounded values."""
        return message.values.to(like.dtype)

    def check(self, message: HalfValues, like: Stack) -> None:
        """Accept every message."""


@dataclass(frozen=True)
class BlockScaling:
    """Rounding to whole multiples of a scale per block of parameters: its largest absolute value over 127."""

    def compress(self, difference: Stack) -> ScaledBytes:
        """Round; the scale of a block with NaN or infinity is one of them."""
        blocks = pad(difference, (0, -difference.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
        scales = (blocks.abs().amax(2) / INT8_LARGEST).float()
        divisors = (
            torch.where(scales > 0, scales, 1).to(difference.dtype).unsqueeze(2)
        )  # 0 in a block of zeros
        multiples = (blocks / divisors).round().clamp(-INT8_LARGEST, INT8_LARGEST).nan_to_num(0)
        return ScaledBytes(multiples.to(torch.int8).flatten(1)[:, : difference.shape[1]], scales)

    def decompress(self, message: ScaledBytes, like: Stack) -> Stack:
        """Return the multiples of the scales; a block whose scale is NaN or infinite is NaN."""
        scales = message.scales.to(like.dtype).unsqueeze(2).expand(-1, -1, BLOCK).flatten(1)
        return message.values.to(like.dtype) * scales[:, : like.shape[1]]

    def check(self, message: ScaledBytes, like: Stack) -> None:
        """Accept every message."""


@dataclass(frozen=True)
class TopK:
    """The share of values with the largest absolute values; of equal ones, those at lower places.

    Absolute values are rounded before they are compared, float64 to float32 and float32 to bfloat16. Values
    that differ by rounding errors alone are then equal, so that engines, whose sums have other orders, send
    the same places. With two labels, for example, every weight has one that changes by the opposite number.
    """

    share: float = DEFAULT_SHARE

    def compress(self, difference: Stack) -> LargestValues:
        """Select the values; NaN and infinity count as the largest."""
        size, is_double = difference.shape[1], difference.dtype == torch.float64
        magnitude = difference.abs().nan_to_num(torch.inf, torch.inf)
        magnitude = magnitude.to(torch.float32 if is_double else torch.bfloat16).float()
        # The bits of float32 numbers from 0 to infinity are ordered as the numbers are.
        bits = magnitude.view(torch.int32).long()
        order = (bits << 32) - torch.arange(size, device=difference.device)
        chosen = order.topk(self.count_values(size), sorted=False).indices.sort().values
        return LargestValues(chosen.int(), difference.gather(1, chosen))

    def decompress(self, message: LargestValues, like: Stack) -> Stack:
        """Return the values at their places, and 0 elsewhere."""
        return torch.zeros_like(like).scatter_(1, message.places.long(), message.values)

    def check(self, message: LargestValues, like: Stack) -> None:
        """Raise InputError unless places ascend and are those of parameters."""
        places = message.places.long()
        if not places.numel():
            return
        inside = bool((places >= 0).all() and (places < like.shape[1]).all())
        if not inside or not bool((places.diff() > 0).all()):
            raise InputError(
                f"a message has places {int(places.min())} to {int(places.max())}, not all different and in "
                f"order; expected ascending places from 0 to {like.shape[1] - 1}; refuse the message"
            )

    def count_values(self, parameters: int) -> int:
        """Return ⌊share·parameters + ½⌋, but at least 1 if there are parameters: the values that are sent."""
        return min(parameters, max(1, math.floor(self.share * parameters + 0.5)))


def parse_compression(text: str | None) -> Compression | None:
    """Return the compression that a setting names, None for none; raise InputError for an unknown one."""
    name, colon, share = ("none" if text is None else str(text)).partition(":")
    known: dict[str, Compression | None] = {
        "none": None,
        "float16": HalfPrecision(),
        "int8": BlockScaling(),
        "top-k": TopK(),
    }
    if name == "top-k" and colon:
        return TopK(_parse_share(share))
    if colon or name not in known:
        names = f"'float16', 'int8', 'top-k:{DEFAULT_SHARE}' or 'none'"
        raise InputError(f"compression = {text!r}; use {names}", field="compression")
    return known[name]


def _parse_share(text: str) -> float:
    """Return a share of the parameters; raise InputError for any other text."""
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        problem = f"compression = 'top-k:{text}'; expected a share of the parameters above 0 and up to 1"
        raise InputError(problem, field="compression")
    return share
