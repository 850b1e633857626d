"""A client's transport over Zenoh: it dials the server, and dials again after a break.

Every connection reads the certificates from disk again, so a renewed certificate is used after the next
break. A server is known by the name in its certificate: when Zenoh dials, it also trusts the public
authorities of the web, and a peer's certificate is for hosts like a server's. Zenoh reports no cause of a
failed connection: a TLS handshake of our own finds it (`tls_probe.py`).
"""

import threading
import time
import weakref
from typing import Any

import zenoh

from fedlap.deploy.certificates import SERVER_NAME
from fedlap.deploy.keys import Keys, load_certificate_facts
from fedlap.deploy.register import list_common_names
from fedlap.deploy.tls_probe import probe_server, speaks_tls
from fedlap.deploy.transport import ExitCode, PermanentError, UnreachableError
from fedlap.deploy.zenoh_queries import QuerySender, RefusedError
from fedlap.deploy.zenoh_sessions import open_session
from fedlap.deploy.zenoh_settings import (
    HELLO_KEY,
    LEASE,
    OPEN_TIMEOUT,
    PREFIX,
    Grant,
    describe_access,
    describe_session,
    encode_key,
    format_endpoint,
    permit_answers,
    split_dialled_address,
)
from fedlap.errors import InputError

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between failed connections; each pause doubles the last
HELLO_TIMEOUT = 5.0  # seconds


class ZenohClient:
    """A client's end of the transport: it dials the server, and dials again after a break.

    server: address like "server.example.org:7447".
    keys: None for a connection without TLS.
    most_bytes: longest message in either direction.
    lease: seconds of silence after which the link is closed.
    """

    def __init__(
        self, server: str, name: str, keys: Keys | None, most_bytes: int, *, lease: float = LEASE
    ) -> None:
        self._host, self._port = split_dialled_address(server, keys is not None)
        self._server, self._name, self._keys = server, name, keys
        self._lease = lease
        self._queries = QuerySender(most_bytes)
        self._lock = threading.Lock()
        self._session: zenoh.Session | None = None
        self._pause, self._next_attempt = 0.0, 0.0

    def ask(self, content: bytes, timeout: float) -> bytes:
        """Return the server's answer; raise UnreachableError if there is none within `timeout` seconds.

        PermanentError: a certificate does not fit, or the server has no access rule for this client.
        """
        self._queries.check(content)
        end, key = time.monotonic() + timeout, encode_key(self._name)
        session = self._connect(end)
        try:
            answer = self._get(session, key, content, end)
            if answer is None and self._is_greeted(session, end):
                # The server is there with its rules in force: they refuse this client if it is silent again.
                answer = self._get(session, key, content, end)
                if answer is None and self._has_link(session):
                    raise self._refused_error()
            elif answer is None and self._has_link(session):
                self._check_server(end)
        except TimeoutError:
            raise UnreachableError(f"{self._server} did not answer within {timeout:g} seconds") from None
        except RefusedError:
            raise self._refused_error() from None
        if answer is None:
            raise UnreachableError(f"the connection to {self._server} broke before the answer")
        return answer

    def limit_messages(self, most_bytes: int) -> None:
        """Accept and send messages of at most this length from now on; the next message dials again."""
        with self._lock:
            if self._queries.most_bytes != most_bytes:
                self._queries.most_bytes = most_bytes
                self._close_session()

    def interrupt(self) -> None:
        """End every `ask` that waits now by UnreachableError; a signal handler may call it."""
        self._queries.interrupt()

    def close(self) -> None:
        """Close the connection."""
        self._queries.is_closed.set()
        with self._lock:
            self._close_session()

    def _get(self, session: zenoh.Session, key: str, content: bytes, end: float) -> bytes | None:
        """Return the answer to a query, or None if it ended without one; raise TimeoutError at the end."""
        return self._queries.get(session, key, content, end, self._server, lambda: self._has_link(session))

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
            if self._queries.is_closed.is_set():
                raise UnreachableError("the connection is closed")
            if self._session is not None and self._has_link(self._session):
                return self._session
            self._close_session()
            pause = self._next_attempt - time.monotonic()
            if pause > 0 and self._queries.is_closed.wait(min(pause, max(end - time.monotonic(), 0.0))):
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
            session = open_session(self._describe(remaining))
        except zenoh.ZError as error:
            probe_server(self._host, self._port, self._keys, min(remaining, OPEN_TIMEOUT))
            if self._keys is None and speaks_tls(self._host, self._port, min(remaining, OPEN_TIMEOUT)):
                raise PermanentError(
                    f"{self._server} speaks TLS, and --insecure is set; pass --keys FOLDER instead",
                    ExitCode.OTHER_AUTHORITY,
                ) from error
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

    def _check_server(self, end: float) -> None:
        """Raise PermanentError if the certificate at the server's address is not a server's."""
        facts = probe_server(self._host, self._port, self._keys, min(max(end - time.monotonic(), 0.1), 5.0))
        if facts is not None and facts.role != SERVER_NAME:
            raise PermanentError(
                f"the certificate {facts.common_name} of {self._server} is a {facts.role}'s, expected a "
                "server's; correct the address",
                ExitCode.WRONG_NAME,
            )

    def _refused_error(self) -> PermanentError:
        if self._keys is None:
            what = f"the name {self._name!r}"
        else:
            try:
                what = f"the certificate {load_certificate_facts(self._keys.certificate).common_name}"
            except InputError:  # It is absent until the authority has signed a new key.
                what = "the certificate"
            what += "" if self._keys.name == self._name else f" for the name {self._name!r}"
        return PermanentError(
            f"{self._server} refuses {what}: unknown, ejected or revoked; ask the server's operator",
            ExitCode.REFUSED,
        )

    def _describe(self, open_timeout: float) -> dict[str, Any]:
        """Return the settings of the session."""
        settings = describe_session(
            self._queries.most_bytes, self._lease, open_timeout, self._keys, dials=True
        )
        endpoint = format_endpoint(self._host, self._port, self._keys is not None)
        settings |= {
            "mode": "client",
            "connect": {"endpoints": [endpoint], "timeout_ms": 0, "exit_on_failure": True},
            "listen": {"endpoints": []},
        }
        if self._keys is not None:
            settings["access_control"] = describe_client_rules()
        return settings


def describe_client_rules() -> dict[str, Any]:
    """Return Zenoh's access control: nobody but a server may be asked, and may answer."""
    (common_names,) = list_common_names(None, [SERVER_NAME]).values()
    permissions = [*permit_answers(f"{PREFIX}/*"), *permit_answers(HELLO_KEY)]
    return describe_access([Grant("server", common_names, permissions)])
