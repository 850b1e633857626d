"""Graphs from files."""

import csv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedlap.errors import InputError
from fedlap.files import checked_digest
from fedlap.graph.checks import Edge
from fedlap.graph.graph import Graph


def from_file(clients: Sequence[str], path: str, sha256: str = "") -> Graph:
    """A graph of these clients: edges `client,client[,weight]` in a .csv file, or a matrix in a .npy file.

    With `sha256`, only from a file with that content.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"graph: there is no file {path!r}")
    checked_digest("graph", path, sha256)
    try:
        if file.suffix.lower() == ".npy":
            with file.open("rb") as content:
                return Graph.from_matrix(np.load(content, allow_pickle=False), clients)
        if file.suffix.lower() == ".csv":
            return Graph.from_edges(_edges(file), clients)
    except InputError as error:
        raise InputError(f"{error} (in {path})") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"graph: {path!r} cannot be read: {error}") from error
    raise InputError(f"graph: {path!r} is neither a .csv file of edges nor a .npy file with a matrix")


def _edges(file: Path) -> list[Edge]:
    edges: list[Edge] = []
    with file.open(newline="", encoding="utf-8-sig") as lines:
        for number, line in enumerate(csv.reader(lines), 1):
            cells = [cell.strip() for cell in line]
            if not any(cells):
                continue
            if len(cells) not in (2, 3):
                raise InputError(
                    f"graph: line {number} has {len(cells)} columns; "
                    "write client,client or client,client,weight"
                )
            try:
                edges.append((cells[0], cells[1], float(cells[2]) if len(cells) == 3 else 1.0))
            except ValueError as error:
                raise InputError(
                    f"graph: line {number} has the weight {cells[2]!r}; it must be a number"
                ) from error
    return edges
