"""Partitions: assign the rows of a data set to clients.

Every partition is a pure function of the seed and assigns each row to at most one client. Its docstring
states what happens if a client would get no row.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int64, Num
from scipy.special import gammaincinv
from torch import Tensor

from fedlap.data.client_rows import group_rows
from fedlap.errors import InputError, check_integer, check_number
from fedlap.randomness import Draws, draws

RowsPerClient = list[Int64[Tensor, "_"]]  # one tensor per client, in rising order


@runtime_checkable
class Partition(Protocol):
    """A rule that assigns rows to clients; its fields are its settings."""

    def cut(self, y: Num[Tensor, "row *output"], seed: int) -> RowsPerClient:
        """Return the rows of each client, given the labels or targets of all rows."""


class OwnerPartition(ABC):
    """A partition that returns the client of each row, which is faster for many clients."""

    clients: int

    @abstractmethod
    def assign_owners(self, y: Num[Tensor, "row *output"], seed: int) -> Int64[Tensor, "row"]:
        """Return the client of each row, or −1 for no client."""

    def cut(self, y: Num[Tensor, "row *output"], seed: int) -> RowsPerClient:
        """Return the rows of each client."""
        row, count = group_rows(self.assign_owners(y, seed), self.clients)
        return list(row.split(count.tolist()))


@dataclass(frozen=True)
class Labels(OwnerPartition):
    """Client k gets rows of the labels k, k + 1, … (mod the number of labels), sizes log-normal.

    Each label's rows are shuffled and divided among the clients with that label, in proportion to
    exp(spread·z) with z standard normal per client. A client gets at least one row of each of its labels,
    however small its share; a label with fewer rows than clients is an error.

    clients: number of clients.
    labels_per_client: number of labels of each client.
    spread: standard deviation of the logarithm of clients' shares.
    rows: number of rows to assign in all, the same share of each label; the rest is unused; 0 for all.
    """

    clients: int = 20
    labels_per_client: int = 2
    spread: float = 1.0
    rows: int = 0

    def __post_init__(self) -> None:
        check_integer("clients", self.clients, 1, scope="partition")
        check_integer("labels_per_client", self.labels_per_client, 1, scope="partition")
        check_number("spread", self.spread, zero=True, scope="partition")
        check_integer("rows", self.rows, 0, scope="partition")

    def assign_owners(self, y: Num[Tensor, "row *output"], seed: int) -> Int64[Tensor, "row"]:
        """The client of each row."""
        by_label = _group_by_label("labels", y)
        labels, per_client, clients = len(by_label), self.labels_per_client, self.clients
        if per_client > labels:
            raise InputError(
                f"labels_per_client = {per_client}; expected 1 to {labels}",
                field="labels_per_client",
                scope="partition",
            )
        if clients + per_client - 1 < labels:
            raise InputError(
                f"{clients} clients with {per_client} labels each do not cover all {labels} labels; "
                "use more clients or more labels per client",
                scope="partition",
            )
        if self.rows > len(y):
            raise InputError(
                f"rows = {self.rows}; expected at most {len(y)}, the rows of the data",
                field="rows",
                scope="partition",
            )
        stream = draws(seed, "partition")
        z = stream.normal(0, 0, clients)
        count = torch.tensor([len(rows) for rows in by_label]).double()
        rows_per_label = _apportion(torch.tensor([self.rows or len(y)]), count.unsqueeze(0))[0]
        owner = torch.full((len(y),), -1)
        for label, rows in enumerate(by_label):
            rows = rows[stream.permutation(0, 1 + label, len(rows))][: rows_per_label[label]]
            holders = ((label - torch.arange(clients)) % labels < per_client).nonzero().flatten()
            if len(rows) < len(holders):
                raise InputError(
                    f"label {label} has {len(rows)} rows for {len(holders)} clients; use fewer clients",
                    scope="partition",
                )
            owner[rows] = holders.repeat_interleave(_compute_sizes(len(rows), self.spread, z[holders]))
        return owner


@dataclass(frozen=True)
class Dirichlet(OwnerPartition):
    """Each client's label distribution is drawn from a Dirichlet distribution (Hsu, Qi and Brown, 2019).

    The concentration of a label is alpha times the number of labels times its share of all rows: with a large
    alpha all clients have the same mix, with a small one nearly a single label each. Clients take their rows
    one after another in a random order; when a label has run out, a client takes more of its other labels, in
    proportion to its mix. Every row is assigned, and every client gets at least one; more clients than rows
    is an error.

    clients: number of clients.
    alpha: the concentration, α.
    spread: standard deviation of the logarithm of clients' sizes; zero means equal sizes.
    """

    clients: int = 20
    alpha: float = 0.5
    spread: float = 0.0

    def __post_init__(self) -> None:
        check_integer("clients", self.clients, 1, scope="partition")
        check_number("alpha", self.alpha, zero=False, scope="partition")
        check_number("spread", self.spread, zero=True, scope="partition")

    def assign_owners(self, y: Num[Tensor, "row *output"], seed: int) -> Int64[Tensor, "row"]:
        """The client of each row."""
        stream = draws(seed, "partition")
        by_label = [rows for rows in _group_by_label("dirichlet", y) if len(rows)]
        sizes = _compute_sizes(len(y), self.spread, stream.normal(0, 0, self.clients))
        left = torch.tensor([len(rows) for rows in by_label])
        mix = self._draw_log_mixes(stream, left.double() / len(y))
        turn = stream.permutation(0, 1, self.clients)
        taken = torch.empty_like(mix, dtype=torch.int64)
        taken[turn] = _take_in_turn(sizes[turn], mix[turn], left)
        owner = torch.full((len(y),), -1)
        for label, rows in enumerate(by_label):
            rows = rows[stream.permutation(0, 2 + label, len(rows))]
            owner[rows] = torch.arange(self.clients).repeat_interleave(taken[:, label])
        return owner

    def _draw_log_mixes(
        self, stream: Draws, share: Float64[Tensor, "label"]
    ) -> Float64[Tensor, "client label"]:
        """Draw the logarithm of a Dirichlet variate per client, as gamma variates over their sum.

        Gamma(a) is Gamma(a + 1) · U^(1/a); for a small `a` it is often below any float.
        """
        labels = len(share)
        a = (self.alpha * labels * share).clamp(1e-300, 1e300)
        u = stream.uniforms(torch.arange(1, 1 + self.clients), 0, 2 * labels)
        larger = torch.from_numpy(gammaincinv((a + 1).numpy(), u[:, :labels].numpy()))
        return (larger.log() + u[:, labels:].log() / a).log_softmax(1)


@dataclass(frozen=True)
class Quantity(OwnerPartition):
    """Clients with the same distribution but different sizes: shuffled rows, sizes log-normal.

    Every row is assigned, and every client gets at least one; more clients than rows is an error.

    clients: number of clients.
    spread: standard deviation of the logarithm of clients' sizes.
    """

    clients: int = 20
    spread: float = 1.0

    def __post_init__(self) -> None:
        check_integer("clients", self.clients, 1, scope="partition")
        check_number("spread", self.spread, zero=True, scope="partition")

    def assign_owners(self, y: Num[Tensor, "row *output"], seed: int) -> Int64[Tensor, "row"]:
        """The client of each row."""
        stream = draws(seed, "partition")
        sizes = _compute_sizes(len(y), self.spread, stream.normal(0, 0, self.clients))
        owner = torch.arange(self.clients).repeat_interleave(sizes)
        return torch.empty_like(owner).index_copy_(0, stream.permutation(0, 1, len(y)), owner)


@dataclass(frozen=True)
class Iid(OwnerPartition):
    """Clients with the same distribution and size: shuffled rows, sizes differing by one at most.

    Every row is assigned, and every client gets at least one; more clients than rows is an error.

    clients: number of clients.
    """

    clients: int = 20

    def __post_init__(self) -> None:
        check_integer("clients", self.clients, 1, scope="partition")

    def assign_owners(self, y: Num[Tensor, "row *output"], seed: int) -> Int64[Tensor, "row"]:
        """The client of each row."""
        return Quantity(self.clients, 0.0).assign_owners(y, seed)


NATURAL: Final = "natural"  # Every row stays with the client in the data.

PARTITIONS: Final[dict[str, type[Labels] | type[Dirichlet] | type[Quantity] | type[Iid]]] = {
    "labels": Labels,
    "dirichlet": Dirichlet,
    "quantity": Quantity,
    "iid": Iid,
}


def _group_by_label(name: str, y: Num[Tensor, "row *output"]) -> RowsPerClient:
    """Return the rows of each label."""
    if not len(y):
        raise InputError("the data has no rows; a partition needs at least one", scope="partition")
    if y.is_floating_point():
        raise InputError(
            f"{name} needs labels, but targets are real numbers; use iid or quantity",
            scope="partition",
        )
    rows, count = group_rows(y.long().clamp(min=-1), max(0, int(y.max()) + 1))
    return list(rows.split(count.tolist()))


def _compute_sizes(total: int, spread: float, z: Float64[Tensor, "client"]) -> Int64[Tensor, "client"]:
    """Return integers that sum to `total`, each at least one, in proportion to exp(spread·z)."""
    clients = len(z)
    if total < clients:
        raise InputError(
            f"{clients} clients for {total} rows; use at most one client per row", scope="partition"
        )
    share = (spread * (z - z.max())).exp()
    return 1 + _apportion(torch.tensor([total - clients]), share.unsqueeze(0))[0]


def _apportion(
    total: Int64[Tensor, "line"], weight: Float64[Tensor, "line part"]
) -> Int64[Tensor, "line part"]:
    """Return integers that sum to `total` in each line, in proportion to `weight`.

    The largest remainders are rounded up.
    """
    exact = weight / weight.sum(1, keepdim=True) * total.unsqueeze(1)
    sizes = exact.floor().long()
    largest = (exact - sizes).argsort(descending=True, stable=True, dim=1)
    missing = (total - sizes.sum(1)).unsqueeze(1)
    more = torch.arange(sizes.shape[1]) < missing
    return sizes.scatter_add_(1, largest, more.expand_as(sizes).long())


def _take_in_turn(
    sizes: Int64[Tensor, "client"], log_mix: Float64[Tensor, "client label"], left: Int64[Tensor, "label"]
) -> Int64[Tensor, "client label"]:
    """Return how many rows of each label each client takes, one client after another.

    Until a label runs out, clients do not affect each other, so a block of clients is computed at once. A
    block ends early only if a label runs out.
    """
    taken = torch.empty_like(log_mix, dtype=torch.int64)
    begin, block_size = 0, 16
    while begin < len(sizes):
        block = slice(begin, begin + block_size)
        weight = torch.where(left > 0, log_mix[block], -math.inf).softmax(1)
        wanted = _apportion(sizes[block], weight)
        before = wanted.cumsum(0) - wanted
        # A client is affected if fewer rows are left than it wants, or a label in its mix has run out.
        short = (((left - before) < wanted) | ((left > 0) & (before >= left))).any(1)
        unaffected = int(short.long().argmax()) if bool(short.any()) else len(wanted)
        taken[begin : begin + unaffected] = wanted[:unaffected]
        left = left - wanted[:unaffected].sum(0)
        begin += unaffected
        if unaffected < len(wanted):
            taken[begin] = _take_rows(int(sizes[begin]), log_mix[begin], left)
            left = left - taken[begin]
            begin += 1
        block_size = 2 * block_size if unaffected == len(wanted) else 16
    return taken


def _take_rows(
    size: int, log_mix: Float64[Tensor, "label"], left: Int64[Tensor, "label"]
) -> Int64[Tensor, "label"]:
    """Return how many rows of each label to take: `size` in proportion to a mix, no more than are left."""
    taken = torch.zeros_like(left)
    while missing := size - int(taken.sum()):
        free = left - taken
        weight = torch.where(free > 0, log_mix, -math.inf).softmax(0)
        wanted = _apportion(torch.tensor([missing]), weight.unsqueeze(0))[0]
        taken += torch.minimum(wanted, free)
    return taken
