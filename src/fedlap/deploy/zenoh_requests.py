"""Requests that arrive over Zenoh: a queue, limits per name, and answers that do not delay each other."""

import threading
import time
import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue

import zenoh

from fedlap.deploy.zenoh_settings import BUSY
from fedlap.errors import InputError

MOST_WAITING = 8  # requests of one name without an answer, or with one that is not sent yet
CLOSE_TIMEOUT = 2.0  # seconds in which the last answers must be sent

AnswerQueue = SimpleQueue[tuple[zenoh.Query, bytes] | None]


class ZenohRequest:
    """A request that waits for an answer; dropping it unanswered ends the asker's wait."""

    def __init__(
        self, name: str, content: bytes, query: zenoh.Query, queue: "RequestQueue", is_too_long: bool = False
    ) -> None:
        self._name, self._content, self._query, self._queue = name, content, query, queue
        self._is_too_long, self.is_answered = is_too_long, False

    @property
    def name(self) -> str:
        """Name of the asker, from its certificate."""
        return self._name

    @property
    def content(self) -> bytes:
        """The message; empty if it is too long."""
        return self._content

    @property
    def is_too_long(self) -> bool:
        """Return whether the message is longer than the limit; it was not read then."""
        return self._is_too_long

    def answer(self, content: bytes) -> None:
        """Answer the request, at any later time and from any thread; an answer may be lost.

        The answer is sent by a thread of this name, so that a slow receiver does not delay others.
        """
        if len(content) > self._queue.most_bytes:
            raise InputError(
                f"answer to {self._name!r} of {len(content):,} bytes; the longest message is "
                f"{self._queue.most_bytes:,} bytes; raise most_bytes",
                field="most_bytes",
            )
        if not self.is_answered:
            self.is_answered = True
            self._queue.send(self._name, self._query, content)

    def __del__(self) -> None:
        if not self.is_answered:
            refuse_query(self._query, b"this request was dropped")


class RequestQueue:
    """Requests that were received, by name. Zenoh's threads put them, the owner's thread gets them.

    most_bytes: longest message in either direction.
    reports_long: hand over requests whose message is too long, without it; they are refused here if not.
    """

    def __init__(self, most_bytes: int, reports_long: bool = False) -> None:
        self.most_bytes, self._reports_long = most_bytes, reports_long
        self._requests: SimpleQueue[ZenohRequest] = SimpleQueue()
        self._waiting: dict[str, weakref.WeakSet[ZenohRequest]] = {}
        self._senders: dict[str, tuple[AnswerQueue, threading.Thread]] = {}
        self._lock = threading.Lock()

    def put(self, name: str, query: zenoh.Query) -> None:
        """Add a query as a request of this name, unless it is too long or too many of them wait."""
        payload = query.payload
        is_too_long = payload is not None and len(payload) > self.most_bytes
        if is_too_long and not self._reports_long:
            return refuse_query(query, b"the message is too long")
        with self._lock:
            waiting = self._waiting.setdefault(name, weakref.WeakSet())
            unanswered = sum(not request.is_answered for request in waiting)
            unsent = self._senders[name][0].qsize() if name in self._senders else 0
        if unanswered + unsent >= MOST_WAITING:
            return refuse_query(query, BUSY)
        content = b"" if payload is None or is_too_long else payload.to_bytes()
        request = ZenohRequest(name, content, query, self, is_too_long)
        with self._lock:
            waiting.add(request)
        return self._requests.put(request)

    def get(self, timeout: float) -> ZenohRequest | None:
        """Return the next request, or None after `timeout` seconds without one."""
        try:
            return self._requests.get(timeout=max(timeout, 0.0))
        except Empty:
            return None

    def send(self, name: str, query: zenoh.Query, content: bytes) -> None:
        """Answer a query from the thread of its name."""
        with self._lock:
            if name not in self._senders:
                answers: AnswerQueue = SimpleQueue()
                thread = threading.Thread(
                    target=_send_answers, args=(answers,), name=f"answers {name}", daemon=True
                )
                self._senders[name] = answers, thread
                thread.start()
            self._senders[name][0].put((query, content))

    def close(self) -> None:
        """Send the answers that wait to be sent."""
        with self._lock:
            senders = list(self._senders.values())
            self._senders.clear()
        for answers, _ in senders:
            answers.put(None)
        end = time.monotonic() + CLOSE_TIMEOUT
        for _, thread in senders:
            thread.join(max(end - time.monotonic(), 0.0))


def refuse_query(query: zenoh.Query, reason: bytes) -> None:
    """End the asker's wait without an answer."""
    with suppress(zenoh.ZError):  # the connection is closed
        query.reply_err(reason)
    query.drop()


def _send_answers(answers: AnswerQueue) -> None:
    """Send the answers to one name, one after another."""
    while (item := answers.get()) is not None:
        query, content = item
        with suppress(zenoh.ZError):  # the connection or the session is closed: the answer is lost
            query.reply(str(query.key_expr), content, express=True)
        query.drop()
        del item, query, content
