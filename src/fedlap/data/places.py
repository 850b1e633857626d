"""Places of clients: longitude, latitude and, if known, height."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from fedlap.errors import InputError

COORDINATES = ("longitude", "latitude", "height")  # the order of a place's columns
LIMITS = (180.0, 90.0)  # degrees, east or west, and north or south


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

    def check(self, clients: int) -> None:
        """Raise InputError unless there is one place per client."""
        if len(self.values) != clients:
            raise InputError(
                f"{len(self.values)} places for {clients} clients; pass one place per client", scope="data"
            )

    def reorder(self, order: Sequence[int]) -> "Places":
        """Return the places of clients in another order."""
        return Places(self.columns, self.values[list(order)])


def _build_shape_error(shape: tuple[int, ...], columns: int) -> InputError:
    return InputError(
        f"places have shape {shape}; expected one row per client and {columns} columns", scope="data"
    )
