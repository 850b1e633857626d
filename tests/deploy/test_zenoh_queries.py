"""The wait for an answer, with a session of Zenoh that forgets its queries."""

import time

import pytest

from fedlap.deploy.zenoh_queries import LINK_CHECK, QuerySender


class ForgetfulSession:
    """A session that neither answers a query nor ends it, as Zenoh may if the link breaks at that moment."""

    def get(self, key, handler, **settings):
        pass


@pytest.mark.parametrize("looks", [1, 2])
def test_the_wait_ends_with_the_link(looks):
    answers = iter([True] * (looks - 1) + [False])
    start = time.monotonic()
    answer = QuerySender(100).get(ForgetfulSession(), "key", b"a", start + 60.0, "n1", lambda: next(answers))
    assert answer is None
    assert list(answers) == []  # it looked as often as that, long before the end
    assert time.monotonic() - start >= looks * LINK_CHECK


def test_the_wait_ends_in_time_while_the_link_exists():
    with pytest.raises(TimeoutError):
        QuerySender(100).get(ForgetfulSession(), "key", b"a", time.monotonic(), "n1", lambda: True)
