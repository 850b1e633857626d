"""Costs that grow with the number of clients, from a few measured points."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Growth(NamedTuple):
    """Seconds = fixed + per_client · N + per_sampled · S."""

    fixed: float
    per_client: float
    per_sampled: float

    def seconds(self, clients: float, sampled: float) -> float:
        """Return the seconds with this many clients, of whom some are sampled."""
        return self.fixed + self.per_client * clients + self.per_sampled * sampled


def solve_growth(seconds: Sequence[float], points: Sequence[tuple[int, int]]) -> Growth:
    """Return the growth through the measured points (N, S); a slope is never negative.

    From the second point to the third one only S grows; in other points, both are equal.
    """
    (few, fewest), (most, sampled) = points[0], points[-1]
    if all(clients == size for clients, size in points):
        slope = max(0.0, (seconds[-1] - seconds[0]) / (sampled - fewest))
        return Growth(max(0.0, seconds[0] - slope * fewest), 0.0, slope)
    per_client = max(0.0, (seconds[1] - seconds[0]) / (most - few))
    per_sampled = max(0.0, (seconds[2] - seconds[1]) / (sampled - fewest))
    return Growth(max(0.0, seconds[0] - per_client * few - per_sampled * fewest), per_client, per_sampled)


def take_lower_quartile(values: Sequence[float]) -> float:
    """Return the lower quartile: on a busy machine, nearer to the time of a quiet one than the median."""
    return statistics.quantiles(values, n=4)[0]
