"""FedAvg by fedlap itself, under the same protocol: one run, whose rounds are taken one at a time."""

import time
from importlib.metadata import version

import numpy as np
import protocol
import torch
from protocol import BATCH, EPOCHS, LR

import fedlap as fl
from fedlap.training.assemble import assemble
from fedlap.training.jobs import Job
from fedlap.training.loop import play_rounds
from fedlap.training.schedule import Schedule


@torch.no_grad()
def main() -> None:
    """Train one round for every request."""
    options = protocol.arguments(__doc__)
    line = protocol.Line()
    torch.set_num_threads(options.threads)
    clients = protocol.load(options.data)
    arrays = {str(k): (rows.x, rows.y) for k, rows in enumerate(clients)}
    federation = fl.Federation.from_arrays(
        arrays, test_share=0.0, labels=protocol.shape(clients)[1], scale="none"
    )
    model = fl.models.linear()
    network = model.build(federation.inputs, federation.outputs)
    trial = Job(fl.FedAvg(lr=LR, local_epochs=EPOCHS), federation, model, start=torch.zeros(network.size))
    sample = protocol.cohort_size(options.data, clients) / len(clients)
    schedule = Schedule(rounds=10**6, batch=BATCH, sample=sample, evaluate_every=0)
    training = assemble([trial], schedule)
    all_rounds = range(1, schedule.rounds + 1)
    rounds = play_rounds(training.method, training.engine, training.server, all_rounds)
    _, (server,), _ = next(rounds)

    def correct() -> float:
        linear = network.module(server.model[0])[1]
        return protocol.accuracy(clients, *(np.asarray(t.detach().T) for t in (linear.weight, linear.bias)))

    next(rounds)
    note = f"torch {torch.__version__}, {options.threads} threads"
    line.ready("fedlap", version("fedlap"), protocol.steps(clients), note)
    while line.wait(correct):
        began = time.perf_counter()
        _, (server,), _ = next(rounds)
        line.took(time.perf_counter() - began)


if __name__ == "__main__":
    main()
