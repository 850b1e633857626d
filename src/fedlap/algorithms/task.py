"""The local work of a round, as a method sees it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.models import Batch
from fedlap.models.model import Stack

ClientScalars = Float[Tensor, "client 1"]  # one number per client
DualVariables = Float[Tensor, "client row output"]  # α, one per row and score; zero past a client's rows
Setting = (
    float | ClientScalars
)  # a real-valued setting: one number, or one per client in a stack of several runs
LocalUpdate = Callable[..., Any]  # (w, task, **values) -> the new w, or a tuple of stacks


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

    def run(self, update: LocalUpdate, w: Stack, **values: Any) -> Any:
        """Return update(w, task, **values), a function such as those in `algorithms/local_updates.py`.

        Pass values with one row per client as arguments, never by closure: a stack runs functions that it
        does not know on groups of clients with equally many mini-batches. The inputs stay unchanged.
        """
        ...

    def batches(self) -> Iterator[Batch]:
        """Yield the round's mini-batches, for a function that `run` calls."""
        ...

    def batches_with_rows(self) -> Iterator[tuple[Batch, Int64[Tensor, "client batch"]]]:
        """Yield the round's mini-batches, each with the indices of its rows among the client's rows."""
        ...

    def rows(self) -> Iterator[tuple[Batch, Int64[Tensor, "client batch"]]]:
        """Yield every training row once, in order, in blocks weighted by 1/n_k, with the rows' indices.

        Later blocks may hold fewer clients, always the first ones.
        """
        ...

    def gradient(self, w: Stack, batch: Batch) -> Stack:
        """Return ∇F̃_k(w_k) for the clients of the batch."""
        ...

    def curvature(self, w: Stack, batch: Batch, v: Stack) -> Stack:
        """Return ∇²F̃_k(w_k) v_k for the clients of the batch."""
        ...

    def full_gradient(self, w: Stack) -> Stack:
        """Return ∇F_k(w_k) of every client, over all its training rows."""
        ...

    def loss(self, w: Stack) -> ClientScalars:
        """Return F_k(w_k) of every client."""
        ...

    def validation_losses(self, models: Sequence[Stack], every: int) -> Float[Tensor, "client model"]:
        """Return the mean losses on every `every`-th training row, without L2 terms; zero without rows."""
        ...
