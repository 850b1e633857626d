"""The edges of some consecutive vertices, for sums over neighbours where the other vertices are elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64
from scipy.sparse import coo_array, csr_array

from fedlap.graph.graph import Graph
from fedlap.graph.sparse_weights import SparseWeights
from fedlap.summaries import summarise_fields

Vertices = Int64[np.ndarray, "vertex"]


@dataclass(frozen=True, eq=False)
class VertexEdges:
    """The edges of the vertices begin, begin + 1, …, to any vertices of the graph.

    rows: their rows of A. rho: ρ of the whole graph, which every part of it keeps.
    """

    begin: int
    rows: csr_array
    rho: float

    __repr__ = summarise_fields

    @staticmethod
    def cut(graph: Graph, parts: Sequence[range]) -> list["VertexEdges"]:
        """Return the edges of each part of the vertices of a graph."""
        matrix = graph.weights.matrix()
        matrix.sort_indices()
        return [VertexEdges(part.start, matrix[part.start : part.stop], graph.rho) for part in parts]

    def join_neighbours(self, chosen: Vertices) -> tuple[Graph, Vertices]:
        """Return the graph of the chosen vertices and their neighbours, and its vertices, the chosen first.

        Only the chosen vertices have their neighbours in it, in the order of the whole graph.
        """
        rows = self.rows[chosen - self.begin]
        others = np.setdiff1d(rows.indices, chosen).astype(np.int64)
        vertices = np.concatenate([chosen, others])
        ends = np.concatenate([rows.indptr, np.full(len(others), rows.indptr[-1])])
        parts = rows.data, _find_places(vertices, rows.indices), ends
        return self._build_graph(csr_array(parts, shape=(len(vertices),) * 2)), vertices

    def halve_outer_edges(self) -> tuple[Graph, Vertices]:
        """Return the graph of all edges, and its vertices; edges to other vertices have half their weight.

        A sum over all edges of a graph is the sum over such graphs of parts that make up its vertices.
        """
        inner = np.arange(self.begin, self.begin + self.rows.shape[0])
        vertices = np.concatenate([inner, np.setdiff1d(self.rows.indices, inner).astype(np.int64)])
        entries = coo_array(self.rows)
        begin, end = entries.row.astype(np.int64), _find_places(vertices, entries.col)
        outer = end >= len(inner)
        value = np.where(outer, entries.data / 2, entries.data)
        begin, end = np.concatenate([begin, end[outer]]), np.concatenate([end, begin[outer]])
        both = np.concatenate([value, value[outer]])
        matrix = csr_array(coo_array((both, (begin, end)), shape=(len(vertices),) * 2))
        matrix.sort_indices()
        return self._build_graph(matrix), vertices

    def list_outer_edges(self) -> tuple[Vertices, Vertices]:
        """Return the ends of every edge to another vertex: the end in this part, and the other one."""
        entries = coo_array(self.rows)
        begin, end = entries.row.astype(np.int64) + self.begin, entries.col.astype(np.int64)
        outer = (end < self.begin) | (end >= self.begin + self.rows.shape[0])
        return begin[outer], end[outer]

    def _build_graph(self, matrix: csr_array) -> Graph:
        return Graph(None, SparseWeights(matrix))._with_rho(self.rho)


def _find_places(vertices: Vertices, wanted: Vertices) -> Vertices:
    """Return the place of each wanted vertex in a list of vertices."""
    order = np.argsort(vertices, kind="stable")
    return order[np.searchsorted(vertices, wanted, sorter=order)]
