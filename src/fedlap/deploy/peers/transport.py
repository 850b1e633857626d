"""The transport of a peer: it asks its neighbours, and answers their questions. An edge is one link."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from fedlap.deploy.transport import Request


@runtime_checkable
class PeerTransport(Protocol):
    """A peer's end of all its links. Either side of an edge dials the other, and both sides ask."""

    @property
    def port(self) -> int:
        """The port that the peer listens on; 0 if it only dials."""
        ...

    def ask(self, neighbour: str, content: bytes, timeout: float) -> bytes:
        """Return a neighbour's answer; raise UnreachableError if there is none in `timeout` seconds.

        Each neighbour is asked from a thread of its own. PermanentError: waiting does not cure the cause,
        such as an expired certificate. This is the fault of one edge: the peer continues with the others.
        """
        ...

    def receive(self, timeout: float) -> Request | None:
        """Return a neighbour's next question, or None after `timeout` seconds without one."""
        ...

    def set_neighbours(self, neighbours: Mapping[str, str | None]) -> None:
        """Talk to these neighbours alone from now on; questions that wait for an answer are lost.

        neighbours: name and address to dial, or None for a neighbour that dials this peer.
        """
        ...

    def refresh(self) -> list[str]:
        """Take changed certificates and registers into use; return what changed, in words."""
        ...

    def list_links(self) -> list[str]:
        """Return the names of the neighbours that a link exists to now."""
        ...

    def interrupt(self) -> None:
        """End every `ask` that waits now by UnreachableError; a signal handler may call it."""
        ...

    def close(self) -> None:
        """Close all links and stop to listen."""
        ...
