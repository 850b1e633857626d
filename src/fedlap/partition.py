"""Who gets which rows of a labelled set."""

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fedlap.errors import InputError, real, whole
from fedlap.randomness import draws


def by_label(
    y: Int64[Tensor, "row"], clients: int, labels_per_client: int, spread: float, seed: int
) -> list[Int64[Tensor, "own"]]:
    """Client k gets rows of the labels k, k + 1, … (mod the number of labels), sizes log-normal.

    Each label's rows are shuffled and shared out to the clients that hold it, in proportion to exp(spread·z)
    with z standard normal for each client. No row is lost or given twice. A client gets at least one row of
    each of its labels, however small its share; where a label has fewer rows than clients, that is an error.
    """
    if not len(y):
        raise InputError("partition: there are no rows to share out")
    whole("partition: clients", clients, 1)
    whole("partition: labels_per_client", labels_per_client, 1)
    real("partition: spread", spread, zero=True)
    labels = int(y.max()) + 1
    if labels_per_client > labels:
        raise InputError(f"partition: labels_per_client = {labels_per_client}; it must be 1 to {labels}")
    if clients + labels_per_client - 1 < labels:
        raise InputError(
            f"partition: {clients} clients with {labels_per_client} labels each leave some of "
            f"{labels} labels to nobody; take more of either"
        )
    stream = draws(seed, "partition")
    logarithm = spread * stream.normal(0, 0, clients)
    share = (logarithm - logarithm.max()).exp()
    own: list[list[Tensor]] = [[] for _ in range(clients)]
    for label in range(labels):
        rows = (y == label).nonzero().flatten()
        rows = rows[stream.permutation(0, 1 + label, len(rows))]
        holders = [k for k in range(clients) if (label - k) % labels < labels_per_client]
        if len(rows) < len(holders):
            raise InputError(
                f"partition: label {label} has {len(rows)} rows for {len(holders)} clients; "
                "take fewer clients"
            )
        for k, part in zip(holders, rows.split(_shares(len(rows), share[holders])), strict=True):
            own[k].append(part)
    return [torch.cat(parts).sort().values for parts in own]


def _shares(total: int, weight: Float64[Tensor, "holder"]) -> list[int]:
    """Whole numbers that sum to `total`, in proportion to `weight`, each at least one."""
    spare = total - len(weight)
    exact = weight / weight.sum() * spare
    sizes = exact.floor().long()
    largest_rest = (exact - sizes).argsort(descending=True, stable=True)[: spare - int(sizes.sum())]
    sizes[largest_rest] += 1
    return [int(size) + 1 for size in sizes]
