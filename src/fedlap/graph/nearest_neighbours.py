"""Exact nearest neighbours of many points: a k-d tree, or matrix products where a tree degenerates."""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64

Points = Float64[np.ndarray, "point value"]
NeighbourTable = Int64[np.ndarray, "point near"]

# Up to these sizes a k-d tree is faster; at 100,000 points it is 3.5 times slower (measured with one thread).
MANY_POINTS, MANY_VALUES = 5_000, 8
AXES = 3  # directions that points are sorted along
POINTS_PER_LEAF = 256  # points whose neighbours are searched together
AXIS_SAMPLE = 500  # points that the directions are computed from
FIRST_CANDIDATES = 1_500  # points that give the first bound
COLUMNS_PER_PRODUCT = 512  # points that are compared at once (within the cache)
MOST_CANDIDATES = 64  # candidates per neighbour, beyond which the tree is used instead


def find_nearest(points: Points, k: int) -> NeighbourTable:
    """Return the indices of each point's `k` nearest other points, in no particular order.

    Points are expected to be distinct; the k-d tree breaks ties between equally near points.
    """
    size = len(points)
    found, rest = np.empty((size, k), dtype=np.int64), np.ones(size, dtype=bool)
    if (
        size > MANY_POINTS
        and points.shape[1] > MANY_VALUES
        and 4 * k < FIRST_CANDIDATES
        and not _has_repeated_values(points)
    ):
        PointLeaves.of(points).search(k, found, rest)
    if rest.any():
        found[rest] = _search_tree(points, rest.nonzero()[0], k)
    return found


def _search_tree(
    points: Points, places: Int64[np.ndarray, "query"], k: int
) -> Int64[np.ndarray, "query near"]:
    from scipy.spatial import KDTree

    tree = KDTree(points, balanced_tree=False)
    found = tree.query(points[places], k + 1, workers=torch.get_num_threads())[1]
    found = found.reshape(len(places), k + 1)
    return np.asarray(found[found != places[:, None]].reshape(len(places), k))


def _has_repeated_values(points: Points) -> bool:
    """Return whether values recur, e.g. shares of few rows, so that many points are equally near."""
    sample = points[:AXIS_SAMPLE, :-1]
    return 2 * len(np.unique(sample)) < sample.size


