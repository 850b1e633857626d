"""Graphs of a given shape: the paper's Random and Equal, grids, random graphs and clusters.

What is drawn depends on the seed and, where no shape orders the clients, on their names, not on their places.
"""

import math
from collections.abc import Sequence
from itertools import count

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.sparse import coo_array

from fedlap.errors import InputError, whole
from fedlap.graph.graph import Graph
from fedlap.graph.validate import checked_names, checked_weight
from fedlap.randomness import Draws, digests, draws

Places = Int64[np.ndarray, "edge"]

MOST_EDGES = 20_000_000  # about 1 GB while they are sorted
TRIES = 50  # to find a free pair for an edge that is rewired
KIND = 2  # of draws for "data"; others make rows


def equal(clients: Sequence[str], weight: float = 0.5) -> Graph:
    """The paper's Equal: the same weight between any two clients."""
    return Graph.complete(clients, weight)


def random(clients: Sequence[str], seed: int = 0) -> Graph:
    """The paper's Random: a normal value for every two clients, all of them shifted and scaled into [0, 1].

    So the least alike of all pairs has weight 0, the most alike 1; where all are the same, 0.5.
    """
    names = checked_names(clients)
    begin, end = every_pair("random", names)
    values = stream(seed).normal(0, 0, len(begin)).numpy()
    least, most = values.min(initial=np.inf), values.max(initial=-np.inf)
    scaled = (values - least) / (most - least) if most > least else np.full(len(values), 0.5)
    order = by_name(names)
    return joined(names, order[begin], order[end], scaled)


