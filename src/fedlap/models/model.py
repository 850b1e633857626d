"""The Model: the objective that each client minimises, computed for a stack of clients at once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Num
from torch import Tensor, nn

from fedlap.models.losses import Loss
from fedlap.summaries import summarise_fields

Stack = Float[Tensor, "client param"]
Scores = Float[Tensor, "client batch output"]
# Maps scores to the derivative of the mean loss by the scores, both with samples along the last axis.
ScoreGradient = Callable[[Tensor], Tensor]
LearningRate = float | Float[Tensor, "client 1"]  # one for all clients, or one per client
GradientStep = Callable[..., None]  # a step in place, called with (x, slope, lr = 1, decay = 1)
BufferFactory = Callable[[str, tuple[int, ...], torch.dtype], Tensor]  # one buffer per name, reused
# Targets of a loss times −weight, computed for many steps at once, and the weights, equal for each output.
WeightedTargets = tuple[Float[Tensor, "client output batch"], Float[Tensor, "client 1 batch"]]
DecayFactor = float | Float[Tensor, "client 1"]  # multiplies parameters before a step


@dataclass(eq=False)
class Batch:
    """One mini-batch of every client of a stack.

    Each client's `weight` sums to one, unless its rows have sample weights; a place past the end of a short
    batch has weight zero. `targets` may hold the weighted targets, computed for many steps at once to save
    operations.
    """

    x: Float[Tensor, "client batch *feature"]
    y: Num[Tensor, "client batch *output"]
    weight: Float[Tensor, "client batch"]
    targets: WeightedTargets | None = None

    __repr__ = summarise_fields


FEATURE_ALIGNMENT = 16  # values: rows that begin at a cache line are read faster


def compute_padded_width(features: int) -> int:
    """Number of features and a one after them, rounded up to a multiple of `FEATURE_ALIGNMENT`."""
    return -(-(features + 1) // FEATURE_ALIGNMENT) * FEATURE_ALIGNMENT


@runtime_checkable
class WorkingWeights(Protocol):
    """The parameters of a stack in the memory layout in which steps are fastest."""

    def step_for(self, clients: int) -> GradientStep:
        """The step w ← decay·w − lr·gradient on the first `clients` rows."""
        ...

    def write_back(self) -> None:
        """Copy the updated parameters into the stack."""
        ...


@dataclass(frozen=True, eq=False)
class InPlaceWeights:
    """A stack that steps update in place."""

    step: Callable[..., None]
    W: Stack

    def step_for(self, clients: int) -> GradientStep:
        """The step on the first `clients` rows."""
        return partial(self.step, self.W[:clients])

    def write_back(self) -> None:
        """Do nothing: the stack is up to date."""


@runtime_checkable
class Network(Protocol):
    """A function of (flat parameters, features) in which no operation mixes clients.

    A flat row holds the parameters in the order of `module(row).state_dict()`.
    """

    @property
    def size(self) -> int:
        """Number of parameters."""
        ...

    @property
    def outputs(self) -> int:
        """Number of scores per sample."""
        ...

    @property
    def widest(self) -> int:
        """Largest number of values per sample inside the network, which sizes blocks of samples."""
        ...

    def start(self, seed: int) -> Float[Tensor, "param"]:
        """Initial parameters, in float64."""
        ...

    def scores(self, W: Stack, x: Float[Tensor, "client batch *feature"]) -> Scores:
        """Scores of each sample."""
        ...

    def gradient(self, W: Stack, x: Float[Tensor, "client batch *feature"], slope: ScoreGradient) -> Stack:
        """The derivative by W of a loss whose derivative by the scores is `slope(scores)`."""
        ...

    def prepare_weights(
        self, W: Stack, steps: int = 1, buffers: BufferFactory | None = None, padded: bool = False
    ) -> WorkingWeights:
        """Prepare the stack for a number of steps, in buffers from the factory if copying pays off.

        padded: features are followed by a one and zeros, up to a multiple of `FEATURE_ALIGNMENT`.
        """
        ...

    def module(self, row: Float[Tensor, "param"]) -> nn.Module:
        """The network as a `torch.nn.Module` with these parameters."""
        ...


@runtime_checkable
class BatchDependentNetwork(Network, Protocol):
    """A network in which rows of a batch may influence each other, as in batch normalisation."""

    @property
    def is_batch_dependent(self) -> bool:
        """True if the scores of a row depend on the other rows of its batch."""
        ...

    def mask_padding(self, inside: Bool[Tensor, "client batch"]) -> Network:
        """The network on batches with rows at these places only, so that padding never influences rows."""
        ...


@runtime_checkable
class Architecture(Protocol):
    """A network whose sizes follow from the data, as returned by `fedlap.models.linear()` and others."""

    @property
    def l2(self) -> float:
        """The weight of (l2/2)‖w‖² in each client's loss."""
        ...

    def build(self, inputs: tuple[int, ...], outputs: int) -> Network:
        """Build the network for features of shape `inputs` and this many scores."""
        ...


