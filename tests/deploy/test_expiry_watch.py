"""A process warns of its certificate at the start and once a day, from 30 days before it expires."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import fedlap as fl
from fedlap.deploy.certificates import CertificateFacts
from fedlap.deploy.expiry_watch import LOOK_INTERVAL, ExpiryWatch

NOW = datetime.now(UTC)
FACTS = CertificateFacts("client", "north", 2, (), NOW - timedelta(days=300), NOW, "1", "f")


@pytest.mark.parametrize(
    ("left", "words"),
    [(timedelta(days=31), ""), (timedelta(days=29), "expires in"), (timedelta(days=-1), "expired at")],
)
def test_warnings_begin_30_days_ahead(left, words):
    events, texts = [], []
    facts = replace(FACTS, not_after=NOW + left)
    watch = ExpiryWatch(lambda: facts, lambda event, **numbers: events.append((event, numbers)), texts.append)
    for now in (0.0, 10.0, LOOK_INTERVAL - 1, LOOK_INTERVAL + 1):
        watch.look(now)
    if not words:
        assert events == texts == []
        return
    assert [event for event, _ in events] == ["certificate-expiring"] * 2
    assert [numbers["days"] for _, numbers in events] == [max(0, left.days - (left.days > 0))] * 2
    assert all("certificate north:2" in text and words in text for text in texts)


def test_a_renewed_certificate_ends_the_warnings():
    texts, left = [], iter([5, 300])
    watch = ExpiryWatch(
        lambda: replace(FACTS, not_after=NOW + timedelta(days=next(left))),
        lambda *_, **__: None,
        texts.append,
    )
    watch.look(0.0)
    watch.look(LOOK_INTERVAL)
    assert len(texts) == 1


def test_a_certificate_that_cannot_be_read_is_a_remark():
    def load():
        raise fl.InputError("certificate cannot be used")

    texts = []
    ExpiryWatch(load, lambda *_, **__: None, texts.append).look(0.0)
    assert texts == ["certificate cannot be used"]
