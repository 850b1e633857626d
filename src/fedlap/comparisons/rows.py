"""Rows of a comparison: one method with its data, model and graph, prepared seed by seed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import product
from typing import Any, Protocol

from fedlap.algorithms import ALGORITHMS, Algorithm, Coupled, list_settings
from fedlap.comparisons.graphs import RowGraph
from fedlap.comparisons.own_data import OwnData
from fedlap.data.federation import Federation
from fedlap.errors import InputError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.fit_description import (
    describe_method,
    describe_model,
    describe_value,
    digest_description,
)
from fedlap.experiments.prepare import Loader, Prepared
from fedlap.experiments.settings import split_section
from fedlap.graph import Graph
from fedlap.models import MODELS, Architecture, Model
from fedlap.personal import ModelMetadata
from fedlap.training.jobs import Job, bind_algorithm
from fedlap.training.schedule import check_algorithm_and_model, compute_sample_size
from fedlap.training.scoring_interval import choose_interval
from fedlap.training.strength_choice import choose_strength
from fedlap.training.tuning import default_grid

Fold = dict[str, int]  # `number` of folds, and the one that is `held_out`
Values = Mapping[str, Any]  # settings of a method
LAST_ROUND_ONLY = 0  # for `evaluate_every` of folds, of which nothing else is compared


class Row(Protocol):
    """A row of a comparison."""

    @property
    def label(self) -> str:
        """The name of the row in tables."""
        ...

    def prepare(self, seed: int, values: Values | None = None, fold: Fold | None = None) -> Prepared:
        """Prepare the run of a seed, with these values of the method's settings, or with a fold held out."""
        ...

    def list_candidates(self, seed: int) -> list[Values]:
        """Return the default values to tune over; none if the method has no setting left to tune."""
        ...


@dataclass(frozen=True, eq=False)
class DescribedRow:
    """A row whose parts all have names, so that an experiment describes it.

    fixed: settings of the method that the user has set, so that they are not tuned.
    names_errors: True if an error message must name the row.
    """

    label: str
    experiment: Experiment
    loader: Loader
    fixed: frozenset[str] = frozenset()
    names_errors: bool = False

    def prepare(self, seed: int, values: Values | None = None, fold: Fold | None = None) -> Prepared:
        """Prepare the run of a seed, with these values of the method's settings, or with a fold held out."""
        experiment = self.experiment.model_copy(update={"seed": seed})
        if values:
            changed = {"algorithm": {**experiment.algorithm, **values}}
            experiment = Experiment.of(experiment.describe() | changed)
        if fold is not None:
            experiment = experiment.model_copy(update={"fold": fold, "evaluate_every": LAST_ROUND_ONLY})
        try:
            return self.loader.prepare(experiment)
        except InputError as error:
            if not self.names_errors:
                raise
            raise InputError(f"with {self.label}: {error}", field=error.field) from None

    def list_candidates(self, seed: int) -> list[Values]:
        """Return the default values of settings that are not fixed."""
        experiment = self.experiment.model_copy(update={"seed": seed})
        algorithm, _, _ = experiment.build(self.loader.load(experiment))
        return _combine(default_grid(algorithm, self.fixed))


