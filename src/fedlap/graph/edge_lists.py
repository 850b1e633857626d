"""Lists of edges in .csv files, with or without a first line that names the columns."""

import csv
import io
import math
from collections.abc import Sequence
from typing import Final

from fedlap.errors import InputError

WEIGHT: Final = "weight"
# A first line with such a word, and without any client or number, names the columns. Digits at the end of a
# word do not count: client1, client_2.
HEADER_WORDS: Final = (
    "client", "neighbour", "neighbor", "from", "to", "source", "target", "node", "vertex", "edge", WEIGHT
)  # fmt: skip

EdgeColumns = tuple[list[str], list[str], list[float]]  # two clients and the weight between them


def parse_edges(content: bytes, clients: Sequence[str] | None) -> EdgeColumns:
    """Parse both clients and the weight of each line; columns go by the header, or else by position."""
    begin: list[str] = []
    end: list[str] = []
    weight: list[float] = []
    known = frozenset(clients or ())
    order: tuple[int, ...] | None = (
        None  # the columns of both clients and of the weight, if there is a header
    )
    is_first = True
    with io.TextIOWrapper(io.BytesIO(content), newline="", encoding="utf-8-sig") as lines:
        for number, line in enumerate(csv.reader(lines), 1):
            cells = [cell.strip() for cell in line]
            if not "".join(cells):
                continue
            if is_first and _is_header(cells, known):
                order = _order_columns(cells, number)
            elif order is not None and len(cells) != len(order):
                raise InputError(
                    f"line {number} has {len(cells)} columns; expected {len(order)} as in the header",
                    scope="graph",
                )
            elif len(cells) not in (2, 3):
                raise InputError(
                    f"line {number} has {len(cells)} columns; expected client,client or client,client,weight",
                    scope="graph",
                )
            else:
                cells = cells if order is None else [cells[column] for column in order]
                weight.append(_parse_weight(cells[2], number) if len(cells) == 3 else 1.0)
                begin.append(cells[0])
                end.append(cells[1])
            is_first = False
    return begin, end, weight


def _is_header(cells: Sequence[str], clients: frozenset[str]) -> bool:
    """Return whether a line names columns rather than clients."""
    if any(cell in clients or _is_number(cell) for cell in cells):
        return False
    return any(_simplify(cell) in HEADER_WORDS for cell in cells)


def _order_columns(names: Sequence[str], number: int) -> tuple[int, ...]:
    """Return the columns of both clients and, if there is one, of the weight."""
    weights = [column for column, name in enumerate(names) if _simplify(name) == WEIGHT]
    ends = [column for column in range(len(names)) if column not in weights]
    if len(ends) != 2 or len(weights) > 1:
        raise InputError(
            f"line {number} names the columns {', '.join(names)}; expected two clients and perhaps weight",
            scope="graph",
        )
    return (*ends, *weights)


def _simplify(name: str) -> str:
    return name.casefold().rstrip("0123456789").rstrip("_ ")


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _parse_weight(text: str, number: int) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InputError(
            f"line {number} has the weight {text!r}; expected a number", scope="graph"
        ) from error
