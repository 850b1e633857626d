"""The server's transport over Zenoh: one port, mutual TLS, one access rule per client.

A client's request is a query with the key `fedlap/<name in hexadecimal>`. The rules admit a query only from a
connection whose certificate belongs to that name, so the name of a request is that of its certificate.
Everything else is denied. Zenoh cannot change the rules or the certificate of an open session: the session is
reopened on the same port, clients connect again, and answers that wait are lost.
"""

import json
import socket
import threading
import time
import weakref
from collections.abc import Callable, Collection
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import zenoh

from fedlap.deploy.keys import ServerKeys
from fedlap.deploy.register import Register
from fedlap.deploy.zenoh_settings import (
    BUSY,
    HELLO_KEY,
    LEASE,
    OPEN_TIMEOUT,
    PREFIX,
    REFUSED,
    decode_key,
    describe_session,
    encode_key,
    format_endpoint,
    split_address,
)
from fedlap.errors import InputError

MOST_WAITING = 8  # requests of one client that wait for an answer
REOPEN_TIMEOUT = 10.0  # seconds in which the port must be free again
CLOSE_TIMEOUT = 2.0  # seconds in which the last answers must be sent
FREE_PORTS_TRIED = 10

AnswerQueue = SimpleQueue[tuple[zenoh.Query, bytes] | None]


class ZenohRequest:
    """A request that waits for an answer. A request that is dropped unanswered ends the client's wait."""

    def __init__(self, name: str, content: bytes, query: zenoh.Query, server: "ZenohServer") -> None:
        self._name, self._content, self._query, self._server = name, content, query, server
        self.is_answered = False

    @property
    def name(self) -> str:
        """The client's name: that of its certificate."""
        return self._name

    @property
    def content(self) -> bytes:
        """The message."""
        return self._content

    def answer(self, content: bytes) -> None:
        """Answer the request, at any later time and from any thread; an answer may be lost.

        The answer is sent by a thread of this client, so that a slow client does not delay others.
        """
        if len(content) > self._server.most_bytes:
            raise InputError(
                f"answer to {self._name!r} of {len(content):,} bytes; the longest message is "
                f"{self._server.most_bytes:,} bytes; raise most_bytes",
                field="most_bytes",
            )
        if not self.is_answered:
            self.is_answered = True
            self._server.send(self._name, self._query, content)

    def __del__(self) -> None:
        if not self.is_answered:
            _refuse(self._query, b"the server dropped this request")


