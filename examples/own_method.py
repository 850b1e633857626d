"""Add your own method: FedAvg, and then fine-tuning of the global model at every client.

Run `python examples/own_method.py` for a comparison in Python, or use the file as a plugin:
`fedlap compare --plugin examples/own_method.py --algorithms local,fedavg,fedavg-tuned`.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

import fedlap as fl
from fedlap.algorithms import Task, Traits
from fedlap.algorithms.local_updates import sgd

Upload = tuple[Tensor, Tensor]  # the clients' models and their numbers of training rows


@dataclass(frozen=True)
class TunedFedAvg:
    """FedAvg with fine-tuning: a client's model is the global one after a few steps on the client's rows.

    w_k ← w_k − μ ∇F̃_k(w_k)        R times from w, at each sampled client k
    w ← Σ_k n_k w_k / Σ_k n_k       at the server
    w_k ← w_k − μ ∇F_k(w_k)         T times from w, at each client, before it uses its model

    tuning_steps: T, over all training rows of the client.
    lr: μ, the length of all steps.
    local_steps: R mini-batch steps per round (5 if neither is given), or …
    local_epochs: … R passes over the client's rows.
    """

    tuning_steps: int = 20
    lr: float = 0.03
    local_steps: int | None = None
    local_epochs: int | None = None

    traits: ClassVar[Traits] = Traits("personal", static="round")
    citation: ClassVar[str] = ""

    def init_server(self, start: Tensor) -> Tensor:
        """Start the global model at the mean of the clients' start models."""
        return start.mean(0, keepdim=True)

    def init_clients(self, start: Tensor, counts: Tensor) -> None:
        """Store nothing at the clients."""

    def send(self, w: Tensor, ids: Tensor) -> Tensor:
        """Send the global model."""
        return w.expand(len(ids), -1)

    def local(self, private: None, w: Tensor, task: Task) -> tuple[None, Upload]:
        """Run R mini-batch steps; send the model and the number of rows."""
        return private, (task.run(sgd, w, lr=self.lr), task.count)

    def merge(self, w: Tensor, ids: Tensor, up: Upload) -> Tensor:
        """Average the clients' models, weighted by their numbers of rows."""
        models, counts = up
        return (counts * models).sum(0, keepdim=True) / counts.sum()

    def personal_models(self, w: Tensor, private: None, clients: int) -> Tensor:
        """Return the global model, before fine-tuning, for every client."""
        return w.expand(clients, -1)

    def adapt(self, w: Tensor, task: Task) -> Tensor:
        """Fine-tune the global model at every client."""
        for _ in range(self.tuning_steps):
            w = w - self.lr * task.full_gradient(w)
        return w


fl.ALGORITHMS["fedavg-tuned"] = TunedFedAvg


def main() -> None:
    """Compare the method with FedAvg and with clients that train alone."""
    federation = fl.data.load("digits", seed=0)
    for name in ("local", "fedavg", "fedavg-tuned"):
        method = fl.ALGORITHMS[name]()
        result = fl.fit(method, federation, fl.models.linear(), rounds=50, evaluate_every=0)
        last = result.scores[-1]
        print(f"{name:13} accuracy {last.accuracy:.3f}, worst tenth of clients {last.accuracy_worst:.3f}")


if __name__ == "__main__":
    main()
