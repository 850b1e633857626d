"""The plan of a deployment: the one file that a server's operator writes, or that all peers have."""

import hashlib
import inspect
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal

from fedlap.algorithms import ALGORITHMS, Algorithm, Analysed, Pooling
from fedlap.algorithms.coupling import AUTO
from fedlap.algorithms.local_work import BatchSize
from fedlap.deploy.certificates import check_client_name
from fedlap.deploy.data_plan import DataPlan
from fedlap.deploy.event_log import MOST_NAME_LENGTH, is_name
from fedlap.deploy.peers.settings import PeerSettings
from fedlap.errors import InputError, check_integer, check_number, unknown_name_error
from fedlap.experiments.experiment import has_graph
from fedlap.experiments.settings import (
    Section,
    check_section_name,
    complete_section,
    locate_errors,
    split_section,
)
from fedlap.graph import GRAPHS, Graph
from fedlap.graph.model_fit import list_edges
from fedlap.models import MODELS, Architecture
from fedlap.storage.files import hash_user_file, read_text
from fedlap.training.schedule import DtypeName, Schedule

# Graphs that follow from the names of clients and the seed; others need rows.
NAMED_GRAPHS: Final = (
    "complete", "equal", "ring", "path", "star", "empty", "grid", "erdos-renyi", "watts-strogatz", "blocks",
    "random", "file",
)  # fmt: skip
TaskKind = Literal["plain", "fast"]


@dataclass(frozen=True)
class Limits:
    """Limits of time and size.

    deadline: seconds of silence after which a client is left out of a round.
    minimum: the least number of replies that a round is merged with.
    most_bytes: the longest message.
    most_norm: the largest Euclidean norm of an upload, without the counts of rows.
    """

    deadline: float = 600.0
    minimum: int = 1
    most_bytes: int = 64_000_000
    most_norm: float = 1e6

    def __post_init__(self) -> None:
        check_number("deadline", self.deadline, zero=False, scope="limits")
        check_integer("minimum", self.minimum, 1, scope="limits")
        check_integer("most_bytes", self.most_bytes, 10_000, scope="limits")
        check_number("most_norm", self.most_norm, zero=False, scope="limits")


