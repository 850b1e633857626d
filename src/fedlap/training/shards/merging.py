"""Merges at the shards: every client mixes with its neighbours, whose rows other shards send."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlap.algorithms import Algorithm, ClientTable, PeerAlgorithm, RowUpdate, State
from fedlap.algorithms.server_state import ClientModels, Ids
from fedlap.graph import Graph
from fedlap.graph.vertex_edges import VertexEdges
from fedlap.models.model import Stack
from fedlap.training.shards.layout import find_slices
from fedlap.training.shards.messages import slice_rows

LookUp = Callable[[Ids], State]  # returns a copy of the rows of any clients


@dataclass(frozen=True, eq=False)
class NeighbourMerge:
    """The part of a shard in the merges of a method whose clients mix with their neighbours alone.

    algorithm: the method without its graph. shards: the clients of every shard. edges: those of each block of
    this shard, whose place among the shards is `place`.
    """

    algorithm: Any
    place: int
    shards: tuple[range, ...]
    edges: tuple[VertexEdges, ...]

    @property
    def is_peer(self) -> bool:
        """Return whether the clients are peers: their models are private state."""
        return isinstance(self.algorithm, PeerAlgorithm)

    def start_models(self, start: Stack) -> Stack | None:
        """Return the clients' rows of the server's models before the first round; None for peers."""
        if self.is_peer:
            return None
        server: ClientModels = self._with_graph(
            self.edges[0].join_neighbours(np.empty(0, np.int64))[0]
        ).init_server(start)
        return server.models.values

    @cached_property
    def _cut_edges(self) -> list[tuple[Ids, Ids]]:
        """For each shard, the edges to it: the end in this shard, and the other one, which ascends."""
        ends = [edges.list_outer_edges() for edges in self.edges]
        here, other = (torch.from_numpy(np.concatenate(both)) for both in zip(*ends, strict=True))
        other, order = other.sort(stable=True)
        here = here[order]
        slices = find_slices(other, self.shards)
        empty = here[:0]
        return [
            (empty, empty) if place == self.place else (here[part], other[part])
            for place, part in enumerate(slices)
        ]

    def list_sent(self, cohort: Ids | None) -> list[Ids]:
        """Return the clients of this shard whose rows each shard needs, ascending.

        cohort: the sampled clients, who mix with their neighbours; None for all clients.
        """
        return [
            (here if cohort is None else here[is_among(other, cohort)]).unique()
            for here, other in self._cut_edges
        ]

    def merge(self, block: int, chosen: Ids, cohort: Ids, look_up: LookUp) -> State:
        """Return the next rows of the sampled clients of a block: of the server's models, or of peers."""
        graph, vertices = self.edges[block].join_neighbours(chosen.numpy())
        ids = torch.from_numpy(vertices)
        rows, method = look_up(ids), self._with_graph(graph)
        if self.is_peer:
            return slice_rows(method.mix_all(rows), slice(len(chosen)))
        places = is_among(ids, cohort).nonzero().flatten()
        merged: Any = method.merge(ClientModels(ClientTable(rows)), places, rows[places]).models
        if isinstance(merged, RowUpdate):
            return merged.values[merged.ids.argsort()][: len(chosen)]
        return merged.values[: len(chosen)]

    def penalise(self, block: int, look_up: LookUp) -> float:
        """Return the part of a block in the method's penalty; edges to other blocks count half."""
        graph, vertices = self.edges[block].halve_outer_edges()
        rows, method = look_up(torch.from_numpy(vertices)), self._with_graph(graph)
        states = (None, rows) if self.is_peer else (ClientModels(ClientTable(rows)), None)
        return float(method.penalty(*states))

    def _with_graph(self, graph: Graph) -> Any:
        return replace(self.algorithm, graph=graph)


def without_graph(algorithm: Algorithm) -> Any:
    """Return a copy of a method for processes that run its local work alone: its graph is None."""
    copied = object.__new__(type(algorithm))
    # As in `ManyRuns.share_settings`, the method's own checks would reject this.
    values = {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}  # type: ignore[arg-type]
    copied.__dict__.update(values | ({"graph": None} if "graph" in values else {}))
    return copied


def is_among(values: Ids, ascending: Ids) -> Tensor:
    """Return which values are among ascending ones."""
    if not len(ascending):
        return torch.zeros(len(values), dtype=torch.bool)
    places = torch.searchsorted(ascending, values).clamp_(max=len(ascending) - 1)
    return ascending[places] == values
