"""Graphs of a comparison: names, sections of an experiment, users' graphs, and their shuffled forms."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedlap.data.federation import Federation
from fedlap.errors import InputError, unknown_name_error
from fedlap.experiments.experiment import KNOWN_GRAPH, SHUFFLED, Experiment
from fedlap.experiments.fields import VariedField, parse_graph, split_graphs
from fedlap.experiments.settings import Section
from fedlap.graph import GRAPHS, Graph

UNCHANGED = ("complete", "empty")  # graphs that shuffling leaves as they are

GraphLike = str | Section | Graph | Callable[[Federation], Graph]


@dataclass(frozen=True, eq=False)
class RowGraph:
    """A graph of a comparison.

    label: distinguishes rows of one method.
    section: the description of the graph; None if the user's object or function builds it.
    control_of: the label of the graph that this one is the shuffled form of.
    """

    label: str
    section: Section | None
    build_own: Callable[[Federation], Graph] | None = None
    control_of: str | None = None

    def build(self, experiment: Experiment, federation: Federation, known: Graph | None) -> Graph:
        """Build the graph for a federation; `known` is the graph that is part of the data."""
        if self.build_own is None:
            return experiment.build_graph(federation, known)
        graph = self.build_own(federation)
        if self.control_of is not None:
            return graph.align(federation.clients).shuffle(experiment.seed)
        return graph

    @property
    def is_changed_by_shuffling(self) -> bool:
        """True if another order of the clients gives another graph."""
        return self.control_of is None and (self.section is None or self.section["name"] not in UNCHANGED)


def list_graphs(graphs: GraphLike | Sequence[GraphLike] | Mapping[str, GraphLike]) -> list[RowGraph]:
    """Return the graphs of a comparison, given alone, as a list, or by label.

    In a list, the word "shuffled" stands for the shuffled form of the last graph before it that shuffling
    changes.
    """
    if isinstance(graphs, str):
        graphs = split_graphs(graphs)
    if isinstance(graphs, Mapping) and "name" not in graphs:
        listed: Iterable[tuple[str | None, Any]] = graphs.items()
    else:
        listed = [(None, graph) for graph in (graphs if isinstance(graphs, Sequence) else [graphs])]
    found: list[RowGraph] = []
    for label, graph in listed:
        is_word = isinstance(graph, str) and graph == SHUFFLED
        added = _shuffle_last(found, label) if is_word else _read_graph(graph, label)
        if added.label in [other.label for other in found]:
            raise InputError(
                f"graph: two graphs have the label {added.label!r}; remove one of them or, in Python, pass a "
                "dictionary of labels and graphs",
                field="graph",
            )
        found.append(added)
    if not found:
        raise InputError("graph: the list is empty; pass a graph, such as 'complete'", field="graph")
    return found


def _read_graph(graph: Any, label: str | None) -> RowGraph:
    if isinstance(graph, str):
        known = (*GRAPHS, KNOWN_GRAPH, SHUFFLED)
        graph = parse_graph(graph)
        if graph["name"] not in known:
            raise unknown_name_error("graph", graph["name"], known, field="graph")
    if isinstance(graph, Mapping):
        section = dict(graph)
        name = Path(section["path"]).stem if section.get("name") == "file" else str(section.get("name"))
        return RowGraph(label or name, section)
    if isinstance(graph, Graph):
        return RowGraph(label or "graph", None, lambda federation: graph)
    if callable(graph):
        name = getattr(graph, "__name__", "graph")
        return RowGraph(label or name.replace("<lambda>", "graph"), None, graph)
    raise InputError(
        f"graph = {graph!r}; pass a name, a Graph, or a function that takes a federation and returns one",
        field="graph",
    )


def _shuffle_last(found: Sequence[RowGraph], label: str | None) -> RowGraph:
    """Return the shuffled form of the last graph that shuffling changes."""
    changed = [graph for graph in found if graph.is_changed_by_shuffling]
    if not changed:
        raise InputError(
            "graph: 'shuffled' needs a graph before it that shuffling changes, as in 'known,shuffled'",
            field="graph",
        )
    last, several = changed[-1], any(graph.control_of is not None for graph in found)
    label = label or (f"{last.label} {SHUFFLED}" if several else SHUFFLED)
    section = None if last.section is None else {**last.section, SHUFFLED: True}
    return replace(last, label=label, section=section, control_of=last.label)


def resolve_shuffled(field: VariedField) -> VariedField:
    """Return a varied field in which "shuffled" stands for the shuffled form of a graph before it."""
    if field.path != "graph" or SHUFFLED not in field.values:
        return field
    graphs = list_graphs(field.values)
    values = [
        value if graph.control_of is None else graph.label
        for value, graph in zip(field.values, graphs, strict=True)
    ]
    names = dict(zip((graph.label for graph in graphs), values, strict=True))
    shuffled = [graph for graph in graphs if graph.control_of is not None]
    return replace(
        field,
        values=values,
        sections={graph.label: dict(graph.section or {}) for graph in shuffled},
        controls={graph.label: names[str(graph.control_of)] for graph in shuffled},
    )
