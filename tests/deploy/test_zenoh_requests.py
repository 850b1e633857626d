"""The queue of requests: limits per name, without a connection."""

import threading

import pytest

from fedlap.deploy.zenoh_requests import MOST_WAITING, RequestQueue
from fedlap.deploy.zenoh_settings import BUSY


class SlowQuery:
    """A query whose receiver takes no answer until the gate opens."""

    payload, key_expr = None, "fedlap/61"

    def __init__(self, gate):
        self.gate, self.is_sending, self.errors = gate, threading.Event(), []

    def reply(self, key, content, express):
        self.is_sending.set()
        assert self.gate.wait(30.0)

    def reply_err(self, reason):
        self.errors.append(reason)

    def drop(self):
        pass


@pytest.fixture
def gate():
    gate = threading.Event()
    yield gate
    gate.set()


def test_answers_that_cannot_be_sent_count_as_open_requests(gate):
    queue = RequestQueue(1_000)

    def ask(name):
        query = SlowQuery(gate)
        queue.put(name, query)
        if (request := queue.get(0.0)) is not None:
            request.answer(b"")
        return query

    first = ask("a")
    assert first.is_sending.wait(30.0)
    assert [ask("a").errors for _ in range(MOST_WAITING)] == [[]] * MOST_WAITING
    assert ask("a").errors == [BUSY]
    assert ask("b").errors == []  # Other names have queues of their own.
    gate.set()
    queue.close()
    assert ask("a").errors == []


def test_requests_without_and_with_an_answer_count_together(gate):
    queue, unanswered = RequestQueue(1_000), []
    queries = [SlowQuery(gate) for _ in range(MOST_WAITING + 2)]
    for number, query in enumerate(queries):
        queue.put("a", query)
        if (request := queue.get(0.0)) is None:
            continue
        if number % 2:
            unanswered.append(request)
        else:
            request.answer(b"")
            assert number or query.is_sending.wait(30.0)
    # The answer that is being sent is not in the queue.
    assert [query.errors for query in queries] == [*[[]] * (MOST_WAITING + 1), [BUSY]]
