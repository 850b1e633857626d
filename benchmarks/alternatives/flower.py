"""FedAvg by Flower: its simulation on Ray, a `ClientApp`, and its `FedAvg` strategy in a `ServerApp`.

Choices, each the faster or the more favourable one on two cores:

- Every client has one CPU and one thread, so that Ray runs one worker per core.
- The message interface, which Flower now recommends, and not `NumPyClient`.
- Each worker reads the data once and stores them as tensors. Batches are rows of a permutation, which takes
  less time than the `DataLoader` of Flower's examples.
- `run_simulation`, which runs the same engine as `flwr run` does.
- Flower's simulation runs a whole training by itself. Here the `ServerApp` asks the strategy for one round at
  a time; the clock runs from when the strategy sets the round up to when it has the mean. Two rounds that are
  not timed come first: in them Ray's workers start and read the data.

Flower looks for messages and for replies every 0.1 s. This is its default and part of its time.
Telemetry of Flower and Ray is switched off.
"""

import functools
import os
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import protocol
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from protocol import BATCH, EPOCHS, LR

WARM_UP = 2  # rounds
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

app = ClientApp()


@functools.cache
def tensors(path: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Every client's rows, read once in a worker."""
    return [(torch.from_numpy(rows.x), torch.from_numpy(rows.y)) for rows in protocol.load(path)]


def linear(arrays: ArrayRecord) -> torch.nn.Linear:
    """Build the module with these parameters."""
    state = arrays.to_torch_state_dict()
    module = torch.nn.Linear(*reversed(state["weight"].shape))
    module.load_state_dict(state)
    return module


@app.train()
def train(message: Message, context: Context) -> Message:
    """One client's local epochs."""
    torch.set_num_threads(1)
    path = message.content["config"]["data"]
    x, y = tensors(path)[context.node_config["partition-id"]]
    module = linear(message.content["arrays"])
    optimiser = torch.optim.SGD(module.parameters(), lr=LR)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(y)).split(BATCH):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
            optimiser.step()
    content = {
        "arrays": ArrayRecord(module.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(RecordDict(content), reply_to=message)


class Timed(FedAvg):
    """FedAvg with a clock."""

    seconds = 0.0
    _began = 0.0

    def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        """Start the clock and set a round up."""
        self._began = time.perf_counter()
        return super().configure_train(*args, **kwargs)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[Any, Any]:
        """Average what the clients sent and stop the clock."""
        replies = list(replies)
        if failed := [reply.error.reason for reply in replies if reply.has_error()]:
            raise RuntimeError(f"{len(failed)} of {len(replies)} clients failed: {failed[0]}")
        done = super().aggregate_train(server_round, replies)
        self.seconds = time.perf_counter() - self._began
        return done


def server(path: str, line: protocol.Line, processes: dict[int, str]) -> ServerApp:
    """Build the app that runs one round per request and lists the processes to end with it."""
    application = ServerApp()
    clients = protocol.load(path)

    @application.main()
    def main(grid: Grid, context: Context) -> None:
        everyone = len(clients)
        cohort = protocol.cohort_size(path, clients)
        strategy = Timed(
            fraction_train=cohort / everyone,
            fraction_evaluate=0.0,
            min_train_nodes=cohort,
            min_available_nodes=everyone,
        )
        module = torch.nn.Linear(*protocol.shape(clients))
        for parameter in module.parameters():
            torch.nn.init.zeros_(parameter)
        arrays = ArrayRecord(module.state_dict())

        def run() -> None:
            nonlocal arrays
            arrays = strategy.start(
                grid, arrays, num_rounds=1, train_config=ConfigRecord({"data": path})
            ).arrays

        def correct() -> float:
            now = linear(arrays)
            return protocol.accuracy(clients, now.weight.detach().numpy().T, now.bias.detach().numpy())

        for _ in range(WARM_UP):
            run()
        note = f"ray {version('ray')}, torch {torch.__version__}; polls every 0.1 s"
        line.ready("Flower", version("flwr"), protocol.steps(clients), note)
        while line.wait(correct):
            run()
            line.took(strategy.seconds)
        processes.update(protocol.family(os.getpid()))
        del processes[os.getpid()]

    return application


def main() -> None:
    """Train one round for every request."""
    options = protocol.arguments(__doc__, QUIET)
    line = protocol.Line()
    path = str(options.data.resolve())
    processes: dict[int, str] = {}
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        os.environ["FLWR_HOME"] = folder
        run_simulation(
            server(path, line, processes),
            app,
            num_supernodes=len(tensors(path)),
            backend_config={
                "init_args": {"num_cpus": options.threads, "_temp_dir": folder},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
        protocol.see_off(processes)  # Ray's workers outlive it by a few seconds


if __name__ == "__main__":
    import flower  # by its name, so that workers import the module once and keep its cache

    flower.main()
