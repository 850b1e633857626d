"""Workloads for one machine: data in the shape of the real sets, with rounds by fedlap and otherwise."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

import fedlap as fl
from benchmarks.limits import Least, least
from benchmarks.ordinary import BATCH, LR, Ordinary
from fedlap.training.assemble import assemble
from fedlap.training.jobs import Job
from fedlap.training.schedule import Schedule

EPOCHS, STEPS = 5, 5
OUR_ROUNDS = 20  # rounds per run of fedlap, which take about as long as one round of an alternative


@dataclass(frozen=True)
class Workload:
    """A model on some clients, with the required and the target speed-up over the ordinary way."""

    name: str
    data: Callable[[], fl.Federation]
    model: fl.models.Architecture
    epochs: bool  # five passes by a DataLoader, or five steps without one
    must: float
    aim: float

    @property
    def other(self) -> str:
        """Name of the alternative."""
        return "loop with DataLoader" if self.epochs else "loop without DataLoader"

    def ours(self, seed: int) -> float:
        """Return the seconds of a round of FedU, with draws and mixing, without evaluation."""
        federation = self.data()
        work = {"local_epochs": EPOCHS} if self.epochs else {"local_steps": STEPS}
        method = fl.FedU(fl.Graph.complete(federation.clients), strength=0.001, lr=LR, **work)
        return our_round(method, federation, self.model, seed)

    @torch.no_grad()
    def evaluation(self, repeats: int) -> tuple[float, float]:
        """Return the median seconds to score a row and to train on a row, measured in turns."""
        federation = self.data()
        training = assemble([Job(fl.Local(), federation, self.model)], Schedule(batch=BATCH))
        states, rows = (training.method, training.server), int(federation.train.count.sum())
        both = rows + int(federation.test.count.sum())
        samples = EPOCHS * rows if self.epochs else STEPS * BATCH * len(federation.clients)
        training.engine.score(*states, training=True)
        turns = []
        for repeat in range(repeats):
            began = time.perf_counter()
            for _ in range(OUR_ROUNDS):
                training.engine.score(*states, training=True)  # training and test rows
            scored = (time.perf_counter() - began) / OUR_ROUNDS / both
            turns.append((scored, self.ours(repeat) / samples))
        scored, trained = (statistics.median(times) for times in zip(*turns, strict=True))
        return scored, trained

    def theirs(self) -> Callable[[], float]:
        """Return a function that measures the seconds of a round the ordinary way."""
        ordinary = Ordinary.of(self.data(), self.model)
        return lambda: ordinary.epochs(EPOCHS) if self.epochs else ordinary.steps(STEPS)

    def least(self) -> Least:
        """Return the least work of a round."""
        federation = self.data()
        network = self.model.build(federation.inputs, federation.outputs)
        rows = int(federation.train.count.sum()) * EPOCHS
        samples = rows if self.epochs else len(federation.clients) * BATCH * STEPS
        size = federation.train.store.element_size() if federation.train.store.dtype.itemsize == 1 else 4
        return least(federation, network.widths, samples, size)


def our_round(
    method: fl.algorithms.Algorithm, federation: fl.Federation, model: fl.models.Architecture, seed: int
) -> float:
    """Return the seconds of a round of this method."""
    result = fl.fit(method, federation, model, rounds=OUR_ROUNDS, batch=BATCH, seed=seed, evaluate_every=0)
    return result.scores[-1].seconds / OUR_ROUNDS


@cache
def activity() -> fl.Federation:
    """Generate rows like Human Activity's: 30 clients, 561 features, 6 labels, normal numbers."""
    rng, arrays = np.random.default_rng(0), {}
    for k in range(30):
        n = int(rng.integers(211, 307))
        arrays[str(k)] = rng.normal(size=(n, 561)).astype(np.float32), rng.integers(0, 6, n)
    return fl.Federation.from_arrays(arrays, test_share=0.0, labels=6, scale="none")


@cache
def digits() -> fl.Federation:
    """Generate rows like MNIST's: 100 clients, 28 × 28 bytes, 10 labels."""
    rng, arrays = np.random.default_rng(0), {}
    for k in range(100):
        n = int(rng.integers(150, 778))
        arrays[str(k)] = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), rng.integers(0, 10, n)
    return fl.Federation.from_arrays(arrays, test_share=0.0, labels=10).standardize("pooled")


WORKLOADS = [
    Workload("Human Activity logistic, 30 clients, 5 epochs", activity, fl.models.linear(), True, 15, 40),
    Workload("Human Activity MLP 561-100-6, 5 epochs", activity, fl.models.mlp((100,)), True, 6, 10),
    Workload("MNIST MLP 784-100-100-10, 100 clients", digits, fl.models.mlp((100, 100)), False, 3, 6),
]
