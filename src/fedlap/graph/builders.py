"""Graphs with a fixed shape: the paper's Random and Equal, grids, random graphs and clusters.

Random numbers depend on the seed. If the shape has no order of clients, they also depend on the clients'
names, never on their order.
"""

import math
from collections.abc import Sequence
from itertools import count

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.sparse import coo_array

from fedlap.errors import InputError, check_integer, check_number
from fedlap.graph.graph import Graph
from fedlap.graph.validate import validate_names, validate_weight
from fedlap.randomness import Draws, digest_names, draws

EdgeIndices = Int64[np.ndarray, "edge"]

MOST_EDGES = 20_000_000  # sorting this many edges takes about 1 GB
REWIRE_ATTEMPTS = 50  # rounds of new ends for edges whose new pair was already taken
GRAPH_DRAWS = 2  # the round of "data" draws that graphs use; the models and rows of clients use 0 and 1


def equal(clients: Sequence[str], weight: float = 0.5) -> Graph:
    """The paper's Equal: the same weight between any two clients.

    weight: weight of every edge.
    """
    return Graph.complete(clients, weight)


def random(clients: Sequence[str], seed: int = 0) -> Graph:
    """The paper's Random: a normal value per pair of clients, shifted and scaled into [0, 1].

    The smallest value becomes weight 0 and the largest 1; if all values are equal, every weight is 0.5.
    """
    names = validate_names(clients)
    begin, end = list_pairs("random", names)
    values = get_graph_draws(seed).normal(0, 0, len(begin)).numpy()
    least, most = values.min(initial=np.inf), values.max(initial=-np.inf)
    scaled = (values - least) / (most - least) if most > least else np.full(len(values), 0.5)
    order = order_by_name(names)
    return connect_pairs(names, order[begin], order[end], scaled)


