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
from fedlap.algorithms.local_work import DEFAULT_STEPS
from fedlap.data import SOURCES, TEST_SHARE, load_with_graph
from fedlap.data.federation import Federation
from fedlap.data.partition import NATURAL, PARTITIONS
from fedlap.data.standardize import Scaling
from fedlap.errors import InputError, whole
from fedlap.experiments.settings import (
    Section,
    brief,
    check_data,
    check_numbers,
    check_training,
    completed,
    known_name,
    locate_errors,
    one_line,
    parted,
    settings_of,
)
from fedlap.graph import GIVEN, GRAPHS, Graph, built
from fedlap.models import MODELS, Architecture
from fedlap.storage.files import digest_of
from fedlap.training.fit import fit
from fedlap.training.result import Result
from fedlap.training.schedule import DtypeName, EngineName, KeepName, Precision, Schedule
from fedlap.training.scores import Score

KNOWN_GRAPH = "known"  # the graph that comes with the data
MOST_STEPS = 10_000_000  # of a client in a round: more would not end


class Experiment(BaseModel):
    """Data, model, algorithm and graph, each a name with its settings, and the schedule.

    Settings that are not given get their defaults when the experiment is made, so it says everything.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    data: Section = {"name": "digits"}
    partition: Section = {}
    scarce: Section | None = None
    fold: Section | None = None
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
    content: str = ""  # digest of the data once they are loaded; those of another content are refused

    @classmethod
    def of(cls, description: Mapping[str, Any], stored: bool = False) -> "Experiment":
        """From plain values; a mistake is one line that names the field.

        stored: accept a method that is not registered here, as its run stored it; only `build` needs it.
        """
        for field, value in description.items():
            if isinstance(value, bool) and field in cls.model_fields:
                raise InputError(f"{field} = {value}: it is not a matter of true or false", field=field)
        try:
            made = cls.model_validate(dict(description), context={"stored": stored})
        except ValidationError as error:
            raise one_line(error, cls.model_fields) from None
        check_numbers("", made.model_dump())
        whole("seed", made.seed)
        _ = made.schedule  # refuses numbers that cannot be run
        if not made.knows_method:
            return made
        if not takes_graph(made.algorithm["name"]):
            return made.model_copy(update={"graph": {}})
        if not made.graph:
            raise InputError(
                f"graph is missing; algorithm {made.algorithm['name']!r} needs one", field="graph"
            )
        return made

    @field_validator("data")
    @classmethod
    def _data(cls, section: Section) -> Section:
        name = known_name("data", "data set", section, SOURCES)
        more: dict[str, Any] = {"scale": (Scaling, SOURCES[name].scale)}
        if SOURCES[name].tabular:
            more["test_share"] = (float, TEST_SHARE)
        if "test" in section and "test_share" in section:
            raise InputError(
                "test rows are given, so there is none to draw; leave out test_share", scope="data"
            )
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
        name = known_name("partition", "partition", section, [*PARTITIONS, NATURAL])
        if name == NATURAL and (own is not None or _anonymous(info.data["data"])):
            title = info.data["data"].get("path", info.data["data"]["name"])
            raise InputError(
                f"nothing says whose rows of {title!r} are whose; use one of "
                f"{', '.join(PARTITIONS)}, or name a file's column of clients (--client)",
                scope="partition",
            )
        if name == usual and own is not None:
            section = vars(own) | section
        return completed("partition", name, PARTITIONS.get(name, lambda: None), section)

    @field_validator("scarce", "fold")
    @classmethod
    def _thinner(cls, section: Section | None, info: ValidationInfo) -> Section | None:
        if section is None:
            return None
        name = str(info.field_name)
        makers: dict[str, Callable[..., Federation]] = {"scarce": Federation.scarce, "fold": Federation.fold}
        made = completed(name, name, makers[name], section, leave=("self", "seed"))
        return {key: value for key, value in made.items() if key != "name"}

    @field_validator("model")
    @classmethod
    def _model(cls, section: Section) -> Section:
        name = known_name("model", "model", section, MODELS)
        return completed("model", name, MODELS[name], section)

    @field_validator("algorithm")
    @classmethod
    def _algorithm(cls, section: Section, info: ValidationInfo) -> Section:
        stored = (info.context or {}).get("stored") and isinstance(section.get("name"), str)
        if stored and section["name"] not in ALGORITHMS:
            return section
        name = known_name("algorithm", "algorithm", section, ALGORITHMS)
        made = completed("algorithm", name, ALGORITHMS[name], section, leave=("graph",))
        if "local_steps" not in made and "local_epochs" not in made:
            made["local_steps"] = DEFAULT_STEPS
        for key in ("local_steps", "local_epochs", "inner_steps"):
            if made.get(key, 0) > MOST_STEPS:
                path = f"algorithm.{key}"
                raise InputError(
                    f"{path} = {brief(made[key])}: such a round never ends; take at most {MOST_STEPS}",
                    field=path,
                )
        return made

    @field_validator("graph")
    @classmethod
    def _graph(cls, section: Section) -> Section:
        if not section:
            return section
        name = known_name("graph", "graph", section, [*GRAPHS, KNOWN_GRAPH])
        made = completed("graph", name, GRAPHS.get(name, lambda: None), section, leave=GIVEN)
        if made.get("path") and not made["sha256"]:
            made["sha256"] = digest_of("graph", made["path"])
        return made

    def described(self) -> dict[str, Any]:
        """Plain values that make this experiment again."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits of all that fixes the numbers of a run; how many rounds does not."""
        fixed = {key: value for key, value in self.described().items() if key != "rounds"}
        return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def knows_method(self) -> bool:
        """Whether its method is registered in this process; one of a user's own may not be."""
        return self.algorithm["name"] in ALGORITHMS

    @property
    def title(self) -> str:
        """What the data are called."""
        return str(Path(self.data["path"]).stem if "path" in self.data else self.data["name"])

    def load(self) -> tuple[Federation, Graph | None]:
        """The federation, or the fold of it that is held out, and its graph where one comes with it."""
        name, settings = parted(self.partition)
        check_data(self.data, self.partition)
        with locate_errors(data=self.data, partition=self.partition, scarce=self.scarce):
            partition = None if name == NATURAL else PARTITIONS[name](**settings)
            loaded = load_with_graph(**self.data, partition=partition, scarce=self.scarce, seed=self.seed)
        return self.folded(loaded)

    def folded(self, loaded: tuple[Federation, Graph | None]) -> tuple[Federation, Graph | None]:
        """The same data with this experiment's fold held out, where it has one."""
        if self.fold is None:
            return loaded
        federation, graph = loaded
        with locate_errors(fold=self.fold):
            return federation.fold(**self.fold, seed=self.seed), graph

    def build(
        self, loaded: tuple[Federation, Graph | None] | None = None
    ) -> tuple[Algorithm, Federation, Architecture]:
        """The objects that this describes; data that are loaded already may be given."""
        federation, known = loaded or self.load()
        name, settings = parted(self.algorithm)
        if not self.knows_method:
            raise InputError(
                f"algorithm.name: method {brief(name)} is not registered in this process; in Python, set "
                f"fedlap.ALGORITHMS[{brief(name)}] to its class, then call fedlap.cli.main() to train it",
                field="algorithm.name",
            )
        make = ALGORITHMS[name]
        if takes_graph(name):
            with locate_errors(graph=self.graph):
                settings["graph"] = self.built_graph(federation, known)
        with locate_errors(algorithm=self.algorithm):
            algorithm = make(**settings)
        model_name, model_settings = parted(self.model)
        with locate_errors(model=self.model):
            architecture = MODELS[model_name](**model_settings)
        with locate_errors(model=self.model):
            network = architecture.build(federation.inputs, federation.outputs)
        check_training(algorithm, federation, network, self.sample, self.batch)
        return algorithm, federation, architecture

    def settled(self, algorithm: Algorithm, content: str) -> "Experiment":
        """The same with the digest of its data, and with the strength that its algorithm chose by itself."""
        if self.content not in ("", content):
            raise InputError(
                f"content = {self.content!r}: the data of {self.title!r} are not those that this experiment "
                f"was made with (theirs is {content!r}); find those, or leave content out",
                field="content",
            )
        update: dict[str, Any] = {"content": content}
        if isinstance(algorithm, Coupled):
            made = {**self.algorithm, "strength": algorithm.coupling.eta}
            order = ["name", *settings_of(type(algorithm))]
            update["algorithm"] = {key: made[key] for key in order if key in made}
        return self.model_copy(update=update)

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
        settings = {field.name: getattr(self, field.name) for field in fields(Schedule)}
        return fit(*self.build(), seed=self.seed, **settings, on_score=on_score, on_round=on_round)

    def built_graph(self, federation: Federation, known: Graph | None) -> Graph:
        """The graph of a federation, which may have come with one."""
        name, settings = parted(self.graph)
        if name != KNOWN_GRAPH:
            return built(name, federation, self.seed, **settings)
        if known is None:
            raise InputError(
                f"no graph comes with {self.title!r}; use one of {', '.join(GRAPHS)}", scope="graph"
            )
        return known


def takes_graph(algorithm: str) -> bool:
    """Whether the algorithm of this name mixes over a graph."""
    return "graph" in inspect.signature(ALGORITHMS[algorithm]).parameters


def _anonymous(data: Section) -> bool:
    """Whether this is a file that does not say whose rows are whose (arrays may, in one called client)."""
    return "path" in data and "client" not in data and Path(data["path"]).suffix.lower() != ".npz"
