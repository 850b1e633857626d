"""The task: rows, method, graph and model. Edit this file for other data or networks."""

import inspect
from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch

import fedlap as fl
from fedlap.algorithms import Algorithm
from fedlap.graph import GRAPHS
from fedlap.models import MODELS, Architecture

# The run configuration of Flower, in which `lr` of `[algorithm]` has the key "algorithm.lr", with facts about
# the clients that the server adds.
Plan = Mapping[str, Any]


def load_rows(name: str, site: Mapping[str, Any]) -> tuple[Any, Any]:
    """Load features and targets of a client: a CSV file of numbers, or a part of digits in a simulation.

    site: the node configuration, which the operator of the client's machine sets.
    """
    if "data" in site:
        table = pd.read_csv(str(site["data"]))
        y = table.pop(str(site.get("label", "label"))).to_numpy()
        return table.to_numpy(), y
    digits = fl.data.load("digits")
    k = digits.clients.index(name)
    x, y = map(torch.cat, zip(digits.train.client(k), digits.test.client(k), strict=True))
    return x.numpy(), y.numpy()


def list_clients(plan: Plan) -> tuple[str, ...]:
    """Return the names of the clients, in the order of the stack."""
    return tuple(name.strip() for name in plan["clients"].split(","))


def build_algorithm(plan: Plan) -> Algorithm:
    """Build the method, with its graph if it has one."""
    name, settings = _split_section(plan, "algorithm")
    make = fl.ALGORITHMS[name]
    return make(build_graph(plan), **settings) if _has(make, "graph") else make(**settings)


def build_graph(plan: Plan) -> fl.Graph:
    """Build the graph from its edges, such as "north:east:1.0, east:south:0.5", or from names alone."""
    name, settings = _split_section(plan, "graph")
    if edges := settings.pop("edges", ""):
        parts = [edge.strip().split(":") for edge in edges.split(",")]
        triples = [(a, b, *map(float, weight)) for a, b, *weight in parts]
        return fl.Graph.from_edges(triples, list_clients(plan))
    if name == "file" or _has(GRAPHS[name], "federation"):
        raise fl.InputError(f"graph {name!r} needs a file or the rows of all clients; set `edges` instead")
    return GRAPHS[name](list_clients(plan), **settings)


def build_model(plan: Plan) -> Architecture:
    """Build the network."""
    name, settings = _split_section(plan, "model")
    return MODELS[name](**settings)


def _split_section(plan: Plan, section: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of a section."""
    start = f"{section}."
    settings = {key.removeprefix(start): value for key, value in plan.items() if key.startswith(start)}
    return settings.pop("name"), settings


def _has(make: Any, parameter: str) -> bool:
    return parameter in inspect.signature(make).parameters
