"""The section `peers` of a plan: addresses, and what a peer does about neighbours that are late or silent."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from fedlap.errors import InputError, check_integer, check_number, unknown_name_error

ANY_AGE: Final = "any"
# Settings that may differ between peers: how one of them reaches the others, and how long it waits for them.
LOCAL_SETTINGS = ("addresses", "deadline")


@dataclass(frozen=True)
class PeerSettings:
    """Settings of peers.

    addresses: HOST:PORT of every peer that others can dial. A peer without an address dials its neighbours.
    staleness: the oldest model, in rounds, that may stand in for a late one: 0 waits for every model, which
        is Algorithm 2 exactly; "any" has no limit.
    deadline: seconds that a round waits for a neighbour, before the neighbour's last model stands in.
    forget: rounds of silence after which an edge is removed, at most `staleness`; 0 removes none.
    clip: the longest Euclidean distance between a neighbour's model and the peer's; None has no limit.
    """

    addresses: Mapping[str, str] = field(default_factory=dict)
    staleness: int | Literal["any"] = ANY_AGE
    deadline: float = 30.0
    forget: int = 0
    clip: float | None = None

    @staticmethod
    def of(values: Mapping[str, Any]) -> "PeerSettings":
        """Build the settings from plain values; raise InputError for an unknown or invalid one."""
        known = [entry.name for entry in fields(PeerSettings)]
        for name in values:
            if name not in known:
                raise unknown_name_error("setting of peers", name, known, field=f"peers.{name}")
        return PeerSettings(**values)

    def __post_init__(self) -> None:
        valid = isinstance(self.addresses, Mapping) and all(
            isinstance(text, str) for pair in self.addresses.items() for text in pair
        )
        if not valid:
            raise InputError(
                f"addresses = {self.addresses!r}; expected a table of names and HOST:PORT",
                field="peers.addresses",
            )
        self._check_duplicates()
        if isinstance(self.staleness, str) and self.staleness != ANY_AGE:
            raise InputError(
                f"staleness = {self.staleness!r}; expected {ANY_AGE!r} or a number of rounds",
                field="staleness",
                scope="peers",
            )
        if self.staleness != ANY_AGE:
            check_integer("staleness", self.staleness, 0, scope="peers")
        check_number("deadline", self.deadline, zero=False, scope="peers")
        check_integer("forget", self.forget, 0, scope="peers")
        if self.forget > self.most_age:
            raise InputError(
                f"forget = {self.forget} and staleness = {self.staleness}: a peer waits for a neighbour "
                f"whose model is {self.staleness} rounds old, and never forgets it; use forget = 0, or a "
                "larger staleness",
                field="peers.forget",
            )
        if self.clip is not None:
            check_number("clip", self.clip, zero=False, scope="peers")

    def _check_duplicates(self) -> None:
        """Raise InputError if two peers have one address."""
        owners: dict[str, str] = {}
        for name, address in self.addresses.items():
            if (other := owners.setdefault(address.lower(), name)) != name:
                raise InputError(
                    f"{other!r} and {name!r} have one address, {address!r}; use another host or port for "
                    "one of them",
                    field="peers.addresses",
                )

    @property
    def most_age(self) -> float:
        """The oldest model that may stand in, in rounds."""
        return math.inf if self.staleness == ANY_AGE else float(self.staleness)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, from which `of` builds equal settings."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {**values, "addresses": dict(self.addresses)}

    def describe_shared(self) -> dict[str, Any]:
        """Return the settings that all peers must agree on."""
        return {key: value for key, value in self.to_dict().items() if key not in LOCAL_SETTINGS}

    def find_dialled(self, name: str, neighbour: str, order: Sequence[str]) -> str | None:
        """Return the address at which `name` dials a neighbour, or None if the neighbour dials `name`."""
        return find_dialled(self.addresses, name, neighbour, order)


def find_dialled(addresses: Mapping[str, str], name: str, neighbour: str, order: Sequence[str]) -> str | None:
    """Return the address at which `name` dials a neighbour, or None if the neighbour dials `name`.

    The later peer in the plan's order dials the earlier one, unless only the later one has an address.
    """
    ranks = {peer: rank for rank, peer in enumerate(order)}
    later, earlier = sorted((name, neighbour), key=lambda peer: ranks.get(peer, len(ranks)), reverse=True)
    dialler, other = (later, earlier) if earlier in addresses else (earlier, later)
    if other not in addresses:
        raise InputError(
            f"neither {earlier!r} nor {later!r} has an address, but they are neighbours; set one of them "
            "in [peers.addresses]",
            field="peers.addresses",
        )
    return addresses[other] if dialler == name else None