@dataclass(frozen=True, eq=False)
class Model:
    """F̃_k(w) = Σ weight · loss(scores(w, x), y) + (l2/2)‖w‖², for each client k of a stack."""

    network: Network
    loss_function: Loss
    l2: float = 0.0
    architecture: Architecture | None = None  # the description that the network was built from

    __repr__ = summarise_fields

    @property
    def size(self) -> int:
        """Number of parameters of one client's model."""
        return self.network.size

    def start(self, seed: int) -> Float[Tensor, "param"]:
        """Initial parameters, common to all clients, in float64."""
        return self.network.start(seed)

    @cached_property
    def is_batch_dependent(self) -> bool:
        """True if the scores of a row depend on the other rows of its batch."""
        return isinstance(self.network, BatchDependentNetwork) and self.network.is_batch_dependent

    def _mask_padding(self, inside: Tensor) -> Network:
        """The network on batches with rows only at the places that are not zero."""
        if self.is_batch_dependent and isinstance(self.network, BatchDependentNetwork):
            return self.network.mask_padding(inside > 0)
        return self.network

    def scores(
        self,
        W: Stack,
        x: Float[Tensor, "client batch *feature"],
        inside: Bool[Tensor, "client batch"] | None = None,
    ) -> Scores:
        """Scores of each client's model on its samples; `inside` marks rows, the others are padding."""
        return (self.network if inside is None else self._mask_padding(inside)).scores(W, x)

    def ridge(self, W: Stack) -> Float[Tensor, "client"]:
        """L2 term of each client's loss, bias included."""
        return self.l2 / 2 * W.square().sum(-1)

    def loss(self, W: Stack, batch: Batch) -> Float[Tensor, "client"]:
        """F̃_k of each client on its batch."""
        values = self.loss_function.values(self._mask_padding(batch.weight).scores(W, batch.x), batch.y)
        return (values * batch.weight).sum(-1) + self.ridge(W)

    def gradient(self, W: Stack, batch: Batch) -> Stack:
        """∇F̃_k of each client on its batch."""
        gradient = self._mask_padding(batch.weight).gradient(W, batch.x, self._build_slope(batch))
        return gradient.add_(self.l2 * W) if self.l2 else gradient

    def descend(self, W: Stack, batch: Batch, lr: LearningRate) -> None:
        """W ← W − lr ∇F̃(W), in place."""
        weights = self._mask_padding(batch.weight).prepare_weights(W)
        self.step(weights.step_for(len(W)), batch, lr)
        weights.write_back()

    def step(self, descend: GradientStep, batch: Batch, lr: LearningRate) -> None:
        """Take the step of `descend`, which was prepared for many steps."""
        decay = 1.0 if self.l2 == 0 else 1.0 - lr * self.l2
        if isinstance(lr, Tensor):  # a gradient is linear in the slope
            descend(batch.x, self._weigh_slope(batch, batch.weight * lr), decay=decay)
        else:
            descend(batch.x, self._build_slope(batch), lr, decay)

    def step_to_targets(
        self,
        descend: GradientStep,
        x: Float[Tensor, "client batch *feature"],
        targets: WeightedTargets,
        lr: float,
    ) -> None:
        """Take the step of `descend` on a batch with features and weighted targets only."""
        slope = partial(self.loss_function.weighted_score_gradient, targets=targets[0], weight=targets[1])
        descend(x, slope, lr, 1.0 if self.l2 == 0 else 1.0 - lr * self.l2)

    def _build_slope(self, batch: Batch) -> ScoreGradient:
        if batch.targets is None:
            return self._weigh_slope(batch, batch.weight)
        return partial(
            self.loss_function.weighted_score_gradient, targets=batch.targets[0], weight=batch.targets[1]
        )

    def _weigh_slope(self, batch: Batch, weight: Float[Tensor, "client batch"]) -> ScoreGradient:
        return lambda scores: (
            self.loss_function.score_gradient(scores.mT, batch.y).mul_(weight.unsqueeze(-1)).mT
        )
