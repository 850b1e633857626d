"""The Experiment: a frozen, complete and checked description of a run."""

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from fedlap.algorithms import ALGORITHMS, Algorithm, Coupled
from fedlap.data import SOURCES, TEST_SHARE, load_with_graph
from fedlap.errors import DivergedError, InputError, whole
from fedlap.federation import Federation
from fedlap.files import digest_of
from fedlap.graph import GRAPHS, Graph
from fedlap.models import MODELS, Architecture
from fedlap.partition import NATURAL, PARTITIONS
from fedlap.parts import Scaling
from fedlap.result import Result
from fedlap.rounds import fit_all
from fedlap.schedule import DtypeName, EngineName, KeepName, Precision, Schedule
from fedlap.scores import Score
from fedlap.sections import Section, completed, known_name, one_line, parted
from fedlap.trials import Trial
from fedlap.work import DEFAULT_STEPS

KNOWN_GRAPH = "known"  # the graph that comes with the data


class Experiment(BaseModel):
    """Data, model, algorithm and graph, each a name with its settings, and the schedule.

    Settings that are not given get their defaults when the experiment is made, so it says everything.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    data: Section = {"name": "digits"}
    partition: Section = {}
    scarce: Section | None = None
    model: Section = {"name": "linear"}
    algorithm: Section = {"name": "fedu"}
    graph: Section = {"name": "complete"}
    rounds: int = 100
    batch: int | Literal["all"] = 20
    sample: float = 1.0
    seed: int = 0
    evaluate_every: int = 1
    dtype: DtypeName = "float32"
    device: str = "cpu"
    engine: EngineName = "stacked"
    precision: Precision = "float32"
    keep: KeepName = "auto"

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> "Experiment":
        """From plain values; a mistake is one line that names the field."""
        for field, value in description.items():
            if isinstance(value, bool):
                raise InputError(f"{field} = {value}: it is not a matter of true or false")
        try:
            made = cls.model_validate(dict(description))
        except ValidationError as error:
            raise one_line(error, "", cls.model_fields) from None
        whole("seed", made.seed)
        _ = made.schedule  # refuses numbers that cannot be run
        if not takes_graph(made.algorithm["name"]):
            return made.model_copy(update={"graph": {}})
        if not made.graph:
            raise InputError(f"graph is missing; algorithm {made.algorithm['name']!r} needs one")
        return made

    @field_validator("data")
    @classmethod
    def _data(cls, section: Section) -> Section:
        name = known_name("data set", section, SOURCES)
        more: dict[str, Any] = {"scale": (Scaling, SOURCES[name].scale)}
        if SOURCES[name].tabular:
            more["test_share"] = (float, TEST_SHARE)
        if "test" in section and "test_share" in section:
            raise InputError("data: test rows are given, so there is none to draw; leave out test_share")
        made = completed("data", name, SOURCES[name].make, section, leave=("seed",), more=more)
        if "test" in made:
            del made["test_share"]
        for path, digest in {"path": "sha256", "test": "test_sha256"}.items():
            if name == "file" and path in made and not made[digest]:
                made[digest] = digest_of("data", made[path])
        return made

    @field_validator("partition")
    @classmethod
    def _partition(cls, section: Section, info: ValidationInfo) -> Section:
        if "data" not in info.data:
            return section  # the data are wrong, which is said first
        own = SOURCES[info.data["data"]["name"]].partition
        usual = NATURAL if own is None else next(n for n, make in PARTITIONS.items() if isinstance(own, make))
        section = {"name": usual, **section}
        name = known_name("partition", section, [*PARTITIONS, NATURAL])
        if name == NATURAL and (own is not None or _anonymous(info.data["data"])):
            title = info.data["data"].get("path", info.data["data"]["name"])
            raise InputError(
                f"partition: nothing says whose rows of {title!r} are whose; use one of "
                f"{', '.join(PARTITIONS)}, or name a file's column of clients (--client)"
            )
        if name == usual and own is not None:
            section = vars(own) | section
        return completed("partition", name, PARTITIONS.get(name, lambda: None), section)

    @field_validator("scarce")
    @classmethod
    def _scarce(cls, section: Section | None) -> Section | None:
        if section is None:
            return None
        made = completed("scarce", "scarce", Federation.scarce, section, leave=("self", "seed"))
        return {key: value for key, value in made.items() if key != "name"}

    @field_validator("model")
    @classmethod
    def _model(cls, section: Section) -> Section:
        name = known_name("model", section, MODELS)
        return completed("model", name, MODELS[name], section)

    @field_validator("algorithm")
    @classmethod
    def _algorithm(cls, section: Section) -> Section:
        name = known_name("algorithm", section, ALGORITHMS)
        made = completed("algorithm", name, ALGORITHMS[name], section, leave=("graph",))
        if "local_steps" not in made and "local_epochs" not in made:
            made["local_steps"] = DEFAULT_STEPS
        return made

    @field_validator("graph")
    @classmethod
    def _graph(cls, section: Section) -> Section:
        if not section:
            return section
        name = known_name("graph", section, [*GRAPHS, KNOWN_GRAPH])
        made = completed("graph", name, GRAPHS.get(name, lambda: None), section, leave=("clients",))
        if name == "file" and not made["sha256"]:
            made["sha256"] = digest_of("graph", made["path"])
        return made

    def described(self) -> dict[str, Any]:
        """Plain values that make this experiment again."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that two different experiments do not share."""
        text = json.dumps(self.described(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """What the data are called."""
        return str(Path(self.data["path"]).stem if "path" in self.data else self.data["name"])

    def load(self) -> tuple[Federation, Graph | None]:
        """The federation, and its graph where one comes with it."""
        name, settings = parted(self.partition)
        partition = None if name == NATURAL else PARTITIONS[name](**settings)
        return load_with_graph(**self.data, partition=partition, scarce=self.scarce, seed=self.seed)

    def build(
        self, loaded: tuple[Federation, Graph | None] | None = None
    ) -> tuple[Algorithm, Federation, Architecture]:
        """The objects that this describes; data that are loaded already may be given."""
        federation, known = loaded or self.load()
        name, settings = parted(self.algorithm)
        make = ALGORITHMS[name]
        if takes_graph(name):
            settings["graph"] = self._built_graph(federation, known)
        model_name, model_settings = parted(self.model)
        return make(**settings), federation, MODELS[model_name](**model_settings)

    def settled(self, algorithm: Algorithm) -> "Experiment":
        """The same experiment with the strength that its algorithm chose, where none was given."""
        if not isinstance(algorithm, Coupled):
            return self
        return self.model_copy(update={"algorithm": {**self.algorithm, "strength": algorithm.coupling.eta}})

    @property
    def schedule(self) -> Schedule:
        """How it is run, whatever the method."""
        return Schedule(**{field.name: getattr(self, field.name) for field in fields(Schedule)})

    def run(
        self,
        on_score: Callable[[Score], None] | None = None,
        on_round: Callable[[int], None] | None = None,
    ) -> Result:
        """Build and train."""
        told = None if on_score is None else lambda _, score: on_score(score)
        (made,) = fit_all([Trial(*self.build(), seed=self.seed)], self.schedule, told, on_round)
        if isinstance(made, DivergedError):
            raise made
        return made

    def _built_graph(self, federation: Federation, known: Graph | None) -> Graph:
        name, settings = parted(self.graph)
        if name != KNOWN_GRAPH:
            return GRAPHS[name](federation.clients, **settings)
        if known is None:
            raise InputError(f"graph: no graph comes with {self.title!r}; use one of {', '.join(GRAPHS)}")
        return known


def takes_graph(algorithm: str) -> bool:
    """Whether the algorithm of this name mixes over a graph."""
    return "graph" in inspect.signature(ALGORITHMS[algorithm]).parameters


def _anonymous(data: Section) -> bool:
    """Whether this is a file that does not say whose rows are whose (arrays may, in one called client)."""
    return "path" in data and "client" not in data and Path(data["path"]).suffix.lower() != ".npz"