def grid(clients: Sequence[str], weight: float = 1.0) -> Graph:
    """A nearly square grid, filled row by row in client order; edges join adjacent cells.

    weight: weight of every edge.
    """
    names = validate_names(clients)
    rows = math.isqrt(len(names))
    width = -(-len(names) // rows)
    index = np.arange(len(names))
    right = index[:-1][(index[:-1] + 1) % width != 0]
    below = index[:-width]
    begin, end = np.concatenate([right, below]), np.concatenate([right + 1, below + width])
    return connect_pairs(names, begin, end, validate_weight(weight))


def erdos_renyi(
    clients: Sequence[str], probability: float = 0.1, weight: float = 1.0, seed: int = 0
) -> Graph:
    """Join each pair of clients independently with the same probability (Erdős and Rényi, Gilbert).

    probability: chance of each edge, in [0, 1].
    weight: weight of every edge.
    """
    names = validate_names(clients)
    pairs = len(names) * (len(names) - 1) // 2
    share = validate_probability("probability", probability)
    check_edges("erdos-renyi", share * pairs)
    begin, end = _unrank_pairs(_draw_successes(get_graph_draws(seed), 0, pairs, share))
    order = order_by_name(names)
    return connect_pairs(names, order[begin], order[end], validate_weight(weight))


def watts_strogatz(
    clients: Sequence[str],
    neighbours: int = 4,
    rewire: float = 0.1,
    weight: float = 1.0,
    seed: int = 0,
) -> Graph:
    """A small world (Watts and Strogatz): a ring of clients in order, with some edges rewired.

    Each client is joined to `neighbours` / 2 clients on either side. Each edge then keeps its first end and,
    with probability `rewire`, gets a random other end. No pair is joined twice.

    neighbours: neighbours of each client before rewiring: an even number, below the number of clients.
    rewire: chance that an edge gets a random other end, in [0, 1].
    weight: weight of every edge.
    """
    names = validate_names(clients)
    size, degree = len(names), check_integer("neighbours", neighbours, 0, scope="graph")
    if degree % 2 or degree >= size:
        raise InputError(
            f"neighbours = {degree}; expected an even number below {size}, the number of clients",
            field="neighbours",
            scope="graph",
        )
    check_edges("watts-strogatz", size * degree / 2)
    begin = np.tile(np.arange(size), degree // 2)
    end = (begin + np.repeat(np.arange(1, degree // 2 + 1), size)) % size
    uniform = get_graph_draws(seed).uniform(0, 0, len(begin)).numpy()
    moving = uniform < validate_probability("rewire", rewire)
    return connect_pairs(names, begin, _rewire(begin, end, moving, size, seed), validate_weight(weight))


def blocks(
    clients: Sequence[str],
    clusters: int = 2,
    inside: float = 0.5,
    between: float = 0.01,
    weight: float = 1.0,
    seed: int = 0,
) -> Graph:
    """A stochastic block model: clients in order, split into clusters of equal size.

    clusters: number of clusters.
    inside: chance of an edge between two clients of a cluster, in [0, 1].
    between: chance of an edge between clients of different clusters, in [0, 1].
    weight: weight of every edge.
    """
    names = validate_names(clients)
    size, number = len(names), check_integer("clusters", clusters, 1, scope="graph")
    if number > size:
        raise InputError(
            f"clusters = {number}; expected at most {size}, the number of clients",
            field="clusters",
            scope="graph",
        )
    p_inside, p_between = validate_probability("inside", inside), validate_probability("between", between)
    first = -(-np.arange(number + 1) * size // number)  # the first client of each cluster
    sizes = np.diff(first)
    last = np.cumsum(sizes * (sizes - 1) // 2)
    check_edges("blocks", p_inside * float(last[-1]) + p_between * size * (size - 1) / 2)
    inside_pairs = _draw_successes(get_graph_draws(seed), 1, int(last[-1]), p_inside)
    cluster = np.searchsorted(last, inside_pairs, side="right")
    begin, end = _unrank_pairs(inside_pairs - (last - sizes * (sizes - 1) // 2)[cluster]) + first[cluster]
    begins, ends = _unrank_pairs(_draw_successes(get_graph_draws(seed), 2, size * (size - 1) // 2, p_between))
    is_across = np.searchsorted(first, begins, side="right") != np.searchsorted(first, ends, side="right")
    begin, end = np.concatenate([begin, begins[is_across]]), np.concatenate([end, ends[is_across]])
    return connect_pairs(names, begin, end, validate_weight(weight))


def connect_pairs(
    names: tuple[str, ...], begin: EdgeIndices, end: EdgeIndices, weight: float | Float64[np.ndarray, "edge"]
) -> Graph:
    """Build a graph from client indices at both ends of each edge; every pair occurs once."""
    values = np.broadcast_to(np.asarray(weight, dtype=float), begin.shape)
    half = coo_array((values, (begin, end)), shape=(len(names),) * 2).tocsr()
    return Graph.from_matrix(half + half.T, names)


def get_graph_draws(seed: int) -> Draws:
    """Return the random draws for graphs, and for noise on the vectors that graphs are computed from."""
    return draws(seed, "data", GRAPH_DRAWS)


def order_by_name(names: tuple[str, ...]) -> Int64[np.ndarray, "client"]:
    """Return client indices in an order that depends on the names alone."""
    return np.asarray(digest_names(names).argsort().numpy())


def list_pairs(kind: str, names: tuple[str, ...]) -> tuple[EdgeIndices, EdgeIndices]:
    """Return both indices of every pair of clients; `kind` names the graph in errors."""
    check_edges(kind, len(names) * (len(names) - 1) / 2)
    begin, end = np.triu_indices(len(names), 1)
    return begin, end


def check_edges(kind: str, edges: float) -> None:
    """Raise InputError if a graph has more than `MOST_EDGES` edges."""
    if edges > MOST_EDGES:
        raise InputError(
            f"{kind} has about {edges:.2g} edges; expected at most {MOST_EDGES:.0e}: use a sparser graph "
            "such as nearest",
            scope="graph",
        )


def validate_probability(name: str, value: float) -> float:
    """Return a number in [0, 1], or raise InputError."""
    number = check_number(name, value, zero=True, scope="graph")
    if number > 1:
        raise InputError(f"{name} = {value!r}; expected a number in [0, 1]", field=name, scope="graph")
    return number


def _unrank_pairs(rank: EdgeIndices) -> Int64[np.ndarray, "2 edge"]:
    """Return both ends of the pairs with these ranks in the sequence (0, 1), (0, 2), (1, 2), (0, 3), …"""
    end = ((1 + np.sqrt(1 + 8.0 * rank)) // 2).astype(np.int64)
    end -= end * (end - 1) // 2 > rank  # corrects roots that were rounded up
    return np.stack([rank - end * (end - 1) // 2, end])


def _draw_successes(stream: Draws, step: int, trials: int, probability: float) -> EdgeIndices:
    """Draw the trials that succeed, by the gaps between successes, so that failures cost nothing."""
    if probability in (0, 1) or not trials:
        return np.arange(trials if probability else 0)
    found = [np.array([-1])]
    for client in count():
        expected = (trials - found[-1][-1]) * probability
        logs = stream.uniform(client, step, int(expected + 4 * math.sqrt(expected)) + 10).log().numpy()
        # Gaps are clipped to the number of trials, since any longer gap also ends the trials.
        gaps = np.minimum(1 + logs // math.log1p(-probability), trials)
        found.append(found[-1][-1] + gaps.astype(np.int64).cumsum())
        if found[-1][-1] >= trials:
            break
    successes = np.concatenate(found[1:])
    return successes[successes < trials]


def _rewire(
    begin: EdgeIndices, end: EdgeIndices, moving: Bool[np.ndarray, "edge"], size: int, seed: int
) -> EdgeIndices:
    """Return the second ends after rewiring the `moving` edges; an edge that finds no free pair stays."""
    end, moving = end.copy(), np.flatnonzero(moving)
    for step in range(1, REWIRE_ATTEMPTS + 1):
        if not len(moving):
            break
        new = (get_graph_draws(seed).uniform(0, step, len(moving)).numpy() * size).astype(np.int64)
        wanted, taken = _encode_pairs(begin[moving], new, size), _encode_pairs(begin, end, size)
        first = np.zeros(len(moving), dtype=bool)
        first[np.unique(wanted, return_index=True)[1]] = True
        free = first & (new != begin[moving]) & ~np.isin(wanted, taken)
        end[moving[free]] = new[free]
        moving = moving[~free]
    return end


def _encode_pairs(begin: EdgeIndices, end: EdgeIndices, size: int) -> EdgeIndices:
    """Encode each unordered pair as one number."""
    return np.asarray(np.minimum(begin, end) * size + np.maximum(begin, end))
