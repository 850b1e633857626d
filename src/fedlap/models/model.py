"""The Model: what a client minimises, for a whole stack of clients at once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor, nn

from fedlap.models.losses import Loss

Stack = Float[Tensor, "client param"]
Scores = Float[Tensor, "client batch output"]
# From scores to the derivative of the mean loss by them, both with samples along the last axis.
Slope = Callable[[Tensor], Tensor]
Rate = float | Float[Tensor, "client 1"]  # a step length, one for all or one for each
Descent = Callable[..., None]  # a step from (x, slope, lr = 1, keep = 1)
Memory = Callable[[str, tuple[int, ...], torch.dtype], Tensor]  # lent under a name, for the next as well
# What a loss makes of labels for many steps at once, and weights, for each output the same.
Goal = tuple[Float[Tensor, "client output batch"], Float[Tensor, "client 1 batch"]]
Keep = float | Float[Tensor, "client 1"]  # what is left of parameters before a step


@dataclass(eq=False)
class Batch:
    """One mini-batch of every client of a stack.

    Each client's `weight` sums to one; a place past the end of a short batch has weight zero. `goal` is what
    the loss makes of both for many steps at once, where each operation has its price.
    """

    x: Float[Tensor, "client batch *feature"]
    y: Num[Tensor, "client batch *output"]
    weight: Float[Tensor, "client batch"]
    goal: Goal | None = None


WIDTH = 16  # numbers: rows of memory that begin a block of the cache are read faster


def widened(features: int) -> int:
    """How wide features are with a one behind them, in whole blocks."""
    return -(-(features + 1) // WIDTH) * WIDTH


@runtime_checkable
class Held(Protocol):
    """The models of a stack, held in whatever way steps on them are fastest."""

    def first(self, clients: int) -> Descent:
        """Steps on the first so many: w ← keep·w − lr·gradient."""
        ...

    def give(self) -> None:
        """Write what the steps have made into the stack."""
        ...


@dataclass(frozen=True, eq=False)
class InPlace:
    """A stack whose rows steps change where they are."""

    step: Callable[..., None]
    W: Stack

    def first(self, clients: int) -> Descent:
        """Steps on the first so many."""
        return partial(self.step, self.W[:clients])

    def give(self) -> None:
        """Nothing to do."""


@runtime_checkable
class Network(Protocol):
    """A function of (flat parameters, features) whose every operation keeps clients apart.

    A flat row holds the parameters in the order of `module(row).state_dict()`.
    """

    @property
    def size(self) -> int:
        """Number of parameters."""
        ...

    @property
    def outputs(self) -> int:
        """How many scores it gives for a sample."""
        ...

    @property
    def widest(self) -> int:
        """The most values that one sample takes inside the network, to size blocks of them by."""
        ...

    def start(self, seed: int) -> Float[Tensor, "param"]:
        """Fresh parameters, in float64."""
        ...

    def scores(self, W: Stack, x: Float[Tensor, "client batch *feature"]) -> Scores:
        """What the network says of each sample."""
        ...

    def gradient(self, W: Stack, x: Float[Tensor, "client batch *feature"], slope: Slope) -> Stack:
        """The derivative by W of a loss whose derivative by the scores is `slope(scores)`."""
        ...

    def hold(self, W: Stack, steps: int = 1, memory: Memory | None = None, wide: bool = False) -> Held:
        """The stack made ready for so many steps, in memory that is lent where that is worth while.

        Features are `wide` where a one and zeros lie behind them, up to a multiple of `WIDTH`.
        """
        ...

    def module(self, row: Float[Tensor, "param"]) -> nn.Module:
        """The same network as an ordinary module, holding these parameters."""
        ...


@runtime_checkable
class MixingNetwork(Network, Protocol):
    """A network that may let the rows of a batch meet, as a batch norm does."""

    @property
    def mixes(self) -> bool:
        """Whether the scores of a row depend on the other rows of its batch."""
        ...

    def within(self, inside: Bool[Tensor, "client batch"]) -> Network:
        """The network on batches of which only these places hold rows, so that padding never meets rows."""
        ...


@runtime_checkable
class Architecture(Protocol):
    """A network whose sizes are still open: what `fedlap.models.linear()` and its like return."""

    @property
    def l2(self) -> float:
        """The weight of (l2/2)‖w‖² in each client's loss."""
        ...

    def build(self, inputs: tuple[int, ...], outputs: int) -> Network:
        """The network for features of shape `inputs` and this many scores."""
        ...


