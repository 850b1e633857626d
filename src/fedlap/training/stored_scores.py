"""Linear models scored on rows in the store of a CPU: gathering rows costs as much as the product."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedlap.models import DenseNetwork, Network
from fedlap.models.parameters import view_parameters

Span = tuple[int, int]  # the first row of a client in the store, and the number of its rows

# From this many values per client on, one product per client, with its start-up time, costs less than
# gathering the rows of all clients.
MIN_VALUES_PER_CLIENT = 60_000


def find_spans(
    network: Network, stored: Int64[Tensor, "_"], inside: Bool[Tensor, "client row"]
) -> list[Span] | None:
    """Return the span of each client, or None unless the network is linear and rows are many and adjacent."""
    if not isinstance(network, DenseNetwork) or len(network.widths) > 2:
        return None
    if int(inside.sum()) * network.widest < MIN_VALUES_PER_CLIENT * len(inside):
        return None
    rows = stored.view(inside.shape)
    begin = rows[:, :1]
    if not bool(((rows == begin + torch.arange(rows.shape[1])) | ~inside).all()):
        return None
    return list(zip(begin.flatten().tolist(), inside.sum(1).tolist(), strict=True))


def score_spans(
    network: DenseNetwork,
    W: Float[Tensor, "client param"],
    store: Float[Tensor, "stored *feature"],
    spans: list[Span],
    rows: int,
) -> Float[Tensor, "client {rows} output"]:
    """Return the scores of each client's linear model on its rows, and zero for the padding after them."""
    weight, bias = view_parameters(W, network.shapes)
    scores = W.new_zeros(len(W), network.outputs, rows)
    for w, b, out, (begin, count) in zip(weight, bias.unsqueeze(2), scores, spans, strict=True):
        torch.addmm(b, w, store[begin : begin + count].flatten(1).mT, out=out[:, :count])
    return scores.mT
