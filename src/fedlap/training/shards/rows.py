"""The rows of a shard: where its process gets them from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol, runtime_checkable

from fedlap.data import FederationFolder
from fedlap.data.client_rows import ClientRows
from fedlap.data.federation import Federation
from fedlap.data.splits import RANDOM_SPLIT
from fedlap.data.standardize import Standardizer
from fedlap.data.target_scale import TargetScale


@runtime_checkable
class RowSource(Protocol):
    """Reads the rows of clients in the process that trains them; it is sent there and should be small."""

    def read(self, clients: range) -> Federation:
        """Return the federation of a range of clients."""
        ...


@dataclass(frozen=True, eq=False)
class PassedRows:
    """The rows of some blocks of clients, which are sent along."""

    parts: dict[range, Federation]

    @staticmethod
    def cut(federation: Federation, blocks: Sequence[range]) -> "PassedRows":
        """Copy the rows of blocks of clients."""
        return PassedRows({block: cut_federation(federation, block) for block in blocks})

    def read(self, clients: range) -> Federation:
        """Return the federation of a range of clients."""
        return self.parts[clients]


@dataclass(frozen=True)
class FolderRows:
    """The rows of clients in a folder, which the process that trains them maps from its own disk."""

    path: Path
    scale: Standardizer
    target_scale: TargetScale | None

    def read(self, clients: range) -> Federation:
        """Return the federation of a range of clients."""
        shard = open_folder_once(self.path).open_shard(clients)
        return replace(shard, scale=self.scale.reorder(clients), target_scale=self.target_scale)


@lru_cache(maxsize=4)
def open_folder_once(path: Path) -> FederationFolder:
    """Return the description of a folder, whose arrays are mapped once per process."""
    return FederationFolder.of(path)


def choose_source(federation: Federation, blocks: Sequence[range]) -> RowSource:
    """Return the folder that the rows are mapped from; without one, copy the rows of some blocks."""
    stored = federation.stored
    folder = None if stored is None else stored.find_folder(federation.train, federation.test)
    if folder is None:
        return PassedRows.cut(federation, blocks)
    return FolderRows(folder, federation.scale, federation.target_scale)


def cut_federation(federation: Federation, clients: range) -> Federation:
    """Return the federation of consecutive clients with a copy of their rows."""
    return replace(
        federation,
        clients=federation.clients[clients.start : clients.stop],
        train=_cut_rows(federation.train, clients),
        test=_cut_rows(federation.test, clients),
        scale=federation.scale.reorder(clients),
        places=None,
        encoding=None,
        raw=None,
        split=RANDOM_SPLIT,
        notes=(),
    )


def _cut_rows(rows: ClientRows, clients: range) -> ClientRows:
    """Copy the rows of consecutive clients into a store of their own."""
    last = clients.stop - 1
    at = slice(int(rows.first[clients.start]), int(rows.first[last] + rows.count[last]))
    weight = None if rows.weight is None else rows.weight[at].clone()
    count = rows.count[clients.start : clients.stop].clone()
    return ClientRows.of(rows.store[rows.row[at]], rows.y[at].clone(), count, weight)
