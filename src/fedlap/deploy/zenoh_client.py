"""A client's transport over Zenoh: it dials the server, and dials again after a break.

Every connection reads the certificates from disk again, so a renewed certificate is used after the next
break. Zenoh reports no cause of a failed connection: a TLS handshake of our own finds it (`tls_probe.py`).
"""

import json
import threading
import time
import weakref
from queue import Empty, SimpleQueue
from typing import Any

import zenoh

from fedlap.deploy.keys import ClientKeys, load_certificate_facts
from fedlap.deploy.tls_probe import probe_server
from fedlap.deploy.transport import ExitCode, PermanentError, UnreachableError
from fedlap.deploy.zenoh_settings import (
    HELLO_KEY,
    LEASE,
    OPEN_TIMEOUT,
    REFUSED,
    describe_session,
    encode_key,
    format_endpoint,
    split_address,
)
from fedlap.errors import InputError

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between failed connections; each pause doubles the last
HELLO_TIMEOUT = 5.0  # seconds
TIMEOUT = b"Timeout"  # Zenoh's own error
INTERRUPTED = b"interrupted"
TIMER_SLACK = 0.05  # seconds by which a timer of Zenoh may differ from ours


class ZenohClient:
    """A client's end of the transport: it dials the server, and dials again after a break.

    server: address like "server.example.org:7447".
    keys: None for a connection without TLS.
    most_bytes: longest message in either direction.
    lease: seconds of silence after which the link is closed.
    """

    def __init__(
        self, server: str, name: str, keys: ClientKeys | None, most_bytes: int, *, lease: float = LEASE
    ) -> None:
        self._host, self._port = split_address(server)
        self._server, self._name, self._keys = server, name, keys
        self._most_bytes, self._lease = most_bytes, lease
        self._lock = threading.Lock()
        self._session: zenoh.Session | None = None
        self._is_closed = threading.Event()
        self._waiting: set[SimpleQueue[zenoh.Reply | bytes | None]] = set()  # for answers
        self._pause, self._next_attempt = 0.0, 0.0

    def ask(self, content: bytes, timeout: float) -> bytes:
        """Return the server's answer; raise UnreachableError if there is none within `timeout` seconds.

        PermanentError: a certificate does not fit, or the server has no access rule for this client.
        """
        if len(content) > self._most_bytes:
            raise InputError(
                f"message of {len(content):,} bytes; the longest message is {self._most_bytes:,} bytes; "
                "raise most_bytes",
                field="most_bytes",
            )
        end, key = time.monotonic() + timeout, encode_key(self._name)
        session = self._connect(end)
        try:
            answer = self._get(session, key, content, end)
            if answer is None and self._is_greeted(session, end):
                # The server is there with its rules in force: they refuse this client if it is silent again.
                answer = self._get(session, key, content, end)
                if answer is None and self._has_link(session):
                    raise self._refused_error()
        except TimeoutError:
            raise UnreachableError(f"{self._server} did not answer within {timeout:g} seconds") from None
        if answer is None:
            raise UnreachableError(f"the connection to {self._server} broke before the answer")
        return answer

    def interrupt(self) -> None:
        """End every `ask` that waits now by UnreachableError; a signal handler may call it."""
        for replies in list(self._waiting):
            replies.put(INTERRUPTED)

    def close(self) -> None:
        """Close the connection."""
        self._is_closed.set()
        with self._lock:
            self._close_session()

    def _get(self, session: zenoh.Session, key: str, content: bytes, end: float) -> bytes | None:
        """Return the answer to a query, or None if it ended without one; raise TimeoutError at the end."""
        replies: SimpleQueue[zenoh.Reply | bytes | None] = SimpleQueue()
        timeout = max(end - time.monotonic(), 0.001)
        self._waiting.add(replies)
        try:
            session.get(
                key,
                zenoh.handlers.Callback(replies.put, lambda: replies.put(None), indirect=False),
                payload=content,
                timeout=timeout,
                target=zenoh.QueryTarget.BEST_MATCHING,
                consolidation=zenoh.ConsolidationMode.NONE,
                congestion_control=zenoh.CongestionControl.BLOCK,
                express=True,
            )
            reply = replies.get(timeout=timeout + 1.0)
        except zenoh.ZError as error:
            if self._is_closed.is_set():
                raise UnreachableError("the connection is closed") from error
            return None
        except Empty:
            raise TimeoutError from None
        finally:
            self._waiting.discard(replies)
        if isinstance(reply, bytes):
            raise UnreachableError("the wait for an answer was interrupted")
        if reply is None:
            # The server's side of Zenoh ends a query at the same time as the client's, and may be first.
            if time.monotonic() > end - TIMER_SLACK and self._has_link(session):
                raise TimeoutError
            return None
        if reply.ok is not None:
            if len(reply.ok.payload) > self._most_bytes:
                raise UnreachableError(f"{self._server} answered with more than {self._most_bytes:,} bytes")
            return reply.ok.payload.to_bytes()
        reason = b"" if reply.err is None else reply.err.payload.to_bytes()
        if reason == TIMEOUT:
            raise TimeoutError
        if reason == REFUSED:
            raise self._refused_error()
        raise UnreachableError(f"{self._server} did not answer: {reason.decode(errors='replace')}")

    def _is_greeted(self, session: zenoh.Session, end: float) -> bool:
        """Return whether the server answers a hello over this connection."""
        if not self._has_link(session):
            return False
        try:
            return self._get(session, HELLO_KEY, b"", min(end, time.monotonic() + HELLO_TIMEOUT)) is not None
        except TimeoutError:
            return False

    def _connect(self, end: float) -> zenoh.Session:
        """Return a session with a link to the server; after a failure, pause before the next attempt."""
        with self._lock:
            if self._is_closed.is_set():
                raise UnreachableError("the connection is closed")
            if self._session is not None and self._has_link(self._session):
                return self._session
            self._close_session()
            pause = self._next_attempt - time.monotonic()
            if pause > 0 and self._is_closed.wait(min(pause, max(end - time.monotonic(), 0.0))):
                raise UnreachableError("the connection is closed")
            try:
                self._session = self._open(end)
            except (UnreachableError, PermanentError):
                self._pause = min(max(2 * self._pause, FIRST_PAUSE), LONGEST_PAUSE)
                self._next_attempt = time.monotonic() + self._pause
                raise
            self._pause = 0.0
            return self._session

    def _open(self, end: float) -> zenoh.Session:
        """Dial the server once; raise the cause if that fails."""
        remaining = min(max(end - time.monotonic(), 0.1), OPEN_TIMEOUT)
        try:
            session = zenoh.open(zenoh.Config.from_json5(json.dumps(self._describe(remaining))))
        except zenoh.ZError as error:
            probe_server(self._host, self._port, self._keys, min(remaining, OPEN_TIMEOUT))
            raise UnreachableError(
                f"{self._server} accepts connections, but does not answer as a server of fedlap"
            ) from error
        self._close_at_exit = weakref.finalize(self, session.close)
        return session

    def _close_session(self) -> None:
        if self._session is not None:
            self._session = None
            self._close_at_exit()

    @staticmethod
    def _has_link(session: zenoh.Session) -> bool:
        try:
            return not session.is_closed() and bool(session.info.links())
        except zenoh.ZError:
            return False

    def _refused_error(self) -> PermanentError:
        if self._keys is None:
            what = f"the name {self._name!r}"
        else:
            what = f"the certificate {load_certificate_facts(self._keys.certificate).common_name}"
            what += "" if self._keys.name == self._name else f" for the name {self._name!r}"
        return PermanentError(
            f"{self._server} refuses {what}: unknown, ejected or revoked; ask the server's operator",
            ExitCode.REFUSED,
        )

    def _describe(self, open_timeout: float) -> dict[str, Any]:
        """Return the settings of the session."""
        settings = describe_session(self._most_bytes, self._lease, open_timeout)
        endpoint = format_endpoint(self._host, self._port, self._keys is not None)
        settings |= {
            "mode": "client",
            "connect": {"endpoints": [endpoint], "timeout_ms": 0, "exit_on_failure": True},
            "listen": {"endpoints": []},
        }
        if self._keys is not None:
            settings["transport"]["link"]["tls"] |= {
                "root_ca_certificate": str(self._keys.authority.absolute()),
                "connect_private_key": str(self._keys.key.absolute()),
                "connect_certificate": str(self._keys.certificate.absolute()),
            }
        return settings
