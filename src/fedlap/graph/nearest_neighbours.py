"""Exact nearest neighbours of many points: a k-d tree, or matrix products where such a tree degenerates."""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64

Points = Float64[np.ndarray, "point value"]
Found = Int64[np.ndarray, "point near"]

# Measured with one thread: up to these a k-d tree is faster (beyond, at 100,000 points: 3.5 times slower).
MANY_POINTS, MANY_VALUES = 5_000, 8
AXES, LEAF = 3, 256  # directions that points are sorted along, and how many points are searched for together
SAMPLED = 500  # points that the directions are found from
TRIED, COLUMNS = 1_500, 512  # points that give the first bound, and those compared at once (within the cache)
MOST_FOUND = 64  # candidates for each neighbour, beyond which the tree is asked instead


def find_nearest(points: Points, near: int) -> Found:
    """Return the places of the `near` nearest other points of each, in no particular order.

    Points are expected to be distinct; equally near ones are chosen between by the k-d tree.
    """
    size = len(points)
    found, rest = np.empty((size, near), dtype=np.int64), np.ones(size, dtype=bool)
    if size > MANY_POINTS and points.shape[1] > MANY_VALUES and 4 * near < TRIED and not _repeat(points):
        Blocks.of(points).search(near, found, rest)
    if rest.any():
        found[rest] = _by_tree(points, rest.nonzero()[0], near)
    return found


def _by_tree(points: Points, places: Int64[np.ndarray, "some"], near: int) -> Int64[np.ndarray, "some near"]:
    from scipy.spatial import KDTree

    tree = KDTree(points, balanced_tree=False)
    found = tree.query(points[places], near + 1, workers=torch.get_num_threads())[1]
    found = found.reshape(len(places), near + 1)
    return np.asarray(found[found != places[:, None]].reshape(len(places), near))


def _repeat(points: Points) -> bool:
    """Return whether values recur, as shares of few rows do, so that many points are equally near."""
    some = points[:SAMPLED, :-1]
    return 2 * len(np.unique(some)) < some.size


