"""Linear models and multi-layer perceptrons, with gradients written by hand over the client axis."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlap.errors import check_integer
from fedlap.models.model import (
    BufferFactory,
    DecayFactor,
    GradientStep,
    ScoreGradient,
    Scores,
    Stack,
    compute_padded_width,
)
from fedlap.models.parameters import (
    Shapes,
    build_sequential,
    check_l2,
    count_parameters,
    draw_uniform_start,
    view_parameters,
)

# Weight (client, out, in) and bias (client, out, 1). The bias is None if inputs are padded with a one: then
# it is a column of the weight.
DenseLayer = tuple[Tensor, Tensor | None]
SubtractProduct = Callable[[Tensor, Tensor, float], None]  # weight ← weight − lr·(delta h)

# Contiguous weights are updated by one batched product for all clients. Copying them there and back pays off
# from this number of steps on, and up to this number of values (200 MB in float32).
MIN_STEPS_TO_COPY, MOST_VALUES_TO_COPY = 8, 50_000_000
SMALL_LAYER_OUTPUTS = 32  # a GPU's products with strided weights are very slow up to this width
VALUES_PER_PRODUCT = 400_000  # values per thread of a product before it is used (1.6 MB in float32)

threshold_backward = torch.ops.aten.threshold_backward


@dataclass(frozen=True)
class DenseNetwork:
    """x → W_n relu( … relu(W_1 x + b_1) … ) + b_n; `widths` lists features, hidden layers and outputs."""

    widths: tuple[int, ...]

    @cached_property
    def shapes(self) -> Shapes:
        """Shapes of weight and bias, layer by layer."""
        return [shape for i, o in pairwise(self.widths) for shape in ((o, i), (o,))]

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return count_parameters(self.shapes)

    @property
    def outputs(self) -> int:
        """Number of scores per sample."""
        return self.widths[-1]

    @property
    def widest(self) -> int:
        """The widest layer, features included."""
        return max(self.widths)

    def start(self, seed: int) -> Float[Tensor, "param"]:
        """Initial parameters, uniform in ±1/√fan-in."""
        return draw_uniform_start(seed, self.shapes)

    def scores(self, W: Stack, x: Float[Tensor, "client batch *feature"]) -> Scores:
        """Scores of each sample."""
        return self._forward(_copy_small_layers(self._view_layers(W)), x)[-1].mT

    def gradient(self, W: Stack, x: Float[Tensor, "client batch *feature"], slope: ScoreGradient) -> Stack:
        """Back-propagation, for every client at once."""
        gradient = torch.empty_like(W)
        inputs, deltas = self._backward(self._view_layers(W), x, slope)
        for (weight, bias), delta, h in zip(self._view_layers(gradient), deltas, inputs, strict=True):
            weight.copy_(torch.bmm(delta, h.mT))
            if bias is not None:
                bias.copy_(delta.sum(-1, keepdim=True))
        return gradient

    def prepare_weights(
        self, W: Stack, steps: int = 1, buffers: BufferFactory | None = None, padded: bool = False
    ) -> "LayerWeights":
        """Prepare layers in place, or as contiguous copies if many steps or padded features need them."""
        views = view_parameters(W, self.shapes)
        small = steps >= MIN_STEPS_TO_COPY and len(W) > 1 and W.numel() <= MOST_VALUES_TO_COPY
        if buffers is None or not (small or padded):
            return LayerWeights(self, pair_layers(views), [])
        copies = [buffers(f"layer {place}", tuple(t.shape), t.dtype) for place, t in enumerate(views)]
        layers = pair_layers(copies)
        if padded:
            features = self.widths[0]
            first = buffers(
                "wide layer", (len(W), self.widths[1], compute_padded_width(features)), W.dtype
            ).zero_()
            layers[0], copies[:2] = (first, None), [first[..., :features], first[..., features]]
        for view, copied in zip(views, copies, strict=True):
            copied.copy_(view)
        return LayerWeights(self, layers, list(zip(views, copies, strict=True)))

    def descend(
        self,
        layers: list[DenseLayer],
        subtract: list[SubtractProduct],
        x: Tensor,
        slope: ScoreGradient,
        lr: float = 1.0,
        decay: DecayFactor = 1.0,
    ) -> None:
        """Take the step weights ← decay·weights − lr·gradient in place, layer by layer."""
        inputs, deltas = self._backward(layers, x, slope)
        for layer, subtract_product, delta, h in zip(layers, subtract, deltas, inputs, strict=True):
            _decay(layer, decay)
            subtract_product(delta, h.mT, lr)
            if layer[1] is not None:
                layer[1].sub_(delta.sum(-1, keepdim=True), alpha=lr)

    def module(self, row: Float[Tensor, "param"]) -> nn.Module:
        """`Flatten`, then `Linear` layers with `ReLU` between them."""
        layers: list[nn.Module] = [nn.Flatten()]
        for i, o in pairwise(self.widths):
            layers += [nn.Linear(i, o, device="meta"), nn.ReLU()]
        return build_sequential(layers[:-1], row)

    def _view_layers(self, W: Stack) -> list[DenseLayer]:
        return pair_layers(view_parameters(W, self.shapes))

    def _forward(self, layers: list[DenseLayer], x: Tensor) -> list[Tensor]:
        """Inputs of each layer, then the scores, with samples along the last axis.

        The product is weights times samples, which is much faster than its transpose for few outputs.
        """
        inputs = [(x if x.dim() == 3 else x.flatten(2)).mT]
        for layer in layers[:-1]:
            inputs.append(_apply_layer(layer, inputs[-1]).relu_())
        inputs.append(_apply_layer(layers[-1], inputs[-1]))
        return inputs

    def _backward(
        self, layers: list[DenseLayer], x: Tensor, slope: ScoreGradient
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Inputs of each layer, and the derivative by its outputs."""
        layers = _copy_small_layers(layers)
        *inputs, scores = self._forward(layers, x)
        deltas = [slope(scores)]
        for (weight, _), h in zip(layers[:0:-1], inputs[:0:-1], strict=True):  # zero where ReLU was zero
            deltas.append(threshold_backward(torch.bmm(weight.mT, deltas[-1]), h, 0))
        return inputs, deltas[::-1]


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """Weights and biases of a stack: views of it, or copies.

    copied: pairs of a view of the stack and its copy; empty if the layers are views.
    """

    network: DenseNetwork
    layers: list[DenseLayer]
    copied: list[tuple[Tensor, Tensor]]

    def step_for(self, clients: int) -> GradientStep:
        """The step on the first `clients` rows."""
        layers = [(w[:clients], None if b is None else b[:clients]) for w, b in self.layers]
        if len(layers) == 1:
            return LinearStep(layers[0])
        subtract = [choose_subtraction(weight) for weight, _ in layers]
        return partial(self.network.descend, layers, subtract)

    def write_back(self) -> None:
        """Copy the updated layers into the stack, if they are copies."""
        for view, copied in self.copied:
            view.copy_(copied)