class ZenohServer:
    """The server's end of the transport: it listens on one port and never dials.

    listen: address like "0.0.0.0:7447"; port 0 chooses a free port.
    keys: None for connections without TLS, where a client's name is its own claim.
    names: clients that are accepted.
    most_bytes: longest message in either direction.
    lease: seconds of silence after which a link is closed.
    """

    def __init__(
        self,
        listen: str,
        keys: ServerKeys | None,
        names: Collection[str],
        most_bytes: int,
        *,
        lease: float = LEASE,
    ) -> None:
        self._host, self._port = split_address(listen, least_port=0)
        self._keys, self._names, self._lease = keys, frozenset(names), lease
        self.most_bytes = most_bytes
        self._requests: SimpleQueue[ZenohRequest] = SimpleQueue()
        self._waiting: dict[str, weakref.WeakSet[ZenohRequest]] = {}
        self._senders: dict[str, tuple[AnswerQueue, threading.Thread]] = {}
        self._lock = threading.Lock()
        self._rules = self._load_rules()
        self._stamps = self._read_stamps()
        self._close_session = self._open_first()

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self._port

    def receive(self, timeout: float) -> ZenohRequest | None:
        """Return the next request, or None after `timeout` seconds without one."""
        try:
            return self._requests.get(timeout=max(timeout, 0.0))
        except Empty:
            return None

    def allow(self, names: Collection[str]) -> None:
        """Accept these clients alone from now on; requests that wait for an answer may be lost."""
        if frozenset(names) != self._names:
            self._names = frozenset(names)
            self._rules = self._load_rules()
            self._reopen()

    def reload_keys(self) -> None:
        """Use the certificates and the register that the files hold now, in a reopened session."""
        if self._keys is not None:
            self._stamps = self._read_stamps()
            self._keys = ServerKeys.load(self._keys.folder)
            self._rules = self._load_rules()
            self._reopen()

    def refresh(self) -> list[str]:
        """Take changed certificates and registers into use; return what changed, in words.

        The server calls this about once per second. A register with new issues alone needs no new session
        unless an issue is not covered by the present rules. Files that are not valid change nothing.
        """
        stamps = self._read_stamps()
        if self._keys is None or stamps == self._stamps:
            return []
        changed = {path for path in stamps if stamps[path] != self._stamps[path]}
        self._stamps = stamps
        try:
            keys = ServerKeys.load(self._keys.folder)
            register = Register.load(keys.register)
        except InputError as error:
            return [f"changed keys are ignored: {error}"]
        remarks = []
        if changed - {"register"}:
            remarks.append(f"certificate {keys.facts.common_name} is in use")
        current = {name: set(common_names) for name, common_names in self._rules.items()}
        for name, allowed in register.allowed_common_names(self._names).items():
            issued = register.issued_common_names(name)
            missing = (set(allowed) & issued) - current[name]
            revoked = (current[name] - set(allowed)) & issued
            if revoked or missing:
                remarks.append(
                    "; ".join(
                        f"{what}: {', '.join(sorted(texts))}"
                        for what, texts in (("revoked", revoked), ("allowed", missing))
                        if texts
                    )
                )
        if remarks:
            self._keys = keys
            self._rules = register.allowed_common_names(self._names)
            self._reopen()
        return remarks

    def close(self) -> None:
        """Send the answers that wait to be sent, and stop to listen."""
        with self._lock:
            senders = list(self._senders.values())
            self._senders.clear()
        for answers, _ in senders:
            answers.put(None)
        end = time.monotonic() + CLOSE_TIMEOUT
        for _, thread in senders:
            thread.join(max(end - time.monotonic(), 0.0))
        self._close_session()

    def send(self, name: str, query: zenoh.Query, content: bytes) -> None:
        """Answer a query from the thread of its client."""
        with self._lock:
            if name not in self._senders:
                answers: AnswerQueue = SimpleQueue()
                thread = threading.Thread(
                    target=_send_answers, args=(answers,), name=f"answers {name}", daemon=True
                )
                self._senders[name] = answers, thread
                thread.start()
            self._senders[name][0].put((query, content))

    def _open_first(self) -> Callable[[], object]:
        """Open the session and return the function that closes it.

        For port 0 this is a free port, which another process may take in the meantime.
        """
        if self._port:
            return self._open(REOPEN_TIMEOUT)
        for remaining in reversed(range(FREE_PORTS_TRIED)):
            self._port = _find_free_port(self._host)
            try:
                return self._open(0.0)
            except InputError:
                if not remaining:
                    raise
        raise AssertionError("unreachable")

    def _open(self, timeout: float) -> Callable[[], object]:
        """Open a session with the present rules and return the function that closes it.

        timeout: seconds to wait for the port.
        """
        end = time.monotonic() + timeout
        while True:
            try:
                session = zenoh.open(zenoh.Config.from_json5(json.dumps(self._describe())))
                break
            except zenoh.ZError as error:
                if time.monotonic() >= end:
                    raise InputError(
                        f"cannot listen on {self._host}:{self._port}: the port is in use, the address is not "
                        "one of this machine, or the keys do not fit; choose another address"
                    ) from error
                time.sleep(0.05)
        receive = zenoh.handlers.Callback(self._accept, indirect=False)
        session.declare_queryable(f"{PREFIX}/*", receive)
        # A client that gets an answer to this key, but none to its own, is refused by the rules.
        session.declare_queryable(HELLO_KEY, zenoh.handlers.Callback(_greet, indirect=False))
        return weakref.finalize(self, session.close)  # at the end of the process, too

    def _reopen(self) -> None:
        self._close_session()
        self._close_session = self._open(REOPEN_TIMEOUT)

    def _accept(self, query: zenoh.Query) -> None:
        """Put a query into the queue, from Zenoh's thread."""
        name = decode_key(str(query.key_expr))
        if name is None or name not in self._names:
            return _refuse(query, REFUSED)
        payload = query.payload
        if payload is not None and len(payload) > self.most_bytes:
            return _refuse(query, b"the message is too long")
        with self._lock:
            waiting = self._waiting.setdefault(name, weakref.WeakSet())
            is_busy = sum(not request.is_answered for request in waiting) >= MOST_WAITING
        if is_busy:
            return _refuse(query, BUSY)
        request = ZenohRequest(name, b"" if payload is None else payload.to_bytes(), query, self)
        with self._lock:
            waiting.add(request)
        return self._requests.put(request)

    def _load_rules(self) -> dict[str, list[str]]:
        """Return the common names that each client may have; without keys there are none."""
        if self._keys is None:
            return {}
        return Register.load(self._keys.register).allowed_common_names(self._names)

    def _read_stamps(self) -> dict[str, tuple[int, int] | None]:
        """Return the time of change and the size of every file that `refresh` watches."""
        if self._keys is None:
            return {}
        stamps: dict[str, tuple[int, int] | None] = {}
        for name in ("key", "certificate", "authority", "register"):
            stamps[name] = None
            with suppress(OSError):  # a file that is missing for a moment counts as changed
                facts = getattr(self._keys, name).stat()
                stamps[name] = (facts.st_mtime_ns, facts.st_size)
        return stamps

    def _describe(self) -> dict[str, Any]:
        """Return the settings of the session."""
        settings = describe_session(self.most_bytes, self._lease, OPEN_TIMEOUT)
        secure = self._keys is not None
        endpoint = format_endpoint(self._host, self._port, secure)
        settings |= {
            "mode": "router",
            "listen": {"endpoints": [endpoint], "timeout_ms": 0, "exit_on_failure": True},
            "connect": {"endpoints": []},
        }
        if self._keys is not None:
            settings["transport"]["link"]["tls"] |= {
                "root_ca_certificate": str(self._keys.authority.absolute()),
                "listen_private_key": str(self._keys.key.absolute()),
                "listen_certificate": str(self._keys.certificate.absolute()),
            }
            settings["access_control"] = describe_rules(self._rules)
        return settings


