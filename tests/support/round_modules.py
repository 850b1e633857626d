"""Print the modules of fedlap that one round of FedU passes through, as a JSON list."""

import json
import sys
from pathlib import Path

import torch

import fedlap as fl
from fedlap.training.assemble import assemble
from fedlap.training.jobs import Job
from fedlap.training.loop import play_rounds
from fedlap.training.schedule import Schedule

SRC = Path(fl.__file__).parent
PROFILED_ROUND = 3  # by then everything that is computed once has been computed


@torch.no_grad()
def list_round_modules():
    """Return the modules in which a function runs during one round, in which nothing is scored."""
    federation = fl.data.load("digits")
    job = Job(fl.FedU(fl.Graph.complete(federation.clients)), federation, fl.models.linear())
    training = assemble([job], Schedule(rounds=10))
    rounds = play_rounds(training.method, training.engine, training.server, range(1, 11))
    for _ in range(1, PROFILED_ROUND):
        next(rounds)
    files = set()
    sys.setprofile(lambda frame, event, _: files.add(frame.f_code.co_filename) if event == "call" else None)
    try:
        next(rounds)
    finally:
        sys.setprofile(None)
    paths = [Path(file) for file in files]
    return sorted(str(path.relative_to(SRC)) for path in paths if path.is_relative_to(SRC))


if __name__ == "__main__":
    print(json.dumps(list_round_modules()))
