"""Federations in a folder of memory-mapped arrays: a shard of clients is opened without the others' rows.

    counts of all clients   train-count.npy  test-count.npy  digest.npy
    rows, client by client  train-x.npy  train-y.npy  test-x.npy  test-y.npy
    the graph, as CSR       graph-first.npy  graph-neighbour.npy  graph-weight.npy
    of other federations    names.json  train-weight.npy  place.npy
    everything else         federation.json, which is written last

Clients of `LargeSynthetic` are named "0", "1", …, so their names are not stored. Arrays are mapped
copy-on-write: a process reads the pages that it needs, and processes of one machine share them.
"""

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Int64
from scipy.sparse import csr_array
from torch import Tensor

from fedlap.data.client_rows import ClientRows, concatenate_ranges, find_outside
from fedlap.data.federation import Federation
from fedlap.data.large_synthetic import (
    CLIENTS_PER_JOIN,
    LargeSynthetic,
    check_client_range,
    split_range,
)
from fedlap.data.places import Places
from fedlap.data.standardize import Scaling
from fedlap.data.stored_rows import StoredRows
from fedlap.errors import InputError
from fedlap.graph.graph import Graph
from fedlap.randomness import digest_names
from fedlap.storage.array_files import DAMAGED_FILE_ERRORS, map_npy
from fedlap.storage.files import describe_error, parse_json, read_file, replace_folder, write_file

DESCRIPTION: Final = "federation.json"
NAMES: Final = "names.json"
FORMAT: Final = 1
SPLITS: Final = ("train", "test")


