"""Methods of a comparison: names, sections, objects, classes and functions of the user."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedlap.algorithms import ALGORITHMS, Algorithm
from fedlap.comparisons.rows import name_method
from fedlap.data.federation import Federation
from fedlap.errors import InputError, unknown_name_error
from fedlap.experiments.experiment import has_graph
from fedlap.experiments.settings import Section
from fedlap.graph import Graph

MethodLike = str | Section | Algorithm | type[Algorithm] | Callable[..., Algorithm]
BuildMethod = Callable[[Federation, Graph | None], Algorithm]
EXAMPLE = "{'fedu': lambda federation: fl.FedU(fl.Graph.complete(federation.clients))}"


@dataclass(frozen=True, eq=False)
class RowMethod:
    """A method of a comparison.

    section: the name and settings of a registered method; None if the user's object or function builds it.
    takes_graph: True if the comparison passes it a graph.
    """

    section: Section | None
    takes_graph: bool
    build: BuildMethod | None = None


def name_methods(methods: str | Sequence[MethodLike] | Mapping[str, MethodLike]) -> dict[str, MethodLike]:
    """Return the methods by label: the label that was passed, the registered name, or that of the class."""
    if isinstance(methods, Mapping) and not isinstance(methods.get("name"), str):
        return {str(label): method for label, method in methods.items()}
    if isinstance(methods, str | Mapping) or not isinstance(methods, Sequence):
        methods = [methods]  # type: ignore[list-item]
    named: dict[str, MethodLike] = {}
    for method in methods:
        label = _label_method(method)
        if label in named:
            raise InputError(
                f"methods: two methods are called {label!r}; pass a dictionary of labels and methods, such "
                f"as {EXAMPLE}"
            )
        named[label] = method
    return named


def _label_method(method: Any) -> str:
    if isinstance(method, str):
        return method
    if isinstance(method, Mapping):
        return str(method.get("name"))
    if isinstance(method, type) or (callable(method) and not isinstance(method, Algorithm)):
        registered = next((name for name, other in ALGORITHMS.items() if other is method), None)
        return registered or str(getattr(method, "__name__", "method")).replace("<lambda>", "method")
    return name_method(method)


def parse_method(label: str, method: Any) -> RowMethod:
    """Return a method as the comparison uses it; raise InputError for anything else."""
    if isinstance(method, str):
        method = {"name": method}
    if isinstance(method, Mapping):
        name = method.get("name")
        if name not in ALGORITHMS:
            raise unknown_name_error("algorithm", str(name), ALGORITHMS)
        return RowMethod(dict(method), has_graph(name))
    if isinstance(method, type):
        takes_graph = "graph" in inspect.signature(method).parameters
        return RowMethod(None, takes_graph, lambda _, graph: method(graph=graph) if takes_graph else method())
    if isinstance(method, Algorithm):
        fixed: Algorithm = method
        return RowMethod(None, False, lambda federation, graph: fixed)
    if callable(method):
        function: Callable[..., Any] = method
        takes_graph = _count_arguments(function) > 1

        def build(federation: Federation, graph: Graph | None) -> Algorithm:
            built = function(federation, graph) if takes_graph else function(federation)
            if not isinstance(built, Algorithm):
                raise InputError(f"methods: {label} returned {type(built).__name__}; return a method")
            return built

        return RowMethod(None, takes_graph, build)
    raise InputError(
        f"methods: {label} is of type {type(method).__name__}; pass a name, a method, its class, or a "
        f"function, such as {EXAMPLE}"
    )


def _count_arguments(function: Callable[..., Any]) -> int:
    """Count the arguments that a function needs."""
    parameters = inspect.signature(function).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return sum(p.default is p.empty for p in positional)
