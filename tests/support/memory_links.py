"""Transports of peers within one process: each peer has a queue, and asks from threads as a real one does."""

import threading
import time
from queue import Empty, SimpleQueue

from fedlap.deploy.transport import UnreachableError


class MemoryRequest:
    """A question in memory, with the event that ends the wait for its answer."""

    def __init__(self, name, content):
        self.name, self.content = name, content
        self.reply, self.is_answered = None, threading.Event()

    def answer(self, content):
        self.reply = content
        self.is_answered.set()


class MemoryLinks:
    """All peers of a test by name; a name without an open transport is not reachable.

    problems: errors that asking raises, by the names of asker and neighbour.
    """

    def __init__(self):
        self.queues, self.problems = {}, {}

    def open(self, name):
        """Return the transport of a peer."""
        self.queues[name] = SimpleQueue()
        return MemoryTransport(self, name)


class MemoryTransport:
    """The end of one peer."""

    port = 7447

    def __init__(self, links, name):
        self.links, self.name = links, name

    def ask(self, neighbour, content, timeout):
        if (self.name, neighbour) in self.links.problems:
            raise self.links.problems[self.name, neighbour]
        if neighbour not in self.links.queues:
            raise UnreachableError(f"{neighbour} is not reachable (Connection refused)")
        request = MemoryRequest(self.name, content)
        self.links.queues[neighbour].put(request)
        if not request.is_answered.wait(timeout):
            raise UnreachableError(f"{neighbour} did not answer")
        return request.reply

    def receive(self, timeout):
        try:
            return self.links.queues[self.name].get(timeout=timeout)
        except Empty:
            return None

    def close(self):
        self.links.queues.pop(self.name, None)


def serve(transport, choose_answer, until, delay=0.0):
    """Answer questions in this thread until an event is set."""
    while not until.is_set():
        request = transport.receive(0.01)
        if request is not None:
            time.sleep(delay)
            request.answer(choose_answer(request))
