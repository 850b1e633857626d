"""Who gets which rows of a set that belongs to nobody yet.

Every partition is a pure function of the seed, and gives each row to at most one client. What each does when
a client would get nothing stands in its docstring.
"""

import math
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int64, Num
from scipy.special import gammaincinv
from torch import Tensor

from fedlap.errors import InputError, real, whole
from fedlap.randomness import Draws, draws

Rows = list[Int64[Tensor, "_"]]  # one tensor a client, in rising order


@runtime_checkable
class Partition(Protocol):
    """A way to share out rows; its fields are its settings."""

    def cut(self, y: Num[Tensor, "row *output"], seed: int) -> Rows:
        """Each client's rows, from the labels or targets of all."""


@dataclass(frozen=True)
class Labels:
    """Client k gets rows of the labels k, k + 1, … (mod the number of labels), sizes log-normal.

    Each label's rows are shuffled and shared out to the clients that hold it, in proportion to exp(spread·z)
    with z standard normal for each client. A client gets at least one row of each of its labels, however
    small its share; where a label has fewer rows than clients, that is an error.

    clients: how many.
    labels_per_client: how many labels each holds.
    spread: standard deviation of the logarithm of clients' shares.
    rows: how many rows are given out in all, the same share of each label; the rest is left out; 0 for all.
    """

    clients: int = 20
    labels_per_client: int = 2
    spread: float = 1.0
    rows: int = 0

    def __post_init__(self) -> None:
        whole("partition: clients", self.clients, 1)
        whole("partition: labels_per_client", self.labels_per_client, 1)
        real("partition: spread", self.spread, zero=True)
        whole("partition: rows", self.rows, 0)

    def cut(self, y: Num[Tensor, "row *output"], seed: int) -> Rows:
        """Each client's rows."""
        by_label = _by_label("labels", y)
        labels, each, clients = len(by_label), self.labels_per_client, self.clients
        if each > labels:
            raise InputError(f"partition: labels_per_client = {each}; it must be 1 to {labels}")
        if clients + each - 1 < labels:
            raise InputError(
                f"partition: {clients} clients with {each} labels each leave some of {labels} labels to "
                "nobody; take more of either"
            )
        if self.rows > len(y):
            raise InputError(f"partition: rows = {self.rows}, but there are only {len(y)}; ask for fewer")
        stream = draws(seed, "partition")
        z = stream.normal(0, 0, clients)
        count = torch.tensor([len(rows) for rows in by_label]).double()
        given = _apportioned(self.rows or len(y), count)
        own: list[list[Tensor]] = [[] for _ in range(clients)]
        for label, rows in enumerate(by_label):
            rows = rows[stream.permutation(0, 1 + label, len(rows))][: given[label]]
            holders = [k for k in range(clients) if (label - k) % labels < each]
            if len(rows) < len(holders):
                raise InputError(
                    f"partition: label {label} has {len(rows)} rows for {len(holders)} clients; "
                    "take fewer clients"
                )
            sizes = _sizes(len(rows), self.spread, z[holders])
            for k, part in zip(holders, rows.split(sizes), strict=True):
                own[k].append(part)
        return [torch.cat(parts).sort().values for parts in own]


@dataclass(frozen=True)
class Dirichlet:
    """Each client's mix of labels is drawn from a Dirichlet distribution (Hsu, Qi and Brown, 2019).

    The concentration of a label is alpha times the number of labels times its share of all rows: a large
    alpha gives everybody the same mix, a small one nearly a single label to each. Clients take their rows one
    after another in a random order; one whose label has run out takes more of its others, as its mix has it.
    Every row is given out, and every client gets at least one; more clients than rows is an error.

    clients: how many.
    alpha: the concentration, α.
    spread: standard deviation of the logarithm of clients' sizes; zero makes them equal.
    """

    clients: int = 20
    alpha: float = 0.5
    spread: float = 0.0

    def __post_init__(self) -> None:
        whole("partition: clients", self.clients, 1)
        real("partition: alpha", self.alpha, zero=False)
        real("partition: spread", self.spread, zero=True)

    def cut(self, y: Num[Tensor, "row *output"], seed: int) -> Rows:
        """Each client's rows."""
        stream = draws(seed, "partition")
        by_label = [rows for rows in _by_label("dirichlet", y) if len(rows)]
        sizes = _sizes(len(y), self.spread, stream.normal(0, 0, self.clients))
        left = torch.tensor([len(rows) for rows in by_label])
        mix = self._log_mixes(stream, left.double() / len(y))
        taken = torch.zeros(self.clients, len(left), dtype=torch.int64)
        for k in stream.permutation(0, 1, self.clients).tolist():
            taken[k] = _taken(sizes[k], mix[k], left)
            left = left - taken[k]
        own: list[list[Tensor]] = [[] for _ in range(self.clients)]
        for label, rows in enumerate(by_label):
            rows = rows[stream.permutation(0, 2 + label, len(rows))]
            for k, part in enumerate(rows.split(taken[:, label].tolist())):
                own[k].append(part)
        return [torch.cat(parts).sort().values for parts in own]

    def _log_mixes(self, stream: Draws, share: Float64[Tensor, "label"]) -> Float64[Tensor, "client label"]:
        """Logarithms of a Dirichlet draw for each client, as gamma variates over their sum.

        Gamma(a) is Gamma(a + 1) · U^(1/a); for a small `a` it is often below any float.
        """
        labels = len(share)
        a = (self.alpha * labels * share).clamp(1e-300, 1e300)
        u = torch.stack([stream.uniform(1 + k, 0, 2 * labels) for k in range(self.clients)])
        larger = torch.from_numpy(gammaincinv((a + 1).numpy(), u[:, :labels].numpy()))
        return (larger.log() + u[:, labels:].log() / a).log_softmax(1)


