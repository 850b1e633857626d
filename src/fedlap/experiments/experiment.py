"""Experiment: a frozen, complete and validated description of a run."""

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from fedlap.algorithms import ALGORITHMS, Algorithm, Coupled
from fedlap.algorithms.coupling import AUTO
from fedlap.algorithms.local_work import DEFAULT_STEPS
from fedlap.data import SOURCES, TEST_SHARE, load_with_graph
from fedlap.data.federation import Federation
from fedlap.data.partition import NATURAL, PARTITIONS
from fedlap.data.standardize import Scaling
from fedlap.errors import InputError, check_integer
from fedlap.experiments.fit import fit
from fedlap.experiments.plugins import REGISTRIES, check_plugins, find_plugins
from fedlap.experiments.settings import (
    Section,
    build_boolean_error,
    check_data_size,
    check_integers,
    check_section_name,
    check_training_size,
    complete_section,
    inspect_settings,
    locate_errors,
    shorten_value,
    split_section,
    to_input_error,
)
from fedlap.graph import BUILDER_INPUTS, GRAPHS, Graph, build_graph
from fedlap.models import MODELS, Architecture
from fedlap.storage.files import hash_user_file
from fedlap.training.result import Result
from fedlap.training.schedule import (
    AUTO_INTERVAL,
    DtypeName,
    EngineName,
    KeepName,
    Precision,
    Schedule,
    ScoringInterval,
    TrainingRowsScored,
)
from fedlap.training.scores import Score

KNOWN_GRAPH = "known"  # selects the graph that is part of the data
SHUFFLED = "shuffled"  # the setting of every graph that permutes its clients' names by the seed
MAX_LOCAL_STEPS = 10_000_000  # per client and round; more would practically never finish


