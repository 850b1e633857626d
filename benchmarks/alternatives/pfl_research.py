"""FedAvg by pfl-research: `FederatedAveraging` on its simulated backend, a torch model and users in memory.

Choices, each the faster one on two cores:

- One process of one thread per core, started as `torchrun` would start them: pfl splits the users over
  them and adds their statistics up by `torch.distributed`.
- Users are tensor datasets built once, so that pfl reuses their batches from round to round.
- `PFL_PYTORCH_DEVICE=cpu` avoids a search for an accelerator at every batch. No metrics are sent anywhere,
  and only the first round, which is not timed, evaluates.

Difference: pfl does not shuffle the rows of users in memory, so every epoch has the same batches in the same
order. The other systems do this work.
"""

import os
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import protocol
import torch
from protocol import BATCH, EPOCHS, LR

WARM_UP = 2  # rounds


class Logistic(torch.nn.Module):
    """Logistic regression with the two methods that pfl asks of a model."""

    def __init__(self, features: int, labels: int) -> None:
        super().__init__()
        self.scores = torch.nn.Linear(features, labels)
        for parameter in self.parameters():
            torch.nn.init.zeros_(parameter)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of a batch."""
        return torch.nn.functional.cross_entropy(self.scores(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
        """Return no metrics: accuracy is requested between rounds."""
        return {}


def start_others(world: int) -> list[subprocess.Popen[str]]:
    """Start the processes of rank 1 and up, and make this one rank 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "alternatives",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    others = []
    for rank in range(world):
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        if rank:
            others.append(subprocess.Popen([sys.executable, *sys.argv], stdin=subprocess.PIPE, text=True))
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0"}
    return others


def tell(others: list[subprocess.Popen[str]], word: str) -> None:
    """Send the other processes a line."""
    for other in others:
        other.stdin.write(word + "\n")
        other.stdin.flush()


def simulate(
    clients: list[protocol.Rows], cohort: int, line: protocol.Line, others: list[subprocess.Popen[str]]
) -> None:
    """Run pfl until a request to stop."""
    # pfl joins its process group when it is imported, which is after the others have been started
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    first = os.environ.get("RANK", "0") == "0"
    module = Logistic(*protocol.shape(clients))
    users = [PyTorchTensorDataset((torch.from_numpy(rows.x), torch.from_numpy(rows.y))) for rows in clients]
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", range(len(users))))

    def correct() -> float:
        scores = module.scores
        return protocol.accuracy(clients, scores.weight.detach().numpy().T, scores.bias.detach().numpy())

    class Gate(TrainingProcessCallback):
        """Delay every round until it is requested."""

        began = 0.0

        def after_central_iteration(
            self, metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Any]:
            """Report the seconds of the round and wait for the next request."""
            ended = time.perf_counter()
            if central_iteration < WARM_UP - 1:
                return False, Metrics()
            if not first:
                return sys.stdin.readline().strip() != "go", Metrics()
            if central_iteration == WARM_UP - 1:
                note = f"torch {torch.__version__}, processes: {1 + len(others)}; does not shuffle"
                line.ready("pfl-research", version("pfl"), protocol.steps(clients), note)
            else:
                line.took(ended - self.began)
            go = line.wait(correct)
            self.began = time.perf_counter()
            tell(others, "go" if go else "stop")
            return not go, Metrics()

    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=sys.maxsize,
            evaluation_frequency=sys.maxsize,
            train_cohort_size=cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(data, data, [WeightByDatapoints()]),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), 1.0)),
        NNTrainHyperParams(local_num_epochs=EPOCHS, local_learning_rate=LR, local_batch_size=BATCH),
        callbacks=[Gate()],
        send_metrics_to_platform=False,
    )


def main() -> None:
    """Train one round for every request."""
    options = protocol.arguments(__doc__)
    line = protocol.Line()
    os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
    torch.set_num_threads(1)
    np.random.seed(0)  # noqa: NPY002 - the one that pfl reads, the same in every process
    others = start_others(options.threads) if options.threads > 1 and "RANK" not in os.environ else []
    try:
        clients = protocol.load(options.data)
        simulate(clients, protocol.cohort_size(options.data, clients), line, others)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    finally:
        for other in others:
            other.stdin.close()
            try:
                other.wait(10)
            except subprocess.TimeoutExpired:
                other.kill()


if __name__ == "__main__":
    main()