@dataclass(frozen=True)
class FederationFolder:
    """A federation in a folder, whose shards are opened without reading the rows of other clients.

    path: the folder. clients: number of clients. labels: names of the classes; None for real targets.
    rho: ρ of the graph; None without a graph. settings: those of `LargeSynthetic`, from which the rows were
    generated; empty for other federations. scale: how the federation was scaled that was written; rows are
    not. features, target: names of columns. places: names of the columns of places.
    """

    path: Path
    clients: int
    labels: tuple[str, ...] | None
    rho: float | None
    settings: dict[str, Any]
    scale: Scaling = "none"
    features: tuple[str, ...] | None = None
    target: str | None = None
    places: tuple[str, ...] | None = None

    @staticmethod
    def of(path: Path) -> "FederationFolder":
        """Read the description of a folder; no rows are read."""
        try:
            facts = parse_json(read_file(path / DESCRIPTION))
            if facts["format"] != FORMAT:
                raise InputError(
                    f"{str(path)!r} has format {facts['format']!r}; expected {FORMAT}: write it again with "
                    "`fedlap data make`",
                    scope="data",
                )
            names = {name: facts.get(name) for name in ("labels", "features", "places")}
            tuples = {name: None if value is None else tuple(value) for name, value in names.items()}
            return FederationFolder(
                path,
                int(facts["clients"]),
                tuples["labels"],
                None if facts["rho"] is None else float(facts["rho"]),
                facts["settings"],
                facts.get("scale", "none"),
                tuples["features"],
                facts.get("target"),
                tuples["places"],
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{str(path)!r} cannot be read as a federation ({describe_error(error)}); write it with "
                "`fedlap data make`",
                scope="data",
            ) from error

    def open(self) -> Federation:
        """Open all clients; processes that train some of them can read these from the folder."""
        federation = self.open_shard(range(self.clients))
        stored = StoredRows(self.path.absolute(), federation.train, federation.test)
        places = None if self.places is None else Places(self.places, np.array(self._map("place")))
        opened = replace(federation, stored=stored, places=places)
        opened.__dict__["digests"] = federation.digests
        return opened

    def open_shard(self, clients: range | Sequence[int] | Int64[Tensor, "shard"]) -> Federation:
        """Open some clients, by number and in this order; the rows of a range are not even copied.

        The features of the shard are not scaled.
        """
        if isinstance(clients, range):
            ids: range | Int64[Tensor, shard] = check_client_range(clients, self.clients)
        else:
            ids = torch.as_tensor(clients, dtype=torch.int64)
            if not len(ids) or (wrong := find_outside(ids, 0, self.clients)) is not None:
                found = "none" if not len(ids) else f"client {wrong}"
                raise InputError(
                    f"the shard has {found}; expected numbers from 0 to {self.clients - 1}", scope="data"
                )
        train, test = (self._open_rows(split, ids) for split in SPLITS)
        place = slice(ids.start, ids.stop) if isinstance(ids, range) else ids
        if self._is_named:
            numbers = ids if isinstance(ids, range) else ids.tolist()
            names = tuple(self.names[number] for number in numbers)
        else:
            names = tuple(map(str, ids if isinstance(ids, range) else ids.tolist()))
        federation = Federation(names, train, test, self.labels, features=self.features, target=self.target)
        federation.__dict__["digests"] = self._digests[
            place
        ]  # a cached property: hashing takes 1 s per million
        return federation

    @property
    def _is_named(self) -> bool:
        """Return whether clients have names of their own, which are stored."""
        return not self.settings

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all clients."""
        if not self._is_named:
            return tuple(map(str, range(self.clients)))
        try:
            return tuple(map(str, parse_json(read_file(self.path / NAMES))))
        except (OSError, ValueError, TypeError) as error:
            raise self._build_damage_error(self.path / NAMES, error) from error

    @cached_property
    def known_graph(self) -> Graph | None:
        """The graph of all clients, whose arrays are mapped; None if the folder has none."""
        return None if self.rho is None else self.graph

    @cached_property
    def graph(self) -> Graph:
        """The graph of all clients; its arrays are mapped."""
        if self.rho is None:
            raise InputError(f"{str(self.path)!r} has no graph; build one from its clients", scope="data")
        return Graph.from_checked(self.names, self.weights, self.rho)

    @cached_property
    def weights(self) -> csr_array:
        """The weight matrix of the graph; a row that is not read is not loaded."""
        first, neighbour, weight = (self._map(f"graph-{name}") for name in ("first", "neighbour", "weight"))
        return csr_array((weight, neighbour, first), shape=(self.clients, self.clients), copy=False)

    def count_rows(self) -> Int64[Tensor, "client"]:
        """Return the number of training rows of each client, by which shards can be balanced."""
        return torch.from_numpy(self._map("train-count"))

    @cached_property
    def _digests(self) -> Int64[Tensor, "client"]:
        return torch.from_numpy(self._map("digest"))

    @cached_property
    def _first_rows(self) -> dict[str, Int64[Tensor, "ends"]]:
        """By split, the first row of each client, and the number of rows."""
        counts = {split: torch.from_numpy(self._map(f"{split}-count")) for split in SPLITS}
        return {split: torch.cat([count.new_zeros(1), count.cumsum(0)]) for split, count in counts.items()}

    def _open_rows(self, split: str, ids: range | Int64[Tensor, "shard"]) -> ClientRows:
        x, y = (torch.from_numpy(self._map(f"{split}-{name}")) for name in ("x", "y"))
        first, weights = self._first_rows[split], self._open_weights(split)
        if isinstance(ids, range):
            rows = slice(int(first[ids.start]), int(first[ids.stop]))
            weight = None if weights is None else weights[rows]
            return ClientRows.of(x[rows], y[rows], first[ids.start : ids.stop + 1].diff(), weight)
        count = first[ids + 1] - first[ids]
        row = concatenate_ranges(first[ids], count)
        return ClientRows(x, row, y[row], count, None if weights is None else weights[row])

    def _open_weights(self, split: str) -> Tensor | None:
        name = f"{split}-weight"
        return torch.from_numpy(self._map(name)) if (self.path / f"{name}.npy").exists() else None

    def _map(self, name: str) -> Any:
        """Map an array of the folder."""
        path = self.path / f"{name}.npy"
        try:
            return map_npy(path)
        except DAMAGED_FILE_ERRORS as error:
            raise self._build_damage_error(path, error) from error

    def _build_damage_error(self, path: Path, error: Exception) -> InputError:
        command = "write" if self._is_named else "make"
        return InputError(
            f"{str(path)!r} is damaged ({describe_error(error)}); write the folder again with "
            f"`fedlap data {command}`",
            scope="data",
        )


def open_folder(path: str) -> FederationFolder:
    """Open the rows and the graph of a folder that `fedlap data make` or `fedlap data write` wrote.

    path: the folder.
    """
    return FederationFolder.of(Path(path))


def write_federation(path: Path, settings: LargeSynthetic) -> FederationFolder:
    """Generate a federation into a folder, block by block; the memory does not grow with its rows."""
    check_replaceable(path)
    check_free_disk(path, settings)
    with replace_folder(path) as folder:
        _write_rows(folder, settings)
        facts = {
            "format": FORMAT,
            "clients": settings.clients,
            "labels": settings.class_names,
            "rho": _write_graph(folder, settings),
            "settings": asdict(settings),
        }
        write_file(folder / DESCRIPTION, json.dumps(facts, indent=1).encode())
    return FederationFolder.of(path)


def check_replaceable(path: Path) -> None:
    """Raise InputError if the folder has something other than a federation, which is not overwritten."""
    if path.exists() and not (path / DESCRIPTION).exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{str(path)!r} exists and is no federation; choose another folder", scope="data")


def estimate_disk(settings: LargeSynthetic) -> int:
    """Return about how many bytes the folder of a federation will have."""
    outputs = 8 if settings.task == "classification" else 4
    rows = settings.clients * (settings.rows + settings.test_rows)
    return rows * (4 * settings.features + outputs) + settings.clients * (32 + 12 * settings.degree)


def check_free_disk(path: Path, settings: LargeSynthetic) -> None:
    """Raise InputError if the folder would not fit on its disk."""
    refuse_full_disk(path, estimate_disk(settings))


def refuse_full_disk(path: Path, needed: int) -> None:
    """Raise InputError if the disk of a new folder has less room than it needs."""
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise InputError(
            f"{str(path)!r} needs about {needed / 1e9:.3g} GB, but its disk has {free / 1e9:.3g} GB left; "
            "use another folder, fewer clients or fewer rows",
            scope="data",
        )


def _write_rows(folder: Path, settings: LargeSynthetic) -> None:
    """Write the rows of all clients, one block after another."""
    blocks = split_range(range(settings.clients))
    digests = create_array(folder, "digest", np.int64, settings.clients)
    counts = {split: create_array(folder, f"{split}-count", np.int64, settings.clients) for split in SPLITS}
    for ids in blocks:
        digests[ids.start : ids.stop] = block = digest_names(settings.name_clients(ids))
        counts["train"][ids.start : ids.stop] = settings.count_rows(block)
    counts["test"][:] = settings.test_rows
    target = np.int64 if settings.task == "classification" else np.float32
    trailing = () if settings.task == "classification" else (1,)
    arrays = {}
    for split, count in counts.items():
        total = int(count.sum())
        arrays[split, "x"] = create_array(folder, f"{split}-x", np.float32, total, settings.features)
        arrays[split, "y"] = create_array(folder, f"{split}-y", target, total, *trailing)
    done = dict.fromkeys(SPLITS, 0)
    for ids in blocks:
        for split, rows in zip(SPLITS, settings.generate_rows(ids), strict=True):
            at = slice(done[split], done[split] + len(rows.x))
            arrays[split, "x"][at], arrays[split, "y"][at] = rows.x, rows.y
            done[split] = at.stop


def _write_graph(folder: Path, settings: LargeSynthetic) -> float:
    """Write the graph of all clients, one block after another, and return its ρ."""
    blocks = split_range(range(settings.clients), CLIENTS_PER_JOIN)
    first = np.zeros(settings.clients + 1, dtype=np.int64)
    for ids in blocks:
        first[ids.start + 1 : ids.stop + 1] = np.diff(settings.join_clients(ids).indptr)
    np.cumsum(first, out=first)
    entries = int(first[-1])
    kind = np.int32 if max(entries, settings.clients) < 2**31 else np.int64
    stored = {"first": create_array(folder, "graph-first", kind, len(first))}
    stored |= {
        name: create_array(folder, f"graph-{name}", dtype, entries)
        for name, dtype in (("neighbour", kind), ("weight", np.float64))
    }
    stored["first"][:] = first
    for ids in blocks:
        block, at = settings.join_clients(ids), slice(first[ids.start], first[ids.stop])
        stored["neighbour"][at], stored["weight"][at] = block.indices, block.data
    shape = (settings.clients, settings.clients)
    return settings.find_rho(csr_array((stored["weight"], stored["neighbour"], stored["first"]), shape=shape))


def create_array(folder: Path, name: str, dtype: Any, *shape: int) -> Any:
    """Create an array in a file; an empty one cannot be mapped."""
    path = folder / f"{name}.npy"
    if math.prod(shape):
        return np.lib.format.open_memmap(path, "w+", dtype, shape)
    empty = np.empty(shape, dtype)
    np.save(path, empty, allow_pickle=False)
    return empty
