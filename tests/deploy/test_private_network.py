"""Nothing beyond loopback is contacted: a network namespace counts every such attempt, and it fails."""

import subprocess
import sys
import time
from contextlib import suppress

import pytest
import torch

from deployment_processes import TICK, build_federation, describe_plan
from deployments import simulate
from peer_processes import describe_peers
from private_network import DIAL_OUTSIDE, count_unroutable, find_network_command, is_on_loopback
from process_sockets import ESTABLISHED, list_sockets
from process_starter import ProcessStarter

COMMAND, PROBLEM = find_network_command()
pytestmark = [pytest.mark.deploy, pytest.mark.skipif(COMMAND is None, reason=PROBLEM)]


@pytest.fixture(scope="module")
def starter():
    """A process that starts others in a namespace of their own."""
    starter = ProcessStarter(COMMAND)
    yield starter
    starter.close()


def watch(run):
    """Return all sockets that the processes of a run have until it ends."""
    seen = set()
    while any(run.poll(owner) is None for owner in run.pids):
        for pid in run.pids.values():
            # It may end in the meantime.
            with suppress(FileNotFoundError, ProcessLookupError):
                seen |= set(list_sockets(pid))
        time.sleep(TICK)
    run.finish()
    return seen


def check_run(run, starter):
    """Check the sockets and the models of a run, and that no packet was sent to another host."""
    sockets = watch(run)
    assert any(state == ESTABLISHED for _, _, _, state in sockets), "nothing was seen"
    assert [found for found in sockets if not is_on_loopback(found)] == []
    assert count_unroutable(starter.pid) == 0
    assert torch.equal(run.models, simulate(run.plan, build_federation()).models)


def test_peers_contact_their_neighbours_alone(deploy, starter):
    check_run(deploy(describe_peers()).start_all(), starter)


def test_a_server_and_clients_contact_each_other_alone(deploy, starter):
    check_run(deploy(describe_plan("fedu")).start_all(), starter)


def test_an_attempt_to_reach_another_host_is_counted():
    with subprocess.Popen(
        [*COMMAND, sys.executable, "-c", f"{DIAL_OUTSIDE}\nprint('done', flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert [process.stdout.readline().strip() for _ in range(3)] == ["failed", "failed", "done"]
        assert count_unroutable(process.pid) == 2
        process.stdin.close()
