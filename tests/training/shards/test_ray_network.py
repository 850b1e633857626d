"""Ray on one machine contacts no other: a network namespace counts attempts, and sockets are on loopback."""

import json
import os
import subprocess
import sys

import pytest

from private_network import find_network_command
from ray_marks import RAY_MARKS

COMMAND, PROBLEM = find_network_command()
pytestmark = [*RAY_MARKS, pytest.mark.skipif(COMMAND is None, reason=PROBLEM)]

# Watches the start, the rounds and three seconds after them, since Ray asks for clouds in the background.
RUN = """
import contextlib, json, os, time
import fedlap as fl
from benchmarks.alternatives.protocol import family
from private_network import LOOPBACK, count_unroutable, is_on_loopback
from process_sockets import list_sockets

seen, processes = set(), set()

def watch(_=None):
    for pid in family(os.getpid()):
        processes.add(pid)
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            seen.update(list_sockets(pid))

from fedlap.training.shards.cluster import ClusterSettings, use_cluster
federation, graph = fl.data.load_with_graph("radon")
method, settings = fl.FedU(graph, strength=0.01), {"rounds": 3, "engine": "ray", "on_round": watch}
with use_cluster(ClusterSettings(2)):
    fl.fit(method, federation, fl.models.linear(), **settings)
    for _ in range(30):
        watch()
        time.sleep(0.1)
beyond = [found for found in seen if not is_on_loopback(found) or found[1][0] not in LOOPBACK]
facts = {"sockets": len(seen), "processes": len(processes), "beyond": beyond}
print(json.dumps(facts | {"unroutable": count_unroutable(os.getpid())}))
"""


@pytest.mark.slow
def test_ray_on_one_machine_contacts_nobody():
    done = subprocess.run(
        [*COMMAND, sys.executable, "-c", RUN],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["processes"] > 5  # Ray's own, and two workers
    assert found["sockets"] > 10
    assert (found["beyond"], found["unroutable"]) == ([], 0)
