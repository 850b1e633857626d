"""The ordinary way: a Python loop over clients, with one `nn.Module` and one optimiser per client."""

import time
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader, TensorDataset

import fedlap as fl

BATCH, LR = 20, 0.03


@dataclass
class Ordinary:
    """Every client's rows and module, with a shuffling DataLoader, as in most code, or without."""

    loaders: list[DataLoader]
    modules: list[torch.nn.Module]

    @staticmethod
    def of(federation: fl.Federation, model: fl.models.Architecture) -> "Ordinary":
        """Build the loop for the rows of a federation, as models see them, and its network."""
        ready = federation.to_device(torch.device("cpu"), torch.float32, as_bytes=False)
        sets = [TensorDataset(*ready.train.client(k)) for k in range(len(ready.clients))]
        network = model.build(ready.inputs, ready.outputs)
        return Ordinary(
            [DataLoader(rows, batch_size=BATCH, shuffle=True) for rows in sets],
            [network.module(network.start(0).float()) for _ in sets],
        )

    def epochs(self, number: int) -> float:
        """Return the seconds of a round of this number of passes per client, by its DataLoader."""
        began = time.perf_counter()
        for loader, module in zip(self.loaders, self.modules, strict=True):
            optimiser = torch.optim.SGD(module.parameters(), lr=LR)
            for _ in range(number):
                for x, y in loader:
                    _step(module, optimiser, x, y)
        return time.perf_counter() - began

    def steps(self, number: int) -> float:
        """Return the seconds of a round of this number of steps per client, without its DataLoader."""
        began = time.perf_counter()
        for loader, module in zip(self.loaders, self.modules, strict=True):
            optimiser = torch.optim.SGD(module.parameters(), lr=LR)
            x, y = loader.dataset.tensors
            for _ in range(number):
                rows = torch.randperm(len(x))[:BATCH]
                _step(module, optimiser, x[rows], y[rows])
        return time.perf_counter() - began


def _step(
    module: torch.nn.Module, optimiser: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> None:
    optimiser.zero_grad()
    torch.nn.functional.cross_entropy(module(x), y).backward()
    optimiser.step()
