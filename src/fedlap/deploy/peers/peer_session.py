"""A Zenoh session of a peer: the neighbours that dial it share one, and each neighbour that it dials has one.

A question is a query with the key `fedlap/<asker>/<holder>`, names in hexadecimal digits. The rules admit it
only over the link whose certificate belongs to the asker, and an answer to it only over that of the holder:
neither can pose as another. A query finds its holder by the queryable that the holder declares, so the rules
cover declarations, too. Everything else is denied.

Zenoh dials a neighbour again by itself after a break. To close a session waits for an attempt to dial, which
takes seconds if the neighbour is frozen. A session that dials therefore does nothing else.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import zenoh

from fedlap.deploy.keys import Keys
from fedlap.deploy.zenoh_settings import (
    OPEN_TIMEOUT,
    PREFIX,
    Grant,
    Permission,
    describe_access,
    describe_session,
    format_endpoint,
    permit_answers,
    permit_questions,
)

FIRST_RETRY, LONGEST_RETRY = 0.1, 1.0  # seconds between attempts of Zenoh to dial; each doubles the last
CLOSE_PATIENCE = 0.5  # seconds


class PeerSession:
    """An open session with some of the neighbours.

    settings: those that the session was opened with.
    name: of this peer.
    take: called with a neighbour's name and its query, from Zenoh's thread.
    """

    def __init__(
        self,
        session: zenoh.Session,
        settings: Mapping[str, Any],
        name: str,
        neighbours: Sequence[str],
        take: Callable[[str, zenoh.Query], None],
    ) -> None:
        self.session, self.settings, self.neighbours = session, settings, neighbours
        for neighbour in neighbours:
            receive = zenoh.handlers.Callback(partial(take, neighbour), indirect=False)
            session.declare_queryable(encode_edge_key(neighbour, name), receive)
        self._queriers = {
            neighbour: session.declare_querier(encode_edge_key(name, neighbour)) for neighbour in neighbours
        }
        self._breaks = dict.fromkeys(neighbours, 0)  # how often each link has ended
        self._listeners = [
            querier.declare_matching_listener(
                zenoh.handlers.Callback(partial(self._count_break, neighbour), indirect=False)
            )
            for neighbour, querier in self._queriers.items()
        ]
        self.close = weakref.finalize(self, session.close)  # at the end of the process, too

    def has_link(self, neighbour: str) -> bool:
        """Return whether a link to this neighbour admits questions."""
        if neighbour not in self._queriers:
            return False
        try:
            # Zenoh's own annotation of this property says `bool`, which an object of this class never is.
            status = cast(zenoh.MatchingStatus, self._queriers[neighbour].matching_status)
            return status.matching
        except zenoh.ZError:  # the session is closed
            return False

    def watch_link(self, neighbour: str) -> Callable[[], bool] | None:
        """Return a function that returns whether the present link still exists; None if there is no link.

        Zenoh dials again within a tenth of a second, and a question that was lost with the former link is
        not sent over the next one.
        """
        breaks = self._breaks.get(neighbour)
        if not self.has_link(neighbour):
            return None
        return lambda: self._breaks.get(neighbour) == breaks and self.has_link(neighbour)

    def _count_break(self, neighbour: str, status: zenoh.MatchingStatus) -> None:
        """Count a link that has ended, from Zenoh's thread."""
        if not status.matching:
            self._breaks[neighbour] += 1

    def find_common_names(self, neighbour: str) -> list[str]:
        """Return the common names of this neighbour's certificates on open links, with or without access."""
        try:
            found = [link.auth_identifier or "" for link in self.session.info.links()]
        except zenoh.ZError:  # the session is closed
            return []
        return [common_name for common_name in found if common_name.rpartition(":")[0] == neighbour]


def close_sessions(sessions: Iterable[PeerSession]) -> None:
    """Close sessions. An attempt to dial ends in the background; the process does not end before."""
    threads = [threading.Thread(target=opened.close, name="closes a session") for opened in sessions]
    for thread in threads:
        thread.start()
    end = time.monotonic() + CLOSE_PATIENCE
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0.0))


def encode_edge_key(asker: str, holder: str) -> str:
    """Return the key of one neighbour's questions to another."""
    return f"{PREFIX}/{asker.encode().hex()}/{holder.encode().hex()}"


def describe_peer_session(
    name: str,
    keys: Keys | None,
    rules: Mapping[str, list[str]],
    most_bytes: int,
    lease: float,
    *,
    listen: tuple[str, int] | None = None,
    dial: tuple[str, int] | None = None,
) -> dict[str, Any]:
    """Return the settings of a session.

    rules: common names that each neighbour of this session may have.
    listen, dial: host and port of this peer or of a neighbour.
    """
    secure = keys is not None
    return {
        **describe_session(
            most_bytes, lease, OPEN_TIMEOUT, keys, listens=listen is not None, dials=dial is not None
        ),
        "mode": "peer",
        "listen": {
            "endpoints": [format_endpoint(*listen, secure)] if listen else [],
            "timeout_ms": 0,
            "exit_on_failure": True,
        },
        "connect": {
            "endpoints": [format_endpoint(*dial, secure)] if dial else [],
            "timeout_ms": -1,  # for ever, in the background; with 0, Zenoh would not dial after a break
            "exit_on_failure": False,
            "retry": {
                "period_init_ms": round(1000 * FIRST_RETRY),
                "period_max_ms": round(1000 * LONGEST_RETRY),
                "period_increase_factor": 2,
            },
        },
        **({"access_control": describe_peer_rules(name, rules)} if secure else {}),
    }


def describe_peer_rules(name: str, rules: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return Zenoh's access control: a neighbour may ask, answer and declare in its own name alone."""
    grants = []
    for place, (neighbour, common_names) in enumerate(rules.items()):
        to_us, from_us = encode_edge_key(neighbour, name), encode_edge_key(name, neighbour)
        permissions = [
            *permit_questions(to_us),
            Permission("egress", "declare_queryable", to_us),
            *permit_answers(from_us),
            Permission("ingress", "declare_queryable", from_us),
        ]
        grants.append(Grant(f"neighbour-{place}", common_names, permissions))
    return describe_access(grants)
