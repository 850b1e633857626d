"""From values to places along an axis, and the values that are written there."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

FEW_POWERS = 2  # powers of ten on an axis; with fewer, numbers between them are written, too
ZERO_ROOM = 0.12  # of a logarithmic axis, that a zero at its end takes


@dataclass(frozen=True)
class Scale:
    """An axis from `begin` to `end` for values from `low` to `high`.

    A logarithmic one may begin with a zero, which is then put before the smallest value above it.
    """

    low: float
    high: float
    begin: float
    end: float
    log: bool = False
    zero: bool = False

    @staticmethod
    def over(
        values: Iterable[float], begin: float, end: float, log: bool = False, margin: float = 0.0
    ) -> "Scale":
        """For all of these values that can be drawn, and a margin on both sides."""
        known = [value for value in values if math.isfinite(value) and (value >= 0 or not log)]
        zero = log and any(value == 0 for value in known)
        known = [value for value in known if value > 0 or not log]
        low, high = (min(known), max(known)) if known else (1.0, 10.0) if log else (0.0, 1.0)
        if log:
            room = (high / low) ** margin if high > low else 2.0
            return Scale(low / room, high * room, begin, end, True, zero)
        room = margin * (high - low) if high > low else abs(low) / 10 or 1.0
        return Scale(low - room, high + room, begin, end)

    def at(self, value: float) -> float | None:
        """Where a value is; None for one that has no place."""
        if not math.isfinite(value) or (self.log and (value < 0 or (value == 0 and not self.zero))):
            return None
        first = self.begin + ZERO_ROOM * (self.end - self.begin) if self.zero else self.begin
        if not self.log:
            share = (value - self.low) / (self.high - self.low)
        elif value == 0:
            return self.begin
        else:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        return first + share * (self.end - first)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values within the axis, rising; at most about this many."""
        if not self.log:
            return linear_ticks(self.low, self.high, most)
        return ([0.0] if self.zero else []) + log_ticks(self.low, self.high, most)


def linear_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [round(place * step, digits) + 0.0 for place in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Powers of ten; of many, some; where they are few, with 2 and 5 times them, or as on a plain axis."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    powers = list(range(first, last + 1))
    if len(powers) > FEW_POWERS:
        return [10.0**power for power in powers[:: -(-len(powers) // most)]]
    between = [
        factor * 10.0**power
        for power in range(first - 1, last + 1)
        for factor in (1, 2, 5)
        if low * (1 - 1e-9) <= factor * 10.0**power <= high * (1 + 1e-9)
    ]
    return between if len(between) > FEW_POWERS else linear_ticks(low, high, most)


def tick_text(value: float) -> str:
    """A round number, short."""
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e6:
        return f"{value:.10g}".replace("-", "−")
    return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e").replace("-", "−")


def short(value: float) -> str:
    """A measured number, with five digits that count."""
    return "–" if math.isnan(value) else f"{value:.5g}".replace("-", "−")