@dataclass(frozen=True)
class Plan:
    """Settings that all sites share, fixed before the first round; `docs/howto/deploy.md` explains them.

    name: names the run and its folder.
    clients: their names, in the order of the rows of W.
    data: the columns of every client's file, and how they are read.
    algorithm: name and settings of the method.
    model: name and settings of the model.
    graph: name and settings of a graph that needs no rows.
    limits: limits of time and size.
    peers: settings of a run without a server; None for a run with one.
    rounds: number of rounds.
    seed: seed of starts, sampling and batches.
    batch: rows per mini-batch, or "all" for full gradients.
    sample: share of clients sampled per round.
    evaluate_every: rounds between scores; the last round is always scored.
    dtype: floating-point type of the computation.
    task: "plain" trains by autograd as written, and repeats the simulation bit for bit; "fast" trains by
        kernels.
    """

    name: str
    clients: tuple[str, ...]
    data: DataPlan
    algorithm: Section = field(default_factory=lambda: {"name": "fedu"})
    model: Section = field(default_factory=lambda: {"name": "linear"})
    graph: Section = field(default_factory=lambda: {"name": "complete"})
    limits: Limits = Limits()
    peers: PeerSettings | None = None
    rounds: int = 100
    seed: int = 0
    batch: BatchSize = 20
    sample: float = 1.0
    evaluate_every: int = 10
    dtype: DtypeName = "float32"
    task: TaskKind = "plain"

    @staticmethod
    def load(path: Path) -> "Plan":
        """Read a plan from a .toml file; a graph file is found relative to it."""
        try:
            values = tomllib.loads(read_text(path))
        except OSError as error:
            raise InputError(
                f"plan {str(path)!r} cannot be read: {error.strerror}; pass the file of the plan"
            ) from error
        except ValueError as error:
            raise InputError(f"{str(path)!r} cannot be read as a plan ({error}); expected TOML") from error
        graph = values.get("graph")
        if isinstance(graph, dict) and isinstance(graph.get("path"), str):
            graph.setdefault("name", "file")
            graph["path"] = str(path.parent / graph["path"])
            graph["sha256"] = hash_user_file("graph", graph["path"])
        plan = Plan.of(values)
        plan.check_edges()
        return plan

    @staticmethod
    def of(values: Mapping[str, Any]) -> "Plan":
        """Build a plan from plain values; raise InputError for an unknown or invalid one."""
        known = [entry.name for entry in fields(Plan)]
        for name in values:
            if name not in known:
                raise unknown_name_error("setting of a plan", name, known, field=name)
        for name in ("name", "clients", "data"):
            if name not in values:
                raise InputError(f"{name} is missing; a plan needs it", field=name)
        for name in ("algorithm", "model", "graph", "limits", "data", "peers"):
            if not isinstance(values.get(name, {}), Mapping):
                raise InputError(f"{name} = {values[name]!r}; expected a table, as in [{name}]", field=name)
        limits = values.get("limits", {})
        for name in limits:
            if name not in (names := [entry.name for entry in fields(Limits)]):
                raise unknown_name_error("setting of limits", name, names, field=f"limits.{name}")
        clients = values["clients"]
        if not isinstance(clients, list | tuple) or not all(isinstance(name, str) for name in clients):
            raise InputError(f"clients = {clients!r}; expected a list of names", field="clients")
        sections = {key: dict(values[key]) for key in ("algorithm", "model", "graph") if key in values}
        built: dict[str, Any] = {
            "clients": tuple(clients),
            "data": DataPlan.of(values["data"]),
            "limits": Limits(**limits),
        }
        if "peers" in values:
            built["peers"] = PeerSettings.of(values["peers"])
        simple = {key: values[key] for key in known if key in values and key not in (*sections, *built)}
        return Plan(**{**simple, **sections, **built})

    def __post_init__(self) -> None:
        if not is_name(self.name) or "/" in self.name or self.name in (".", ".."):
            raise InputError(
                f"name = {self.name!r}; expected at most {MOST_NAME_LENGTH} printable characters that can "
                "name a folder, without '/' and without spaces at the ends",
                field="name",
            )
        if not self.clients or len(set(self.clients)) < len(self.clients) or "" in self.clients:
            raise InputError(
                "clients has no names, or one of them twice; name each client once", field="clients"
            )
        for name in self.clients:
            try:
                check_client_name(name)
            except InputError as error:
                raise error.reword(f"clients: {error.message}", field="clients", scope=None) from error
        if self.task not in ("plain", "fast"):
            raise InputError(f"task = {self.task!r}; use plain or fast", field="task")
        check_integer("seed", self.seed)
        check_integer("evaluate_every", self.evaluate_every, 0)
        _ = self.schedule  # raises InputError for invalid values
        for section, known, skip in (
            ("algorithm", ALGORITHMS, ("graph",)),
            ("model", MODELS, ()),
            ("graph", {name: GRAPHS[name] for name in NAMED_GRAPHS}, ("clients", "seed")),
        ):
            values, builders = getattr(self, section), dict[str, Any](known)
            name = check_section_name(section, section, values, builders)
            complete = complete_section(section, name, builders[name], values, skip=skip)
            object.__setattr__(self, section, complete)
        if self.algorithm.get("strength") == AUTO:
            raise InputError(
                "algorithm.strength = 'auto' needs all rows in one place; set a number, or leave it out",
                field="algorithm.strength",
            )
        self._check_kind()

    def _check_kind(self) -> None:
        """Raise InputError for a method that pools rows, or that does not fit a run with or without peers."""
        has_peers, name = hasattr(self.method_class, "mix"), self.algorithm["name"]
        if issubclass(self.method_class, Pooling):
            problem = "needs all rows in one place; use fedu, fedavg, or another method with a server"
        elif has_peers and self.peers is None:
            problem = "has no server; use fedu, fedavg, or another method with a server, or add [peers]"
        elif not has_peers and self.peers is not None:
            problem = "needs a server; use dfedu, or remove [peers]"
        elif self.peers is not None and not issubclass(self.method_class, Analysed):
            problem = "has no checks of late models and new edges; use dfedu"
        else:
            self._check_peers()
            return
        raise InputError(f"algorithm.name = {name!r} {problem}", field="algorithm.name")

    def _check_peers(self) -> None:
        """Raise InputError if the peers' settings do not fit the clients or the method."""
        if self.peers is None:
            return
        for name in self.peers.addresses:
            if name not in self.clients:
                raise unknown_name_error("client", name, self.clients, field="peers.addresses")
        if self.sample != 1:
            raise InputError(f"sample = {self.sample}; peers all train in every round; remove it")
        if self.peers.most_age and self.algorithm.get("mixing") == "implicit":
            raise InputError(
                f"staleness = {self.peers.staleness!r}, but implicit mixing needs every model of a round; "
                "set staleness = 0, or mixing = explicit",
                field="peers.staleness",
            )

    def check_edges(self) -> None:
        """Raise InputError if peers could not train on the plan's graph, or if nobody can dial for an edge.

        A stored plan has no file of its graph. A server learns with its clients' rows whether they can train.
        """
        if self.peers is None:
            return
        with locate_errors(graph=self.graph):
            graph = self.build_graph(self.clients)
        with locate_errors(algorithm=self.algorithm):
            self.build_algorithm(graph)
        with locate_errors(model=self.model):
            self.count_parameters()
        for places in list_edges(graph)[0].T.tolist():
            one, other = (self.clients[place] for place in places)
            if not {one, other} & self.peers.addresses.keys():
                self.peers.find_dialled(one, other, self.clients)  # raises InputError

    @property
    def method_class(self) -> type[Algorithm]:
        """The class of the method."""
        return ALGORITHMS[self.algorithm["name"]]

    @property
    def schedule(self) -> Schedule:
        """The schedule of the simulation that the deployment repeats."""
        return Schedule(
            self.rounds, self.batch, self.sample, self.dtype, engine="one_by_one",
            evaluate_every=self.evaluate_every, score_training="always",
        )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """Return plain values, from which `of` builds an equal plan."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        graph = dict(self.graph)
        if graph.get("path"):  # Clients need no graph file; its digest identifies it.
            graph["path"] = Path(graph["path"]).name
        data, limits = self.data.to_dict(), asdict(self.limits)
        plain = {**values, "clients": list(self.clients), "data": data, "limits": limits, "graph": graph}
        if self.peers is None:
            del plain["peers"]
        else:
            plain["peers"] = self.peers.to_dict()
        return json.loads(json.dumps(plain))  # type: ignore[no-any-return]

    @property
    def digest(self) -> str:
        """SHA-256 of the plan; 16 hexadecimal digits of it are shown."""
        return digest_values(self._describe_shared())

    @property
    def part_digests(self) -> dict[str, str]:
        """SHA-256 of each part of the plan, so that peers with different plans can tell where they differ."""
        values = self._describe_shared()
        sections = ("graph", "model", "algorithm", "data", "peers", "limits")
        parts: dict[str, Any] = {name: values.pop(name) for name in sections if name in values}
        return {name: digest_values(part) for name, part in {"run": values, **parts}.items()}

    def _describe_shared(self) -> dict[str, Any]:
        """Return the plain values that all sites must agree on."""
        values = self.describe()
        if self.peers is not None:
            values["peers"] = self.peers.describe_shared()
        return values

    def build_architecture(self) -> Architecture:
        """Build the architecture of the clients' models."""
        name, settings = split_section(self.model)
        return MODELS[name](**settings)

    def count_parameters(self) -> int:
        """Count the parameters of a client's model."""
        return self.build_architecture().build((self.data.inputs,), self.data.outputs).size

    def build_graph(self, clients: Sequence[str]) -> Graph:
        """Build the graph between clients with the given names."""
        name, settings = split_section(self.graph)
        inputs = {"clients": clients, "seed": self.seed}
        accepted = inspect.signature(GRAPHS[name]).parameters
        return GRAPHS[name](**{key: inputs[key] for key in inputs if key in accepted}, **settings)

    def build_algorithm(self, graph: Graph, **changes: Any) -> Algorithm:
        """Build the method on a graph; `changes` replace settings."""
        name, settings = split_section(self.algorithm)
        settings |= {"graph": graph} if has_graph(name) else {}
        return ALGORITHMS[name](**{**settings, **changes})

    def with_clients(self, clients: Sequence[str]) -> "Plan":
        """Return the plan with other clients."""
        return replace(self, clients=tuple(clients))


def digest_values(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
