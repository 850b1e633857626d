"""A table together with the known graph of its clients."""

from dataclasses import dataclass

from fedlap.data.table import Table
from fedlap.graph.graph import Graph
from fedlap.summaries import summarise_fields


@dataclass(frozen=True, eq=False)
class ConnectedTable:
    """A table and the known graph of its natural clients, as a data set returns them."""

    table: Table
    graph: Graph

    __repr__ = summarise_fields