def grid(clients: Sequence[str], weight: float = 1.0) -> Graph:
    """Clients in order, line after line of a nearly square grid, each joined to those beside it."""
    names = checked_names(clients)
    lines = math.isqrt(len(names))
    width = -(-len(names) // lines)
    each = np.arange(len(names))
    right = each[:-1][(each[:-1] + 1) % width != 0]
    below = each[:-width]
    begin, end = np.concatenate([right, below]), np.concatenate([right + 1, below + width])
    return joined(names, begin, end, checked_weight(weight))


def erdos_renyi(
    clients: Sequence[str], probability: float = 0.1, weight: float = 1.0, seed: int = 0
) -> Graph:
    """Every two clients joined with the same probability, each pair by itself (Erdős and Rényi, Gilbert)."""
    names = checked_names(clients)
    pairs = len(names) * (len(names) - 1) // 2
    share = checked_probability("probability", probability)
    check_edges("erdos-renyi", share * pairs)
    begin, end = _pair(_hits(stream(seed), 0, pairs, share))
    order = by_name(names)
    return joined(names, order[begin], order[end], checked_weight(weight))


def watts_strogatz(
    clients: Sequence[str],
    neighbours: int = 4,
    rewire: float = 0.1,
    weight: float = 1.0,
    seed: int = 0,
) -> Graph:
    """A small world (Watts and Strogatz): a ring of clients in order, some of whose edges lead elsewhere.

    Everybody is joined to `neighbours` / 2 on either side; each edge then keeps one end and, with probability
    `rewire`, gets another one for its other end, such that no pair is joined twice.
    """
    names = checked_names(clients)
    size, near = len(names), whole("neighbours", neighbours, 0, scope="graph")
    if near % 2 or near >= size:
        raise InputError(
            f"neighbours = {near}; on a ring of {size} clients it must be even, and below {size}",
            field="neighbours",
            scope="graph",
        )
    check_edges("watts-strogatz", size * near / 2)
    begin = np.tile(np.arange(size), near // 2)
    end = (begin + np.repeat(np.arange(1, near // 2 + 1), size)) % size
    drawn = stream(seed).uniform(0, 0, len(begin)).numpy()
    moving = drawn < checked_probability("rewire", rewire)
    return joined(names, begin, _rewired(begin, end, moving, size, seed), checked_weight(weight))


def blocks(
    clients: Sequence[str],
    clusters: int = 2,
    inside: float = 0.5,
    between: float = 0.01,
    weight: float = 1.0,
    seed: int = 0,
) -> Graph:
    """Clusters (a stochastic block model): equally many clients in each, in order.

    Every two clients of a cluster are joined with probability `inside`, those of two with `between`.
    """
    names = checked_names(clients)
    size, number = len(names), whole("clusters", clusters, 1, scope="graph")
    if number > size:
        raise InputError(
            f"clusters = {number}; there are only {size} clients", field="clusters", scope="graph"
        )
    near, far = checked_probability("inside", inside), checked_probability("between", between)
    first = -(-np.arange(number + 1) * size // number)  # where each cluster begins
    own = np.diff(first)
    last = np.cumsum(own * (own - 1) // 2)
    check_edges("blocks", near * float(last[-1]) + far * size * (size - 1) / 2)
    hit = _hits(stream(seed), 1, int(last[-1]), near)
    cluster = np.searchsorted(last, hit, side="right")
    begin, end = _pair(hit - (last - own * (own - 1) // 2)[cluster]) + first[cluster]
    begins, ends = _pair(_hits(stream(seed), 2, size * (size - 1) // 2, far))
    apart = np.searchsorted(first, begins, side="right") != np.searchsorted(first, ends, side="right")
    begin, end = np.concatenate([begin, begins[apart]]), np.concatenate([end, ends[apart]])
    return joined(names, begin, end, checked_weight(weight))


def joined(
    names: tuple[str, ...], begin: Places, end: Places, weight: float | Float64[np.ndarray, "edge"]
) -> Graph:
    """Clients at these places joined, each pair once."""
    values = np.broadcast_to(np.asarray(weight, dtype=float), begin.shape)
    half = coo_array((values, (begin, end)), shape=(len(names),) * 2).tocsr()
    return Graph.from_matrix(half + half.T, names)


def stream(seed: int) -> Draws:
    """What random graphs, and noise on what they are made from, draw from."""
    return draws(seed, "data", KIND)


def by_name(names: tuple[str, ...]) -> Int64[np.ndarray, "client"]:
    """Places in an order that depends on names alone."""
    return np.asarray(digests(names).argsort().numpy())


def every_pair(kind: str, names: tuple[str, ...]) -> tuple[Places, Places]:
    """The places of any two clients."""
    check_edges(kind, len(names) * (len(names) - 1) / 2)
    begin, end = np.triu_indices(len(names), 1)
    return begin, end


def check_edges(kind: str, edges: float) -> None:
    """Refuse a graph with more edges than are held at ease."""
    if edges > MOST_EDGES:
        raise InputError(
            f"{kind} joins about {edges:.2g} pairs of clients, and {MOST_EDGES:.0e} are the most; "
            "take a sparser graph, as nearest is",
            scope="graph",
        )


def checked_probability(name: str, value: float) -> float:
    """A number in [0, 1]."""
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{name} = {value!r}; it must be in [0, 1]", field=name, scope="graph")
    return float(value)


def _pair(number: Places) -> Int64[np.ndarray, "2 edge"]:
    """The two ends of pairs counted as (0, 1), (0, 2), (1, 2), (0, 3), …"""
    end = ((1 + np.sqrt(1 + 8.0 * number)) // 2).astype(np.int64)
    end -= end * (end - 1) // 2 > number  # where the root was rounded up
    return np.stack([number - end * (end - 1) // 2, end])


def _hits(drawn: Draws, step: int, trials: int, probability: float) -> Places:
    """Which of so many trials succeed; from one success to the next, so that failures cost nothing."""
    if probability in (0, 1) or not trials:
        return np.arange(trials if probability else 0)
    found = [np.array([-1])]
    for client in count():
        expected = (trials - found[-1][-1]) * probability
        some = drawn.uniform(client, step, int(expected + 4 * math.sqrt(expected)) + 10).log().numpy()
        gaps = np.minimum(1 + some // math.log1p(-probability), trials)  # a longer one ends it as well
        found.append(found[-1][-1] + gaps.astype(np.int64).cumsum())
        if found[-1][-1] >= trials:
            break
    places = np.concatenate(found[1:])
    return places[places < trials]


def _rewired(begin: Places, end: Places, moving: Bool[np.ndarray, "edge"], size: int, seed: int) -> Places:
    """The other ends once the moving edges have a new one; an edge that finds no free pair stays."""
    end, moving = end.copy(), np.flatnonzero(moving)
    for step in range(1, TRIES + 1):
        if not len(moving):
            break
        new = (stream(seed).uniform(0, step, len(moving)).numpy() * size).astype(np.int64)
        wanted, taken = _code(begin[moving], new, size), _code(begin, end, size)
        first = np.zeros(len(moving), dtype=bool)
        first[np.unique(wanted, return_index=True)[1]] = True
        free = first & (new != begin[moving]) & ~np.isin(wanted, taken)
        end[moving[free]] = new[free]
        moving = moving[~free]
    return end


def _code(begin: Places, end: Places, size: int) -> Places:
    """One number for each pair, whichever end comes first."""
    return np.asarray(np.minimum(begin, end) * size + np.maximum(begin, end))
