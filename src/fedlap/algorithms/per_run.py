"""Numbers that differ between the rows of a stack."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, overload

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PerRun:
    """A setting of several runs in one stack, one number a row; it takes part in arithmetic as a number does.

    Later mini-batches hold fewer clients, always the first ones, so it is cut to the rows that it meets.
    """

    values: Float[Tensor, "client 1"]

    def rows(self, number: int) -> Float[Tensor, "row 1"]:
        """Those of the first rows."""
        return self.values[:number]

    def __mul__(self, other: Any) -> Any:
        return self._with(other, lambda own, its: own * its)

    def __rmul__(self, other: Any) -> Any:
        return self._with(other, lambda own, its: its * own)

    def __add__(self, other: Any) -> Any:
        return self._with(other, lambda own, its: own + its)

    def __radd__(self, other: Any) -> Any:
        return self._with(other, lambda own, its: its + own)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, lambda own, its: own - its)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, lambda own, its: its - own)

    def __truediv__(self, other: Any) -> Any:
        return self._with(other, lambda own, its: own / its)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with(other, lambda own, its: its / own)

    def __neg__(self) -> "PerRun":
        return PerRun(-self.values)

    def _with(self, other: Any, operation: Callable[[Any, Any], Tensor]) -> Any:
        """With rows of numbers, such rows; with a number or another column, a column."""
        if isinstance(other, Tensor):
            return operation(self.rows(len(other)), other)
        return PerRun(operation(self.values, other.values if isinstance(other, PerRun) else other))


Number = float | PerRun  # a setting that a stack of runs may have several of


@overload
def at_rows(number: float, rows: int) -> float: ...


@overload
def at_rows(number: PerRun, rows: int) -> Tensor: ...


def at_rows(number: Number, rows: int) -> float | Tensor:
    """A number as it stands, or a column's first rows."""
    return number.rows(rows) if isinstance(number, PerRun) else number
