"""FedAvg by fedlap itself, under the same protocol: every round goes on from the model of the last."""

from importlib.metadata import version

import numpy as np
import protocol
import torch
from protocol import BATCH, EPOCHS, LABELS, LR

import fedlap as fl


def main() -> None:
    """Train one round for every request."""
    options = protocol.arguments(__doc__)
    line = protocol.Line()
    torch.set_num_threads(options.threads)
    clients = protocol.load(options.data)
    arrays = {str(k): (rows.x, rows.y) for k, rows in enumerate(clients)}
    federation = fl.Federation.from_arrays(arrays, test_share=0.0, labels=LABELS)
    method, model = fl.FedAvg(lr=LR, local_epochs=EPOCHS), fl.models.linear()
    network = model.build(federation.inputs, federation.outputs)
    state, number = torch.zeros(network.size), 0

    def run() -> float:
        nonlocal state, number
        number += 1
        made = fl.fit(method, federation, model, rounds=1, batch=BATCH, seed=number, start=state)
        state = made.models[0]
        return made.scores[-1].seconds

    def correct() -> float:
        linear = network.module(state)[1]
        return protocol.accuracy(clients, *(np.asarray(t.detach().T) for t in (linear.weight, linear.bias)))

    run()
    run()
    note = f"torch {torch.__version__}, {options.threads} threads"
    line.ready("fedlap", version("fedlap"), protocol.steps(clients), note)
    while line.wait(correct):
        line.took(run())


if __name__ == "__main__":
    main()
