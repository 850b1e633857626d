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
from fedlap.models.model import Descent, Keep, Memory, Scores, Slope, Stack, widened
from fedlap.models.parameters import Shapes, assembled, check_l2, size_of, uniform_start, views

# Weight (client, out, in) and bias (client, out, 1); none where what enters is wide: there the bias is among
# the weights, the one of what enters.
Layer = tuple[Tensor, Tensor | None]
Subtraction = Callable[[Tensor, Tensor, float], None]  # of a product, times a number, from weights

# Weights that lie together are changed by one product of all clients. To copy them there and back is worth it
# for so many steps, if they are no more than so many values (200 MB in float32).
STEPS, TOGETHER = 8, 50_000_000
FEW = 32  # outputs of a layer, up to which a GPU's products are slow by far if weights do not lie together
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
        return self._forward(_for_products(self._layers(W)), x)[-1].mT

    def gradient(self, W: Stack, x: Float[Tensor, "client batch *feature"], slope: Slope) -> Stack:
        """Back-propagation, for every client at once."""
        gradient = torch.empty_like(W)
        seen, deltas = self._backward(self._layers(W), x, slope)
        for (weight, bias), delta, h in zip(self._layers(gradient), deltas, seen, strict=True):
            weight.copy_(torch.bmm(delta, h.mT))
            if bias is not None:
                bias.copy_(delta.sum(-1, keepdim=True))
        return gradient

    def hold(
        self, W: Stack, steps: int = 1, memory: Memory | None = None, wide: bool = False
    ) -> "HeldLayers":
        """Layer by layer; in memory that is lent, the weights of each lie together."""
        inside = views(W, self.shapes)
        small = steps >= STEPS and len(W) > 1 and W.numel() <= TOGETHER
        if memory is None or not (small or wide):
            return HeldLayers(self, paired(inside), [])
        apart = [memory(f"layer {place}", tuple(t.shape), t.dtype) for place, t in enumerate(inside)]
        layers = paired(apart)
        if wide:
            features = self.widths[0]
            first = memory("wide layer", (len(W), self.widths[1], widened(features)), W.dtype).zero_()
            layers[0], apart[:2] = (first, None), [first[..., :features], first[..., features]]
        for there, here in zip(inside, apart, strict=True):
            here.copy_(there)
        return HeldLayers(self, layers, list(zip(inside, apart, strict=True)))

    def descend(
        self,
        layers: list[Layer],
        subtract: list[Subtraction],
        x: Tensor,
        slope: Slope,
        lr: float = 1.0,
        keep: Keep = 1.0,
    ) -> None:
        """Weights ← keep·weights − lr·gradient, each layer where it is."""
        seen, deltas = self._backward(layers, x, slope)
        for layer, minus, delta, h in zip(layers, subtract, deltas, seen, strict=True):
            _decay(layer, keep)
            minus(delta, h.mT, lr)
            if layer[1] is not None:
                layer[1].sub_(delta.sum(-1, keepdim=True), alpha=lr)

    def module(self, row: Float[Tensor, "param"]) -> nn.Module:
        """`Flatten`, then `Linear` layers with `ReLU` between."""
        layers: list[nn.Module] = [nn.Flatten()]
        for i, o in pairwise(self.widths):
            layers += [nn.Linear(i, o, device="meta"), nn.ReLU()]
        return assembled(layers[:-1], row)

    def _layers(self, W: Stack) -> list[Layer]:
        return paired(views(W, self.shapes))

    def _forward(self, layers: list[Layer], x: Tensor) -> list[Tensor]:
        """What enters each layer, and last the scores, samples along the last axis.

        Weights times samples, not the other way round: much faster where there are few outputs.
        """
        seen = [(x if x.dim() == 3 else x.flatten(2)).mT]
        for layer in layers[:-1]:
            seen.append(_leaving(layer, seen[-1]).relu_())
        seen.append(_leaving(layers[-1], seen[-1]))
        return seen

    def _backward(self, layers: list[Layer], x: Tensor, slope: Slope) -> tuple[list[Tensor], list[Tensor]]:
        """What enters each layer, and the derivative by what leaves it."""
        layers = _for_products(layers)
        *seen, scores = self._forward(layers, x)
        deltas = [slope(scores)]
        for (weight, _), h in zip(layers[:0:-1], seen[:0:-1], strict=True):  # nothing where ReLU was zero
            deltas.append(threshold_backward(torch.bmm(weight.mT, deltas[-1]), h, 0))
        return seen, deltas[::-1]


