"""The setup of a run: its clients, graph and method, as both sides use them from a stated round on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch

from fedlap.algorithms import Algorithm, Binding, ClientTable, ServerAlgorithm, State
from fedlap.algorithms.server_state import Ids
from fedlap.data.roster import Roster
from fedlap.deploy.moments import CONSTANT_TYPES, MOMENT_TYPES
from fedlap.deploy.plan import Plan, digest_values
from fedlap.graph import Graph
from fedlap.models import CrossEntropy, Model, SquaredError
from fedlap.models.model import Stack
from fedlap.randomness import digest_names
from fedlap.training.client_sampling import ClientSampler, SamplingGroup
from fedlap.training.jobs import plan_local_work
from fedlap.training.plain_task import HOST, PlainTask
from fedlap.training.schedule import build_start, compute_sample_size
from fedlap.training.state import describe_shapes, gather_lazy_rows
from fedlap.training.strength_choice import compute_default_strength, has_open_strength
from fedlap.training.worker import ClientTally

# In messages and files, in addition to the types of the method.
STATE_TYPES: Final = (ClientTable, *MOMENT_TYPES, *CONSTANT_TYPES, ClientTally)


@dataclass(frozen=True, eq=False)
class Setup:
    """The clients of a run from a round on, with their graph; a changed roster is a new version.

    version: 1 for the plan's clients. first_round: the first round in which it is in force.
    """

    plan: Plan
    version: int
    first_round: int
    clients: tuple[str, ...]
    counts: tuple[int, ...]  # training rows of each client
    graph: Graph
    settings: Mapping[str, Any]  # of the method, with numbers instead of defaults that follow from the data

    @staticmethod
    def of(
        plan: Plan,
        clients: Sequence[str],
        counts: Sequence[int],
        graph: Graph,
        version: int,
        first_round: int,
    ) -> "Setup":
        """Build a setup; a default strength follows from the graph and the mean number of rows."""
        algorithm: Any = plan.build_algorithm(graph)
        settings = {}
        if has_open_strength(algorithm):
            settings["strength"] = compute_default_strength(algorithm.coupling, sum(counts) / len(counts))
        setup = Setup(plan, version, first_round, tuple(clients), tuple(counts), graph, settings)
        _ = setup.cohort_size  # raises InputError if the method cannot be used with these clients
        return setup

    def describe(self) -> dict[str, Any]:
        """Return plain values, from which `parse` restores the setup."""
        return {
            "version": self.version,
            "first_round": self.first_round,
            "clients": list(self.clients),
            "counts": list(self.counts),
            "graph": encode_graph(self.graph),
            "settings": dict(self.settings),
        }

    @staticmethod
    def parse(plan: Plan, values: Mapping[str, Any]) -> "Setup":
        """Restore a setup that `describe` described."""
        clients = tuple(map(str, values["clients"]))
        graph = decode_graph(values["graph"], clients)
        counts = tuple(map(int, values["counts"]))
        version, first = int(values["version"]), int(values["first_round"])
        return Setup(plan, version, first, clients, counts, graph, dict(values["settings"]))

    @property
    def digest(self) -> str:
        """SHA-256 of the clients, the graph and the settings."""
        return digest_setup(self.describe())

    @cached_property
    def roster(self) -> Roster:
        """Names, digests, counts and labels of the clients."""
        names = self.clients
        return Roster(names, digest_names(names), torch.tensor(self.counts), self.plan.data.classes)

    @cached_property
    def model(self) -> Model:
        """The model with its loss, sized by the plan."""
        data, architecture = self.plan.data, self.plan.build_architecture()
        loss = SquaredError() if data.classes is None else CrossEntropy()
        network = architecture.build((data.inputs,), data.outputs)
        return Model(network, loss, architecture.l2, architecture)

    @cached_property
    def algorithm(self) -> Algorithm:
        """The method, before it is bound to the clients."""
        return self.plan.build_algorithm(self.graph, **self.settings)

    @cached_property
    def method(self) -> Any:
        """The method, bound to the clients."""
        bound = self.algorithm
        return bound.bind(self.roster, self.model) if isinstance(bound, Binding) else bound

    @cached_property
    def cohort_size(self) -> int:
        """The number of clients that are sampled in a round."""
        return compute_sample_size(self.method, self.plan.sample, len(self.clients))

    def draw_cohort(self, round: int) -> Ids:
        """Draw the clients of a round, exactly as the simulation does."""
        group = SamplingGroup([self.plan.seed], self.roster.digests.unsqueeze(0), self.cohort_size)
        sampler = ClientSampler([group], torch.arange(self.cohort_size))
        return sampler.draw(range(round, round + 1), HOST)[0]

    def build_start(self) -> Stack:
        """Return the clients' start models."""
        dtype = self.plan.schedule.torch_dtype
        return build_start(None, self.model, len(self.clients), self.plan.seed, HOST, dtype)

    @cached_property
    def initial_private(self) -> State:
        """The private state of all clients before the first round; it tells whether there is any."""
        return self.method.init_clients(self.build_start(), self.roster.counts)

    @cached_property
    def sample_upload(self) -> State:
        """A valid upload, from the local work on one row of zeros."""
        plan, ids = self.plan, torch.zeros(1, dtype=torch.int64)
        start = self.build_start()[:1].clone()
        server = self.method.init_server(self.build_start())
        private = self.method.init_clients(start, torch.ones(1, dtype=torch.int64))
        x = start.new_zeros(1, 1, plan.data.inputs)
        y = start.new_zeros(1, 1, plan.data.outputs) if plan.data.classes is None else ids.view(1, 1)
        steps = plan_local_work(self.method, 1).count_steps(1, plan.batch)
        task = PlainTask(self.model, x, y, [ids] * steps)
        has_server = isinstance(self.method, ServerAlgorithm)
        down = gather_lazy_rows(self.method.send(server, ids)) if has_server else None
        return self.method.local(private, down, task)[1]

    @cached_property
    def upload_shapes(self) -> Any:
        """The structure, shapes and types of a valid upload."""
        return describe_shapes(self.sample_upload)


def digest_setup(description: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a setup that `Setup.describe` described."""
    return digest_values(description)


def encode_graph(graph: Graph) -> dict[str, Any]:
    """Return a graph as plain values: its edges by position, and whether it has a server vertex."""
    matrix = graph.weights.matrix().tocoo()
    upper = matrix.row < matrix.col
    edges = zip(
        matrix.row[upper].tolist(), matrix.col[upper].tolist(), matrix.data[upper].tolist(), strict=True
    )
    return {"edges": [list(edge) for edge in edges], "server": graph.server}


def decode_graph(values: Mapping[str, Any], clients: Sequence[str]) -> Graph:
    """Restore a graph that `encode_graph` described."""
    size = len(clients) + bool(values["server"])
    matrix = np.zeros((size, size))
    for begin, end, weight in values["edges"]:
        matrix[begin, end] = matrix[end, begin] = weight
    return Graph(tuple(clients), Graph.from_matrix(matrix).weights, bool(values["server"]))