@dataclass(frozen=True)
class Quantity:
    """Clients alike in what they hold and unlike in how much: shuffled rows, sizes log-normal.

    Every row is given out, and every client gets at least one; more clients than rows is an error.

    clients: how many.
    spread: standard deviation of the logarithm of clients' sizes.
    """

    clients: int = 20
    spread: float = 1.0

    def __post_init__(self) -> None:
        whole("partition: clients", self.clients, 1)
        real("partition: spread", self.spread, zero=True)

    def cut(self, y: Num[Tensor, "row *output"], seed: int) -> Rows:
        """Each client's rows."""
        stream = draws(seed, "partition")
        sizes = _sizes(len(y), self.spread, stream.normal(0, 0, self.clients))
        return [rows.sort().values for rows in stream.permutation(0, 1, len(y)).split(sizes)]


@dataclass(frozen=True)
class Iid:
    """Clients alike: shuffled rows in equal parts, sizes differing by one at most.

    Every row is given out, and every client gets at least one; more clients than rows is an error.

    clients: how many.
    """

    clients: int = 20

    def __post_init__(self) -> None:
        whole("partition: clients", self.clients, 1)

    def cut(self, y: Num[Tensor, "row *output"], seed: int) -> Rows:
        """Each client's rows."""
        return Quantity(self.clients, 0.0).cut(y, seed)


NATURAL: Final = "natural"  # every row belongs to the client that it came from

PARTITIONS: Final[dict[str, type[Labels] | type[Dirichlet] | type[Quantity] | type[Iid]]] = {
    "labels": Labels,
    "dirichlet": Dirichlet,
    "quantity": Quantity,
    "iid": Iid,
}


def _by_label(name: str, y: Num[Tensor, "row *output"]) -> Rows:
    """The rows of each label."""
    if not len(y):
        raise InputError("partition: there are no rows to share out")
    if y.is_floating_point():
        raise InputError(f"partition: {name} needs labels, but targets are real numbers; use iid or quantity")
    return [(y == label).nonzero().flatten() for label in range(int(y.max()) + 1)]


def _sizes(total: int, spread: float, z: Float64[Tensor, "client"]) -> list[int]:
    """Whole numbers that sum to `total`, each at least one, in proportion to exp(spread·z)."""
    clients = len(z)
    if total < clients:
        raise InputError(f"partition: {clients} clients cannot share {total} rows; take fewer clients")
    share = (spread * (z - z.max())).exp()
    return [size + 1 for size in _apportioned(total - clients, share)]


def _apportioned(total: int, weight: Float64[Tensor, "part"]) -> list[int]:
    """Whole numbers that sum to `total`, in proportion to `weight`: the largest remainders are rounded up."""
    exact = weight / weight.sum() * total
    sizes = exact.floor().long()
    largest = (exact - sizes).argsort(descending=True, stable=True)[: total - int(sizes.sum())]
    sizes[largest] += 1
    return [int(size) for size in sizes]


def _taken(
    size: int, log_mix: Float64[Tensor, "label"], left: Int64[Tensor, "label"]
) -> Int64[Tensor, "label"]:
    """`size` rows in proportion to a mix, but no more of a label than are left."""
    taken = torch.zeros_like(left)
    while missing := size - int(taken.sum()):
        free = left - taken
        weight = torch.where(free > 0, log_mix, -math.inf).softmax(0)
        taken += torch.minimum(torch.tensor(_apportioned(missing, weight)), free)
    return taken
