"""The plan of a deployment: the one file that the server's operator writes, and that clients receive."""

import hashlib
import inspect
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal

from fedlap.algorithms import ALGORITHMS, Algorithm
from fedlap.algorithms.coupling import AUTO
from fedlap.algorithms.local_work import BatchSize
from fedlap.deploy.data_plan import DataPlan
from fedlap.errors import InputError, check_integer, check_number, unknown_name_error
from fedlap.experiments.experiment import has_graph
from fedlap.experiments.settings import Section, check_section_name, complete_section, split_section
from fedlap.graph import GRAPHS, Graph
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
    most_bytes: the longest message. most_norm: the largest Euclidean norm of an upload.
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
    """Everything that server and clients must agree on before the first round; `docs/deploy.md` explains it.

    name: names the run. clients: their names, in the order of the rows of W. task: "plain" trains by autograd
    as written, and repeats the simulation bit for bit; "fast" trains by kernels.
    """

    name: str
    clients: tuple[str, ...]
    data: DataPlan
    algorithm: Section = field(default_factory=lambda: {"name": "fedu"})
    model: Section = field(default_factory=lambda: {"name": "linear"})
    graph: Section = field(default_factory=lambda: {"name": "complete"})
    limits: Limits = Limits()
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
        except (OSError, ValueError) as error:
            raise InputError(f"{str(path)!r} cannot be read as a plan ({error}); expected TOML") from error
        graph = values.get("graph")
        if isinstance(graph, dict) and isinstance(graph.get("path"), str):
            graph.setdefault("name", "file")
            graph["path"] = str(path.parent / graph["path"])
            graph["sha256"] = hash_user_file("graph", graph["path"])
        return Plan.of(values)

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
        for name in ("algorithm", "model", "graph", "limits", "data"):
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
        simple = {
            key: values[key] for key in known if key in values and key not in (*sections, "data", "limits")
        }
        data = DataPlan.of(values["data"])
        return Plan(
            **{**simple, **sections, "clients": tuple(clients), "data": data, "limits": Limits(**limits)}
        )

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip() or "/" in self.name:
            raise InputError(f"name = {self.name!r}; expected a text without '/'", field="name")
        if not self.clients or len(set(self.clients)) < len(self.clients) or "" in self.clients:
            raise InputError(
                "clients has no names, or one of them twice; name each client once", field="clients"
            )
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
        """Raise InputError for a method without a server, or one that pools rows."""
        method = self.method_class
        if hasattr(method, "mix") or hasattr(method, "view"):
            why = "has no server" if hasattr(method, "mix") else "needs all rows in one place"
            raise InputError(
                f"algorithm.name = {self.algorithm['name']!r} {why}; use fedu, fedavg, or another method "
                "with a server",
                field="algorithm.name",
            )

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
        return json.loads(json.dumps(plain))  # type: ignore[no-any-return]

    @property
    def digest(self) -> str:
        """SHA-256 of the plan; 16 hexadecimal digits of it are shown."""
        return hashlib.sha256(json.dumps(self.describe(), sort_keys=True).encode()).hexdigest()

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