@dataclass(frozen=True, eq=False)
class HeldLayers:
    """Weights and biases of a stack, where they are or apart; `copied` are those in the stack and apart."""

    network: DenseNetwork
    layers: list[Layer]
    copied: list[tuple[Tensor, Tensor]]

    def first(self, clients: int) -> Descent:
        """Steps on the first so many."""
        layers = [(w[:clients], None if b is None else b[:clients]) for w, b in self.layers]
        if len(layers) == 1:
            return LinearSteps(layers[0])
        subtract = [subtraction(weight) for weight, _ in layers]
        return partial(self.network.descend, layers, subtract)

    def give(self) -> None:
        """Write them into the stack where they are apart from it."""
        for inside, apart in self.copied:
            inside.copy_(apart)


def paired(tensors: list[Tensor]) -> list[Layer]:
    """Weights and biases in turn, as layers."""
    return [(w, b.unsqueeze(-1)) for w, b in zip(tensors[::2], tensors[1::2], strict=True)]


def _leaving(layer: Layer, h: Tensor) -> Tensor:
    weight, bias = layer
    return torch.bmm(weight, h) if bias is None else torch.baddbmm(bias, weight, h)


def _for_products(layers: list[Layer]) -> list[Layer]:
    """The layers; on a GPU the last ones of several, which are small, copied to lie together."""
    if len(layers) == 1:
        return layers
    return [(w.contiguous() if w.is_cuda and w.shape[1] <= FEW else w, bias) for w, bias in layers]


class LinearSteps:
    """`DenseNetwork.descend` of one layer, with as little between its products as can be."""

    def __init__(self, layer: Layer) -> None:
        """On these weights."""
        self._layer, self._subtract = layer, subtraction(layer[0])
        self._rows: Tensor | None = None

    def __call__(self, x: Tensor, slope: Slope, lr: float = 1.0, keep: Keep = 1.0) -> None:
        """A step."""
        x = x if x.dim() == 3 else x.flatten(2)
        if x is not self._rows:  # rows that are read into the same memory are turned once
            self._rows, self._columns = x, x.mT
        delta = slope(_leaving(self._layer, self._columns))
        weight, bias = self._layer
        if bias is None and isinstance(keep, float) and weight.is_contiguous():  # one way through memory
            weight.baddbmm_(delta, x, beta=keep, alpha=-lr)
            return
        _decay(self._layer, keep)
        self._subtract(delta, x, lr)
        if bias is not None:
            bias.sub_(delta.sum(-1, keepdim=True), alpha=lr)


def _decay(layer: Layer, keep: Keep) -> None:
    if isinstance(keep, float) and keep == 1.0:
        return
    for tensor in layer:
        if tensor is not None:
            tensor.mul_(keep if isinstance(keep, float) else keep.unsqueeze(-1))


def subtraction(weight: Float[Tensor, "client out in"]) -> Subtraction:
    """weight ← weight − lr·delta h, in place, in the fastest way for weights that lie as these do."""
    if weight.is_contiguous():
        return partial(_accumulate, weight)
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
            whole("width of a hidden layer", width, 1, scope="mlp", field="hidden")

    def build(self, inputs: tuple[int, ...], outputs: int) -> DenseNetwork:
        """The network for features of shape `inputs`, flattened."""
        return DenseNetwork((math.prod(inputs), *self.hidden, outputs))


def linear(l2: float = 0.0) -> Dense:
    """One matrix and a bias: multinomial logistic regression, or least squares where labels are real."""
    return Dense((), l2)


def mlp(hidden: tuple[int, ...] | int = (100,), l2: float = 0.0) -> Dense:
    """A multi-layer perceptron with ReLU and hidden layers of these widths (one number: one layer)."""
    return Dense((hidden,) if isinstance(hidden, int) else tuple(hidden), l2)