def pair_layers(tensors: list[Tensor]) -> list[DenseLayer]:
    """Pair alternating weights and biases into layers."""
    return [(w, b.unsqueeze(-1)) for w, b in zip(tensors[::2], tensors[1::2], strict=True)]


def _apply_layer(layer: DenseLayer, h: Tensor) -> Tensor:
    weight, bias = layer
    return torch.bmm(weight, h) if bias is None else torch.baddbmm(bias, weight, h)


def _copy_small_layers(layers: list[DenseLayer]) -> list[DenseLayer]:
    """Return the layers of a deep network with small ones on a GPU as contiguous copies."""
    if len(layers) == 1:
        return layers
    return [
        (w.contiguous() if w.is_cuda and w.shape[1] <= SMALL_LAYER_OUTPUTS else w, bias) for w, bias in layers
    ]


class LinearStep:
    """The step of a linear model, with as few operations between its products as possible."""

    def __init__(self, layer: DenseLayer) -> None:
        """Bind the step to these weights."""
        self._layer, self._subtract = layer, choose_subtraction(layer[0])
        self._rows: Tensor | None = None

    def __call__(self, x: Tensor, slope: ScoreGradient, lr: float = 1.0, decay: DecayFactor = 1.0) -> None:
        """Take one step in place."""
        x = x if x.dim() == 3 else x.flatten(2)
        if x is not self._rows:  # rows in a reused buffer are transposed once
            self._rows, self._columns = x, x.mT
        delta = slope(_apply_layer(self._layer, self._columns))
        weight, bias = self._layer
        if bias is None and isinstance(decay, float) and weight.is_contiguous():  # one pass through memory
            weight.baddbmm_(delta, x, beta=decay, alpha=-lr)
            return
        _decay(self._layer, decay)
        self._subtract(delta, x, lr)
        if bias is not None:
            bias.sub_(delta.sum(-1, keepdim=True), alpha=lr)


