"""Fits on random valid input, drawn by a seed: `python random_fits.py 500` counts rounds by the kernel."""

import sys

import numpy as np
import torch

import fedlap as fl
from fedlap.kernels import cpp_library
from fedlap.kernels.dense import DenseKernel

METHODS = (
    lambda f, work: fl.FedAvg(lr=0.05, **work),
    lambda f, work: fl.FedU(fl.Graph.complete(f.clients), lr=0.05, **work),
    lambda f, work: fl.DFedU(fl.Graph.ring(f.clients), strength=0.01, lr=0.05, **work),
    lambda f, work: fl.FedProx(proximal=0.3, lr=0.05, **work),
    lambda f, work: fl.Scaffold(lr=0.05, **work),
    lambda f, work: fl.PerFedAvg(adapt_lr=0.1, lr=0.05, **work),
    lambda f, work: fl.PFedMe(regularisation=5.0, inner_lr=0.03, inner_steps=2, lr=0.05, **work),
    lambda f, work: fl.Local(lr=0.05, **work),
    lambda f, work: fl.Global(lr=0.05, **work),
    lambda f, work: fl.Mocha(
        fl.Graph.complete(f.clients), 0.1, loss="squared", least_work=0.3, aggregation=0.9, **work
    ),
    lambda f, work: fl.Mocha(fl.Graph.complete(f.clients), 0.1, loss="hinge", **work),
    lambda f, work: fl.Mocha(fl.Graph.complete(f.clients), 0.1, loss="logistic", drop=0.2, **work),
)
MOCHA = METHODS[-3:]


def draw_federation(draw):
    """Clients of one row and more, bytes or numbers, of a few labels."""
    labels, features = int(draw.integers(2, 15)), int(draw.integers(1, 40))
    as_bytes = draw.random() < 0.4
    arrays = {}
    for place in range(draw.integers(3, 9)):
        rows = int(draw.choice([1, 1, 2, draw.integers(1, 30)]))
        shape = (rows, 1, features) if as_bytes else (rows, features)
        x = draw.integers(0, 256, shape).astype(np.uint8) if as_bytes else draw.normal(size=shape)
        arrays[f"c{place}"] = (x, draw.integers(0, labels, rows))
    federation = fl.Federation.from_arrays(arrays, labels=labels, test_share=float(draw.choice([0, 0.3])))
    return federation.standardize(str(draw.choice(["client", "pooled"]))) if as_bytes else federation


def fit_once(number):
    """One fit, whose every choice is drawn from its number."""
    draw = np.random.default_rng(number)
    federation = draw_federation(draw)
    make = METHODS[draw.integers(len(METHODS))]
    work = {str(draw.choice(["local_steps", "local_epochs"])): int(draw.integers(1, 4))}
    hidden = tuple(int(width) for width in draw.integers(1, 20, draw.integers(0, 4)))
    linear = not hidden or make in MOCHA
    model = fl.models.linear(0.01) if linear else fl.models.mlp(hidden, l2=0.01)
    method = make(federation, work)
    torch.set_num_threads(int(draw.integers(1, 4)))
    sampled = not isinstance(method, fl.DFedU) and draw.random() < 0.5
    fl.fit(
        method,
        federation,
        model,
        rounds=2,
        batch=int(draw.choice([1, 2, 3, 7, 20, 128])),
        sample=0.5 if sampled else 1.0,
        dtype=str(draw.choice(["float32", "float64"])),
        seed=number,
    )


def main(fits):
    assert all(map(cpp_library.load_library, cpp_library.CPP_TYPES)), "the library cannot be compiled"
    used, step = 0, DenseKernel.__call__

    def count_steps(*args, **more):
        nonlocal used
        steps = step(*args, **more)
        used += steps
        return steps

    DenseKernel.__call__ = count_steps
    for number in range(fits):
        print(number, flush=True)  # the last line says where a crash was
        fit_once(number)
    print(f"rounds by the kernel: {used}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
