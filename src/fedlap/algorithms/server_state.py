"""Server states: tables with one row per client, and the models that several methods share."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.graph import Graph
from fedlap.models.model import Stack

Ids = Int64[Tensor, "client"]
GlobalModel = Float[Tensor, "1 param"]  # one model for all clients
VertexModels = Float[Tensor, "vertex param"]  # models of all clients, and of a server vertex if there is one


@dataclass(frozen=True, eq=False)
class GatheredRows:
    """The rows `ids` of a table, one per client; the engine gathers them where the clients run."""

    table: Float[Tensor, "row ..."]
    ids: Ids


@dataclass(frozen=True, eq=False)
class RowUpdate:
    """New values for the rows `ids` of a table; the engine writes them, and other rows stay unchanged."""

    ids: Int64[Tensor, "row"]
    values: Float[Tensor, "row ..."]


class ClientTable(NamedTuple):
    """A field of the server state: one row per client, and a last one for a server vertex if there is one.

    Both verbs only describe: rows are gathered and written by the engine, at a cost that grows with the
    sampled clients and not with all clients.
    """

    values: Float[Tensor, "row ..."]

    def rows(self, ids: Ids) -> GatheredRows:
        """Return the rows of clients `ids`, as a message to them."""
        return GatheredRows(self.values, ids)

    def with_rows(self, ids: Int64[Tensor, "row"], values: Float[Tensor, "row ..."]) -> Any:
        """Return this table with new values in the rows `ids`, as the field of a new server state.

        It is a `RowUpdate`, which stands for a table until the engine has written it.
        """
        return RowUpdate(ids, values)


class SharedModel(NamedTuple):
    """One model for all clients."""

    model: GlobalModel

    @staticmethod
    def average(start: Stack) -> "SharedModel":
        """Start at the mean of the clients' start models."""
        return SharedModel(start.mean(0, keepdim=True))

    def copies(self, clients: int) -> Stack:
        """Return one copy of the model per client."""
        return self.model.expand(clients, -1)


class ClientModels(NamedTuple):
    """One model per client, and one for the server vertex of a graph that has one."""

    models: ClientTable

    @staticmethod
    def start(start: Stack, graph: Graph) -> "ClientModels":
        """Start at the clients' start models; a server vertex starts at their mean."""
        mean = [start.mean(0, keepdim=True)] if graph.server else []
        return ClientModels(ClientTable(torch.cat([start, *mean]) if mean else start.clone()))


def add_server_vertex(
    graph: Graph, models: VertexModels, ids: Ids, w: Stack
) -> tuple[Int64[Tensor, "row"], Float[Tensor, "row param"]]:
    """Return the vertices that take part in a merge and their models: a server vertex joins every round."""
    if not graph.server:
        return ids, w
    return torch.cat([ids, ids.new_full((1,), len(models) - 1)]), torch.cat([w, models[-1:]])
