"""Queries over Zenoh: the wait for an answer ends when it comes, when the link breaks, or in time.

Zenoh ends the queries of a link that breaks, except one that is sent at that very moment, which it forgets: a
wait therefore looks for the link itself, too.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

import zenoh

from fedlap.deploy.transport import UnreachableError
from fedlap.deploy.zenoh_settings import REFUSED
from fedlap.errors import InputError

TIMEOUT = b"Timeout"  # Zenoh's own error
INTERRUPTED = b"interrupted"
TIMER_SLACK = 0.05  # seconds by which a timer of Zenoh may differ from ours
LINK_CHECK = 0.25  # seconds between looks for the link while an answer is awaited

ReplyQueue = SimpleQueue[zenoh.Reply | bytes | None]  # None: the query has ended


class RefusedError(Exception):
    """The other side knows no access for the name that asks."""


class QuerySender:
    """Sends queries from any thread, and ends their waits on request.

    most_bytes: longest message in either direction.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.is_closed = threading.Event()
        self.interrupts = 0  # number of calls of `interrupt`
        self._waiting: set[ReplyQueue] = set()

    def check(self, content: bytes) -> None:
        """Raise InputError if a message is too long."""
        if len(content) > self.most_bytes:
            raise InputError(
                f"message of {len(content):,} bytes; the longest message is {self.most_bytes:,} bytes; "
                "raise most_bytes",
                field="most_bytes",
            )

    def get(
        self,
        session: zenoh.Session,
        key: str,
        content: bytes,
        end: float,
        whom: str,
        has_link: Callable[[], bool],
    ) -> bytes | None:
        """Return the answer to a query, or None if it ended without one; raise TimeoutError at the end.

        whom: who answers, in words. has_link: returns whether the link that the query is sent over exists.
        """
        replies: ReplyQueue = SimpleQueue()
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
            reply = _wait_for_reply(replies, end, has_link)
        except zenoh.ZError as error:
            if self.is_closed.is_set():
                raise UnreachableError("the connection is closed") from error
            return None
        finally:
            self._waiting.discard(replies)
        if isinstance(reply, bytes):
            raise UnreachableError("the wait for an answer was interrupted")
        if reply is None:
            # The other side of Zenoh ends a query at the same time as this one, and may be first.
            if time.monotonic() > end - TIMER_SLACK and has_link():
                raise TimeoutError
            return None
        return self._read(reply, whom)

    def interrupt(self) -> None:
        """End every wait for an answer by UnreachableError; a signal handler may call it."""
        self.interrupts += 1
        for replies in list(self._waiting):
            replies.put(INTERRUPTED)

    def _read(self, reply: zenoh.Reply, whom: str) -> bytes:
        """Return the content of a reply; raise the cause if it is an error."""
        if reply.ok is not None:
            if len(reply.ok.payload) > self.most_bytes:
                raise UnreachableError(f"{whom} answered with more than {self.most_bytes:,} bytes")
            return reply.ok.payload.to_bytes()
        reason = b"" if reply.err is None else reply.err.payload.to_bytes()
        if reason == TIMEOUT:
            raise TimeoutError
        if reason == REFUSED:
            raise RefusedError
        raise UnreachableError(f"{whom} did not answer: {reason.decode(errors='replace')}")


def _wait_for_reply(
    replies: ReplyQueue, end: float, has_link: Callable[[], bool]
) -> zenoh.Reply | bytes | None:
    """Return the next reply, or None if the link is gone; raise TimeoutError a second after the end."""
    while (remaining := end + 1.0 - time.monotonic()) > 0:
        with suppress(Empty):
            return replies.get(timeout=min(remaining, LINK_CHECK))
        if not has_link():
            return None
    raise TimeoutError