class PointLeaves(NamedTuple):
    """Points sorted into leaves of nearby points, so that one matrix product compares a leaf with others.

    Single precision only rejects pairs: a row's bound is enlarged by more than rounding can remove.
    Distances of all other pairs are computed in double precision.
    """

    x: Points  # centred, in the order of the leaves
    order: Int64[np.ndarray, "point"]
    start: Int64[np.ndarray, "leaf"]  # the first point of each leaf, and the number of points
    low: Float64[np.ndarray, "leaf axis"]  # the box of each leaf along the axes
    high: Float64[np.ndarray, "leaf axis"]
    square: Float64[np.ndarray, "point"]
    right: Float[np.ndarray, "term point"]  # (y, (1 − margin)‖y‖², 1)
    margin: float  # relative, above the rounding of a product

    @staticmethod
    def of(points: Points) -> "PointLeaves":
        """Sort points along the directions of their largest variance."""
        size, values = points.shape
        x = points - points.mean(0)
        sample = x[np.linspace(0, size - 1, min(size, AXIS_SAMPLE)).astype(np.int64)]
        projected = x @ np.linalg.svd(sample, full_matrices=False)[2][:AXES].T
        per_axis = max(1, round((size / POINTS_PER_LEAF) ** (1 / projected.shape[1])))
        leaves = [np.arange(size)]
        for axis in projected.T:
            sorted_leaves = (leaf[np.argsort(axis[leaf], kind="stable")] for leaf in leaves)
            leaves = [part for leaf in sorted_leaves for part in np.array_split(leaf, per_axis) if len(part)]
        order = np.concatenate(leaves)
        start = np.cumsum([0, *map(len, leaves)])
        x, projected = x[order], projected[order]
        square = np.square(x).sum(1)
        # A sum of n products in single precision is wrong by less than 2⁻²⁴·n of its terms' sum, which is at
        # most 2(‖x‖² + ‖y‖²) plus the bound; the remaining factor is a reserve.
        margin = (values + 10) * 2.0**-22
        right = np.empty((values + 2, size), dtype=np.float32)
        right[:-2], right[-2], right[-1] = x.T, (1 - margin) * square, 1
        low, high = np.minimum.reduceat(projected, start[:-1]), np.maximum.reduceat(projected, start[:-1])
        return PointLeaves(x, order, start, low, high, square, right, margin)

    def search(self, k: int, found: NeighbourTable, rest: Bool[np.ndarray, "point"]) -> None:
        """Write each point's neighbours into `found`, and False into `rest` for every point that has them."""

        def write(leaf: int) -> None:
            members = self.order[self.start[leaf] : self.start[leaf + 1]]
            places, untied = self._search_leaf(leaf, k)
            found[members[untied]], rest[members[untied]] = self.order[places], False

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(write, range(len(self.low))))

    def _search_leaf(
        self, leaf: int, k: int
    ) -> tuple[Int64[np.ndarray, "query near"], Int64[np.ndarray, "query"]]:
        """Return the nearest neighbours of points of a leaf, and these points' positions in the leaf.

        Points with too many candidates, or with a tie for the last neighbour, are left to the tree.
        """
        rows = slice(self.start[leaf], self.start[leaf + 1])
        x, none = self.x[rows], np.empty(0, dtype=np.int64)
        gap = np.maximum(0, np.maximum(self.low - self.high[leaf], self.low[leaf] - self.high))
        gap = np.square(gap).sum(1) * (1 - 1e-9)  # below every squared distance, including its rounding
        by_gap = np.argsort(gap, kind="stable")
        size = np.diff(self.start)
        candidates = self._list_points(
            by_gap[: np.searchsorted(np.cumsum(size[by_gap]), FIRST_CANDIDATES) + 1]
        )
        left = np.empty((len(x), len(self.right)), dtype=np.float32)
        left[:, :-2], left[:, -2], left[:, -1] = -2 * x, 1, 0
        first = np.argpartition(left @ self.right[:, candidates], k, axis=1)[:, : k + 1]
        bound = np.square(self.x[candidates[first]] - x[:, None]).sum(-1).max(1)
        left[:, -1] = (1 - self.margin) * self.square[rows] - (1 + self.margin) * bound
        # Rows are sorted by descending bound: only the first rows can have neighbours in a distant leaf.
        by_bound = np.argsort(-bound, kind="stable")
        left, bound = left[by_bound], bound[by_bound]
        close = by_gap[gap[by_gap] <= bound[0]]
        columns, least = self._list_points(close), np.repeat(gap[close], size[close])
        right, pairs, number = self.right[:, columns], [], 0
        for begin in range(0, len(columns), COLUMNS_PER_PRODUCT):
            part = right[:, begin : begin + COLUMNS_PER_PRODUCT]
            active = np.searchsorted(-bound, -least[begin], side="right")
            hits = np.flatnonzero(left[:active] @ part < 0)
            row, column = np.divmod(hits, part.shape[1])
            pairs.append((by_bound[row], columns[begin + column]))
            number += len(hits)
            if number > MOST_CANDIDATES * (k + 1) * len(x):
                return none.reshape(0, k), none
        row, column = (np.concatenate(side) for side in zip(*pairs, strict=True))
        other = column != rows.start + row
        row, column = row[other], column[other]
        distance = np.square(self.x[column] - x[row]).sum(1)
        by_distance = np.lexsort((distance, row))
        row, column, distance = row[by_distance], column[by_distance], distance[by_distance]
        starts = np.searchsorted(row, np.arange(len(x) + 1))
        last = starts[:-1] + k - 1
        after = np.minimum(last + 1, len(row) - 1)
        tied = (last + 1 < starts[1:]) & (distance[after] <= distance[last] * (1 + 1e-12))
        untied = (~tied).nonzero()[0]
        return column[starts[untied][:, None] + np.arange(k)], untied

    def _list_points(self, leaves: Int64[np.ndarray, "leaf"]) -> Int64[np.ndarray, "point"]:
        return np.concatenate([np.arange(self.start[leaf], self.start[leaf + 1]) for leaf in leaves])
