"""Any federation and its graph as a folder of arrays, which workers map from their own disks."""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from fedlap.data.client_rows import ClientRows
from fedlap.data.federation import Federation
from fedlap.data.federation_folder import (
    DESCRIPTION,
    FORMAT,
    NAMES,
    SPLITS,
    FederationFolder,
    check_replaceable,
    create_array,
    refuse_full_disk,
)
from fedlap.errors import InputError
from fedlap.graph.graph import Graph
from fedlap.graph.weights import CompleteWeights
from fedlap.storage.files import replace_folder, write_file

WRITTEN_BYTES: Final = 64_000_000  # of rows in memory at a time


def store_federation(path: Path, federation: Federation, graph: Graph | None = None) -> FederationFolder:
    """Write a federation and its graph into a folder: names, rows, weights, places, and how they are scaled.

    Rows are written client by client, before scaling. Columns of text and dates are written as the numbers
    that they were encoded as, so models trained on the folder take encoded features.
    """
    check_replaceable(path)
    matrix = None if graph is None else _order_matrix(graph, federation.clients)
    rows = dict(zip(SPLITS, (federation.train, federation.test), strict=True))
    refuse_full_disk(path, _estimate_disk(rows, matrix))
    places = federation.places
    facts: dict[str, Any] = {
        "format": FORMAT,
        "clients": len(federation.clients),
        "labels": federation.labels,
        "rho": None if graph is None else graph.rho,
        "settings": {},
        "scale": federation.scale.kind,
        "features": federation.features,
        "target": federation.target,
        "places": None if places is None else places.columns,
    }
    with replace_folder(path) as folder:
        for split, of_split in rows.items():
            _write_rows(folder, split, of_split)
        _write_array(folder, "digest", federation.digests)
        if matrix is not None:
            parts = {"first": matrix.indptr, "neighbour": matrix.indices, "weight": matrix.data}
            for name, values in parts.items():
                _write_array(folder, f"graph-{name}", torch.from_numpy(values))
        if places is not None:
            _write_array(folder, "place", torch.from_numpy(places.values))
        write_file(folder / NAMES, json.dumps(federation.clients).encode())
        write_file(folder / DESCRIPTION, json.dumps(facts, indent=1).encode())
    return FederationFolder.of(path)


def _order_matrix(graph: Graph, clients: tuple[str, ...]) -> csr_array:
    """Return the weight matrix in the order of the clients; raise InputError for a graph without one."""
    if graph.server or isinstance(graph.weights, CompleteWeights):
        raise InputError(
            "a complete graph and a server vertex need no file; write the folder without a graph, and pass "
            "--graph complete or --graph star to the run",
            field="graph",
        )
    names = graph.clients or clients  # A graph without names follows the order of the federation.
    if set(names) != set(clients) or graph.size != len(clients):
        raise InputError("the graph has other clients than the federation; pass its own graph", field="graph")
    matrix = csr_array(graph.weights.matrix())
    if names != clients:
        positions = {name: place for place, name in enumerate(names)}
        order = np.array([positions[name] for name in clients])
        matrix = csr_array(matrix[order][:, order])
    matrix.sort_indices()
    return matrix


def _estimate_disk(rows: dict[str, ClientRows], matrix: csr_array | None) -> int:
    sizes = [
        len(of_split.row) * (of_split.store[:1].nbytes + of_split.y[:1].nbytes + 8)
        for of_split in rows.values()
    ]
    return sum(sizes) + (0 if matrix is None else matrix.data.nbytes + matrix.indices.nbytes)


def _write_rows(folder: Path, split: str, rows: ClientRows) -> None:
    """Write the rows of all clients piece by piece."""
    _write_array(folder, f"{split}-count", rows.count)
    _write_array(folder, f"{split}-y", rows.y)
    if rows.weight is not None:
        _write_array(folder, f"{split}-weight", rows.weight)
    dtype = rows.store[:0].numpy().dtype
    x = create_array(folder, f"{split}-x", dtype, len(rows.row), *rows.store.shape[1:])
    step = max(1, WRITTEN_BYTES // max(1, rows.store[:1].nbytes))
    for at in range(0, len(rows.row), step):
        x[at : at + step] = rows.store[rows.row[at : at + step]].numpy()


def _write_array(folder: Path, name: str, values: Tensor) -> None:
    array: Any = create_array(folder, name, values[:0].numpy().dtype, *values.shape)
    array[:] = values.numpy()
