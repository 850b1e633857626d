"""What clients are compared by: statistics of their training rows, or a table about them."""

import csv
import math
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64

from fedlap.data.federation import Federation
from fedlap.errors import InputError, real
from fedlap.graph.builders import stream
from fedlap.storage.files import read_checked

Statistic = Literal["labels", "means", "metadata"]
Vectors = Float64[np.ndarray, "client value"]

BLOCK = 4_000_000  # features that are averaged together (32 MB)


def check_federation(graph: str, given: object) -> None:
    """Refuse anything but a federation."""
    if not isinstance(given, Federation):
        raise InputError(
            f"{graph} got a {type(given).__name__}; give a federation, as from fl.Federation.from_dataframe",
            scope="graph",
        )


def vectors(
    federation: Federation, by: Statistic, path: str = "", sha256: str = "", noise: float = 0.0, seed: int = 0
) -> Vectors:
    """What clients are compared by, with Gaussian noise of this standard deviation on every number."""
    if not isinstance(by, str):
        raise InputError(
            f"by is a {type(by).__name__}; it must be labels, means or metadata", field="by", scope="graph"
        )
    if by != "metadata" and path:
        raise InputError(
            f"path = {path!r} is for by = 'metadata', and by = {by!r}; leave one out",
            field="path",
            scope="graph",
        )
    if by == "labels":
        made = label_shares(federation)
    elif by == "means":
        made = feature_means(federation)
    elif by == "metadata":
        made = metadata(federation.clients, path, sha256)
    else:
        raise InputError(f"by = {by!r}; it must be labels, means or metadata", field="by", scope="graph")
    deviation = real("noise", noise, zero=True, scope="graph")
    if deviation:
        made = made + deviation * stream(seed).normals(federation.digests, 1, made.shape[1]).numpy()
    return made


def label_shares(federation: Federation) -> Vectors:
    """The share of each label among a client's training rows."""
    if federation.labels is None:
        raise InputError(
            "the data's targets are numbers, so clients have no labels; use by = 'means'", scope="graph"
        )
    classes, clients = len(federation.labels), len(federation.clients)
    place = federation.train.owner() * classes + federation.train.y
    times = torch.bincount(place, minlength=clients * classes).view(clients, classes)
    return np.asarray((times / federation.train.count.unsqueeze(1).double()).numpy())


def feature_means(federation: Federation) -> Vectors:
    """The means of a client's training features, in the units that models see."""
    train, values = federation.train, math.prod(federation.inputs)
    total = torch.zeros(len(federation.clients), values, dtype=torch.float64)
    size = max(1, BLOCK // values)
    for row, owner in zip(train.row.split(size), train.owner().split(size), strict=True):
        # Every row is a stack of one here, so that each meets its own client's constants.
        seen = federation.scale.apply(train.store[row].unsqueeze(1), owner, torch.float64)
        total.index_add_(0, owner, seen.reshape(len(row), values))
    return np.asarray((total / train.count.unsqueeze(1)).numpy())


def metadata(clients: tuple[str, ...], path: str, sha256: str = "") -> Vectors:
    """The columns of numbers of a .csv file whose first column names the client; each standardised.

    The first line names the columns. Lines of others than `clients` do not count.
    """
    if not path:
        raise InputError(
            "path is missing; by = 'metadata' needs a .csv file of clients and numbers", scope="graph"
        )
    if not Path(path).exists() or Path(path).is_dir():
        raise InputError(f"there is no file {path!r}", scope="graph")
    content = read_checked("graph", path, sha256)
    try:
        lines = _lines(content)
    except InputError as error:
        raise error.reword(f"{error.message} (in {path})", field=error.field, scope=error.scope) from error
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"it cannot be read: {error} (in {path})", scope="graph") from error
    for client in clients:
        if client not in lines:
            raise InputError(
                f"client {client!r} has no line in {path}; every client needs one", scope="graph"
            )
    table = np.array([lines[client] for client in clients])
    deviation = table.std(0)
    return np.asarray((table - table.mean(0)) / np.where(deviation > 0, deviation, 1.0))


def _lines(content: bytes) -> dict[str, list[float]]:
    """Each client's numbers."""
    found: dict[str, list[float]] = {}
    with TextIOWrapper(BytesIO(content), newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        header = [cell.strip() for cell in next(reader, [])]
        if len(header) < 2 or any(_is_number(cell) for cell in header[1:]):
            raise InputError("line 1 must name the columns, as in client,latitude,longitude", scope="graph")
        for line in reader:
            if not any(line):
                continue
            where = f"line {reader.line_num}"
            name, *cells = (cell.strip() for cell in line)
            if len(line) != len(header):
                raise InputError(f"{where} has {len(line)} columns, line 1 has {len(header)}", scope="graph")
            if name in found:
                raise InputError(
                    f"{where}: client {name!r} has a line already; give each client one", scope="graph"
                )
            for column, cell in zip(header[1:], cells, strict=True):
                if not _is_number(cell):
                    raise InputError(
                        f"{where}: {column} = {cell!r}; it must be a finite number", scope="graph"
                    )
            found[name] = [float(cell) for cell in cells]
    return found


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
