"""Add your own method: FedAvg with momentum at the server.

Run `python examples/own_method.py` for a comparison in Python, or use the file as a plugin:
`fedlap compare --plugin examples/own_method.py --algorithms local,fedavg,fedavgm`.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import fedlap as fl
from fedlap.algorithms import Task, Traits
from fedlap.algorithms.local_updates import sgd

Server = tuple[Tensor, Tensor]  # the global model and its velocity
Upload = tuple[Tensor, Tensor]  # the clients' models and their numbers of training rows


@dataclass(frozen=True)
class MomentumFedAvg:
    """FedAvgM (Hsu, Qi and Brown 2019): the server's model has a velocity v.

    w_k ← w_k − μ ∇F̃_k(w_k)                    R times from w, at each sampled client k
    v ← β v + Σ_k n_k (w_k − w) / Σ_k n_k       at the server, and then
    w ← w + v

    momentum: β; at 0 the method is FedAvg.
    lr: μ, the length of a local step.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    """

    momentum: float = 0.9
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    traits: ClassVar[Traits] = Traits("one model", static="round")
    citation: ClassVar[str] = ""

    def init_server(self, start: Tensor) -> Server:
        """Start the global model at the mean of the clients' start models, at rest."""
        w = start.mean(0, keepdim=True)
        return w, torch.zeros_like(w)

    def init_clients(self, start: Tensor, counts: Tensor) -> None:
        """Store nothing at the clients."""

    def send(self, server: Server, ids: Tensor) -> Tensor:
        """Send the global model."""
        return server[0].expand(len(ids), -1)

    def local(self, private: None, w: Tensor, task: Task) -> tuple[None, Upload]:
        """Run R mini-batch steps; send the model and the number of rows."""
        return private, (task.run(sgd, w, lr=self.lr), task.count)

    def merge(self, server: Server, ids: Tensor, up: Upload) -> Server:
        """Add the mean change of the clients' models, weighted by their numbers of rows, to the velocity."""
        (w, v), (models, counts) = server, up
        v = self.momentum * v + (counts * models).sum(0, keepdim=True) / counts.sum() - w
        return w + v, v

    def personal_models(self, server: Server, private: None, clients: int) -> Tensor:
        """Return the global model for every client."""
        return server[0].expand(clients, -1)


fl.ALGORITHMS["fedavgm"] = MomentumFedAvg


def main() -> None:
    """Compare the method with FedAvg and with clients that train alone."""
    federation = fl.data.load("digits", seed=0)
    for name in ("local", "fedavg", "fedavgm"):
        method = fl.ALGORITHMS[name]()
        result = fl.fit(method, federation, fl.models.linear(), rounds=50, evaluate_every=0)
        last = result.scores[-1]
        print(f"{name:13} accuracy {last.accuracy:.3f}, worst tenth of clients {last.accuracy_worst:.3f}")


if __name__ == "__main__":
    main()
