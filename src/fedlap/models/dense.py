"""Linear models and multi-layer perceptrons, with gradients written by hand over the client axis."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlap.errors import whole
from fedlap.models.layout import Shapes, assembled, check_l2, size_of, uniform_start, views
from fedlap.models.model import Descent, Keep, Scores, Slope, Stack

# Views into the flat rows: weight (client, out, in), bias (client, out) and the same as a column.
Layer = tuple[Tensor, Tensor, Tensor]
Subtraction = Callable[[Tensor, Tensor, float], None]  # of a product, times a number, from weights

PRODUCT = 400_000  # values of a product that are made before they are used (1.6 MB in float32)

threshold_backward = torch.ops.aten.threshold_backward


@dataclass(frozen=True)
class DenseNetwork:
    """x → W_n relu( … relu(W_1 x + b_1) … ) + b_n, with layers of these widths."""

    widths: tuple[int, ...]

    @cached_property
    def shapes(self) -> Shapes:
        """Shapes of weight and bias, layer by layer."""
        return [shape for i, o in pairwise(self.widths) for shape in ((o, i), (o,))]

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return size_of(self.shapes)

    @property
    def outputs(self) -> int:
        """The last width."""
        return self.widths[-1]

    @property
    def widest(self) -> int:
        """The widest layer, features included."""
        return max(self.widths)

    def start(self, seed: int) -> Float[Tensor, "param"]:
        """Uniform in ±1/√fan-in."""
        return uniform_start(seed, self.shapes)

    def scores(self, W: Stack, x: Float[Tensor, "client batch *feature"]) -> Scores:
        """What the network says of each sample."""
        return self._forward(self._layers(W), x)[-1].mT

    def gradient(self, W: Stack, x: Float[Tensor, "client batch *feature"], slope: Slope) -> Stack:
        """Back-propagation, for every client at once."""
        gradient = torch.empty_like(W)
        seen, deltas = self._backward(self._layers(W), x, slope)
        for (weight, bias, _), delta, h in zip(self._layers(gradient), deltas, seen, strict=True):
            weight.copy_(torch.bmm(delta, h.mT))
            torch.sum(delta, -1, out=bias)
        return gradient

    def descent(self, W: Stack) -> Descent:
        """W ← keep·W − lr·gradient, each layer where its weights are."""
        layers = self._layers(W)
        return partial(self._descend, layers, [subtraction(weight) for weight, _, _ in layers])

    def _descend(
        self,
        layers: list[Layer],
        subtract: list[Subtraction],
        x: Tensor,
        slope: Slope,
        lr: float = 1.0,
        keep: Keep = 1.0,
    ) -> None:
        seen, deltas = self._backward(layers, x, slope)
        for (weight, bias, _), minus, delta, h in zip(layers, subtract, deltas, seen, strict=True):
            if not isinstance(keep, float) or keep != 1.0:
                weight.mul_(keep if isinstance(keep, float) else keep.unsqueeze(-1))
                bias.mul_(keep)
            minus(delta, h.mT, lr)
            bias.sub_(delta.sum(-1), alpha=lr)

    def module(self, row: Float[Tensor, "param"]) -> nn.Module:
        """`Flatten`, then `Linear` layers with `ReLU` between."""
        layers: list[nn.Module] = [nn.Flatten()]
        for i, o in pairwise(self.widths):
            layers += [nn.Linear(i, o, device="meta"), nn.ReLU()]
        return assembled(layers[:-1], row)

    def _layers(self, W: Stack) -> list[Layer]:
        tensors = views(W, self.shapes)
        return [(w, b, b.unsqueeze(-1)) for w, b in zip(tensors[::2], tensors[1::2], strict=True)]

    def _forward(self, layers: list[Layer], x: Tensor) -> list[Tensor]:
        """What enters each layer, and last the scores, samples along the last axis.

        Weights times samples, not the other way round: much faster where there are few outputs.
        """
        seen = [(x if x.dim() == 3 else x.flatten(2)).mT]
        for weight, _, bias in layers[:-1]:
            seen.append(torch.baddbmm(bias, weight, seen[-1]).relu_())
        weight, _, bias = layers[-1]
        seen.append(torch.baddbmm(bias, weight, seen[-1]))
        return seen

    def _backward(self, layers: list[Layer], x: Tensor, slope: Slope) -> tuple[list[Tensor], list[Tensor]]:
        """What enters each layer, and the derivative by what leaves it."""
        *seen, scores = self._forward(layers, x)
        deltas = [slope(scores.mT).mT]
        for (weight, _, _), h in zip(layers[:0:-1], seen[:0:-1], strict=True):  # nothing where ReLU was zero
            deltas.append(threshold_backward(torch.bmm(weight.mT, deltas[-1]), h, 0))
        return seen, deltas[::-1]


def subtraction(weight: Float[Tensor, "client out in"]) -> Subtraction:
    """weight ← weight − lr·delta h, in place, in the fastest way for weights that lie in longer rows."""
    threads = torch.get_num_threads()
    # What is subtracted stays small enough for the cache.
    clients = max(1, PRODUCT // (weight.shape[1] * weight.shape[2] * threads)) * threads
    if weight.device.type == "cpu" and clients >= weight.shape[0]:
        return partial(_subtract, weight)
    if weight.device.type == "cpu" and threads > 1:
        return partial(_subtract_parts, weight.split(clients), clients)
    return partial(_accumulate, weight)


def _subtract(weight: Tensor, delta: Tensor, h: Tensor, lr: float) -> None:
    weight.sub_(torch.bmm(delta, h), alpha=lr)


def _subtract_parts(weights: Sequence[Tensor], clients: int, delta: Tensor, h: Tensor, lr: float) -> None:
    # On a CPU accumulating goes client by client; with several threads it is faster to share out clients,
    # equally many to each.
    for w, d, x in zip(weights, delta.split(clients), h.split(clients), strict=True):
        w.sub_(torch.bmm(d, x), alpha=lr)


def _accumulate(weight: Tensor, delta: Tensor, h: Tensor, lr: float) -> None:
    weight.baddbmm_(delta, h, alpha=-lr)


@dataclass(frozen=True)
class Dense:
    """A DenseNetwork whose first and last widths the data will say."""

    hidden: tuple[int, ...] = ()
    l2: float = 0.0

    def __post_init__(self) -> None:
        check_l2(self.l2)
        for width in self.hidden:
            whole("mlp: width of a hidden layer", width, 1)

    def build(self, inputs: tuple[int, ...], outputs: int) -> DenseNetwork:
        """The network for features of shape `inputs`, flattened."""
        return DenseNetwork((math.prod(inputs), *self.hidden, outputs))


def linear(l2: float = 0.0) -> Dense:
    """One matrix and a bias: multinomial logistic regression, or least squares where labels are real."""
    return Dense((), l2)


def mlp(hidden: tuple[int, ...] | int = (100,), l2: float = 0.0) -> Dense:
    """A multi-layer perceptron with ReLU and hidden layers of these widths (one number: one layer)."""
    return Dense((hidden,) if isinstance(hidden, int) else tuple(hidden), l2)
