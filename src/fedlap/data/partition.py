"""Who gets which rows of a set that belongs to nobody yet.

Every partition is a pure function of the seed, and gives each row to at most one client. What each does when
a client would get nothing stands in its docstring.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int64, Num
from scipy.special import gammaincinv
from torch import Tensor

from fedlap.data.client_rows import grouped
from fedlap.errors import InputError, real, whole
from fedlap.randomness import Draws, draws

Rows = list[Int64[Tensor, "_"]]  # one tensor a client, in rising order


@runtime_checkable
class Partition(Protocol):
    """A way to share out rows; its fields are its settings."""

    def cut(self, y: Num[Tensor, "row *output"], seed: int) -> Rows:
        """Each client's rows, from the labels or targets of all."""


class Owning(ABC):
    """A way to share out rows that says whose each row is: the same, told for many clients at once."""

    clients: int

    @abstractmethod
    def owner(self, y: Num[Tensor, "row *output"], seed: int) -> Int64[Tensor, "row"]:
        """The client of each row, or −1 for nobody."""

    def cut(self, y: Num[Tensor, "row *output"], seed: int) -> Rows:
        """Each client's rows."""
        row, count = grouped(self.owner(y, seed), self.clients)
        return list(row.split(count.tolist()))


@dataclass(frozen=True)
class Labels(Owning):
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
        whole("clients", self.clients, 1, scope="partition")
        whole("labels_per_client", self.labels_per_client, 1, scope="partition")
        real("spread", self.spread, zero=True, scope="partition")
        whole("rows", self.rows, 0, scope="partition")

    def owner(self, y: Num[Tensor, "row *output"], seed: int) -> Int64[Tensor, "row"]:
        """The client of each row."""
        by_label = _by_label("labels", y)
        labels, each, clients = len(by_label), self.labels_per_client, self.clients
        if each > labels:
            raise InputError(
                f"labels_per_client = {each}; it must be 1 to {labels}",
                field="labels_per_client",
                scope="partition",
            )
        if clients + each - 1 < labels:
            raise InputError(
                f"{clients} clients with {each} labels each leave some of {labels} labels to "
                "nobody; take more of either",
                scope="partition",
            )
        if self.rows > len(y):
            raise InputError(
                f"rows = {self.rows}, but there are only {len(y)}; ask for fewer",
                field="rows",
                scope="partition",
            )
        stream = draws(seed, "partition")
        z = stream.normal(0, 0, clients)
        count = torch.tensor([len(rows) for rows in by_label]).double()
        given = _apportioned(torch.tensor([self.rows or len(y)]), count.unsqueeze(0))[0]
        owner = torch.full((len(y),), -1)
        for label, rows in enumerate(by_label):
            rows = rows[stream.permutation(0, 1 + label, len(rows))][: given[label]]
            holders = ((label - torch.arange(clients)) % labels < each).nonzero().flatten()
            if len(rows) < len(holders):
                raise InputError(
                    f"label {label} has {len(rows)} rows for {len(holders)} clients; take fewer clients",
                    scope="partition",
                )
            owner[rows] = holders.repeat_interleave(_sizes(len(rows), self.spread, z[holders]))
        return owner


@dataclass(frozen=True)
class Dirichlet(Owning):
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
        whole("clients", self.clients, 1, scope="partition")
        real("alpha", self.alpha, zero=False, scope="partition")
        real("spread", self.spread, zero=True, scope="partition")

    def owner(self, y: Num[Tensor, "row *output"], seed: int) -> Int64[Tensor, "row"]:
        """The client of each row."""
        stream = draws(seed, "partition")
        by_label = [rows for rows in _by_label("dirichlet", y) if len(rows)]
        sizes = _sizes(len(y), self.spread, stream.normal(0, 0, self.clients))
        left = torch.tensor([len(rows) for rows in by_label])
        mix = self._log_mixes(stream, left.double() / len(y))
        turn = stream.permutation(0, 1, self.clients)
        taken = torch.empty_like(mix, dtype=torch.int64)
        taken[turn] = _in_turn(sizes[turn], mix[turn], left)
        owner = torch.full((len(y),), -1)
        for label, rows in enumerate(by_label):
            rows = rows[stream.permutation(0, 2 + label, len(rows))]
            owner[rows] = torch.arange(self.clients).repeat_interleave(taken[:, label])
        return owner

    def _log_mixes(self, stream: Draws, share: Float64[Tensor, "label"]) -> Float64[Tensor, "client label"]:
        """Logarithms of a Dirichlet draw for each client, as gamma variates over their sum.

        Gamma(a) is Gamma(a + 1) · U^(1/a); for a small `a` it is often below any float.
        """
        labels = len(share)
        a = (self.alpha * labels * share).clamp(1e-300, 1e300)
        u = stream.uniforms(torch.arange(1, 1 + self.clients), 0, 2 * labels)
        larger = torch.from_numpy(gammaincinv((a + 1).numpy(), u[:, :labels].numpy()))
        return (larger.log() + u[:, labels:].log() / a).log_softmax(1)


