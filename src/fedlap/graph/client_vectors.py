"""Vectors that describe clients: statistics of their training rows, places, or a table of metadata."""

import csv
import math
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64

from fedlap.data.federation import Federation
from fedlap.data.places import Places
from fedlap.errors import InputError, check_number
from fedlap.graph.builders import get_graph_draws
from fedlap.storage.files import read_user_file

Statistic = Literal["labels", "means", "metadata", "places"]
Vectors = Float64[np.ndarray, "client value"]

EXPECTED_STATISTIC = "labels, means, metadata or places"
FEATURES_PER_BLOCK = 4_000_000  # feature values that are averaged together (32 MB)


def check_federation(graph: str, federation: object) -> None:
    """Raise InputError if this is not a federation."""
    if not isinstance(federation, Federation):
        raise InputError(
            f"{graph} got a {type(federation).__name__}; pass a federation, "
            "as from fl.Federation.from_dataframe",
            scope="graph",
        )


def compute_vectors(
    federation: Federation,
    by: Statistic,
    path: str = "",
    sha256: str = "",
    noise: float = 0.0,
    seed: int = 0,
    height_km: float | None = None,
) -> Vectors:
    """Compute one vector per client, and add Gaussian noise of standard deviation `noise` to every value."""
    if not isinstance(by, str):
        raise InputError(
            f"by is a {type(by).__name__}; expected {EXPECTED_STATISTIC}", field="by", scope="graph"
        )
    if by != "metadata" and path:
        raise InputError(
            f"path = {path!r} with by = {by!r}; remove path, or set by = 'metadata'",
            field="path",
            scope="graph",
        )
    if by != "places" and height_km is not None:
        raise InputError(
            f"height_km = {height_km} with by = {by!r}; remove height_km, or set by = 'places'",
            field="height_km",
            scope="graph",
        )
    if by == "labels":
        values = compute_label_shares(federation)
    elif by == "means":
        values = compute_feature_means(federation)
    elif by == "metadata":
        values = read_metadata(federation.clients, path, sha256)
    elif by == "places":
        values = _get_places(federation).to_points(height_km)
    else:
        raise InputError(f"by = {by!r}; expected {EXPECTED_STATISTIC}", field="by", scope="graph")
    deviation = check_number("noise", noise, zero=True, scope="graph")
    if deviation:
        values = (
            values + deviation * get_graph_draws(seed).normals(federation.digests, 1, values.shape[1]).numpy()
        )
    return values


def _get_places(federation: Federation) -> Places:
    if federation.places is None:
        raise InputError(
            "by = 'places', but the data have no places; set data.places to the columns of longitude and "
            "latitude",
            field="by",
            scope="graph",
        )
    return federation.places


def compute_label_shares(federation: Federation) -> Vectors:
    """Compute the share of each label among a client's training rows."""
    if federation.labels is None:
        raise InputError(
            "by = 'labels' needs classes, but the targets are numbers; set by = 'means' or 'places'",
            scope="graph",
        )
    classes, clients = len(federation.labels), len(federation.clients)
    place = federation.train.find_owners() * classes + federation.train.y
    times = torch.bincount(place, minlength=clients * classes).view(clients, classes)
    return np.asarray((times / federation.train.count.unsqueeze(1).double()).numpy())


def compute_feature_means(federation: Federation) -> Vectors:
    """Compute the means of a client's training features, scaled as models see them."""
    train, values = federation.train, math.prod(federation.inputs)
    total = torch.zeros(len(federation.clients), values, dtype=torch.float64)
    size = max(1, FEATURES_PER_BLOCK // values)
    for row, owner in zip(train.row.split(size), train.find_owners().split(size), strict=True):
        # Each row is passed as a stack of one, so that its client's scaling constants apply.
        seen = federation.scale.apply(train.store[row].unsqueeze(1), owner, torch.float64)
        total.index_add_(0, owner, seen.reshape(len(row), values))
    return np.asarray((total / train.count.unsqueeze(1)).numpy())


def read_metadata(clients: tuple[str, ...], path: str, sha256: str = "") -> Vectors:
    """Read the numeric columns of a .csv file whose first column names the client, and standardise each.

    The first line names the columns. Lines of clients that are not in `clients` are ignored.
    """
    if not path:
        raise InputError("path is missing; by = 'metadata' needs a .csv file: set path to it", scope="graph")
    if not Path(path).exists() or Path(path).is_dir():
        raise InputError(f"no file {path!r}; set path to an existing .csv file", scope="graph")
    content = read_user_file("graph", path, sha256)
    try:
        lines = _parse_table(content)
    except InputError as error:
        raise error.reword(f"{error.message} (in {path})", field=error.field, scope=error.scope) from error
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(
            f"{path!r} cannot be read: {error}; expected a .csv file in UTF-8", scope="graph"
        ) from error
    for client in clients:
        if client not in lines:
            raise InputError(
                f"client {client!r} has no line in {path}; add one line per client", scope="graph"
            )
    table = np.array([lines[client] for client in clients])
    deviation = table.std(0)
    return np.asarray((table - table.mean(0)) / np.where(deviation > 0, deviation, 1.0))


def _parse_table(content: bytes) -> dict[str, list[float]]:
    """Parse a .csv table and return the numbers of each client."""
    found: dict[str, list[float]] = {}
    with TextIOWrapper(BytesIO(content), newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        header = [cell.strip() for cell in next(reader, [])]
        if len(header) < 2 or any(_is_number(cell) for cell in header[1:]):
            raise InputError(
                "line 1 does not name the columns; expected a header such as client,latitude,longitude",
                scope="graph",
            )
        for line in reader:
            if not any(line):
                continue
            where = f"line {reader.line_num}"
            name, *cells = (cell.strip() for cell in line)
            if len(line) != len(header):
                raise InputError(
                    f"{where} has {len(line)} columns; expected {len(header)} as in line 1", scope="graph"
                )
            if name in found:
                raise InputError(
                    f"{where}: client {name!r} has a line already; write one line per client", scope="graph"
                )
            for column, cell in zip(header[1:], cells, strict=True):
                if not _is_number(cell):
                    raise InputError(f"{where}: {column} = {cell!r}; expected a finite number", scope="graph")
            found[name] = [float(cell) for cell in cells]
    return found


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
