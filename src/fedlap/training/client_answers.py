"""A row per client: its rows, its scores with the method and alone, neighbours and coefficients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from fedlap.algorithms import ALGORITHMS, BASELINES, Algorithm, GraphLearning, State
from fedlap.data.federation import Federation
from fedlap.graph import Graph
from fedlap.models import Model, Network
from fedlap.personal.coefficients import Coefficients, compute_coefficients
from fedlap.training.metrics import METRICS, Metric, check_metric
from fedlap.training.placement import PlacedClients
from fedlap.training.scores import Tally

NEIGHBOURS_LISTED = 3  # per client, the heaviest first


@dataclass(frozen=True, eq=False)
class ClientAnswers:
    """A row per client of one run.

    score, alone: the metric on the client's test rows, of its model and of the model that it trains alone;
        NaN without test rows.
    neighbours: names of the nearest neighbours, the heaviest edge first; empty without a graph.
    coefficients: of linear models, else None.
    """

    clients: tuple[str, ...]
    train_rows: Int64[Tensor, "client"]
    test_rows: Int64[Tensor, "client"]
    metric: Metric
    score: Float64[Tensor, "client"]
    alone: Float64[Tensor, "client"] | None
    neighbours: list[tuple[str, ...]]
    coefficients: Coefficients | None

    @property
    def gain(self) -> Float64[Tensor, "client"] | None:
        """Improvement of each client over training alone, positive if its score is better."""
        return None if self.alone is None else self.metric.sign * (self.score - self.alone)

    def to_columns(self) -> dict[str, Sequence[Any]]:
        """Return the columns by name, numbers in the unit of the metric and of the data."""
        name = self.metric.name
        columns: dict[str, Sequence[Any]] = {
            "client": self.clients,
            "train_rows": self.train_rows.tolist(),
            "test_rows": self.test_rows.tolist(),
        }
        if self.alone is not None and self.gain is not None:
            columns |= {f"{name}_alone": self.alone.tolist()}
        columns[name] = self.score.tolist()
        if self.gain is not None:
            columns["gain"] = self.gain.tolist()
        if any(self.neighbours):
            columns["neighbours"] = [", ".join(names) for names in self.neighbours]
        if self.coefficients is not None:
            values, errors = self.coefficients.values, self.coefficients.errors
            for place, coefficient in enumerate(self.coefficients.names):
                columns[coefficient] = values[:, place].tolist()
                if not self.coefficients.remark:
                    columns[f"{coefficient}_error"] = errors[:, place].tolist()
        return columns

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame(self.to_columns())


def tally_test_rows(federation: Federation, objective: Model, W: Float[Tensor, "client param"]) -> Tally:
    """Return the sums over each client's test rows, predicted by its model."""
    home = federation.to_device(W.device, W.dtype, as_bytes=True)
    clients = PlacedClients.of([home], [0], objective, 1, W.device, W.dtype)
    return clients.tally(W, home.test, torch.arange(len(W))).restore_unit(federation.target_scale)


def choose_client_metric(federation: Federation, name: str | None = None) -> Metric:
    """Return a metric by name; by default accuracy for classes and RMSE for real targets."""
    is_classification = federation.labels is not None
    check_metric(name, is_classification)
    return METRICS[name or ("accuracy" if is_classification else "rmse")]


def answer_clients(
    federation: Federation,
    objective: Model,
    algorithm: Algorithm,
    models: Float[Tensor, "client param"],
    alone: Float[Tensor, "client param"] | None,
    graph: Graph | None,
    metric: Metric,
) -> ClientAnswers:
    """Build the answers of a run: its models, and the models that the clients train alone, if known."""
    scores = [
        None if W is None else tally_test_rows(federation, objective, W).client_scores()[metric.name]
        for W in (models, alone)
    ]
    assert scores[0] is not None
    return ClientAnswers(
        federation.clients,
        federation.train.count,
        federation.test.count,
        metric,
        scores[0],
        scores[1],
        list_neighbours(graph, federation.clients),
        compute_coefficients(federation, objective, algorithm, models),
    )


def list_neighbours(graph: Graph | None, clients: Sequence[str]) -> list[tuple[str, ...]]:
    """Return each client's nearest neighbours on a graph in the order of the clients; names decide ties."""
    if graph is None:
        return [()] * len(clients)
    found = []
    for place in range(len(clients)):
        near, weight = graph.neighbours(place)
        pairs = zip(weight.tolist(), near.tolist(), strict=True)
        ranked = sorted((-heavy, clients[other]) for heavy, other in pairs if other < len(clients))
        found.append(tuple(name for _, name in ranked[:NEIGHBOURS_LISTED]))
    return found


def find_graph(
    algorithm: Algorithm, server: State, state_clients: Sequence[str], clients: Sequence[str]
) -> Graph | None:
    """Return the graph of a method, learned or given, in the order of `clients`; None without a graph.

    state_clients: the clients in the order of the server's state.
    """
    if isinstance(algorithm, GraphLearning):
        return algorithm.learned_graph(server, tuple(state_clients)).align(clients)
    graph = vars(algorithm).get("graph")
    return graph.align(clients) if isinstance(graph, Graph) else None


def build_local_method(algorithm: Algorithm) -> Algorithm:
    """Return the method that trains every client alone, with the local work of another method."""
    settings: dict[str, Any] = {"local_steps": algorithm.local_steps, "local_epochs": algorithm.local_epochs}
    if algorithm.traits.has_lr:
        settings["lr"] = algorithm.lr
    return ALGORITHMS[BASELINES[0]](**settings)


@dataclass(frozen=True)
class SizedArchitecture:
    """The architecture of a network that has its sizes already."""

    network: Network
    l2: float

    def build(self, inputs: tuple[int, ...], outputs: int) -> Network:
        """Return the network."""
        return self.network