@dataclass(frozen=True, eq=False)
class Model:
    """F̃_k(w) = Σ weight · loss(scores(w, x), y) + (l2/2)‖w‖², for each client k of a stack."""

    network: Network
    loss_of: Loss
    l2: float = 0.0

    @property
    def size(self) -> int:
        """Number of parameters of one client's model."""
        return self.network.size

    def start(self, seed: int) -> Float[Tensor, "param"]:
        """The common start of all clients, in float64."""
        return self.network.start(seed)

    @cached_property
    def mixes(self) -> bool:
        """Whether the scores of a row depend on the other rows of its batch."""
        return isinstance(self.network, MixingNetwork) and self.network.mixes

    def _on(self, inside: Tensor) -> Network:
        """The network on batches of which only places that are not zero hold rows."""
        if self.mixes and isinstance(self.network, MixingNetwork):
            return self.network.within(inside > 0)
        return self.network

    def scores(
        self,
        W: Stack,
        x: Float[Tensor, "client batch *feature"],
        inside: Bool[Tensor, "client batch"] | None = None,
    ) -> Scores:
        """What each client's model says of its samples, `inside` telling which are rows and not padding."""
        return (self.network if inside is None else self._on(inside)).scores(W, x)

    def ridge(self, W: Stack) -> Float[Tensor, "client"]:
        """The L2 term of each client's loss, bias included."""
        return self.l2 / 2 * W.square().sum(-1)

    def loss(self, W: Stack, batch: Batch) -> Float[Tensor, "client"]:
        """F̃_k of each client on its batch."""
        values = self.loss_of.values(self._on(batch.weight).scores(W, batch.x), batch.y)
        return (values * batch.weight).sum(-1) + self.ridge(W)

    def gradient(self, W: Stack, batch: Batch) -> Stack:
        """∇F̃_k of each client on its batch."""
        gradient = self._on(batch.weight).gradient(W, batch.x, self._slope(batch))
        return gradient.add_(self.l2 * W) if self.l2 else gradient

    def descend(self, W: Stack, batch: Batch, lr: Rate) -> None:
        """W ← W − lr ∇F̃(W), in place."""
        held = self._on(batch.weight).hold(W)
        self.step(held.first(len(W)), batch, lr)
        held.give()

    def step(self, descend: Descent, batch: Batch, lr: Rate) -> None:
        """The same by a network's own step on the stack, for many of them."""
        keep = 1.0 if self.l2 == 0 else 1.0 - lr * self.l2
        if isinstance(lr, Tensor):  # a gradient is linear in the slope
            descend(batch.x, self._weighted(batch, batch.weight * lr), keep=keep)
        else:
            descend(batch.x, self._slope(batch), lr, keep)

    def step_to(
        self, descend: Descent, x: Float[Tensor, "client batch *feature"], goal: Goal, lr: float
    ) -> None:
        """The same for a batch of which only features and goal are known."""
        slope = partial(self.loss_of.slope_to, goal=goal[0], weight=goal[1])
        descend(x, slope, lr, 1.0 if self.l2 == 0 else 1.0 - lr * self.l2)

    def _slope(self, batch: Batch) -> Slope:
        if batch.goal is None:
            return self._weighted(batch, batch.weight)
        return partial(self.loss_of.slope_to, goal=batch.goal[0], weight=batch.goal[1])

    def _weighted(self, batch: Batch, weight: Float[Tensor, "client batch"]) -> Slope:
        return lambda scores: self.loss_of.slope(scores.mT, batch.y).mul_(weight.unsqueeze(-1)).mT
