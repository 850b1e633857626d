"""The local work of a round, as a method sees it."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.conjugates import Conjugate
from fedlap.algorithms.per_run import Number
from fedlap.models import Batch
from fedlap.models.model import Stack

ClientScalars = Float[Tensor, "client 1"]  # one number per client
DualVariables = Float[Tensor, "client row output"]  # α, one per row and score; zero past a client's rows
PaddedStack = Float[Tensor, "_ param"]  # a stack that may have more rows than the batch has clients


@runtime_checkable
class Task(Protocol):
    """The work of a stack of clients in one round, each on its training rows.

    F̃_k is the loss of client k on a mini-batch, F_k that on all its training rows; both include the L2 term.
    """

    @property
    def count(self) -> ClientScalars:
        """Number of training rows of each client."""
        ...

    @property
    def steps(self) -> ClientScalars:
        """Number of mini-batches of each client in this round."""
        ...

    def batches(self) -> Iterator[Batch]:
        """Yield the round's mini-batches; later ones may hold fewer clients, always the first ones."""
        ...

    def batches_with_indices(self) -> Iterator[tuple[Batch, Int64[Tensor, "client batch"]]]:
        """Yield the round's mini-batches, each with the indices of its rows among the client's rows."""
        ...

    def rows(self) -> Iterator[tuple[Batch, Int64[Tensor, "client batch"]]]:
        """Yield every training row once, in order, in blocks weighted by 1/n_k, with the rows' indices."""
        ...

    def sgd(self, w: Stack, lr: Number) -> Stack:
        """Run `step` on all of the round's mini-batches."""
        ...

    def proximal_sgd(
        self,
        w: Stack,
        lr: Number,
        anchor: Stack,
        pull: Number,
        steps_per_batch: int = 1,
        anchor_pull: Number | None = None,
    ) -> Stack:
        """Run `steps_per_batch` steps on each of the round's mini-batches, pulled to an anchor.

        w_k ← w_k − lr ∇F̃_k(w_k) − pull (w_k − anchor_k)
        After each mini-batch anchor_k ← anchor_k − anchor_pull (anchor_k − w_k), unless anchor_pull is None.
        Both `w` and `anchor` change in place.
        """
        ...

    def first_order_maml(self, w: Stack, adapt_lr: Number, lr: Number) -> Stack:
        """Run w_k ← w_k − lr ∇F̃′_k(w_k − adapt_lr ∇F̃_k(w_k)) in place, on two mini-batches per step."""
        ...

    def step(self, w: Stack, batch: Batch, lr: Number) -> Stack:
        """Run w_k ← w_k − lr ∇F̃_k(w_k) in place for the clients of the batch; other rows stay unchanged."""
        ...

    def gradient(self, w: PaddedStack, batch: Batch) -> Stack:
        """Return ∇F̃_k(w_k) for the clients of the batch; w may have more rows."""
        ...

    def curvature(self, w: PaddedStack, batch: Batch, v: PaddedStack) -> Stack:
        """Return ∇²F̃_k(w_k) v_k for the clients of the batch; w and v may have more rows."""
        ...

    def full_gradient(self, w: Stack) -> Stack:
        """Return ∇F_k(w_k) of every client, over all its training rows."""
        ...

    def loss(self, w: Stack) -> ClientScalars:
        """Return F_k(w_k) of every client."""
        ...

    def dual_coordinate_ascent(
        self,
        w: Stack,
        alpha: DualVariables,
        scale: ClientScalars,
        share: ClientScalars,
        loss: Conjugate,
    ) -> bool:
        """Run dual coordinate ascent on linear models over all of the round's rows, in place.

        A change Δα of a row x adds scale·Δα x to w. In each mini-batch only a share of the rows is used.
        Return False, with nothing changed, if no kernel supports this; the method then goes row by row.
        """
        ...
