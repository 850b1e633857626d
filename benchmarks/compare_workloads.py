"""Workloads of `benchmarks.compare`: rounds on random data in the shape of real sets.

A process of either checkout loads this file, also for commits older than the file. It therefore uses public
names of `fedlap` alone, and only names that both commits have.
"""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import fedlap as fl

BATCH, LR, STRENGTH = 20, 0.01, 0.001
EPOCHS, STEPS = {"local_epochs": 5}, {"local_steps": 5}


@dataclass(frozen=True)
class Workload:
    """A method, a model and clients, with a number of rounds that takes 0.1 to 0.3 s."""

    build_federation: Callable[[], fl.Federation]
    build_method: Callable[[fl.Federation], Any]
    model: Any
    rounds: int
    sample: float = 1.0

    def measure(self, device: str) -> float:
        """Return the milliseconds per round, without evaluation; as many rounds before that warm up."""
        federation = self.build_federation()
        gc.collect()
        result = fl.fit(
            self.build_method(federation),
            federation,
            self.model,
            rounds=2 * self.rounds,
            batch=BATCH,
            sample=self.sample,
            device=device,
            evaluate_every=self.rounds,
        )
        first, second = (score.seconds for score in result.scores[-2:])
        return 1000 * (second - first) / self.rounds


def standardize(federation: fl.Federation) -> fl.Federation:
    """Return the federation with standardised features, under the present or the former name."""
    method = getattr(federation, "standardize", None) or federation.scaled
    return method("pooled")


@cache
def build_activity() -> fl.Federation:
    """Rows like Human Activity's: 30 clients with about 340 rows, 561 features, 6 labels."""
    rng, arrays = np.random.default_rng(0), {}
    for client in range(30):
        count = int(rng.integers(281, 410))
        arrays[str(client)] = rng.normal(size=(count, 561)).astype(np.float32), rng.integers(0, 6, count)
    return standardize(fl.Federation.from_arrays(arrays, labels=6))


@cache
def build_small() -> fl.Federation:
    """Twenty clients with ten features, for which the overhead per round dominates."""
    rng, arrays = np.random.default_rng(0), {}
    for client in range(20):
        arrays[str(client)] = rng.normal(size=(60, 10)).astype(np.float32), rng.integers(0, 3, 60)
    return standardize(fl.Federation.from_arrays(arrays, labels=3))


def build_images(rows: int, shape: tuple[int, ...], clients: int) -> fl.Federation:
    """Clients of unequal size with random bytes as images, as in `benchmarks.device`."""
    rng, arrays = np.random.default_rng(0), {}
    counts = np.maximum(rng.multinomial(rows, rng.dirichlet(np.full(clients, 20.0))), 2 * BATCH)
    for client, count in enumerate(counts):
        x = rng.integers(0, 256, (int(count), *shape), dtype=np.uint8)
        arrays[str(client)] = x, rng.integers(0, 10, int(count))
    return standardize(fl.Federation.from_arrays(arrays, labels=10))


@cache
def build_mnist() -> fl.Federation:
    """Rows like MNIST's: 100 clients, 28 × 28 bytes, 10 labels."""
    return build_images(61_866, (28, 28), 100)


@cache
def build_cifar() -> fl.Federation:
    """Rows like CIFAR-10's: 20 clients, 3 × 32 × 32 bytes, 10 labels."""
    return build_images(54_572, (3, 32, 32), 20)


def build_fedu(work: Mapping[str, int]) -> Callable[[fl.Federation], Any]:
    """Return a function that builds FedU on the complete graph."""
    return lambda federation: fl.FedU(fl.Graph.complete(federation.clients), STRENGTH, LR, **work)


def build_ring(federation: fl.Federation) -> Any:
    """Build dFedU on a ring."""
    return fl.DFedU(fl.Graph.ring(federation.clients), STRENGTH, LR, **STEPS)


METHODS: dict[str, Callable[[fl.Federation], Any]] = {
    "fedavg": lambda federation: fl.FedAvg(lr=LR, **EPOCHS),
    "fedu": build_fedu(EPOCHS),
    "fedprox": lambda federation: fl.FedProx(0.1, lr=LR, **EPOCHS),
    "pfedme": lambda federation: fl.PFedMe(lr=LR, **EPOCHS),
    "perfedavg": lambda federation: fl.PerFedAvg(lr=LR, **EPOCHS),
    "scaffold": lambda federation: fl.Scaffold(lr=LR, **EPOCHS),
    "ditto": lambda federation: fl.Ditto(lr=LR, **EPOCHS),
    "apfl": lambda federation: fl.APFL(lr=LR, **EPOCHS),
    "mocha": lambda federation: fl.Mocha(fl.Graph.complete(federation.clients), STRENGTH, **EPOCHS),
}
SAMPLED_ROUNDS = {"pfedme": 60, "mocha": 50, "scaffold": 30, "ditto": 20, "apfl": 20}  # others: 150


def list_cpu_workloads() -> dict[str, Workload]:
    """Return the workloads of a CPU by name; rounds suit one core of an x86-64 server."""
    linear = fl.models.linear()
    workloads = {
        "activity-logistic": Workload(build_activity, build_fedu(EPOCHS), linear, 30),
        "activity-mlp": Workload(build_activity, build_fedu(EPOCHS), fl.models.mlp((100,)), 3),
        "mnist-logistic": Workload(build_mnist, build_fedu(STEPS), linear, 40),
        "small-fedu": Workload(build_small, build_fedu(STEPS), linear, 800),
        "small-ring-dfedu": Workload(build_small, build_ring, linear, 800),
    }
    for name, build_method in METHODS.items():
        rounds = SAMPLED_ROUNDS.get(name, 150)
        workloads[f"sampled-{name}"] = Workload(build_activity, build_method, linear, rounds, sample=0.1)
    return workloads


def list_cuda_workloads() -> dict[str, Workload]:
    """Return the workloads of a GPU by name; rounds suit an NVIDIA H200."""
    linear, mlp, cnn = fl.models.linear(), fl.models.mlp((100, 100)), fl.models.cnn()
    return {
        "mnist-logistic": Workload(build_mnist, build_fedu(STEPS), linear, 2000),
        "mnist-mlp": Workload(build_mnist, build_fedu(STEPS), mlp, 400),
        "cifar-cnn": Workload(build_cifar, build_fedu(STEPS), cnn, 40),
        "sampled-mnist-logistic": Workload(build_mnist, build_fedu(STEPS), linear, 2000, sample=0.1),
    }


def list_workloads(device: str) -> dict[str, Workload]:
    """Return the workloads of a device by name."""
    return list_cpu_workloads() if device == "cpu" else list_cuda_workloads()
