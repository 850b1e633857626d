"""Server states that several methods share: one model for all clients, or one model per client."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.client_table import ClientTable, Ids
from fedlap.graph import Graph
from fedlap.models.model import Stack

GlobalModel = Float[Tensor, "1 param"]  # one model for all clients
VertexModels = Float[Tensor, "vertex param"]  # models of all clients, and of a server vertex if there is one


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
