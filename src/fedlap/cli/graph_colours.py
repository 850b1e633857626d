"""What clients of a drawn graph are coloured by."""

import numpy as np
import torch

from fedlap.data.federation import Federation
from fedlap.errors import InputError, unknown
from fedlap.graph import Graph
from fedlap.graph.description import component
from fedlap.personal import Personals
from fedlap.report.graph_figure import Colours
from fedlap.report.page.client_gains import scored

COLOURS = ("accuracy", "rows", "label", "component")


def check_colour(asked: str | None) -> None:
    """Refuse what clients cannot be coloured by."""
    if asked is not None and asked not in COLOURS:
        raise unknown("colour", asked, COLOURS)


def colours(
    asked: str | None, graph: Graph, federation: Federation | None, trained: Personals | None
) -> Colours:
    """As asked or, where nothing was, the first of these that is known."""
    labelled = federation is not None and federation.labels is not None
    able = {"accuracy": trained is not None and labelled, "rows": federation is not None, "label": labelled}
    chosen = asked or next((name for name in ("accuracy", "rows") if able[name]), "component")
    if chosen == "component":
        return _components(graph)
    if federation is None:
        what = "a run, or --models RUN" if chosen == "accuracy" else "a run or --data"
        raise InputError(f"--colour {chosen}: a graph alone does not say this; name {what}")
    if chosen == "rows":
        return Colours("training rows", federation.train.count.double().numpy())
    if not labelled:
        raise InputError(f"--colour {chosen}: targets are real numbers, without labels; colour by rows")
    if chosen == "label":
        return _labels(federation)
    if trained is None:
        raise InputError("--colour accuracy: there are no models; name a finished run, or --models RUN")
    return Colours("test accuracy %", scored(federation, trained), unknown="clients without test rows")


def _components(graph: Graph) -> Colours:
    each = component(graph.weights)
    sizes = np.bincount(each).tolist()
    clients = graph.size - graph.server
    return Colours.by_kind(
        "component", each[:clients], [f"{n}: {size:,} clients" for n, size in enumerate(sizes, 1)]
    )


def _labels(federation: Federation) -> Colours:
    """The label that most of a client's training rows have."""
    labels = federation.labels or ()
    held = torch.zeros(len(federation.clients), len(labels), dtype=torch.int64)
    train = federation.train
    held.index_put_((train.owner(), train.y), torch.ones_like(train.y), accumulate=True)
    return Colours.by_kind("most common label", held.argmax(1).numpy(), labels)
