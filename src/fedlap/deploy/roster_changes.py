"""Changes of the roster while a run trains: a client joins, leaves, or is ejected, from a stated round on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from fedlap.algorithms import ClientTable, State
from fedlap.deploy.certificates import check_client_name
from fedlap.deploy.setup import Setup, decode_graph
from fedlap.errors import InputError, check_number, unknown_name_error
from fedlap.graph import Graph
from fedlap.graph.weights import CompleteWeights
from fedlap.models.model import Stack
from fedlap.training.state import describe_shapes, rebuild_tuple

ChangeKind = Literal["join", "leave", "eject"]


@dataclass(frozen=True)
class RosterChange:
    """A client that joins, leaves, or is ejected; a newcomer has neighbours with weights."""

    kind: ChangeKind
    name: str
    neighbours: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, from which `parse` restores the change."""
        return {"kind": self.kind, "name": self.name, "neighbours": dict(self.neighbours)}

    @staticmethod
    def parse(values: Any) -> "RosterChange":
        """Return the change that `to_dict` described; raise InputError if the values are invalid."""
        try:
            kind, name, neighbours = values["kind"], str(values["name"]), dict(values["neighbours"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                "a change of the roster is damaged or belongs to another user; give the command again, as "
                "the user of the server"
            ) from error
        if kind not in ("join", "leave", "eject"):
            raise InputError(f"a change of the roster is of kind {kind!r}; use join, leave or eject")
        if kind == "join":
            check_client_name(name)
        for neighbour, weight in neighbours.items():
            check_number(f"the weight of neighbour {neighbour!r}", weight, zero=False)
        return RosterChange(kind, name, neighbours)


def change_setup(setup: Setup, change: RosterChange, rows: int | None, first_round: int) -> Setup:
    """Return the next version of a setup; raise InputError if the graph or the method does not allow it.

    rows: the training rows of a newcomer. Stability is checked again, since the graph has changed.
    """
    if change.kind == "join":
        clients = (*setup.clients, change.name)
        counts: tuple[int, ...] = (*setup.counts, int(rows or 0))
        graph = add_client(setup.graph, setup.clients, change)
    else:
        if change.name not in setup.clients:
            raise unknown_name_error("client", change.name, setup.clients)
        remaining = [k for k, name in enumerate(setup.clients) if name != change.name]
        if not remaining:
            raise InputError(f"client {change.name!r} is the last one; stop the server instead")
        clients = tuple(setup.clients[k] for k in remaining)
        counts = tuple(setup.counts[k] for k in remaining)
        matrix = setup.graph.weights.matrix().toarray()
        vertices = [*remaining, len(setup.clients)] if setup.graph.server else remaining
        graph = _build_graph(matrix[np.ix_(vertices, vertices)], clients, setup.graph.server)
    described = Setup.of(setup.plan, clients, counts, graph, setup.version + 1, first_round).describe()
    changed = Setup.parse(setup.plan, described)  # exactly as a restarted server reads it
    _check_moves(setup, changed)
    return changed


def move_server_state(server: State, before: Setup, after: Setup) -> State:
    """Return the server's state with the rows of the new roster.

    A newcomer's row is the weighted mean of its neighbours' rows, or of all rows if it has no neighbours.
    State that all clients share stays as it is.
    """
    if isinstance(server, ClientTable):
        return ClientTable(_move_rows(server.values, before, after))
    if isinstance(server, tuple):
        return rebuild_tuple(server, (move_server_state(part, before, after) for part in server))
    return server


def _move_rows(table: Stack, before: Setup, after: Setup) -> Stack:
    place = {name: k for k, name in enumerate(before.clients)}
    weights = torch.from_numpy(after.graph.weights.matrix().toarray()).to(table)
    rows = []
    for k, name in enumerate(after.clients):
        if name in place:
            rows.append(table[place[name]])
            continue
        known = [(weights[k, j], place[other]) for j, other in enumerate(after.clients) if other in place]
        near = [(weight, row) for weight, row in known if weight > 0] or [
            (weights.new_ones(()), r) for _, r in known
        ]
        total = sum((weight for weight, _ in near), start=weights.new_zeros(()))
        rows.append(
            sum((weight * table[row] for weight, row in near), start=torch.zeros_like(table[0])) / total
        )
    rows += list(table[len(before.clients) :])  # a server vertex
    return torch.stack(rows)


def add_client(graph: Graph, clients: Sequence[str], change: RosterChange) -> Graph:
    """Return the graph with one more client; in a complete graph it is everybody's neighbour."""
    if change.name in clients:
        raise InputError(f"client {change.name!r} is part of the run already; choose another name")
    for name in change.neighbours:
        if name not in clients:
            raise unknown_name_error("neighbour", name, clients)
    neighbours = dict(change.neighbours)
    old, size = graph.weights.matrix().toarray(), len(clients)
    if not neighbours:
        weight = graph.weights.weight if isinstance(graph.weights, CompleteWeights) else _find_weight(old)
        if graph.server or weight is None:
            raise InputError(
                f"client {change.name!r} has no neighbours, and the graph is not complete; set --neighbours"
            )
        neighbours = dict.fromkeys(clients, weight)
    order = [*range(size), size + 1] if graph.server else [*range(size)]
    matrix = np.zeros((len(order) + 1, len(order) + 1))
    matrix[np.ix_(order, order)] = old
    for name, weight in neighbours.items():
        matrix[size, clients.index(name)] = matrix[clients.index(name), size] = weight
    return _build_graph(matrix, (*clients, change.name), graph.server)


def _find_weight(matrix: np.ndarray) -> float | None:
    """Return the weight of all edges if each client is everybody's neighbour, as after earlier changes."""
    weights = matrix[~np.eye(len(matrix), dtype=bool)]
    is_complete = len(weights) > 0 and weights[0] > 0 and bool((weights == weights[0]).all())
    return float(weights[0]) if is_complete else None


def _build_graph(matrix: np.ndarray, clients: Sequence[str], server: bool) -> Graph:
    upper = [(i, j, matrix[i, j]) for i, j in zip(*np.nonzero(np.triu(matrix)), strict=True)]
    return decode_graph({"edges": upper, "server": server}, clients)


def _check_moves(before: Setup, after: Setup) -> None:
    """Raise InputError unless the server's state can follow a change of the roster."""
    old, new = (setup.method.init_server(setup.build_start()) for setup in (before, after))
    moved = move_server_state(old, before, after)
    same = describe_shapes(moved) == describe_shapes(new) and all(
        torch.allclose(*pair) for pair in zip(_list_shared(moved), _list_shared(new), strict=True)
    )
    if not same:
        name = type(after.algorithm).__name__
        raise InputError(
            f"the server's state of {name} depends on the number of clients; end the run, and start one with "
            "the new clients"
        )


def _list_shared(server: State) -> list[torch.Tensor]:
    """Return the tensors of a server state that are not tables with one row per client."""
    if isinstance(server, ClientTable) or server is None:
        return []
    if isinstance(server, tuple):
        return [tensor for part in server for tensor in _list_shared(part)]
    return [server]
