"""The edges of a peer: those of the plan's graph at first, then those of its changes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from fedlap.deploy.peers.changes import EdgeChange, JoinRequest
from fedlap.deploy.peers.links import Link
from fedlap.deploy.peers.neighbours import Neighbour
from fedlap.deploy.peers.settings import find_dialled
from fedlap.deploy.plan import Plan
from fedlap.deploy.setup import Setup, decode_graph, encode_graph
from fedlap.errors import InputError
from fedlap.graph import Graph

if TYPE_CHECKING:
    from fedlap.deploy.peers.run import PeerRun

REMOVAL_EVENTS: Final = {
    "leave": "left", "eject": "ejected", "exclude": "excluded", "forget": "forgotten-edge",
}  # fmt: skip


def find_edges(plan: Plan, name: str, join: JoinRequest | None) -> dict[str, float]:
    """Return a peer's neighbours in the plan's graph, or in its request to join, with weights."""
    if name not in plan.clients:
        if join is None:
            raise InputError(
                f"client {name!r} is not in the plan; expected one of {', '.join(plan.clients)}; a newcomer "
                "passes its request (--join)",
                field="name",
            )
        return dict(join.neighbours)
    graph = plan.build_graph(plan.clients)
    places, weights = graph.neighbours(plan.clients.index(name))
    names = (plan.clients[place] for place in places.tolist())
    return dict(zip(names, weights.tolist(), strict=True))


def find_address(run: "PeerRun", neighbour: str) -> str | None:
    """Return the address at which a peer dials a neighbour, or None if the neighbour dials."""
    plan = run.plan
    assert plan.peers is not None
    joined = {change.name: change.address for change in run.changes if change.kind == "join"}
    if run.join is not None:
        joined[run.name] = run.join.address
    known = {name: address for name, address in joined.items() if address is not None}
    addresses = {**plan.peers.addresses, **known}  # A newcomer may have that of a peer that has left.
    return find_dialled(addresses, run.name, neighbour, (*plan.clients, *joined))


def add_newcomer(agreed: Setup, name: str, rows: int, weights: Mapping[str, float]) -> Setup:
    """Return the setup that peers agreed on with a newcomer; the strength stays as agreed.

    A neighbour that is a newcomer, too, counts as a client without rows and without other edges.
    """
    edges = [(neighbour, name, weight) for neighbour, weight in weights.items()]
    graph, clients = _extend_graph(agreed, edges)
    counts = tuple(rows if client == name else 0 for client in clients[len(agreed.counts) :])
    return replace(agreed, clients=clients, counts=(*agreed.counts, *counts), graph=graph)


def _extend_graph(setup: Setup, edges: Sequence[tuple[str, str, float]]) -> tuple[Graph, tuple[str, ...]]:
    """Return the graph of a setup with further edges, and its clients; new ones come last."""
    clients = tuple(dict.fromkeys([*setup.clients, *(end for edge in edges for end in edge[:2])]))
    described = encode_graph(setup.graph)
    added = [[clients.index(begin), clients.index(end), weight] for begin, end, weight in edges]
    return decode_graph({**described, "edges": [*described["edges"], *added]}, clients), clients


def check_new_edge(run: "PeerRun", change: EdgeChange) -> None:
    """Raise InputError if mixing could diverge with one more edge.

    It cannot if μRη times the degree is at most 1 at every peer, which each checks for itself. Otherwise the
    largest eigenvalue of the graph that this peer knows decides.
    """
    assert run.setup is not None
    method: Any = run.setup.algorithm
    if method.mixing == "implicit":
        raise InputError(
            f"client {change.name!r} cannot join, since implicit mixing depends on the whole graph; end the "
            "run, and start one with the new client in the plan"
        )
    weights = [one.weight for one in run.require_peer().neighbours.values() if not one.is_removed]
    product = method.coupling.step * (sum(weights) + change.weight)
    if product <= 1 or method.allow_unstable:
        return
    joined = [one for one in run.changes if one.kind == "join" and one.name not in run.setup.clients]
    graph, _ = _extend_graph(run.setup, [(run.name, one.name, one.weight) for one in [*joined, change]])
    if (largest := method.coupling.step * graph.rho) > 2:
        raise InputError(
            f"the edge to {change.name!r} has weight {change.weight:g}, which is too large: "
            f"lr·R·strength·ρ = {largest:.4g} > 2, so mixing would diverge; let {change.name!r} request a "
            "smaller weight"
        )
    run.say(
        f"{change.name}: with this edge lr·R·strength·degree = {product:.4g} > 1, so models that are late "
        "may lead to other models; a smaller weight avoids this"
    )


def change_edge(run: "PeerRun", change: EdgeChange) -> None:
    """Add or remove an edge; raise InputError if mixing could diverge with it.

    A newcomer's edge counts from the round after the one in which the newcomer asks for a model, and both its
    ends know that round. A removed edge does not count any more in the exchange in progress: nobody waits for
    a neighbour that has left. The other end removes it as soon as it hears of it, which may be a round later:
    the link stays until then.
    """
    peer = run.require_peer()
    if run.is_removed(change.name):
        if change.kind in ("eject", "forget"):
            return
        drop_edge(run, change.name)
    if (change.kind == "join") == (change.name in peer.neighbours):
        return
    if change.kind == "join":
        check_new_edge(run, change)
        peer.neighbours[change.name] = Neighbour(change.name, change.weight, {}, first_round=None)
        run.links[change.name] = Link(change.name)
        run.weights[change.name] = change.weight
        run.changes.append(change)
        run.links_changed = True
        return
    neighbour, round = peer.neighbours[change.name], peer.next_turn.round
    if neighbour.first_round is None:  # The newcomer has not come.
        run.changes = [known for known in run.changes if known.name != change.name or known.round]
        run.log("ejected", name=change.name, round=round)
        drop_edge(run, change.name)
        return
    run.changes.append(replace(change, round=round))
    if change.kind != "depart":  # which is one event for all neighbours
        run.log(REMOVAL_EVENTS[change.kind], name=change.name, round=round)
    neighbour.is_removed = True
    _log_graph(run, round)
    if change.kind in ("leave", "depart", "exclude"):  # It knows of it.
        drop_edge(run, change.name)
    else:
        run.links[change.name].next_ask = -math.inf


def start_edge(run: "PeerRun", name: str, now: float) -> bool:
    """Fix the round from which a newcomer's edge counts; return whether it is fixed and stored.

    It is the round after the one in progress, from which on the newcomer is waited for.
    """
    peer = run.require_peer()
    neighbour = peer.neighbours[name]
    if neighbour.first_round is not None:
        return True
    place = max(place for place, change in enumerate(run.changes) if change.name == name)
    change, round = run.changes[place], peer.round + 2
    neighbour.first_round, run.changes[place] = round, replace(change, round=round)
    if not run.save_change(now):
        neighbour.first_round, run.changes[place] = None, change
        return False
    run.log("joined", name=name, round=round)
    _log_graph(run, round)
    return True


def forget_silent(run: "PeerRun") -> None:
    """Remove the edges to neighbours that have been silent for too many rounds."""
    peer = run.require_peer()
    for name in peer.list_forgotten():
        change_edge(run, EdgeChange("forget", name))


def drop_edge(run: "PeerRun", name: str) -> None:
    """Close the link to a neighbour whose edge is removed."""
    run.require_peer().remove_neighbour(name)
    del run.links[name], run.weights[name]
    run.links_changed = True
    run.changed += 1


def _log_graph(run: "PeerRun", round: int) -> None:
    """Log the version of this peer's edges: the number of changes in force, and one."""
    version = 1 + sum(change.round is not None for change in run.changes)
    count = sum(1 for one in run.require_peer().neighbours.values() if one.first_round and not one.is_removed)
    run.log("graph-changed", round=round, version=version, clients=count + 1)
