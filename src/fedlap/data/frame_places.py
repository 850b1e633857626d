"""Places of clients from columns of data frames."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedlap.errors import InputError, unknown_name_error

PlacesByClient = dict[str, list[float]]  # the coordinates of each client, by its name


def collect_places(
    columns: Sequence[str],
    frames: Sequence[Any],
    client: Sequence[str],
    names: Sequence[Sequence[str]],
    where: str,
) -> PlacesByClient:
    """Return the place of each client from columns that are equal in all rows of a client.

    The first frame has these columns, further frames may. client: the columns of clients; rows without a
    client are ignored. names: the clients of the other rows, per frame. where: the table's name in errors.
    """
    import pandas  # Training alone does not need it.

    if not columns:
        return {}
    if not client:
        raise InputError(
            "places need a column of clients; set client (--client)", field="places", scope="data"
        )
    for column in columns:
        if column not in frames[0].columns:
            raise unknown_name_error(f"column of {where}", column, list(frames[0].columns), field="places")
    located = [
        (frame.loc[~frame[list(client)].isna().any(axis=1), list(columns)], owners)
        for frame, owners in zip(frames, names, strict=True)
        if set(columns) <= set(frame.columns)
    ]
    cells = pandas.concat([frame for frame, _ in located], ignore_index=True)
    owners = np.array([name for _, owners in located for name in owners], dtype=object)
    return _reduce_cells(cells, owners, where)


def _reduce_cells(cells: Any, owners: np.ndarray, where: str) -> PlacesByClient:
    """Return the one row of coordinates of each client; raise InputError if a client has none or several."""
    import pandas

    numbers = cells.apply(pandas.to_numeric, errors="coerce").astype(np.float64)
    for column in cells.columns:
        is_text = (numbers[column].isna() & cells[column].notna()).to_numpy()
        if is_text.any():
            raise InputError(
                f"{where}: client {owners[is_text.argmax()]!r} has a cell in column {column!r} of places "
                "that is not a number; expected degrees, or metres of height",
                field="places",
                scope="data",
            )
    groups = numbers.groupby(owners)
    least, most = groups.min(), groups.max()
    for column in cells.columns:
        for wrong, problem in (
            (least[column].isna(), f"no value in column {column!r} of places; fill it in"),
            (
                least[column] < most[column],
                f"several values in column {column!r} of places; use one place per client",
            ),
        ):
            if wrong.any():
                name = str(wrong.index[wrong.to_numpy().argmax()])
                raise InputError(f"{where}: client {name!r} has {problem}", field="places", scope="data")
    return {str(name): row for name, row in zip(least.index, least.to_numpy().tolist(), strict=True)}
