"""A run without a server as the folders of its peers describe it: rounds, edges, scores and J(W)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fedlap.algorithms import Penalised, State
from fedlap.deploy.peers.changes import EdgeChange
from fedlap.deploy.peers.neighbours import Neighbour
from fedlap.deploy.peers.storage import PeerStorage, ScoredRound, is_peer_folder
from fedlap.deploy.plan import Plan
from fedlap.deploy.score_sums import add_tallies
from fedlap.deploy.setup import Setup
from fedlap.errors import InputError
from fedlap.graph import Graph
from fedlap.graph.model_fit import list_edges
from fedlap.training.scores import Score
from fedlap.training.state import concatenate_states
from fedlap.training.state_bytes import list_state_types


@dataclass(frozen=True, eq=False)
class PeerRecord:
    """A peer as its folder describes it; round, state and neighbours are those of its last checkpoint.

    state: its private state; None before the first checkpoint.
    """

    name: str
    plan: Plan
    agreed: Setup  # what the peers agreed on before the first round
    round: int
    state: State
    neighbours: Mapping[str, Neighbour]
    changes: Sequence[EdgeChange]
    tallies: Mapping[int, ScoredRound]
    former_bytes: Sequence[int]

    @staticmethod
    def read(folder: Path) -> "PeerRecord":
        """Read the folder of a peer; raise InputError if it has not started."""
        storage = PeerStorage(folder)
        identity, known = storage.read_identity(), storage.site.read_plan()
        if identity is None or known is None or not is_peer_folder(folder):
            raise InputError(
                f"{str(folder)!r} is no folder of a peer that has started; pass folders of `fedlap peer`"
            )
        plan = Plan.of(known["plan"])
        stored = storage.read_setup(known["digest"])
        assert stored is not None
        checkpoint = storage.read_checkpoint(list_state_types(plan.method_class))
        return PeerRecord(
            name=identity[0],
            plan=plan,
            agreed=Setup.parse(plan, stored[0]),
            round=0 if checkpoint is None else checkpoint.round,
            state=None if checkpoint is None else checkpoint.worker[0],
            neighbours={} if checkpoint is None else checkpoint.neighbours,
            changes=[EdgeChange.parse(change) for change in checkpoint.changes] if checkpoint else [],
            tallies=storage.read_tallies(),
            former_bytes=[0, 0] if checkpoint is None else checkpoint.former_bytes,
        )

    @property
    def train_rows(self) -> int:
        """The number of training rows; 0 for a newcomer before its first score."""
        if self.name in self.agreed.clients:
            return self.agreed.counts[self.agreed.clients.index(self.name)]
        return max((int(scored.tally.train[2]) for scored in self.tallies.values()), default=0)

    @property
    def received(self) -> int:
        """Bytes of the models that the peer has received."""
        return self.former_bytes[1] + sum(one.bytes_down for one in self.neighbours.values())


@dataclass(frozen=True)
class EdgeRecord:
    """An edge. changes: their rounds, and in words. removed: its first round without it, or None."""

    one: str
    other: str
    weight: float
    changes: Sequence[tuple[int, str]]
    removed: int | None


@dataclass(frozen=True, eq=False)
class PeersRecord:
    """A run as the folders of all peers describe it, or of some."""

    peers: Mapping[str, PeerRecord]

    @staticmethod
    def read(folders: Sequence[Path]) -> "PeersRecord":
        """Read folders of peers; raise InputError unless they are of one run, and of different peers."""
        found: dict[str, PeerRecord] = {}
        for folder in folders:
            peer = PeerRecord.read(folder)
            first = next(iter(found.values()), peer)
            if peer.name in found:
                raise InputError(f"two folders are those of peer {peer.name!r}; pass one of them")
            digests = (peer.plan.digest, peer.agreed.digest)
            if digests != (first.plan.digest, first.agreed.digest):
                raise InputError(
                    f"peers {first.name!r} and {peer.name!r} are of different runs; pass folders of one run"
                )
            found[peer.name] = peer
        order = (*first.agreed.clients, *found)
        return PeersRecord({name: found[name] for name in dict.fromkeys(order) if name in found})

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return next(iter(self.peers.values())).plan

    @property
    def agreed(self) -> Setup:
        """The setup that the peers of the plan agreed on."""
        return next(iter(self.peers.values())).agreed

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All peers that the folders know of: those of the plan, then newcomers."""
        joined = (change.name for peer in self.peers.values() for change in peer.changes)
        return tuple(dict.fromkeys((*self.agreed.clients, *self.peers, *joined)))

    @property
    def missing(self) -> list[str]:
        """Peers without a folder."""
        return [name for name in self.names if name not in self.peers]

    # Edges.

    @cached_property
    def edges(self) -> list[EdgeRecord]:
        """All edges that have been in force; an edge is in force as long as both its ends have it."""
        ends, weights = list_edges(self.agreed.graph)
        clients = self.agreed.clients
        known = {
            (clients[one], clients[other]): float(weight)
            for one, other, weight in zip(*ends.tolist(), weights.tolist(), strict=True)
        }
        for peer in self.peers.values():
            joined = [(change.name, change.weight) for change in peer.changes if change.kind == "join"]
            for name, weight in (*((one.name, one.weight) for one in peer.neighbours.values()), *joined):
                known.setdefault(self._sort_ends(peer.name, name), weight)
        return [self._describe_edge(*pair, weight) for pair, weight in known.items()]

    def _sort_ends(self, one: str, other: str) -> tuple[str, str]:
        first, second = sorted((one, other), key=self.names.index)
        return first, second

    def _describe_edge(self, one: str, other: str, weight: float) -> EdgeRecord:
        """Return an edge with the changes that its ends know of."""
        changes, removed = list[tuple[int, str]](), list[int]()
        for end, far in ((one, other), (other, one)):
            peer = self.peers.get(end)
            seen = [] if peer is None else [change for change in peer.changes if change.name == far]
            changes += [
                (change.round or 0, describe_change(change, end))
                for change in seen
                if change.kind not in ("exclude", "depart")
                or far not in self.peers  # whose change says so, too
            ]
            known = None if peer is None else peer.neighbours.get(far)
            if seen and (known is None or known.is_removed):
                removed.append(seen[-1].round or 0)
        return EdgeRecord(one, other, weight, sorted(changes), min(removed, default=None))

    def count_sent(self, one: str, other: str) -> int:
        """Return the bytes of models from one peer to a neighbour, as that has counted them if it is here."""
        for counter, name, field in ((other, one, "bytes_down"), (one, other, "bytes_up")):
            if counter in self.peers and name in self.peers[counter].neighbours:
                return int(getattr(self.peers[counter].neighbours[name], field))
        return 0

    def count_late(self, one: str, other: str) -> int:
        """Return the rounds in which an older model of `one` stood in at `other`."""
        known = self.peers[other].neighbours if other in self.peers else {}
        return known[one].rounds_late if one in known else 0

    # Rounds.

    def find_end(self, name: str) -> float:
        """Return the first round without a peer: all its edges are removed; infinite if one is in force."""
        removed = [edge.removed for edge in self.edges if name in (edge.one, edge.other)]
        known = [round for round in removed if round is not None]
        return max(known) if known and len(known) == len(removed) else math.inf

    def list_scored_rounds(self) -> Iterator[tuple[int, list[str]]]:
        """Yield scored rounds with the peers whose sums are missing; a newcomer counts from its first one."""
        ends = {name: self.find_end(name) for name in self.peers}
        begins = {name: self._find_begin(peer) for name, peer in self.peers.items()}
        for round in sorted({round for peer in self.peers.values() for round in peer.tallies}):
            missing = [name for name, peer in self.peers.items()
                       if round not in peer.tallies and begins[name] <= round < ends[name]]  # fmt: skip
            yield round, missing

    def _find_begin(self, peer: PeerRecord) -> float:
        if peer.name in self.agreed.clients:
            return 1
        return min(peer.tallies, default=math.inf)

    @cached_property
    def scores(self) -> list[Score]:
        """Scores of the rounds that all peers have scored whose folders are here; J(W) in the last one."""
        scores = []
        for round, missing in self.list_scored_rounds():
            if missing:
                continue
            scored = [peer.tallies[round] for peer in self.peers.values() if round in peer.tallies]
            received = sum(part.received for part in scored)
            penalty = None if self.explain_no_objective(round) else self.compute_penalty()
            tallies = [part.tally for part in scored]
            scores.append(add_tallies(round, tallies, penalty, (received, received), math.nan))
        return scores

    @property
    def current(self) -> list[str]:
        """The peers that have not left."""
        return [name for name in self.names if self.find_end(name) == math.inf]

    def explain_no_objective(self, round: int) -> str:
        """Return why J(W) of a round is not known; an empty text if it is."""
        absent = [name for name in self.current if name not in self.peers]
        if absent:
            return f"the folder of {', '.join(absent)} is missing"
        others = [name for name in self.current if self.peers[name].round != round]
        return f"{', '.join(others)} stored a model of another round" if others else ""

    def build_final_setup(self) -> Setup:
        """Return the setup of the peers that have not left, with the edges that are in force."""
        clients = tuple(self.current)
        edges = [
            (edge.one, edge.other, edge.weight)
            for edge in self.edges
            if edge.removed is None and {edge.one, edge.other} <= set(clients)
        ]
        counts = tuple(self.peers[name].train_rows if name in self.peers else 0 for name in clients)
        return replace(self.agreed, clients=clients, counts=counts, graph=Graph.from_edges(edges, clients))

    def compute_penalty(self) -> float:
        """Return the term that J(W) adds to the losses, from the peers' last states."""
        method = self.build_final_setup().method
        if not isinstance(method, Penalised):
            return 0.0
        return float(
            method.penalty(None, concatenate_states([self.peers[name].state for name in self.current]))
        )


def describe_change(change: EdgeChange, end: str) -> str:
    """Return a change of an edge in words, as one of its ends has stored it."""
    words = {
        "join": f"{change.name} joins",
        "leave": f"{change.name} leaves",
        "depart": f"{end} leaves",
        "eject": f"{end} ejects {change.name}",
        "exclude": f"{change.name} removes its edge to {end}",
        "forget": f"{change.name} was silent for too long",
    }
    return words[change.kind]
