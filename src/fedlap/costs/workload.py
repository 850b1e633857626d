"""The numbers that the cost of a training depends on, and a small federation of the same kind."""

from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, get_args

import torch
from scipy.sparse import csr_array

from fedlap.algorithms import ALGORITHMS, Algorithm, GraphLearning, PeerAlgorithm, Pooling
from fedlap.algorithms.coupling import find_merge_place
from fedlap.algorithms.interface import MergePlace
from fedlap.algorithms.local_work import BatchSize
from fedlap.data import LargeSynthetic
from fedlap.data.client_rows import ClientRows
from fedlap.data.federation import Federation
from fedlap.errors import InputError, UnsuitedError, check_integer, unknown_name_error
from fedlap.graph.graph import Graph
from fedlap.models import MODELS, Network
from fedlap.training.jobs import Job, plan_local_work
from fedlap.training.schedule import EngineName, Schedule, compute_sample_size

Topology = Literal["clusters", "ring", "geometric", "random"]

# The name of the strength in methods with a graph, and a value with which explicit mixing is always stable.
STRENGTH: Final = "strength"
TINY_STRENGTH: Final = 1e-9


@dataclass(frozen=True)
class Workload:
    """A training: how many clients with how many rows, and what each of them does in a round.

    clients: number of clients.
    rows, test_rows: their mean numbers of training and test rows.
    features: number of features.
    labels: number of classes; 0 for one real target.
    graph: where neighbours are among numbered clients: as in `LargeSynthetic`, or anywhere (random).
    degree: mean number of neighbours.
    algorithm, model: a name and settings. sample, batch: as in `fit`.
    """

    clients: int
    rows: int = 20
    test_rows: int = 5
    features: int = 10
    labels: int = 3
    graph: Topology = "random"
    degree: int = 10
    algorithm: tuple[str, dict[str, Any]] = ("fedu", {})
    model: tuple[str, dict[str, Any]] = ("linear", {})
    sample: float = 1.0
    batch: BatchSize = 20

    def __post_init__(self) -> None:
        least = {"clients": 1, "rows": 1, "test_rows": 0, "features": 1, "labels": 0, "degree": 0}
        for name, number in least.items():
            check_integer(name, getattr(self, name), number)
        if self.graph not in get_args(Topology):
            raise unknown_name_error("graph of a plan", self.graph, get_args(Topology), field="graph")
        for field, known in (("algorithm", ALGORITHMS), ("model", MODELS)):
            name = getattr(self, field)[0]
            if name not in known:
                raise unknown_name_error(field, name, known, field=field)
        _ = self.build_schedule(1)  # raises InputError for invalid values, as the size of a cohort does
        if isinstance(self.build_algorithm(2), GraphLearning):
            raise UnsuitedError(
                f"algorithm = {self.algorithm[0]!r} learns a weight per pair of clients, so its cost grows "
                "with their square; plan a method on a fixed graph, such as fedu",
                field="algorithm",
            )
        _ = self.cohort_size

    @staticmethod
    def of(values: dict[str, Any]) -> "Workload":
        """Build a workload from plain values, where settings that are tuples are lists."""
        sections = {
            name: (values[name][0], {key: _freeze(value) for key, value in values[name][1].items()})
            for name in ("algorithm", "model")
        }
        return Workload(**{**values, **sections})

    @property
    def outputs(self) -> int:
        """Number of model outputs."""
        return self.labels or 1

    @property
    def cohort_size(self) -> int:
        """Number of clients sampled per round."""
        return compute_sample_size(self.build_algorithm(2), self.sample, self.clients)

    @property
    def is_sampled(self) -> bool:
        """Return whether clients are drawn in every round."""
        return self.cohort_size < self.clients

    @property
    def has_server(self) -> bool:
        """Return whether the method has a server; otherwise clients are peers."""
        return not isinstance(self.build_algorithm(2), PeerAlgorithm)

    @property
    def parameters(self) -> int:
        """Number of parameters of a client's model."""
        network: Network = self._architecture.build((self.features,), self.outputs)
        return network.size

    @property
    def trained_rows(self) -> int:
        """Rows in all mini-batches of a sampled client in a round."""
        work = plan_local_work(self.build_algorithm(2), 1)
        if work.epochs or self.batch == "all":
            return self.rows * work.repeats
        return min(self.batch, self.rows) * work.repeats

    @property
    def measured_client_bytes(self) -> int:
        """About how many bytes of memory a client takes in a measured training: rows, models, neighbours."""
        rows = (self.rows + self.test_rows) * (4 * self.features + 16)
        return rows + 12 * self.parameters + 24 * self.degree

    @property
    def merge_place(self) -> MergePlace:
        """The place where rows meet: each client's shard, or the server."""
        return find_merge_place(self.build_algorithm(2))

    @property
    def _architecture(self) -> Any:
        name, settings = self.model
        return MODELS[name](**settings)

    def build_algorithm(self, clients: int) -> Algorithm:
        """Build the method on a small ring or, for real, on the graph of `build_job`."""
        return self._build_on(Graph.ring(tuple(map(str, range(clients)))))

    def _build_on(self, graph: Graph) -> Algorithm:
        name, settings = self.algorithm
        known = {field.name for field in fields(ALGORITHMS[name])}  # type: ignore[arg-type]
        settings = {STRENGTH: TINY_STRENGTH, **settings} if STRENGTH in known else settings
        return ALGORITHMS[name](**({"graph": graph} if "graph" in known else {}), **settings)

    def with_clients(self, clients: int, cohort_size: int) -> "Workload":
        """Return the workload with other numbers of clients and of sampled clients."""
        return replace(self, clients=clients, sample=cohort_size / clients)

    def build_job(self) -> Job:
        """Build a training of this size on random rows, in memory."""
        generator = torch.Generator().manual_seed(0)
        train, test = (self._draw_rows(count, generator) for count in (self.rows, self.test_rows))
        names = tuple(map(str, range(self.clients)))
        labels = tuple(map(str, range(self.labels))) if self.labels else None
        federation = Federation(names, train, test, labels)
        return Job(self._build_on(self._build_graph(names, generator)), federation, self._architecture)

    def _build_graph(self, names: tuple[str, ...], generator: torch.Generator) -> Graph:
        """Build a ring with the degree of the workload; its clients are shuffled if the graph is random."""
        degree = min(self.degree - self.degree % 2, (self.clients - 1) // 2 * 2)
        ring = LargeSynthetic(clients=self.clients, structure="ring", degree=degree).build_graph()
        if self.graph != "random":
            return ring
        order = torch.randperm(self.clients, generator=generator).numpy()
        matrix = csr_array(ring.weights.matrix()[order][:, order])
        matrix.sort_indices()
        return Graph.from_checked(names, matrix, ring.rho)

    def _draw_rows(self, count: int, generator: torch.Generator) -> ClientRows:
        rows = self.clients * count
        x = torch.randn(rows, self.features, generator=generator)
        y = (
            torch.randint(self.labels, (rows,), generator=generator)
            if self.labels
            else torch.randn(rows, 1, generator=generator)
        )
        return ClientRows.of(x, y, torch.full((self.clients,), count))

    def build_schedule(self, rounds: int, engine: EngineName = "stacked") -> Schedule:
        """Build the schedule of a training that scores its last round only."""
        return Schedule(rounds, self.batch, self.sample, engine=engine, evaluate_every=0)


def _freeze(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def check_poolable(workload: Workload) -> None:
    """Raise InputError for a method whose clients are pooled: it has one client and nothing to spread."""
    if isinstance(workload.build_algorithm(2), Pooling):
        raise InputError(
            f"algorithm = {workload.algorithm[0]!r} pools all rows into one client, which one process "
            "trains; set workers to 1",
            field="workers",
        )
