"""Wall clocks that are wrong by hours, and jump during a run, change nothing: only certificates need them."""

from datetime import UTC, datetime, timedelta

import pytest
import torch

from deployment_processes import build_federation
from deployments import simulate
from fedlap.deploy.event_log import read_events
from key_folders import DAY, KeyFolders
from peer_processes import describe_peers
from process_starter import ProcessStarter
from skewed_clock import build_clock, find_compiler

pytestmark = [pytest.mark.deploy, pytest.mark.skipif(find_compiler() is None, reason="no compiler")]
HOURS = {"b": (7, 7), "c": (-11, -11), "d": (9, -5)}  # d jumps to and fro
PERIOD = 0.2  # seconds between two jumps


@pytest.fixture(scope="module")
def starter(tmp_path_factory):
    """A process that starts others, whose clocks can be set wrong."""
    starter = ProcessStarter(build_clock(tmp_path_factory.mktemp("clock")))
    yield starter
    starter.close()


def measure_skews(folder):
    """Return by how many hours the times in a peer's log are wrong."""
    now = datetime.now(UTC)
    times = (datetime.fromisoformat(event.time) for event in read_events(folder))
    return {round((time - now) / timedelta(hours=1)) for time in times}


def test_wrong_clocks_change_no_model(deploy, tmp_path):
    """A deadline by the wall clock would end at once when a clock jumps, and an older model would count."""
    folders, start = KeyFolders(tmp_path), datetime.now(UTC) - 2 * DAY
    keys = {name: folders.sign_peer(name, start=start).folder for name in "abcd"}
    values = describe_peers(peers={"staleness": "any", "deadline": 60.0}, rounds=30)
    changes = {name: ("set_clock", *hours, PERIOD) for name, hours in HOURS.items()}
    run = deploy(values, keys).start_all(**changes).finish()
    skews = {name: measure_skews(run.find_folder(name)) for name in "abcd"}
    assert skews == {"a": {0}, "b": {7}, "c": {-11}, "d": {9, -5}}
    assert not [event for name in "abcd" for event in run.list_events("stands-in", name)]
    assert torch.equal(run.models, simulate(run.plan, build_federation()).models)
