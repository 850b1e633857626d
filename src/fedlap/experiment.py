"""The Experiment: a frozen, complete and checked description of a run."""

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, create_model, field_validator

from fedlap.algorithms import ALGORITHMS, Algorithm, Coupled
from fedlap.data import SOURCES, TEST_SHARE, load_with_graph
from fedlap.errors import InputError, unknown
from fedlap.federation import Federation
from fedlap.files import digest_of
from fedlap.graph import GRAPHS, Graph
from fedlap.models import MODELS, Architecture
from fedlap.partition import NATURAL, PARTITIONS
from fedlap.parts import Scaling
from fedlap.result import Result
from fedlap.rounds import fit
from fedlap.schedule import DtypeName, EngineName, check_schedule, sample_size
from fedlap.scores import Score
from fedlap.work import DEFAULT_STEPS

KNOWN_GRAPH = "known"  # the graph that comes with the data

Section = dict[str, Any]


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

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> "Experiment":
        """From plain values; a mistake is one line that names the field."""
        for field, value in description.items():
            if isinstance(value, bool):
                raise InputError(f"{field} = {value}: it is not a matter of true or false")
        try:
            made = cls.model_validate(dict(description))
        except ValidationError as error:
            raise _one_line(error, "", cls.model_fields) from None
        check_schedule(made.rounds, made.batch, made.sample, made.evaluate_every, made.seed)
        if not takes_graph(made.algorithm["name"]):
            return made.model_copy(update={"graph": {}})
        if not made.graph:
            raise InputError(f"graph is missing; algorithm {made.algorithm['name']!r} needs one")
        return made

    @field_validator("data")
    @classmethod
    def _data(cls, section: Section) -> Section:
        name = _name("data set", section, SOURCES)
        more: dict[str, Any] = {"scale": (Scaling, SOURCES[name].scale)}
        if SOURCES[name].tabular:
            more["test_share"] = (float, TEST_SHARE)
        made = _completed("data", name, SOURCES[name].make, section, leave=("seed",), more=more)
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
        name = _name("partition", section, [*PARTITIONS, NATURAL])
        if name == usual and own is not None:
            section = vars(own) | section
        return _completed("partition", name, PARTITIONS.get(name, lambda: None), section)

    @field_validator("scarce")
    @classmethod
    def _scarce(cls, section: Section | None) -> Section | None:
        if section is None:
            return None
        made = _completed("scarce", "scarce", Federation.scarce, section, leave=("self", "seed"))
        return {key: value for key, value in made.items() if key != "name"}

    @field_validator("model")
    @classmethod
    def _model(cls, section: Section) -> Section:
        name = _name("model", section, MODELS)
        return _completed("model", name, MODELS[name], section)

    @field_validator("algorithm")
    @classmethod
    def _algorithm(cls, section: Section) -> Section:
        name = _name("algorithm", section, ALGORITHMS)
        made = _completed("algorithm", name, ALGORITHMS[name], section, leave=("graph",))
        if "local_steps" not in made and "local_epochs" not in made:
            made["local_steps"] = DEFAULT_STEPS
        return made

    @field_validator("graph")
    @classmethod
    def _graph(cls, section: Section) -> Section:
        if not section:
            return section
        name = _name("graph", section, [*GRAPHS, KNOWN_GRAPH])
        made = _completed("graph", name, GRAPHS.get(name, lambda: None), section, leave=("clients",))
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
        name, settings = _split(self.partition)
        partition = None if name == NATURAL else PARTITIONS[name](**settings)
        if name == NATURAL and SOURCES[self.data["name"]].partition is not None:
            raise InputError(
                f"partition: {self.data['name']!r} has no clients of its own; "
                f"use one of {', '.join(PARTITIONS)}"
            )
        return load_with_graph(**self.data, partition=partition, scarce=self.scarce, seed=self.seed)

    def build(self) -> tuple[Algorithm, Federation, Architecture]:
        """The objects that this describes."""
        federation, known = self.load()
        name, settings = _split(self.algorithm)
        make = ALGORITHMS[name]
        if takes_graph(name):
            settings["graph"] = self._built_graph(federation, known)
        model_name, model_settings = _split(self.model)
        return make(**settings), federation, MODELS[model_name](**model_settings)

    def settled(self, algorithm: Algorithm) -> "Experiment":
        """The same experiment with the strength that its algorithm chose, where none was given."""
        if not isinstance(algorithm, Coupled):
            return self
        return self.model_copy(update={"algorithm": {**self.algorithm, "strength": algorithm.coupling.eta}})

    def checked(self) -> "Experiment":
        """This experiment, `settled`, after everything was built once: what cannot be run is refused here."""
        algorithm, federation, model = self.build()
        sample_size(algorithm, self.sample, len(federation.clients))
        model.build(federation.inputs, federation.outputs)
        return self.settled(algorithm)

    def run(
        self,
        on_score: Callable[[Score], None] | None = None,
        on_round: Callable[[int], None] | None = None,
    ) -> Result:
        """Build and train."""
        return fit(
            *self.build(),
            rounds=self.rounds,
            batch=self.batch,
            sample=self.sample,
            seed=self.seed,
            dtype=self.dtype,
            device=self.device,
            engine=self.engine,
            evaluate_every=self.evaluate_every,
            on_score=on_score,
            on_round=on_round,
        )

    def _built_graph(self, federation: Federation, known: Graph | None) -> Graph:
        name, settings = _split(self.graph)
        if name != KNOWN_GRAPH:
            return GRAPHS[name](federation.clients, **settings)
        if known is None:
            raise InputError(
                f"graph: no graph comes with {self.data['name']!r}; use one of {', '.join(GRAPHS)}"
            )
        return known