class Experiment(BaseModel):
    """Data, model, algorithm and graph, each a name with settings, and the schedule.

    Missing settings are set to their defaults on construction, so the description is complete.

    data: name and settings of the data set.
    partition: name and settings of the rule that assigns rows to clients; by default that of the data set.
    scarce: cut the training rows of some clients; without this section, all rows stay.
    fold: hold out a fold of the training rows in place of the test rows, as tuning does.
    model: name and settings of the model.
    algorithm: name and settings of the method.
    graph: name and settings of the graph, for methods that use one.
    objects: sections that describe Python objects, with their digests; fedlap writes it.
    plugins: users' code that defines data, model or method, and its version; fedlap writes it.
    content: digest of the data; fedlap writes it, and other data are refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    objects: dict[str, str] | None = None  # sections that describe Python objects, with their digests
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
    evaluate_every: ScoringInterval = AUTO_INTERVAL
    score_training: TrainingRowsScored = "last"
    dtype: DtypeName = "float32"
    device: str = "cpu"
    engine: EngineName = "stacked"
    precision: Precision = "float32"
    keep: KeepName = "auto"
    plugins: dict[str, str] | None = None  # users' code that defines data, model or method, and its version
    content: str = ""  # digest of the data, set when they are loaded; other data raise InputError

    @classmethod
    def of(cls, description: Mapping[str, Any], stored: bool = False) -> "Experiment":
        """Build an experiment from plain values; raise InputError, with the field, for an invalid value.

        stored: accept the names of a stored run that are not registered; `load` and `build` need them.
        """
        for field, value in description.items():
            if isinstance(value, bool) and field in cls.model_fields:
                raise build_boolean_error(field, value)
        try:
            experiment = cls.model_validate(dict(description), context={"stored": stored})
        except ValidationError as error:
            raise to_input_error(error, cls.model_fields) from None
        check_integers("", experiment.model_dump(exclude=set(experiment.objects or ())))
        check_integer("seed", experiment.seed)
        _ = experiment.schedule  # raises InputError for invalid values
        if not stored:
            experiment.check_named("trained")
        experiment = experiment if stored else experiment._record_plugins()
        if not experiment.has_registered_method:
            return experiment
        if not has_graph(experiment.algorithm["name"]):
            return experiment.model_copy(update={"graph": {}})
        if not experiment.graph:
            raise InputError(
                f"graph is missing; algorithm {experiment.algorithm['name']!r} needs one", field="graph"
            )
        return experiment

    def check_named(self, participle: str, only: str | None = None) -> None:
        """Raise InputError if a section, or the `only` one, describes a Python object.

        participle: what cannot be done with it, such as "trained".
        """
        sections = [name for name in self.objects or () if only in (None, name)]
        if sections:
            raise InputError(
                f"{sections[0]} {self.title_of(sections[0])!r} of this run is a Python object, so the run "
                f"can only be {participle} in Python; pass the object and the folder to fedlap.fit or "
                "fedlap.compare",
                field=sections[0],
            )

    def title_of(self, section: str) -> str:
        """Return the name in a section."""
        return str(getattr(self, section).get("name"))

    def _record_plugins(self) -> "Experiment":
        """Return the experiment with its plugins; raise InputError if it names others."""
        plugins = find_plugins(self.sections)
        if self.plugins not in (None, plugins):
            check_plugins(self.plugins, self.sections)
        return self.model_copy(update={"plugins": plugins})

    @property
    def sections(self) -> dict[str, Section]:
        """Sections whose names plugins may define."""
        return {section: getattr(self, section) for section in REGISTRIES}

    @field_validator("data")
    @classmethod
    def _complete_data(cls, section: Section) -> Section:
        name = check_section_name("data", "data set", section, SOURCES)
        extra: dict[str, Any] = {"scale": (Scaling, SOURCES[name].scale)}
        if SOURCES[name].is_tabular:
            extra["test_share"] = (float, TEST_SHARE)
        if "test" in section and "test_share" in section:
            raise InputError(
                "test and test_share are both set; remove test_share to use the rows of test", scope="data"
            )
        complete = complete_section("data", name, SOURCES[name].make, section, skip=("seed",), extra=extra)
        if "test" in complete:
            del complete["test_share"]
        for path, digest in {"path": "sha256", "test": "test_sha256"}.items():
            if name == "file" and path in complete and not complete[digest]:
                complete[digest] = hash_user_file("data", complete[path])
        return complete

    @field_validator("partition")
    @classmethod
    def _complete_partition(cls, section: Section, info: ValidationInfo) -> Section:
        if "data" not in info.data or "data" in (info.data.get("objects") or {}):
            return section  # the data are invalid, which is reported first, or are an object
        if info.data["data"]["name"] not in SOURCES:
            return section  # it is not registered
        default = SOURCES[info.data["data"]["name"]].partition
        default_name = NATURAL
        if default is not None:
            default_name = next(name for name, make in PARTITIONS.items() if isinstance(default, make))
        section = {"name": default_name, **section}
        name = check_section_name("partition", "partition", section, [*PARTITIONS, NATURAL])
        if name == NATURAL and (default is not None or _has_no_client_column(info.data["data"])):
            title = info.data["data"].get("path", info.data["data"]["name"])
            raise InputError(
                f"{title!r} does not assign rows to clients; use one of {', '.join(PARTITIONS)}, or set the "
                "file's column of clients (--client)",
                scope="partition",
            )
        if name == default_name and default is not None:
            section = vars(default) | section
        return complete_section("partition", name, PARTITIONS.get(name, lambda: None), section)

    @field_validator("scarce", "fold")
    @classmethod
    def _complete_subset(cls, section: Section | None, info: ValidationInfo) -> Section | None:
        if section is None:
            return None
        name = str(info.field_name)
        makers: dict[str, Callable[..., Federation]] = {"scarce": Federation.scarce, "fold": Federation.fold}
        complete = complete_section(name, name, makers[name], section, skip=("self", "seed"))
        return {key: value for key, value in complete.items() if key != "name"}

    @field_validator("model")
    @classmethod
    def _complete_model(cls, section: Section) -> Section:
        name = check_section_name("model", "model", section, MODELS)
        return complete_section("model", name, MODELS[name], section)

    @field_validator("algorithm")
    @classmethod
    def _complete_algorithm(cls, section: Section) -> Section:
        name = check_section_name("algorithm", "algorithm", section, ALGORITHMS)
        complete = complete_section("algorithm", name, ALGORITHMS[name], section, skip=("graph",))
        if "local_steps" not in complete and "local_epochs" not in complete:
            complete["local_steps"] = DEFAULT_STEPS
        for key in ("local_steps", "local_epochs", "inner_steps"):
            if complete.get(key, 0) > MAX_LOCAL_STEPS:
                path = f"algorithm.{key}"
                raise InputError(
                    f"{path} = {shorten_value(complete[key])}; expected at most {MAX_LOCAL_STEPS}", field=path
                )
        return complete

    @field_validator("data", "model", "algorithm", mode="wrap")
    @classmethod
    def _accept_unregistered(
        cls, section: Section, complete: Callable[[Section], Section], info: ValidationInfo
    ) -> Section:
        """Leave a section of a stored run unchanged if it describes an object, or its name is not registered.

        This follows the validators above, since pydantic runs the last one first.
        """
        if info.field_name in (info.data.get("objects") or {}) and isinstance(section.get("name"), str):
            return section
        stored = (info.context or {}).get("stored") and isinstance(section.get("name"), str)
        is_unknown = stored and section["name"] not in REGISTRIES[str(info.field_name)]
        return section if is_unknown else complete(section)

    @field_validator("graph")
    @classmethod
    def _complete_graph(cls, section: Section, info: ValidationInfo) -> Section:
        if not section or "graph" in (info.data.get("objects") or {}):
            return section
        name = check_section_name("graph", "graph", section, [*GRAPHS, KNOWN_GRAPH])
        build = GRAPHS.get(name, lambda: None)
        extra = {SHUFFLED: (bool, False)}
        complete = complete_section("graph", name, build, section, skip=BUILDER_INPUTS, extra=extra)
        if not complete[SHUFFLED]:
            del complete[SHUFFLED]  # so that descriptions of unshuffled graphs stay as they were
        if complete.get("path") and not complete["sha256"]:
            complete["sha256"] = hash_user_file("graph", complete["path"])
        return complete

    def describe(self) -> dict[str, Any]:
        """Return plain values from which `of` builds an equal experiment."""
        described = self.model_dump(mode="json", exclude_none=True)
        if self.score_training == "last":
            del described["score_training"]  # so that descriptions of earlier versions stay as they were
        return described

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of all that determines the numbers of a run; rounds are not included."""
        fixed = {key: value for key, value in self.describe().items() if key != "rounds"}
        return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def has_registered_method(self) -> bool:
        """True if the method is registered in this process and has a name; a user's method may not be."""
        return self.algorithm["name"] in ALGORITHMS and "algorithm" not in (self.objects or {})

    @property
    def title(self) -> str:
        """Name of the data set, or of the file without its extension."""
        return str(Path(self.data["path"]).stem if "path" in self.data else self.data["name"])

    @property
    def folder_title(self) -> str:
        """The title as the beginning of folder names; that of a Python object has no spaces."""
        return self.title if self.objects is None else "-".join(self.title.split())

    def load(self) -> tuple[Federation, Graph | None]:
        """Load the federation, with the fold held out, and the graph if it is part of the data."""
        self.check_named("loaded", "data")
        check_plugins(self.plugins, self.sections, "data")
        name, settings = split_section(self.partition)
        check_data_size(self.data, self.partition)
        with locate_errors(data=self.data, partition=self.partition, scarce=self.scarce):
            partition = None if name == NATURAL else PARTITIONS[name](**settings)
            loaded = load_with_graph(**self.data, partition=partition, scarce=self.scarce, seed=self.seed)
        return self.hold_out_fold(loaded)

    def hold_out_fold(self, loaded: tuple[Federation, Graph | None]) -> tuple[Federation, Graph | None]:
        """Hold out the fold of this experiment; without a fold, return the data unchanged."""
        if self.fold is None:
            return loaded
        federation, graph = loaded
        with locate_errors(fold=self.fold):
            return federation.fold(**self.fold, seed=self.seed), graph

    def build(
        self, loaded: tuple[Federation, Graph | None] | None = None
    ) -> tuple[Algorithm, Federation, Architecture]:
        """Build the described objects; `loaded` passes data that are loaded already."""
        federation, known = loaded or self.load()
        self.check_named("loaded")
        name, settings = split_section(self.algorithm)
        check_plugins(self.plugins, self.sections)
        make = ALGORITHMS[name]
        if has_graph(name):
            with locate_errors(graph=self.graph):
                settings["graph"] = self.build_graph(federation, known)
        with locate_errors(algorithm=self.algorithm):
            algorithm = make(**settings)
        model_name, model_settings = split_section(self.model)
        with locate_errors(model=self.model):
            architecture = MODELS[model_name](**model_settings)
        with locate_errors(model=self.model):
            network = architecture.build(federation.inputs, federation.outputs)
        check_training_size(algorithm, federation, network, self.sample, self.batch)
        return algorithm, federation, architecture

    def resolve(self, algorithm: Algorithm, content: str, evaluate_every: int) -> "Experiment":
        """Return the experiment with the digest of its data, the chosen strength and the chosen interval."""
        if self.content not in ("", content):
            raise InputError(
                f"content = {self.content!r}, but the data of {self.title!r} have {content!r}; use the "
                "original data, or remove content",
                field="content",
            )
        update: dict[str, Any] = {"content": content, "evaluate_every": evaluate_every}
        if isinstance(algorithm, Coupled) or self.algorithm.get("strength") == AUTO:
            eta = vars(algorithm)["strength"]
            if isinstance(algorithm, Coupled) and not algorithm.coupling.is_by_block:
                eta = algorithm.coupling.eta
            settings = {**self.algorithm, "strength": eta}
            order = ["name", *inspect_settings(type(algorithm))]
            update["algorithm"] = {key: settings[key] for key in order if key in settings}
        return self.model_copy(update=update)

    @property
    def schedule(self) -> Schedule:
        """The fields of the schedule."""
        return Schedule(**{field.name: getattr(self, field.name) for field in fields(Schedule)})

    def run(
        self,
        on_score: Callable[[Score], None] | None = None,
        on_round: Callable[[int], None] | None = None,
        loaded: tuple[Federation, Graph | None] | None = None,
    ) -> Result:
        """Build the objects and train; `loaded` passes data that are loaded already."""
        settings = {field.name: getattr(self, field.name) for field in fields(Schedule)}
        return fit(*self.build(loaded), seed=self.seed, **settings, on_score=on_score, on_round=on_round)

    def build_graph(self, federation: Federation, known: Graph | None) -> Graph:
        """Build the graph of a federation; `known` is the graph that is part of the data."""
        self.check_named("loaded", "graph")
        name, settings = split_section(self.graph)
        is_shuffled = settings.pop(SHUFFLED, False)
        if name == KNOWN_GRAPH and known is None:
            raise InputError(
                f"{self.title!r} has no known graph; use one of {', '.join(GRAPHS)}", scope="graph"
            )
        graph = known if name == KNOWN_GRAPH else build_graph(name, federation, self.seed, **settings)
        assert graph is not None
        return graph.align(federation.clients).shuffle(self.seed) if is_shuffled else graph


def has_graph(algorithm: str) -> bool:
    """Return whether the algorithm of this name has a graph."""
    return "graph" in inspect.signature(ALGORITHMS[algorithm]).parameters


def _has_no_client_column(data: Section) -> bool:
    """Return whether the data are a file without a column of clients; a .npz may have such an array."""
    return data["name"] == "file" and "client" not in data and Path(data["path"]).suffix.lower() != ".npz"
