import pytest


@pytest.fixture
def short_waits(monkeypatch):
    """Look for the causes of missing links after a moment: every connection is on this machine."""
    monkeypatch.setattr("fedlap.deploy.peers.zenoh_peer.LINK_TIMEOUT", 0.3)
    monkeypatch.setattr("fedlap.deploy.peers.zenoh_peer.REFUSAL_TIME", 0.15)
