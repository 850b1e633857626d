"""A neighbour with another plan ends a peer only if no neighbour fits for some seconds."""

import os

import pytest

from fedlap.deploy.peers.asking import note_failure
from fedlap.deploy.peers.starting import MISMATCH_PATIENCE
from fedlap.deploy.transport import ExitCode, PermanentError
from peer_networks import SILENCE, PeerNetwork
from peer_plans import build_peer_plan, build_peer_rows

OTHER = "the plan of 'b' differs"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The run of a before its first round; its neighbours are b and d."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    return PeerNetwork(tmp_path, build_peer_plan(), build_peer_rows(), names="a").runs["a"]


def test_a_peer_ends_if_no_neighbour_fits(run):
    note_failure(run, "b", OTHER, ExitCode.OTHER_PLAN, 0.0)
    run.advance(MISMATCH_PATIENCE)
    with pytest.raises(PermanentError, match=OTHER) as caught:
        run.advance(MISMATCH_PATIENCE + 1)
    assert caught.value.code is ExitCode.OTHER_PLAN


def test_the_patience_begins_when_the_last_neighbour_that_fits_is_lost(run):
    note_failure(run, "b", OTHER, ExitCode.OTHER_PLAN, 0.0)
    run.links["d"].is_greeted = True
    for now in (1.0, 50.0, 100.0):
        run.advance(now)
        note_failure(run, "b", OTHER, ExitCode.OTHER_PLAN, now)
    run.advance(101.0)
    note_failure(run, "d", SILENCE, 0, 102.0)
    run.advance(102.0)
    note_failure(run, "b", OTHER, ExitCode.OTHER_PLAN, 105.0)
    run.advance(105.0 + MISMATCH_PATIENCE)
    with pytest.raises(PermanentError, match=OTHER):
        run.advance(106.0 + MISMATCH_PATIENCE)