def takes_graph(algorithm: str) -> bool:
    """Whether the algorithm of this name mixes over a graph."""
    return "graph" in inspect.signature(ALGORITHMS[algorithm]).parameters


def settings_of(make: Callable[..., Any], leave: tuple[str, ...] = ()) -> dict[str, inspect.Parameter]:
    """The settings that a maker of data, models, algorithms or graphs takes."""
    return {name: p for name, p in inspect.signature(make).parameters.items() if name not in leave}


def _name(what: str, section: Section, known: Any) -> str:
    name = section.get("name")
    if name not in known:
        raise unknown(what, name, known)
    return str(name)


def _split(section: Section) -> tuple[str, Section]:
    settings = dict(section)
    return settings.pop("name"), settings


def _completed(
    where: str,
    name: str,
    make: Callable[..., Any],
    section: Section,
    leave: tuple[str, ...] = (),
    more: dict[str, Any] | None = None,
) -> Section:
    """The section with every setting that `make` takes, of the right type."""
    fields: dict[str, Any] = {
        key: (p.annotation, ... if p.default is inspect.Parameter.empty else p.default)
        for key, p in settings_of(make, leave).items()
    } | (more or {})
    for key, value in section.items():
        if isinstance(value, bool) and key in fields and fields[key][0] is not bool:
            raise InputError(f"{where}.{key} = {value}: it is not a matter of true or false")
    checker = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    try:
        made = checker.model_validate({key: value for key, value in section.items() if key != "name"})
    except ValidationError as error:
        raise _one_line(error, f"{where}.", fields, f"{where} {name!r}") from None
    return {"name": name, **{key: value for key, value in made.model_dump().items() if value is not None}}


def _one_line(error: ValidationError, prefix: str, known: Any, owner: str = "an experiment") -> InputError:
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][:1])
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, InputError):
        return inner
    if first["type"] == "extra_forbidden":
        return unknown(f"setting of {owner}", field, known or ["(none)"])
    if first["type"] == "missing":
        return InputError(f"{prefix}{field} is missing; {owner} needs it")
    message = first["msg"][0].lower() + first["msg"][1:]
    return InputError(f"{prefix}{field} = {first['input']!r}: {message}")
