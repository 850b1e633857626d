"""Settings that differ between the runs of one stack."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, overload

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PerRun:
    """A setting of several runs in one stack, with one number per row; arithmetic works as with a number.

    Later mini-batches hold fewer clients, always the first of the stack. In arithmetic with a tensor, only as
    many values are used as the tensor has rows.
    """

    values: Float[Tensor, "client 1"]

    def take_first(self, rows: int) -> Float[Tensor, "row 1"]:
        """Return the values of the first `rows` rows."""
        return self.values[:rows]

    def __mul__(self, other: Any) -> Any:
        return self._combine(other, lambda a, b: a * b)

    def __rmul__(self, other: Any) -> Any:
        return self._combine(other, lambda a, b: b * a)

    def __add__(self, other: Any) -> Any:
        return self._combine(other, lambda a, b: a + b)

    def __radd__(self, other: Any) -> Any:
        return self._combine(other, lambda a, b: b + a)

    def __sub__(self, other: Any) -> Any:
        return self._combine(other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        return self._combine(other, lambda a, b: b - a)

    def __truediv__(self, other: Any) -> Any:
        return self._combine(other, lambda a, b: a / b)

    def __rtruediv__(self, other: Any) -> Any:
        return self._combine(other, lambda a, b: b / a)

    def __neg__(self) -> "PerRun":
        return PerRun(-self.values)

    def _combine(self, other: Any, operation: Callable[[Any, Any], Tensor]) -> Any:
        """Return a tensor if `other` is one, else a PerRun."""
        if isinstance(other, Tensor):
            return operation(self.take_first(len(other)), other)
        return PerRun(operation(self.values, other.values if isinstance(other, PerRun) else other))


Number = float | PerRun  # a setting: one for all rows of a stack, or one per row


@overload
def take_first_rows(number: float, rows: int) -> float: ...


@overload
def take_first_rows(number: PerRun, rows: int) -> Tensor: ...


def take_first_rows(number: Number, rows: int) -> float | Tensor:
    """Return a number unchanged, and of a PerRun the values of the first rows."""
    return number.take_first(rows) if isinstance(number, PerRun) else number
