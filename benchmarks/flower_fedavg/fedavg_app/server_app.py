"""Flower's `FedAvg` with a clock, which writes the seconds of each round to a file."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedavg_app.network import build_network

app = ServerApp()


class TimedFedAvg(FedAvg):
    """FedAvg that measures from the first message of a round to the mean of its replies."""

    path = Path()
    seconds: list[float]
    _start = 0.0

    def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        """Start the clock and set a round up."""
        self._start = time.perf_counter()
        return super().configure_train(*args, **kwargs)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[Any, Any]:
        """Average the replies, stop the clock and write the times so far."""
        replies = list(replies)
        if failed := [reply.error.reason for reply in replies if reply.has_error()]:
            raise RuntimeError(f"{len(failed)} of {len(replies)} clients failed: {failed[0]}")
        done = super().aggregate_train(server_round, replies)
        self.seconds.append(time.perf_counter() - self._start)
        new = self.path.with_suffix(".new")  # a reader never sees half of the file
        new.write_text(json.dumps(self.seconds))
        new.replace(self.path)
        return done


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train with all clients in every round, without evaluation."""
    config = context.run_config
    clients = int(config["clients"])
    strategy = TimedFedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    strategy.path, strategy.seconds = Path(str(config["times"])), []
    strategy.start(grid, ArrayRecord(build_network().state_dict()), num_rounds=int(config["rounds"]))
