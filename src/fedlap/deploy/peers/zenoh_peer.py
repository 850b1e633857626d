"""A peer's transport over Zenoh: mutual TLS, one link per edge, and access rules per neighbour.

Zenoh cannot change the rules or the certificate of an open session: the sessions that a change concerns are
opened again within milliseconds, on the same port, and their questions in flight fail.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fedlap.deploy.key_watch import KeyWatch, ignore_event
from fedlap.deploy.keys import Keys
from fedlap.deploy.peers.peer_session import (
    PeerSession,
    close_sessions,
    describe_peer_session,
    encode_edge_key,
)
from fedlap.deploy.tls_probe import PROBE_TIMEOUT, check_validity, probe_server
from fedlap.deploy.transport import ExitCode, PermanentError, UnreachableError
from fedlap.deploy.zenoh_queries import QuerySender
from fedlap.deploy.zenoh_requests import RequestQueue, ZenohRequest
from fedlap.deploy.zenoh_sessions import open_listener, open_session
from fedlap.deploy.zenoh_settings import LEASE, split_address, split_dialled_address
from fedlap.errors import InputError

LINK_TIMEOUT = 2.0  # seconds that a question waits for a link before the cause is looked for
REFUSAL_TIME = 1.0  # seconds after which a link that admits no question is a refusal
POLL_INTERVAL = 0.02  # seconds between looks for a link

# The key of the session that listens, among those of the neighbours that are dialled.
LISTENER: None = None


class ZenohPeer:
    """A peer's end of all its links.

    name: of this peer.
    listen: address like "0.0.0.0:7447", where port 0 chooses a free port; None for a peer that only dials.
    keys: None for connections without TLS, where a name is a claim.
    neighbours: names, with the address to dial or None for a neighbour that dials this peer. One side of an
        edge dials, and the other does not: Zenoh would open two links.
    most_bytes: longest message in either direction.
    lease: seconds of silence after which a link is closed.
    log: called with an event for changed certificates.
    """

    def __init__(
        self,
        name: str,
        listen: str | None,
        keys: Keys | None,
        neighbours: Mapping[str, str | None],
        most_bytes: int,
        *,
        lease: float = LEASE,
        log: Callable[..., object] = ignore_event,
    ) -> None:
        self._name, self._lease, self._listens = name, lease, listen is not None
        self._host, self._port = ("", 0) if listen is None else split_address(listen, least_port=0)
        _check_keys(name, keys, self._listens)
        self._secure = keys is not None
        self._neighbours = self._check_neighbours(neighbours)
        self._watch = KeyWatch(keys, Keys.load_peer, self._neighbours, log)
        self._requests, self._queries = RequestQueue(most_bytes), QuerySender(most_bytes)
        self._lock = threading.Lock()  # while sessions are opened and closed
        self._sessions: dict[str | None, PeerSession] = {}
        self._update_sessions()

    @property
    def port(self) -> int:
        """The port that the peer listens on; 0 if it only dials."""
        return self._port

    def ask(self, neighbour: str, content: bytes, timeout: float) -> bytes:
        """Return a neighbour's answer; raise UnreachableError if there is none in `timeout` seconds.

        PermanentError: a certificate does not fit, or has no access at the other side.
        """
        self._queries.check(content)
        end = time.monotonic() + timeout
        opened, has_link = self._wait_for_link(neighbour, end)
        key = encode_edge_key(self._name, neighbour)
        try:
            answer = self._queries.get(opened.session, key, content, end, neighbour, has_link)
        except TimeoutError:
            raise UnreachableError(f"{neighbour} did not answer within {timeout:g} seconds") from None
        if answer is None:
            raise UnreachableError("the link broke before the answer")
        return answer

    def receive(self, timeout: float) -> ZenohRequest | None:
        """Return a neighbour's next question, or None after `timeout` seconds without one."""
        return self._requests.get(timeout)

    def set_neighbours(self, neighbours: Mapping[str, str | None]) -> None:
        """Talk to these neighbours alone from now on; questions that wait for an answer may be lost."""
        checked = self._check_neighbours(neighbours)
        with self._lock:
            self._neighbours = checked
            self._watch.admit(checked)
            self._update_sessions()

    def refresh(self) -> list[str]:
        """Take changed certificates and registers into use; return what changed, in words."""
        with self._lock:
            keys = self._watch.keys
            remarks, is_changed = self._watch.refresh()
            if is_changed:
                self._update_sessions(has_new_keys=self._watch.keys is not keys)
        return remarks

    def list_links(self) -> list[str]:
        """Return the names of the neighbours that a link exists to now, and that admit this peer."""
        sessions = {name: self._find_session(name) for name in self._neighbours}
        return [name for name, opened in sessions.items() if opened is not None and opened.has_link(name)]

    def interrupt(self) -> None:
        """End every `ask` that waits now by UnreachableError; a signal handler may call it."""
        self._queries.interrupt()

    def close(self) -> None:
        """Send the answers that wait to be sent, close all links and stop to listen."""
        self._queries.is_closed.set()
        self._requests.close()
        with self._lock:
            close_sessions(self._sessions.values())

    def _check_neighbours(self, neighbours: Mapping[str, str | None]) -> dict[str, str | None]:
        """Return a copy of the neighbours; raise InputError for an edge that nobody dials."""
        for neighbour, address in neighbours.items():
            if neighbour == self._name:
                raise InputError(f"{neighbour!r} is its own neighbour; remove this edge", field="neighbours")
            if address is not None:
                split_dialled_address(address, self._secure)
            elif not self._listens:
                raise InputError(
                    f"{neighbour!r} has no address, and {self._name!r} does not listen; "
                    "set an address of one of them",
                    field="neighbours",
                )
        return dict(neighbours)

    def _find_session(self, neighbour: str) -> PeerSession | None:
        """Return the session that has the link to a neighbour, or None while it is opened again."""
        is_dialled = self._neighbours.get(neighbour) is not None
        return self._sessions.get(neighbour if is_dialled else LISTENER)

    def _update_sessions(self, has_new_keys: bool = False) -> None:
        """Close sessions whose settings or keys are no longer right, and open those that are missing."""
        wanted: dict[str | None, list[str]] = {
            name: [name] for name, address in self._neighbours.items() if address is not None
        }
        if self._listens:
            wanted[LISTENER] = [name for name, address in self._neighbours.items() if address is None]
        outdated = [
            place
            for place, opened in self._sessions.items()
            if has_new_keys
            or opened.neighbours != wanted.get(place)
            or opened.settings != self._describe(place, opened.neighbours, self._port)
        ]
        close_sessions([self._sessions.pop(place) for place in outdated])
        for place in wanted.keys() - self._sessions.keys():
            describe = partial(self._describe, place, wanted[place])
            if place is LISTENER:
                session, self._port = open_listener(describe, self._host, self._port)
            else:
                session = open_session(describe(self._port))
            settings = describe(self._port)
            self._sessions[place] = PeerSession(
                session, settings, self._name, wanted[place], self._requests.put
            )

    def _describe(self, place: str | None, neighbours: Sequence[str], port: int) -> dict[str, Any]:
        """Return the settings of the session that dials a neighbour, or of the one that listens."""
        return describe_peer_session(
            self._name,
            self._watch.keys,
            {name: self._watch.rules.get(name, []) for name in neighbours},
            self._requests.most_bytes,
            self._lease,
            listen=(self._host, port) if place is LISTENER else None,
            dial=None if place is LISTENER else split_address(self._neighbours[place] or ""),
        )

    def _wait_for_link(self, neighbour: str, end: float) -> tuple[PeerSession, Callable[[], bool]]:
        """Return a session whose link to a neighbour admits questions; raise the cause if there is none.

        The second value is a function that returns whether this link still exists.
        """
        start, interrupts = time.monotonic(), self._queries.interrupts
        linked_at: float | None = None
        while True:
            opened = self._find_session(neighbour)
            if opened is not None and (has_link := opened.watch_link(neighbour)) is not None:
                return opened, has_link
            if neighbour not in self._neighbours:
                raise UnreachableError(f"{neighbour} is no neighbour of {self._name}")
            if self._queries.interrupts != interrupts:
                raise UnreachableError("the wait for a link was interrupted")
            now = time.monotonic()
            common_names = [] if opened is None else opened.find_common_names(neighbour)
            linked_at = (linked_at or now) if common_names else None
            if now >= min(end, start + LINK_TIMEOUT):
                is_refused = linked_at is not None and now - linked_at >= REFUSAL_TIME
                raise (
                    self._explain_refusal(neighbour, common_names)
                    if is_refused
                    else self._find_cause(neighbour, end)
                )
            if self._queries.is_closed.wait(POLL_INTERVAL):
                raise UnreachableError("the links are closed")

    def _find_cause(self, neighbour: str, end: float) -> Exception:
        """Return why there is no link to a neighbour."""
        keys, address = self._watch.keys, self._neighbours.get(neighbour)
        timeout = min(PROBE_TIMEOUT, max(end - time.monotonic(), LINK_TIMEOUT))
        try:
            if address is None:
                if keys is not None:
                    check_validity(keys.facts)  # nobody can dial a peer whose certificate is not valid
                return UnreachableError(f"{neighbour} has not connected")
            facts = probe_server(*split_address(address), keys, timeout, f"neighbour {neighbour} at")
        except (PermanentError, UnreachableError) as error:
            return error
        if facts is None or facts.common_name in self._watch.rules.get(neighbour, []):
            return UnreachableError(f"{address} accepts connections, but {neighbour} does not answer there")
        if facts.name == neighbour:
            return self._explain_refusal(neighbour, [facts.common_name])
        return PermanentError(
            f"{address} has the certificate {facts.common_name}, expected one of {neighbour}; "
            "correct the address",
            ExitCode.WRONG_NAME,
        )

    def _explain_refusal(self, neighbour: str, common_names: list[str]) -> PermanentError:
        """Return why a link to a neighbour admits no questions: one of both sides has no rule for it.

        common_names: of the neighbour's certificates.
        """
        for common_name in common_names:
            if common_name not in self._watch.rules.get(neighbour, []):
                return PermanentError(
                    f"the certificate {common_name} of {neighbour} is revoked, or not in this peer's copy of "
                    "the register; copy the authority's register, or let it be renewed",
                    ExitCode.REFUSED,
                )
        assert self._watch.keys is not None  # without TLS, nobody sees the names of links
        certificate = self._watch.keys.facts.common_name
        return PermanentError(
            f"{neighbour} refuses the certificate {certificate}: it is revoked, {self._name} is no neighbour "
            f"there, or both sides dial; ask the operator of {neighbour}",
            ExitCode.REFUSED,
        )


def _check_keys(name: str, keys: Keys | None, listens: bool) -> None:
    """Raise InputError if the keys are those of another peer, or do not serve those who dial."""
    if keys is None:
        return
    if keys.name != name:
        raise InputError(
            f"the keys in {str(keys.folder)!r} are those of {keys.name!r}, expected {name!r}; "
            "use the folder of this peer",
            field="keys",
        )
    if listens and keys.facts.role != "peer":
        raise InputError(
            f"the certificate {keys.facts.common_name} is a {keys.facts.role}'s, which nobody can dial; "
            "request one with `fedlap keys request --name NAME --host HOST`, or do not listen",
            field="keys",
        )
