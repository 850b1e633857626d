"""While tests run, functions check the types and shapes in their signatures."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float, TypeCheckError
from torch import Tensor

import fedlap as fl
from fedlap.models.losses import CrossEntropy
from shapes import add_checks, check

refused = pytest.raises((BeartypeCallHintViolation, TypeCheckError))


def with_checks(thing):
    return add_checks(thing, check)


def test_signatures_of_fedlap_are_checked():
    scores, y = torch.zeros(2, 5, 3), torch.zeros(2, 5, dtype=torch.long)
    assert CrossEntropy().values(scores, y).shape == (2, 5)
    with refused:  # as many labels as rows
        CrossEntropy().values(scores, y[:, 1:])
    with refused:
        CrossEntropy().values(scores.long(), y)
    with refused:
        fl.Graph.ring(["a", "b", "c"], weight="heavy")
    assert fl.Graph.ring(["a", "b", "c"], weight=2).edges == 3  # a whole number is a real one
    with refused:
        fl.EarlyStopping(patience="long")


@with_checks
def drop_rows(x: Float[Tensor, "row feature"], count: int) -> Float[Tensor, "row feature"]:
    return x[count:]


@with_checks
def repeat_rows(x: Float[Tensor, "feature"], rows: int) -> Float[Tensor, "{rows} feature"]:
    return x.expand(2, -1)


@with_checks
def iterate_rows(x: Float[Tensor, "row feature"]) -> Iterator[Float[Tensor, "feature"]]:
    yield from x


def test_results_are_checked_with_the_arguments():
    x = torch.zeros(4, 3)
    assert drop_rows(x, 0) is not None
    with refused:
        drop_rows(x, 1)
    assert repeat_rows(x[0], 2).shape == (2, 3)
    with refused:
        repeat_rows(x[0], 3)
    assert len(list(iterate_rows(x))) == 4
    with refused:
        iterate_rows(x[0])


def test_calls_do_not_share_sizes():
    @with_checks
    def drop_from_others(x: Float[Tensor, "row feature"]) -> Float[Tensor, "row feature"]:
        drop_rows(torch.zeros(7, 9), 0)
        return x

    assert drop_from_others(torch.zeros(4, 3)).shape == (4, 3)
    assert drop_from_others(torch.zeros(5, 2)).shape == (5, 2)


@pytest.mark.parametrize("offset", [1, 2])
def test_every_inner_function_is_checked_and_called(offset):
    """Later ones of the same text have the checks of the first one, and their own variables."""

    def build(amount: int) -> Callable:
        @with_checks
        def add(x: int, *, to: float = 1.5) -> float:
            return x + to + amount if amount < 3 else "none"

        return add

    assert build(offset)(4) == 5.5 + offset
    assert build(offset)(4, to=2) == 6 + offset
    assert build(offset).__name__ == "add"
    for wrong in (lambda add: add("4"), lambda add: add(4, to="5")):
        with refused:
            wrong(build(offset))
    with refused:
        build(3)(4)


@with_checks
@dataclass
class Rows:
    x: Float[Tensor, "row feature"]
    y: Float[Tensor, "row"]

    @property
    @with_checks
    def first(self) -> Float[Tensor, "feature"]:
        return self.x

    @classmethod
    @with_checks
    def of(cls, rows: int, labels: int) -> "Rows":
        return cls(torch.zeros(rows, 2), torch.zeros(labels))


@with_checks
@dataclass
class MoreRows(Rows):
    name: str


def test_fields_and_methods_of_classes_are_checked():
    assert len(Rows.of(3, 3).x) == 3
    for wrong in (
        lambda: Rows.of(3, 2),
        lambda: Rows.of("3", 3),
        lambda: Rows.of(3, 3).first,
        lambda: MoreRows(torch.zeros(3, 2), torch.zeros(2), "more"),
        lambda: MoreRows(torch.zeros(3, 2), torch.zeros(3), 5),
    ):
        with refused:
            wrong()
