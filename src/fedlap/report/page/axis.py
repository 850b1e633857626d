"""Scales and ticks of axes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

FEW_POWERS = 2  # an axis with at most this many powers of ten has ticks between them, too
ZERO_SHARE = 0.12  # of a logarithmic axis that a zero at its start takes


@dataclass(frozen=True)
class Scale:
    """An axis from `begin` to `end` for values from `low` to `high`.

    A logarithmic axis may start with a zero, which lies before the smallest positive value.
    """

    low: float
    high: float
    begin: float
    end: float
    log: bool = False
    zero: bool = False

    @staticmethod
    def fit(
        values: Iterable[float], begin: float, end: float, log: bool = False, margin: float = 0.0
    ) -> "Scale":
        """Return a scale for all drawable values, with a margin on both sides."""
        known = [value for value in values if math.isfinite(value) and (value >= 0 or not log)]
        zero = log and any(value == 0 for value in known)
        known = [value for value in known if value > 0 or not log]
        low, high = (min(known), max(known)) if known else (1.0, 10.0) if log else (0.0, 1.0)
        if log:
            room = (high / low) ** margin if high > low else 2.0
            return Scale(low / room, high * room, begin, end, True, zero)
        room = margin * (high - low) if high > low else abs(low) / 10 or 1.0
        return Scale(low - room, high + room, begin, end)

    def position(self, value: float) -> float | None:
        """Return the position of a value; None for a value that cannot be drawn."""
        if not math.isfinite(value) or (self.log and (value < 0 or (value == 0 and not self.zero))):
            return None
        first = self.begin + ZERO_SHARE * (self.end - self.begin) if self.zero else self.begin
        if not self.log:
            share = (value - self.low) / (self.high - self.low)
        elif value == 0:
            return self.begin
        else:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        return first + share * (self.end - first)

    def choose_ticks(self, most: int = 6) -> list[float]:
        """Choose about `most` round values within the axis, ascending."""
        if not self.log:
            return choose_linear_ticks(self.low, self.high, most)
        return ([0.0] if self.zero else []) + choose_log_ticks(self.low, self.high, most)


def choose_linear_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Choose multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [round(place * step, digits) + 0.0 for place in range(first, last + 1)]


def choose_log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Choose powers of ten, thinned if many; if few, also 2 and 5 times them, or linear ticks."""
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
    return between if len(between) > FEW_POWERS else choose_linear_ticks(low, high, most)


def format_tick(value: float) -> str:
    """Format a tick value briefly."""
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e6:
        return f"{value:.10g}".replace("-", "−")
    return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e").replace("-", "−")


def format_measured(value: float) -> str:
    """Format a measured number with five significant digits."""
    return "–" if math.isnan(value) else f"{value:.5g}".replace("-", "−")
