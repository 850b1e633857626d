"""The memory of the first process of a sharded run, from its start until its models are written."""

import json
import subprocess
import sys

import pytest

from ray_marks import RAY_MARKS

pytestmark = RAY_MARKS

# Trains models of 80 MB in all, and prints how much the memory of this process grows meanwhile: states and
# models are gathered, a checkpoint and the models are written, and the second run reads the checkpoint. A
# first run starts all that later ones use.
MEASURE = """
import json, sys, threading, time
import fedlap as fl
from fedlap.costs.memory import measure_memory
from fedlap.storage import mapped_tensors
from fedlap.experiments import checkpoints
from fedlap.training.shards.cluster import ClusterSettings, use_cluster
mapped_tensors.MAPPED_BYTES = checkpoints.MAPPED_BYTES = 1_000_000
rows = {"features": 1_000, "labels": 10, "rows": 2, "test_rows": 1}
large = fl.data.LargeSynthetic(clients=2_000, structure="ring", **rows)
federation, method = large.generate(), fl.FedU(large.build_graph(), strength=0.01)
settings = {"sample": 0.01, "engine": "ray", "evaluate_every": 0, "folder": sys.argv[1]}
sizes, grown = [], []

def watch():
    while True:
        sizes.append(measure_memory()[1])
        time.sleep(0.005)

threading.Thread(target=watch, daemon=True).start()
with use_cluster(ClusterSettings(2)):
    fl.fit(method, federation, fl.models.linear(), rounds=1, **{**settings, "folder": None})
    for rounds in (2, 4):  # from the start, and from the checkpoint of the first run
        time.sleep(0.1)
        base = sizes[-1]
        sizes.clear()
        result = fl.fit(method, federation, fl.models.linear(), rounds=rounds, **settings)
        grown.append(max(sizes) - base)
print(json.dumps([result.models.nbytes, *grown]))
"""


@pytest.mark.slow
def test_the_first_process_does_not_need_the_memory_of_all_models(tmp_path):
    words = [sys.executable, "-c", MEASURE, str(tmp_path / "run")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    models, *grown = json.loads(done.stdout.splitlines()[-1])
    assert models == 2_000 * 10_010 * 4
    assert max(grown) < models / 2, grown
