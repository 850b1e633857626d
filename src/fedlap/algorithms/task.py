"""The work that a method asks of its clients in a round."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.conjugates import Conjugate
from fedlap.algorithms.per_run import Number
from fedlap.models import Batch

Stack = Float[Tensor, "client param"]  # the clients at hand, one row each
Some = Float[Tensor, "_ param"]  # a stack whose first rows are those meant


@runtime_checkable
class Task(Protocol):
    """The work of a stack of clients in one round, on their own training rows.

    F̃_k is the loss of client k on a mini-batch, F_k that on all its training rows; both include the L2 term.
    """

    @property
    def count(self) -> Float[Tensor, "client 1"]:
        """How many training rows each client has."""
        ...

    @property
    def steps(self) -> Float[Tensor, "client 1"]:
        """How many mini-batches each client has in this round."""
        ...

    def batches(self) -> Iterator[Batch]:
        """The round's mini-batches; later ones may hold fewer clients, always the first ones of the stack."""
        ...

    def numbered(self) -> Iterator[tuple[Batch, Int64[Tensor, "client batch"]]]:
        """The same, each with the numbers of its rows among the client's own."""
        ...

    def rows(self) -> Iterator[tuple[Batch, Int64[Tensor, "client batch"]]]:
        """Every training row once, in order, a block at a time and weighted by 1/n_k, with such numbers."""
        ...

    def descended(self, w: Stack, lr: Number) -> Stack:
        """`descend` through all of the round's mini-batches."""
        ...

    def pulled(
        self, w: Stack, lr: Number, to: Stack, by: Number, times: int = 1, drag: Number | None = None
    ) -> Stack:
        """`times` steps w_k ← w_k − lr ∇F̃_k(w_k) − by (w_k − to_k) on each of the round's mini-batches.

        After each mini-batch to_k ← to_k − drag (to_k − w_k), if that is given. Both in place.
        """
        ...

    def ahead(self, w: Stack, lr: Number, then: Number) -> Stack:
        """w_k ← w_k − then ∇F̃′_k(w_k − lr ∇F̃_k(w_k)), in place, with two mini-batches after two others."""
        ...

    def descend(self, w: Stack, batch: Batch, lr: Number) -> Stack:
        """w_k ← w_k − lr ∇F̃_k(w_k) for the clients of the batch, in place; the others keep w_k."""
        ...

    def gradient(self, w: Some, batch: Batch) -> Stack:
        """∇F̃_k(w_k) for the clients of the batch; w may have more rows."""
        ...

    def curvature(self, w: Some, batch: Batch, v: Some) -> Stack:
        """∇²F̃_k(w_k) v_k for the clients of the batch; w and v may have more rows."""
        ...

    def slope(self, w: Stack) -> Stack:
        """∇F_k(w_k) of every client, over all its training rows."""
        ...

    def loss(self, w: Stack) -> Float[Tensor, "client 1"]:
        """F_k(w_k) of every client."""
        ...

    def ascended(
        self,
        w: Stack,
        alpha: Float[Tensor, "client row output"],
        scale: Float[Tensor, "client 1"],
        share: Float[Tensor, "client 1"],
        loss: Conjugate,
    ) -> bool:
        """Dual coordinate ascent on linear models through all of the round's rows, in place.

        Whether it was made: where it is not, a method goes row by row. A change Δα of a row x adds scale·Δα x
        to w; of the rows of a mini-batch a share works.
        """
        ...