@dataclass(frozen=True)
class Quantity(Owning):
    """Clients alike in what they hold and unlike in how much: shuffled rows, sizes log-normal.

    Every row is given out, and every client gets at least one; more clients than rows is an error.

    clients: how many.
    spread: standard deviation of the logarithm of clients' sizes.
    """

    clients: int = 20
    spread: float = 1.0

    def __post_init__(self) -> None:
        whole("clients", self.clients, 1, scope="partition")
        real("spread", self.spread, zero=True, scope="partition")

    def owner(self, y: Num[Tensor, "row *output"], seed: int) -> Int64[Tensor, "row"]:
        """The client of each row."""
        stream = draws(seed, "partition")
        sizes = _sizes(len(y), self.spread, stream.normal(0, 0, self.clients))
        whose = torch.arange(self.clients).repeat_interleave(sizes)
        return torch.empty_like(whose).index_copy_(0, stream.permutation(0, 1, len(y)), whose)


@dataclass(frozen=True)
class Iid(Owning):
    """Clients alike: shuffled rows in equal parts, sizes differing by one at most.

    Every row is given out, and every client gets at least one; more clients than rows is an error.

    clients: how many.
    """

    clients: int = 20

    def __post_init__(self) -> None:
        whole("clients", self.clients, 1, scope="partition")

    def owner(self, y: Num[Tensor, "row *output"], seed: int) -> Int64[Tensor, "row"]:
        """The client of each row."""
        return Quantity(self.clients, 0.0).owner(y, seed)


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
        raise InputError("there are no rows to share out", scope="partition")
    if y.is_floating_point():
        raise InputError(
            f"{name} needs labels, but targets are real numbers; use iid or quantity", scope="partition"
        )
    rows, count = grouped(y.long().clamp(min=-1), max(0, int(y.max()) + 1))
    return list(rows.split(count.tolist()))


def _sizes(total: int, spread: float, z: Float64[Tensor, "client"]) -> Int64[Tensor, "client"]:
    """Whole numbers that sum to `total`, each at least one, in proportion to exp(spread·z)."""
    clients = len(z)
    if total < clients:
        raise InputError(
            f"{clients} clients cannot share {total} rows; take fewer clients", scope="partition"
        )
    share = (spread * (z - z.max())).exp()
    return 1 + _apportioned(torch.tensor([total - clients]), share.unsqueeze(0))[0]


def _apportioned(
    total: Int64[Tensor, "line"], weight: Float64[Tensor, "line part"]
) -> Int64[Tensor, "line part"]:
    """Whole numbers that sum to `total` in each line, in proportion to `weight`.

    The largest remainders are rounded up.
    """
    exact = weight / weight.sum(1, keepdim=True) * total.unsqueeze(1)
    sizes = exact.floor().long()
    largest = (exact - sizes).argsort(descending=True, stable=True, dim=1)
    missing = (total - sizes.sum(1)).unsqueeze(1)
    more = torch.arange(sizes.shape[1]) < missing
    return sizes.scatter_add_(1, largest, more.expand_as(sizes).long())


def _in_turn(
    sizes: Int64[Tensor, "client"], log_mix: Float64[Tensor, "client label"], left: Int64[Tensor, "label"]
) -> Int64[Tensor, "client label"]:
    """What each client takes, one after another, of what those before have left.

    Until a label runs out clients do not get in each other's way, so that many can take at once; and every
    time that they do, a label has run out.
    """
    taken = torch.empty_like(log_mix, dtype=torch.int64)
    begin, many = 0, 16
    while begin < len(sizes):
        some = slice(begin, begin + many)
        weight = torch.where(left > 0, log_mix[some], -math.inf).softmax(1)
        wanted = _apportioned(sizes[some], weight)
        before = wanted.cumsum(0) - wanted
        # In the way: less is there than wanted, or what is there is no longer what mixes were made for.
        short = (((left - before) < wanted) | ((left > 0) & (before >= left))).any(1)
        good = int(short.long().argmax()) if bool(short.any()) else len(wanted)
        taken[begin : begin + good] = wanted[:good]
        left = left - wanted[:good].sum(0)
        begin += good
        if good < len(wanted):
            taken[begin] = _taken(int(sizes[begin]), log_mix[begin], left)
            left = left - taken[begin]
            begin += 1
        many = 2 * many if good == len(wanted) else 16
    return taken


def _taken(
    size: int, log_mix: Float64[Tensor, "label"], left: Int64[Tensor, "label"]
) -> Int64[Tensor, "label"]:
    """`size` rows in proportion to a mix, but no more of a label than are left."""
    taken = torch.zeros_like(left)
    while missing := size - int(taken.sum()):
        free = left - taken
        weight = torch.where(free > 0, log_mix, -math.inf).softmax(0)
        wanted = _apportioned(torch.tensor([missing]), weight.unsqueeze(0))[0]
        taken += torch.minimum(wanted, free)
    return taken