def describe_rules(rules: dict[str, list[str]]) -> dict[str, Any]:
    """Return Zenoh's access control: each client may ask with its own key alone, and all may say hello."""
    admitted = {name: common_names for name, common_names in rules.items() if common_names}
    keys = {f"client-{place}": encode_key(name) for place, name in enumerate(admitted)} | {"all": HELLO_KEY}
    subjects: list[dict[str, Any]] = [
        {"id": f"client-{place}", "cert_common_names": common_names}
        for place, common_names in enumerate(admitted.values())
    ]
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": [
            {
                "id": f"{owner}-{flow}",
                "permission": "allow",
                "flows": [flow],
                "messages": [message],
                "key_exprs": [key],
            }
            for owner, key in keys.items()
            for flow, message in (("ingress", "query"), ("egress", "reply"))
        ],
        "subjects": [*subjects, {"id": "all"}],
        "policies": [
            {"rules": [f"{owner}-ingress", f"{owner}-egress"], "subjects": [owner]} for owner in keys
        ],
    }


def _send_answers(answers: AnswerQueue) -> None:
    """Send the answers to one client, one after another."""
    while (item := answers.get()) is not None:
        query, content = item
        with suppress(zenoh.ZError):  # the connection or the session is closed: the answer is lost
            query.reply(str(query.key_expr), content, express=True)
        query.drop()
        del item, query, content


def _greet(query: zenoh.Query) -> None:
    with suppress(zenoh.ZError):
        query.reply(HELLO_KEY, b"", express=True)
    query.drop()


def _refuse(query: zenoh.Query, reason: bytes) -> None:
    """End a client's wait without an answer."""
    with suppress(zenoh.ZError):  # the connection is closed
        query.reply_err(reason)
    query.drop()


def _find_free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((host, 0))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise InputError(
            f"cannot listen on {host!r} ({error.strerror or error}); use an address of this machine"
        ) from error
