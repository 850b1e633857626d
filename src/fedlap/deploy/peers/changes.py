"""Changes of a peer's edges: an edge exists as long as both its ends want it.

A newcomer signs a request, and each neighbour that it names admits it. Whoever leaves signs that. A peer
that ejects or forgets a neighbour removes its own edge and tells the neighbour so, signed, until it answers;
other neighbours of that peer decide for themselves. Until the neighbour hears it, this peer's last model
stands in there. A refused certificate removes no edge: the cause may be a register that is out of date.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from fedlap.deploy.event_log import MOST_NAME_LENGTH, is_name
from fedlap.deploy.peers.signatures import Proof, Signer
from fedlap.deploy.plan import Plan
from fedlap.errors import InputError, check_number
from fedlap.storage.files import parse_json, read_file, write_file

# leave: the neighbour leaves the run; depart: this peer does, and the neighbour knows it; eject: this peer
# removes the edge; exclude: the neighbour has signed that it does; forget: it has been silent for too long.
EdgeChangeKind = Literal["join", "leave", "depart", "eject", "exclude", "forget"]


@dataclass(frozen=True)
class EdgeChange:
    """A change of the edge to a neighbour.

    round: the first one in which the change is in force; None until an admitted newcomer asks for a model.

    by: the peer that has signed the statement; empty if that is this peer.
    """

    kind: EdgeChangeKind
    name: str
    weight: float = 0.0
    address: str | None = None  # at which a newcomer is dialled; None if it dials
    round: int | None = None
    by: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, from which `parse` restores the change."""
        return asdict(self)

    @staticmethod
    def parse(values: Any) -> "EdgeChange":
        """Return the change that `to_dict` described; raise InputError if the values are invalid."""
        try:
            change = EdgeChange(**values)
        except TypeError as error:
            raise InputError("a change of an edge is damaged; give the command again") from error
        if change.kind not in get_args(EdgeChangeKind):
            raise InputError(f"a change of an edge is of kind {change.kind!r}; use join, leave or eject")
        check_peer_name(change.name)
        if change.kind == "join":
            check_number(f"the weight of the edge to {change.name!r}", change.weight, zero=False)
        return change


@dataclass(frozen=True)
class JoinRequest:
    """A newcomer's request: its neighbours with weights, and the address at which they may dial it."""

    name: str
    neighbours: Mapping[str, float]
    address: str | None
    plan: str  # digest

    def __post_init__(self) -> None:
        check_peer_name(self.name)
        if not self.neighbours:
            raise InputError(
                "a request names at least one neighbour; add --neighbours, as in north,south=0.5"
            )
        for name, weight in self.neighbours.items():
            check_number(f"the weight of the edge to {name!r}", weight, zero=False)

    def save(self, path: Path, signer: Signer) -> None:
        """Write the signed request to a file, which the neighbours' operators get."""
        statement = self.describe()
        write_file(path, json.dumps({**statement, "proof": signer.sign(statement)}, indent=1).encode())

    def describe(self) -> dict[str, Any]:
        """Return the statement that is signed."""
        return {"kind": "join", **asdict(self), "neighbours": dict(self.neighbours)}

    @staticmethod
    def load(path: Path, plan: Plan, signer: Signer) -> "JoinRequest":
        """Read a request; raise InputError unless the newcomer has signed it, for this plan."""
        try:
            content = read_file(path)
        except OSError as error:
            raise InputError(
                f"{str(path)!r} cannot be read: {error.strerror}; pass the file that "
                "`fedlap peer --request-join` wrote"
            ) from error
        try:
            values = parse_json(content)
            proof = values.pop("proof")
            if values.pop("kind") != "join":
                raise ValueError("it is not a request to join")
            request = JoinRequest(**values)
            texts = (request.plan, request.address or "", *request.neighbours.keys())
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("a neighbour or an address is no text")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{str(path)!r} is not a request to join ({error}); use the file that "
                "`fedlap peer --request-join` wrote"
            ) from error
        if request.plan != plan.digest:
            raise InputError(f"{str(path)!r} is a request for another plan; use one plan at all peers")
        signer.check(request.name, request.describe(), proof)
        return request

    def admit(self, name: str) -> EdgeChange:
        """Return the change with which the peer `name` admits the newcomer."""
        if name not in self.neighbours:
            raise InputError(
                f"{self.name!r} does not ask to be a neighbour of {name!r}, but of "
                f"{', '.join(map(repr, self.neighbours))}; admit it there"
            )
        return EdgeChange("join", self.name, float(self.neighbours[name]), self.address, by=self.name)


def check_peer_name(name: object) -> None:
    """Raise InputError for a name that the log could not hold."""
    if not is_name(name):
        raise InputError(
            f"name = {name!r}; expected 1 to {MOST_NAME_LENGTH} printable characters without spaces at the "
            "ends; choose another name",
            field="name",
        )


def describe_removal(kind: Literal["leave", "exclude"], name: str, plan: Plan) -> dict[str, Any]:
    """Return the statement of the peer `name`: it leaves the run, or removes its edge to the receiver."""
    return {"kind": kind, "name": name, "plan": plan.digest}


def check_removal(
    name: str, statement: Mapping[str, Any], proof: Proof, plan: Plan, signer: Signer
) -> EdgeChange:
    """Return the change for a neighbour's removal; raise InputError unless it has signed the statement."""
    kind: Literal["leave", "exclude"] = "exclude" if statement.get("kind") == "exclude" else "leave"
    if dict(statement) != describe_removal(kind, name, plan):
        raise InputError(
            f"{name!r} sends a change that is no removal of its own edges, or of another plan; it is ignored"
        )
    signer.check(name, statement, proof)
    return EdgeChange(kind, name, by=name)
