"""Radon in 919 houses of 85 counties of Minnesota, embedded here.

From Price, Nero and Gelman (1996), as in Gelman and Hill (2007): the logarithm of the radon level in a house,
the floor of the measurement, and the uranium in the county's soil. Two counties are joined if they share a
border: two points or more of the outlines of the US Census. Places are the centres of the counties.
"""

from dataclasses import replace
from importlib.resources import files
from typing import Final

import numpy as np
import torch

from fedlap.data.connected_table import ConnectedTable
from fedlap.data.places import Places
from fedlap.data.table import Table
from fedlap.errors import InputError, unknown_name_error
from fedlap.graph.graph import Graph

RADON_FEATURES: Final = ("floor", "uranium")
RADON_DEFAULT_FEATURES: Final = ["floor"]
RADON_TARGET: Final = "log_radon"


def load_radon(features: list[str] = RADON_DEFAULT_FEATURES) -> ConnectedTable:
    """Load the logarithm of the radon level in houses; a client is a county, joined to its neighbours.

    features: "floor" (0 for the basement, 1 for the first floor), and "uranium" (the logarithm of the parts
        per million in the county's soil, the same for all houses of a county).
    """
    for feature in features:
        if feature not in RADON_FEATURES:
            raise unknown_name_error("feature of data 'radon'", feature, RADON_FEATURES, field="features")
    if not features or len(set(features)) < len(features):
        raise InputError(
            f"features = {features}; expected floor, uranium, or both",
            field="features",
            scope="data",
        )
    with files("fedlap.data").joinpath("radon.npz").open("rb") as file, np.load(file) as arrays:
        counties = tuple(arrays["counties"].tolist())
        x = np.column_stack([arrays[feature].astype(np.float64) for feature in features])
        table = Table.of((x, arrays[RADON_TARGET]))
        owner = torch.from_numpy(arrays["county"].astype(np.int64))
        places = Places.of(("longitude", "latitude"), arrays["places"])
        borders = [(counties[k], counties[other]) for k, other in arrays["borders"].tolist()]
    table = replace(
        table, clients=counties, owner=owner, features=tuple(features), target=RADON_TARGET, places=places
    )
    return ConnectedTable(table, Graph.from_edges(borders, counties))
