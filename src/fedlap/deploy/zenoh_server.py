"""The server's transport over Zenoh: one port, mutual TLS, one access rule per client.

A client's request is a query with the key `fedlap/<name in hexadecimal>`. The rules admit a query only from a
connection whose certificate belongs to that name, so the name of a request is that of its certificate.
Everything else is denied. Zenoh cannot change the rules or the certificate of an open session: the session is
reopened on the same port, clients connect again, and answers that wait are lost.
"""

import weakref
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

import zenoh

from fedlap.deploy.key_watch import KeyWatch, ignore_event
from fedlap.deploy.keys import Keys
from fedlap.deploy.zenoh_requests import RequestQueue, ZenohRequest, refuse_query
from fedlap.deploy.zenoh_sessions import open_listener
from fedlap.deploy.zenoh_settings import (
    HELLO_KEY,
    LEASE,
    OPEN_TIMEOUT,
    PREFIX,
    REFUSED,
    Grant,
    decode_key,
    describe_access,
    describe_session,
    encode_key,
    format_endpoint,
    permit_questions,
    split_address,
)


class ZenohServer:
    """The server's end of the transport: it listens on one port and never dials.

    listen: address like "0.0.0.0:7447"; port 0 chooses a free port.
    keys: None for connections without TLS, where a client's name is its own claim.
    names: clients that are accepted.
    most_bytes: longest message in either direction.
    lease: seconds of silence after which a link is closed.
    log: called with an event for changed certificates.
    """

    def __init__(
        self,
        listen: str,
        keys: Keys | None,
        names: Collection[str],
        most_bytes: int,
        *,
        lease: float = LEASE,
        log: Callable[..., object] = ignore_event,
    ) -> None:
        self._host, self._port = split_address(listen, least_port=0)
        self._names, self._lease, self.most_bytes = frozenset(names), lease, most_bytes
        self._requests = RequestQueue(most_bytes, reports_long=True)
        self._watch = KeyWatch(keys, Keys.load_server, self._names, log)
        self._close_session = self._open()

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self._port

    def receive(self, timeout: float) -> ZenohRequest | None:
        """Return the next request, or None after `timeout` seconds without one."""
        return self._requests.get(timeout)

    def allow(self, names: Collection[str]) -> None:
        """Accept these clients alone from now on; requests that wait for an answer may be lost."""
        if frozenset(names) != self._names:
            self._names = frozenset(names)
            self._watch.admit(self._names)
            self._reopen()

    def refresh(self) -> list[str]:
        """Take changed certificates and registers into use; return what changed, in words."""
        remarks, is_changed = self._watch.refresh()
        if is_changed:
            self._reopen()
        return remarks

    def close(self) -> None:
        """Send the answers that wait to be sent, and stop to listen."""
        self._requests.close()
        self._close_session()

    def _open(self) -> Callable[[], object]:
        """Open a session with the present rules and return the function that closes it."""
        session, self._port = open_listener(self._describe, self._host, self._port)
        receive = zenoh.handlers.Callback(self._accept, indirect=False)
        session.declare_queryable(f"{PREFIX}/*", receive)
        # A client that gets an answer to this key, but none to its own, is refused by the rules.
        session.declare_queryable(HELLO_KEY, zenoh.handlers.Callback(_greet, indirect=False))
        return weakref.finalize(self, session.close)  # at the end of the process, too

    def _reopen(self) -> None:
        self._close_session()
        self._close_session = self._open()

    def _accept(self, query: zenoh.Query) -> None:
        """Put a query into the queue, from Zenoh's thread."""
        name = decode_key(str(query.key_expr))
        if name is None or name not in self._names:
            return refuse_query(query, REFUSED)
        return self._requests.put(name, query)

    def _describe(self, port: int) -> dict[str, Any]:
        """Return the settings of the session."""
        keys = self._watch.keys
        settings = describe_session(self.most_bytes, self._lease, OPEN_TIMEOUT, keys, listens=True)
        endpoint = format_endpoint(self._host, port, keys is not None)
        settings |= {
            "mode": "router",
            "listen": {"endpoints": [endpoint], "timeout_ms": 0, "exit_on_failure": True},
            "connect": {"endpoints": []},
        }
        if keys is not None:
            settings["access_control"] = describe_rules(self._watch.rules)
        return settings


def describe_rules(rules: dict[str, list[str]]) -> dict[str, Any]:
    """Return Zenoh's access control: each client may ask with its own key alone, and all may say hello."""
    grants = [
        Grant(f"client-{place}", common_names, permit_questions(encode_key(name)))
        for place, (name, common_names) in enumerate(rules.items())
    ]
    return describe_access([*grants, Grant("all", None, permit_questions(HELLO_KEY))])


def _greet(query: zenoh.Query) -> None:
    with suppress(zenoh.ZError):
        query.reply(HELLO_KEY, b"", express=True)
    query.drop()
