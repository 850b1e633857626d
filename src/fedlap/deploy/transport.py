"""Transports: clients ask, the server answers. Content is bytes, and the transport vouches for names."""

from collections.abc import Collection
from enum import IntEnum
from typing import Final, Protocol, runtime_checkable

REMARK_INTERVAL: Final = 60.0  # seconds between remarks about what a process waits for
HOLD_SECONDS: Final = 20.0  # a question that waits for work or for a model is answered after this time
ANSWER_TIMEOUT: Final = 60.0  # seconds; well above HOLD_SECONDS
LEAVE_TIMEOUT: Final = 2.0  # seconds
TICK_SECONDS: Final = 0.2  # between looks at the clock and at the operator's wishes


class ExitCode(IntEnum):
    """Exit codes of `serve`, `client` and `check` for errors that waiting does not cure."""

    OTHER_AUTHORITY = 10  # a certificate is signed by another authority, or by none
    EXPIRED = 11  # a certificate is expired or not valid yet
    WRONG_NAME = 12  # the server's certificate is for another host
    REFUSED = 13  # the name or the certificate has no access rule: unknown, ejected or revoked
    OTHER_VERSION = 14  # versions of fedlap, wire or checkpoint differ
    OTHER_PLAN = 15  # the plan, the data or the graph differ from those of the run
    STORAGE = 16  # the disk is full or read-only
    NO_ANSWER = 17  # nobody has answered for as long as this client or peer may wait


class PermanentError(Exception):
    """An error that waiting does not cure: the process ends with one line and this exit code."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code


class UnreachableError(Exception):
    """The other side does not answer now; asking again later may succeed. The message states the cause."""


def format_problem(name: str, problem: str) -> str:
    """Return a problem of a neighbour with its name, unless it begins with that."""
    return problem if problem.startswith((name, repr(name))) else f"{name}: {problem}"


@runtime_checkable
class Request(Protocol):
    """A request of a client, which waits for the answer."""

    @property
    def name(self) -> str:
        """The client's name: that of its certificate, never one that a message claims."""
        ...

    @property
    def content(self) -> bytes:
        """The message; empty if it is too long."""
        ...

    @property
    def is_too_long(self) -> bool:
        """Return whether the message is longer than the limit; it was not read then."""
        ...

    def answer(self, content: bytes) -> None:
        """Answer the request, at any later time and from any thread; an answer may be lost."""
        ...


@runtime_checkable
class ServerTransport(Protocol):
    """The server's end: it receives requests and never dials."""

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        ...

    def receive(self, timeout: float) -> Request | None:
        """Return the next request, or None after `timeout` seconds without one."""
        ...

    def allow(self, names: Collection[str]) -> None:
        """Accept these clients alone from now on; requests that wait for an answer may be lost."""
        ...

    def close(self) -> None:
        """Stop to listen."""
        ...


@runtime_checkable
class ClientTransport(Protocol):
    """A client's end: it dials the server, and dials again after a break."""

    def ask(self, content: bytes, timeout: float) -> bytes:
        """Return the server's answer; raise UnreachableError if there is none within `timeout` seconds."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...