def _decay(layer: DenseLayer, decay: DecayFactor) -> None:
    if isinstance(decay, float) and decay == 1.0:
        return
    for tensor in layer:
        if tensor is not None:
            tensor.mul_(decay if isinstance(decay, float) else decay.unsqueeze(-1))


def choose_subtraction(weight: Float[Tensor, "client out in"]) -> SubtractProduct:
    """Choose the fastest way to compute weight ← weight − lr·delta h in place, given its layout."""
    if weight.is_contiguous():
        return partial(_subtract_fused, weight)
    threads = torch.get_num_threads()
    # The product of each part is small enough for the cache.
    clients = max(1, VALUES_PER_PRODUCT // (weight.shape[1] * weight.shape[2] * threads)) * threads
    if weight.device.type == "cpu" and clients >= weight.shape[0]:
        return partial(_subtract, weight)
    if weight.device.type == "cpu" and threads > 1:
        return partial(_subtract_parts, weight.split(clients), clients)
    return partial(_subtract_fused, weight)


def _subtract(weight: Tensor, delta: Tensor, h: Tensor, lr: float) -> None:
    weight.sub_(torch.bmm(delta, h), alpha=lr)


def _subtract_parts(weights: Sequence[Tensor], clients: int, delta: Tensor, h: Tensor, lr: float) -> None:
    # On a CPU `baddbmm_` runs client by client; with several threads, equal parts of the clients are faster.
    for w, d, x in zip(weights, delta.split(clients), h.split(clients), strict=True):
        w.sub_(torch.bmm(d, x), alpha=lr)


def _subtract_fused(weight: Tensor, delta: Tensor, h: Tensor, lr: float) -> None:
    weight.baddbmm_(delta, h, alpha=-lr)


@dataclass(frozen=True)
class Dense:
    """A DenseNetwork whose first and last widths follow from the data."""

    hidden: tuple[int, ...] = ()
    l2: float = 0.0

    def __post_init__(self) -> None:
        check_l2(self.l2)
        for width in self.hidden:
            check_integer("width of a hidden layer", width, 1, scope="mlp", field="hidden")

    def build(self, inputs: tuple[int, ...], outputs: int) -> DenseNetwork:
        """Build the network for features of shape `inputs`, flattened."""
        return DenseNetwork((math.prod(inputs), *self.hidden, outputs))


def linear(l2: float = 0.0) -> Dense:
    """One matrix and a bias: multinomial logistic regression, or least squares where labels are real.

    l2: weight of the term (l2/2)‖w‖² of the loss.
    """
    return Dense((), l2)


def mlp(hidden: tuple[int, ...] | int = (100,), l2: float = 0.0) -> Dense:
    """A multi-layer perceptron with ReLU.

    hidden: widths of the hidden layers; one number is one layer.
    l2: weight of the term (l2/2)‖w‖² of the loss.
    """
    return Dense((hidden,) if isinstance(hidden, int) else tuple(hidden), l2)
