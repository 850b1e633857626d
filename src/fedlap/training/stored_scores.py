"""Rows that linear models score where a CPU has them stored: to gather them costs as much as the product."""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fedlap.models import DenseNetwork, Network
from fedlap.models.parameters import views

Span = tuple[int, int]  # where a client's rows begin in the store, and how many they are

# Values of a client's rows from which on a product of its own, with all that it takes to start one, costs
# less than to gather them.
ALONE = 60_000


def spans(
    network: Network, stored: Int64[Tensor, "_"], inside: Bool[Tensor, "client row"]
) -> list[Span] | None:
    """Where the rows of each client are, if the network is linear and they are many and lie together."""
    if not isinstance(network, DenseNetwork) or len(network.widths) > 2:
        return None
    if int(inside.sum()) * network.widest < ALONE * len(inside):
        return None
    rows = stored.view(inside.shape)
    begin = rows[:, :1]
    if not bool(((rows == begin + torch.arange(rows.shape[1])) | ~inside).all()):
        return None
    return list(zip(begin.flatten().tolist(), inside.sum(1).tolist(), strict=True))


def scores(
    network: DenseNetwork,
    W: Float[Tensor, "client param"],
    store: Float[Tensor, "stored *feature"],
    each: list[Span],
    rows: int,
) -> Float[Tensor, "client {rows} output"]:
    """What each client's linear model says of its own rows, and zero of padding behind them."""
    weight, bias = views(W, network.shapes)
    made = W.new_zeros(len(W), network.outputs, rows)
    for w, b, out, (begin, count) in zip(weight, bias.unsqueeze(2), made, each, strict=True):
        torch.addmm(b, w, store[begin : begin + count].flatten(1).mT, out=out[:, :count])
    return made.mT
