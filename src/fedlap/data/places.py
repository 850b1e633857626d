"""Places of clients: longitude, latitude and, if known, height."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from fedlap.errors import InputError, check_number

COORDINATES = ("longitude", "latitude", "height")  # the order of a place's columns
LIMITS = (180.0, 90.0)  # degrees, east or west, and north or south
EARTH_RADIUS_KM = 6371.0088  # the mean radius (IUGG)
# One kilometre of height counts as much as this many kilometres of distance. On the maximum temperatures of
# `colorado`, neighbours chosen with 100 to 400 give nearly equal errors, and with 0 to 50 larger ones.
DEFAULT_HEIGHT_KM = 100.0


@dataclass(frozen=True, eq=False)
class Places:
    """Longitude and latitude of each client in degrees and, optionally, its height in metres.

    The order of the columns gives their meaning; `columns` are their names in the data.
    """

    columns: tuple[str, ...]
    values: Float64[np.ndarray, "client coordinate"]

    def __post_init__(self) -> None:
        names = ", ".join(COORDINATES)
        if len(self.columns) not in (2, 3) or len(set(self.columns)) < len(self.columns):
            raise InputError(
                f"places = {list(self.columns)}; expected two or three different columns: {names}",
                field="places",
                scope="data",
            )
        if self.values.shape[1:] != (len(self.columns),):
            raise _build_shape_error(self.values.shape, len(self.columns))
        if not np.isfinite(self.values).all():
            raise InputError("a place is NaN or infinite; fill in all places", scope="data")
        for column, meaning, limit, degrees in zip(
            self.columns, COORDINATES, LIMITS, self.values.T, strict=False
        ):
            if len(degrees) and np.abs(degrees).max() > limit:
                raise InputError(
                    f"column {column!r} of places is outside -{limit:g} to {limit:g} degrees of {meaning}; "
                    f"name the columns in the order {names}",
                    field="places",
                    scope="data",
                )

    @staticmethod
    def of(columns: Sequence[str], values: Any) -> "Places":
        """Build places from any array of numbers; the array is copied."""
        try:
            numbers = np.array(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError("places are not numbers; expected degrees and metres", scope="data") from error
        if numbers.ndim != 2:
            raise _build_shape_error(numbers.shape, len(columns))
        return Places(tuple(str(column) for column in columns), numbers)

    def __repr__(self) -> str:
        return f"Places({len(self.values):,} clients: {', '.join(self.columns)})"

    def check(self, clients: int) -> None:
        """Raise InputError unless there is one place per client."""
        if len(self.values) != clients:
            raise InputError(
                f"{len(self.values)} places for {clients} clients; pass one place per client", scope="data"
            )

    def reorder(self, order: Sequence[int]) -> "Places":
        """Return the places of clients in another order."""
        return Places(self.columns, self.values[list(order)])

    def to_points(self, height_km: float | None = None) -> Float64[np.ndarray, "client axis"]:
        """Return points in kilometres: on a sphere, with the scaled height as one more axis.

        The straight line between two points on the sphere rises with the great circle between them, so both
        give the same nearest neighbours. Up to 1,000 km, it is shorter by at most 0.1 %.

        height_km: distance in kilometres that one kilometre of height counts as, by default 100.
        """
        if height_km is not None and len(self.columns) == 2:
            raise InputError(
                f"height_km = {height_km}, but places have no height; name a third column of places, or "
                "remove height_km",
                field="height_km",
                scope="graph",
            )
        longitude, latitude = np.radians(self.values[:, :2].T)
        ring = np.cos(latitude)
        axes = [ring * np.cos(longitude), ring * np.sin(longitude), np.sin(latitude)]
        points = EARTH_RADIUS_KM * np.column_stack(axes)
        if len(self.columns) == 2:
            return points
        factor = DEFAULT_HEIGHT_KM if height_km is None else height_km
        factor = check_number("height_km", factor, zero=True, scope="graph")
        return np.column_stack([points, factor / 1000 * self.values[:, 2]])


def _build_shape_error(shape: tuple[int, ...], columns: int) -> InputError:
    return InputError(
        f"places have shape {shape}; expected one row per client and {columns} columns", scope="data"
    )
