"""Six peers for a minute with seeded kills need bounded memory and files; `make soak` takes 20 minutes."""

import pytest

from peer_soak import run_soak

pytestmark = pytest.mark.deploy
SECONDS = 60.0
# Measured: 3.6 to 5 MB per minute at 1,480 rounds, 6.7 to 7.8 at 2,600, which is 3.4 kB per round; it falls
# to 0.1 MB per minute later (`make soak`). A leak of 8 kB per round exceeds the bound from 1,000 rounds on.
MOST_SLOPE = 10.0  # MB per minute
MOST_KB_PER_ROUND = 6.0
MOST_FILES_AHEAD = 12  # open files more than at the start: links that are dialled again


def test_a_minute_with_kills_needs_no_more_memory_or_files(starter, tmp_path):
    soak = run_soak(starter, tmp_path / "run", 6, SECONDS)
    assert soak.kills >= 5
    assert min(soak.rounds.values()) > 20
    for name, samples in soak.samples.items():
        most = max(MOST_SLOPE, MOST_KB_PER_ROUND * soak.rounds[name] / SECONDS * 60 / 1024)
        assert soak.slopes[name] < most, (name, soak.rounds[name], samples.megabytes)
        assert max(samples.files) <= samples.files[0] + MOST_FILES_AHEAD, (name, samples.files)