class Blocks(NamedTuple):
    """Points sorted into leaves, neighbours beside each other, to compare a leaf with others by a product.

    Single precision only rejects pairs: a row's bound is enlarged by more than rounding can take away.
    Distances of all other pairs are computed in double precision.
    """

    x: Points  # centred, in the order of the leaves
    order: Int64[np.ndarray, "point"]
    start: Int64[np.ndarray, "leaf"]  # of each leaf, and the end
    low: Float64[np.ndarray, "leaf axis"]  # the box of each leaf along the axes
    high: Float64[np.ndarray, "leaf axis"]
    square: Float64[np.ndarray, "point"]
    right: Float[np.ndarray, "term point"]  # (y, (1 − margin)‖y‖², 1)
    margin: float  # relative, above the rounding of a product

    @staticmethod
    def of(points: Points) -> "Blocks":
        """Sort points along the directions in which they spread most."""
        size, values = points.shape
        x = points - points.mean(0)
        some = x[np.linspace(0, size - 1, min(size, SAMPLED)).astype(np.int64)]
        at = x @ np.linalg.svd(some, full_matrices=False)[2][:AXES].T
        per_axis = max(1, round((size / LEAF) ** (1 / at.shape[1])))
        leaves = [np.arange(size)]
        for place in at.T:
            sorted_leaves = (leaf[np.argsort(place[leaf], kind="stable")] for leaf in leaves)
            leaves = [part for leaf in sorted_leaves for part in np.array_split(leaf, per_axis) if len(part)]
        order = np.concatenate(leaves)
        start = np.cumsum([0, *map(len, leaves)])
        x, at = x[order], at[order]
        square = np.square(x).sum(1)
        # A sum of n products in single precision is wrong by less than 2⁻²⁴·n of its terms' sum, which is at
        # most 2(‖x‖² + ‖y‖²) and the bound; the rest is reserve.
        margin = (values + 10) * 2.0**-22
        right = np.empty((values + 2, size), dtype=np.float32)
        right[:-2], right[-2], right[-1] = x.T, (1 - margin) * square, 1
        low, high = np.minimum.reduceat(at, start[:-1]), np.maximum.reduceat(at, start[:-1])
        return Blocks(x, order, start, low, high, square, right, margin)

    def search(self, near: int, found: Found, rest: Bool[np.ndarray, "point"]) -> None:
        """Write what is found for each point into `found`, and which points are left out into `rest`."""

        def write(leaf: int) -> None:
            own = self.order[self.start[leaf] : self.start[leaf + 1]]
            places, sure = self._search(leaf, near)
            found[own[sure]], rest[own[sure]] = self.order[places], False

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(write, range(len(self.low))))

    def _search(
        self, leaf: int, near: int
    ) -> tuple[Int64[np.ndarray, "some near"], Int64[np.ndarray, "some"]]:
        """Places nearest to points of a leaf, and which of its points they belong to.

        Points with too many candidates, or with equally near ones at the end, are left to the tree.
        """
        rows = slice(self.start[leaf], self.start[leaf + 1])
        x, none = self.x[rows], np.empty(0, dtype=np.int64)
        gap = np.maximum(0, np.maximum(self.low - self.high[leaf], self.low[leaf] - self.high))
        gap = np.square(gap).sum(1) * (1 - 1e-9)  # below every squared distance, its rounding included
        by_gap = np.argsort(gap, kind="stable")
        size = np.diff(self.start)
        tried = self._points_of(by_gap[: np.searchsorted(np.cumsum(size[by_gap]), TRIED) + 1])
        left = np.empty((len(x), len(self.right)), dtype=np.float32)
        left[:, :-2], left[:, -2], left[:, -1] = -2 * x, 1, 0
        first = np.argpartition(left @ self.right[:, tried], near, axis=1)[:, : near + 1]
        bound = np.square(self.x[tried[first]] - x[:, None]).sum(-1).max(1)
        left[:, -1] = (1 - self.margin) * self.square[rows] - (1 + self.margin) * bound
        # Rows by falling bound: the farther a leaf, the fewer of the first rows can have neighbours there.
        falling = np.argsort(-bound, kind="stable")
        left, bound = left[falling], bound[falling]
        close = by_gap[gap[by_gap] <= bound[0]]
        columns, least = self._points_of(close), np.repeat(gap[close], size[close])
        right, pairs, number = self.right[:, columns], [], 0
        for begin in range(0, len(columns), COLUMNS):
            part = right[:, begin : begin + COLUMNS]
            active = np.searchsorted(-bound, -least[begin], side="right")
            hits = np.flatnonzero(left[:active] @ part < 0)
            row, column = np.divmod(hits, part.shape[1])
            pairs.append((falling[row], columns[begin + column]))
            number += len(hits)
            if number > MOST_FOUND * (near + 1) * len(x):
                return none.reshape(0, near), none
        row, column = (np.concatenate(each) for each in zip(*pairs, strict=True))
        other = column != rows.start + row
        row, column = row[other], column[other]
        distance = np.square(self.x[column] - x[row]).sum(1)
        by_distance = np.lexsort((distance, row))
        row, column, distance = row[by_distance], column[by_distance], distance[by_distance]
        starts = np.searchsorted(row, np.arange(len(x) + 1))
        last = starts[:-1] + near - 1
        after = np.minimum(last + 1, len(row) - 1)
        tied = (last + 1 < starts[1:]) & (distance[after] <= distance[last] * (1 + 1e-12))
        sure = (~tied).nonzero()[0]
        return column[starts[sure][:, None] + np.arange(near)], sure

    def _points_of(self, leaves: Int64[np.ndarray, "some"]) -> Int64[np.ndarray, "point"]:
        return np.concatenate([np.arange(self.start[leaf], self.start[leaf + 1]) for leaf in leaves])
