"""dFedU by torch.distributed with gloo: one process per peer, no TLS, no checkpoint, and one death ends all.

`benchmarks/peers.py` starts it as `python -m benchmarks.gloo_peers RANK COUNT PORT ROUNDS FILE`. Every
process does the local work of `fedlap peer` with the plain task, sends its model to both neighbours on a
ring, and mixes.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import fedlap as fl
from benchmarks.fedlap_federation import FEATURES, HIDDEN, HOST, LABELS, ROWS
from fedlap.data.roster import Roster
from fedlap.models import MODELS
from fedlap.randomness import digest_names
from fedlap.training.worker import Worker


def build_worker(name: str, names: list[str]) -> Worker:
    """Return the worker of a peer with random rows."""
    rng = np.random.default_rng(names.index(name))
    x = rng.integers(-9, 10, (ROWS, FEATURES)).astype(np.float32)
    rows = {name: (x, np.arange(ROWS) % LABELS)}
    labels = [str(label) for label in range(LABELS)]
    federation = fl.Federation.from_arrays(rows, test_share=0.25, labels=labels, scale="none")
    counts = torch.full((len(names),), int(federation.train.count))
    roster = Roster(tuple(names), digest_names(names), counts, tuple(labels))
    method = fl.DFedU(fl.Graph.ring(names), lr=0.001, local_steps=5, strength=0.01)
    return Worker(method, federation, MODELS["mlp"](hidden=(HIDDEN,)), roster)


def main() -> int:
    """Train as one peer, and write the seconds of each round as the first one."""
    rank, count, port, rounds = map(int, sys.argv[1:5])
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": HOST, "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=count, timeout=timedelta(seconds=120))
    names = [f"peer-{k:02}" for k in range(count)]
    worker = build_worker(names[rank], names)
    method = worker.method
    places, weights = method.in_neighbours(rank)
    ends = [time.perf_counter()]
    for round in range(1, rounds + 1):
        sent = worker.local(round, None, merged=round - 1)
        received = [torch.empty_like(sent) for _ in places.tolist()]
        waits = [dist.isend(sent, place) for place in places.tolist()]
        waits += [dist.irecv(model, place) for model, place in zip(received, places.tolist(), strict=True)]
        for wait in waits:
            wait.wait()
        worker.mix(round, 0, torch.cat(received).unsqueeze(0), weights.unsqueeze(0))
        ends.append(time.perf_counter())
    if rank == 0:
        Path(sys.argv[5]).write_text(json.dumps(np.diff(ends).tolist()))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