@dataclass(frozen=True, eq=False)
class OwnRow:
    """A row with an object or a function of the user among its parts.

    base: the experiment that describes the named parts; other sections are replaced.
    build: returns the method for a federation and, if it takes one, a graph.
    """

    label: str
    base: Experiment
    data: OwnData
    build: Callable[[Federation, Graph | None], Algorithm]
    graph: RowGraph | None
    model: Architecture | None  # None: the model of `base`
    fixed: frozenset[str] = frozenset()
    settings: Values = field(default_factory=dict)  # values of a sweep

    def prepare(self, seed: int, values: Values | None = None, fold: Fold | None = None) -> Prepared:
        """Prepare the run of a seed, with these values of the method's settings, or with a fold held out."""
        base = self.base.model_copy(update={"seed": seed, "fold": fold})
        if fold is not None:
            base = base.model_copy(update={"evaluate_every": LAST_ROUND_ONLY})
        federation, known = self.data.load(seed, fold)
        algorithm = self._build_method(base, federation, known, {**self.settings, **(values or {})})
        architecture = self.model
        if architecture is None:
            name, settings = split_section(base.model)
            architecture = MODELS[name](**settings)
        check_algorithm_and_model(algorithm, architecture)
        algorithm = choose_strength(algorithm, federation, architecture, base.schedule, seed)
        compute_sample_size(algorithm, base.sample, len(federation.clients))
        bound, model = bind_algorithm(algorithm, federation, architecture)
        job = Job(algorithm, federation, architecture, seed)
        every = choose_interval(job, base.schedule)
        parts = {**self._describe(bound, federation, model), "evaluate_every": every}
        return Prepared(base.model_copy(update=parts), job, model)

    def list_candidates(self, seed: int) -> list[Values]:
        """Return the default values of settings that are not fixed; none for a class without fields."""
        base = self.base.model_copy(update={"seed": seed})
        algorithm = self._build_method(base, *self.data.load(seed), self.settings)
        fixed = self.fixed | set(self.settings)
        return _combine(default_grid(algorithm, fixed)) if is_dataclass(algorithm) else []

    def list_setting_names(self, seed: int) -> list[str]:
        """Return the names of the settings that can vary; none unless the method is a dataclass."""
        base = self.base.model_copy(update={"seed": seed})
        algorithm = self._build_method(base, *self.data.load(seed), {})
        return list(list_settings(algorithm)) if is_dataclass(algorithm) else []

    def _build_method(
        self, base: Experiment, federation: Federation, known: Graph | None, values: Values
    ) -> Algorithm:
        graph = None if self.graph is None else self.graph.build(base, federation, known)
        algorithm = self.build(federation, graph)
        if not values:
            return algorithm
        if not is_dataclass(algorithm):
            raise InputError(
                f"{self.label}: settings can be varied for dataclasses only; decorate "
                f"{type(algorithm).__name__} with @dataclass(frozen=True)"
            )
        return replace(algorithm, **values)

    def _describe(self, algorithm: Algorithm, federation: Federation, model: Model) -> dict[str, Any]:
        """Describe the parts of the user as sections of an experiment."""
        settings = {
            name: value
            for name, value in list_settings(algorithm).items()
            if isinstance(value, bool | int | float | str) or _is_plain_list(value)
        }
        if isinstance(algorithm, Coupled):
            by_block = algorithm.coupling.is_by_block
            settings["strength"] = vars(algorithm)["strength"] if by_block else algorithm.coupling.eta
        return {
            "data": self.data.describe(),
            "partition": self.data.describe_partition(),
            "model": ModelMetadata.of(federation, model).architecture
            or {"name": _name_network(model), "l2": model.l2},
            "algorithm": {"name": name_method(algorithm), **settings},
            "graph": self._describe_graph(algorithm),
            "content": self.data.digest(federation),
            "objects": {
                **({} if self.data.is_named else {"data": self.data.digest(federation)}),
                "model": digest_description(describe_model(model)),
                "algorithm": digest_description(describe_method(algorithm)),
                **({} if self._is_graph_named else {"graph": self._digest_graph(algorithm)}),
            },
        }

    @property
    def _is_graph_named(self) -> bool:
        return self.graph is not None and self.graph.section is not None

    def _digest_graph(self, algorithm: Algorithm) -> str:
        return digest_description({"graph": describe_value(getattr(algorithm, "graph", None))})

    def _describe_graph(self, algorithm: Algorithm) -> dict[str, Any]:
        if self._is_graph_named:
            return self.base.graph
        graph = getattr(algorithm, "graph", None)
        if not isinstance(graph, Graph):
            return {}
        name = self.graph.label if self.graph is not None else "own"
        return {"name": name, "edges": graph.edges, "row": self.label}


def name_method(algorithm: Algorithm) -> str:
    """Return the registered name of a method, or the name of its class."""
    return next(
        (name for name, method in ALGORITHMS.items() if method is type(algorithm)), type(algorithm).__name__
    )


def _name_network(model: Model) -> str:
    network: Any = model.network
    return type(getattr(network, "net", network)).__name__


def _is_plain_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, int | float | str) for item in value)


def _combine(grid: Mapping[str, list[float]]) -> list[Values]:
    """Return all combinations of values, the last setting changing fastest."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())] if grid else []
