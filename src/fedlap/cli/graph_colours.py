"""Colours of the clients in a drawn graph."""

import numpy as np
import torch

from fedlap.cli.names import COLOUR_NAMES
from fedlap.data.federation import Federation
from fedlap.errors import InputError, unknown_name_error
from fedlap.graph import Graph
from fedlap.graph.description import label_components
from fedlap.personal import Personals
from fedlap.report.graph_figure import ClientColours
from fedlap.report.page.client_gains import score_clients
from fedlap.training.metrics import METRICS, check_metric


def check_colour(name: str | None) -> None:
    """Raise if a colour is unknown."""
    if name is not None and name not in COLOUR_NAMES:
        raise unknown_name_error("colour", name, COLOUR_NAMES)


def choose_colours(
    colour: str | None, graph: Graph, federation: Federation | None, trained: Personals | None
) -> ClientColours:
    """Return the requested colours; by default the score, rows or components, the first that is known."""
    labelled = federation is not None and federation.labels is not None
    default = "component" if federation is None else "rows"
    if trained is not None and federation is not None:
        default = "accuracy" if labelled else "rmse"
    chosen = colour or default
    if chosen == "component":
        return _colour_components(graph)
    if federation is None:
        source = "a run or --models RUN" if chosen in METRICS else "a run or --data"
        raise InputError(f"--colour {chosen}: a graph file has no {chosen}; pass {source}")
    if chosen == "rows":
        return ClientColours("training rows", federation.train.count.double().numpy())
    if chosen in ("label", "accuracy") and not labelled:
        raise InputError(f"--colour {chosen}: a regression has no labels; use --colour rows")
    if chosen == "label":
        return _colour_labels(federation)
    check_metric(chosen, labelled)
    if trained is None:
        raise InputError(f"--colour {chosen}: there are no models; pass a finished run or --models RUN")
    metric = METRICS[chosen]
    values = metric.sign * score_clients(federation, trained, metric)
    unknown = "clients without test rows" if chosen != "r2" else "clients whose test rows have no R²"
    return ClientColours(f"test {metric.label}{metric.unit}{metric.direction}", values, unknown=unknown)


def _colour_components(graph: Graph) -> ClientColours:
    components = label_components(graph.weights)
    sizes = np.bincount(components).tolist()
    clients = graph.size - graph.server
    return ClientColours.by_category(
        "component", components[:clients], [f"{n}: {size:,} clients" for n, size in enumerate(sizes, 1)]
    )


def _colour_labels(federation: Federation) -> ClientColours:
    """Colour every client by the most common label of its training rows."""
    labels = federation.labels or ()
    counts = torch.zeros(len(federation.clients), len(labels), dtype=torch.int64)
    train = federation.train
    counts.index_put_((train.find_owners(), train.y), torch.ones_like(train.y), accumulate=True)
    return ClientColours.by_category("most common label", counts.argmax(1).numpy(), labels)
