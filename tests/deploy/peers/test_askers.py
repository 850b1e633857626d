"""The thread that asks a neighbour continues after every error of a transport."""

from queue import SimpleQueue

import pytest

from fedlap.deploy.peers.process import Asker
from fedlap.deploy.transport import ExitCode, PermanentError, UnreachableError
from fedlap.deploy.wire import Message
from fedlap.errors import InputError
from memory_links import MemoryLinks

WAIT = 60.0  # seconds, on a machine with other work


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnreachableError("b is not reachable"), 0),
        (PermanentError("the certificate has expired", ExitCode.EXPIRED), ExitCode.EXPIRED),
        (InputError("message of 9 bytes; the longest message is 8 bytes"), 0),
    ],
)
def test_an_error_is_an_answer_and_the_next_question_is_asked(error, code):
    links, answers = MemoryLinks(), SimpleQueue()
    links.problems["a", "b"] = error
    asker = Asker("b", links.open("a"), answers.put)
    try:
        for _ in range(2):
            asker.ask(Message("leave"))
            answer = answers.get(timeout=WAIT)
            assert (answer.name, answer.content, answer.code) == ("b", None, code)
            assert answer.problem == str(error)
    finally:
        asker.close()
