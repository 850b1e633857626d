"""The convolutional network of McMahan et al. (2017), with gradients written by hand over the client axis."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlap.errors import InputError
from fedlap.kernels.cnn import compile_cnn_kernels
from fedlap.models.cnn_layers import ChunkedLayers, Hidden, HiddenLayers, descend_full_layer
from fedlap.models.convolution import KERNEL_SIZE, choose_convolution
from fedlap.models.dense import threshold_backward
from fedlap.models.model import BufferFactory, DecayFactor, InPlaceWeights, ScoreGradient, Scores, Stack
from fedlap.models.parameters import Shapes, build_sequential, check_l2, count_parameters, draw_uniform_start

FILTERS = (32, 64)
HIDDEN = 512


@dataclass(frozen=True)
class ConvolutionalNetwork:
    """5×5×32, pool, 5×5×64, pool (padding 2, ReLU), 512 units, labels: 1,663,370 parameters on 28×28×1."""

    image: tuple[int, int, int]  # channels, height, width
    outputs: int

    @cached_property
    def shapes(self) -> Shapes:
        """Shapes of weight and bias, layer by layer."""
        channels, height, width = self.image
        flat = FILTERS[1] * (height // 4) * (width // 4)
        weights: list[tuple[int, ...]] = [
            (FILTERS[0], channels, KERNEL_SIZE, KERNEL_SIZE),
            (FILTERS[1], FILTERS[0], KERNEL_SIZE, KERNEL_SIZE),
            (HIDDEN, flat),
            (self.outputs, HIDDEN),
        ]
        return [shape for weight in weights for shape in (weight, weight[:1])]

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return count_parameters(self.shapes)

    @property
    def widest(self) -> int:
        """Largest number of values per sample outside the convolutions, which process a stack in chunks."""
        return max(math.prod(self.image), self.shapes[4][1])

    def start(self, seed: int) -> Float[Tensor, "param"]:
        """Initial parameters, uniform in ±1/√fan-in."""
        return draw_uniform_start(seed, self.shapes)

    def scores(self, W: Stack, x: Float[Tensor, "client batch *feature"]) -> Scores:
        """Scores of each sample."""
        return self._score(W, self._choose_hidden_layers(W, W).compute_hidden(W, x)).mT

    def gradient(self, W: Stack, x: Float[Tensor, "client batch *feature"], slope: ScoreGradient) -> Stack:
        """Back-propagation, for every client at once."""
        gradient = torch.zeros_like(W)
        self._subtract(gradient, W, x, slope, -1.0, 1.0)
        return gradient

    def prepare_weights(
        self, W: Stack, steps: int = 1, buffers: BufferFactory | None = None, padded: bool = False
    ) -> InPlaceWeights:
        """Prepare steps in place."""
        return InPlaceWeights(self._descend, W)

    def module(self, row: Float[Tensor, "param"]) -> nn.Module:
        """The network as an `nn.Sequential` that takes (batch, channel, height, width)."""
        (_, flat), channels = self.shapes[4], self.image[0]
        meta, half = torch.device("meta"), KERNEL_SIZE // 2
        layers = [
            nn.Conv2d(channels, FILTERS[0], KERNEL_SIZE, padding=half, device=meta),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(FILTERS[0], FILTERS[1], KERNEL_SIZE, padding=half, device=meta),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(flat, HIDDEN, device=meta),
            nn.ReLU(),
            nn.Linear(HIDDEN, self.outputs, device=meta),
        ]
        return build_sequential(layers, row)

    def _choose_hidden_layers(self, W: Stack, into: Stack) -> HiddenLayers:
        """CUDA kernels if they support this stack, else PyTorch operations, which autograd supports."""
        single = W.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
        if W.is_cuda and single and not W.requires_grad and W.stride(1) == into.stride(1) == 1:
            kernels = compile_cnn_kernels(self.image, FILTERS, HIDDEN, W.device)
            if kernels is not None:
                return kernels
        return ChunkedLayers(choose_convolution(W.device), self.image, self.shapes)

    def _view_last_layer(self, W: Stack) -> tuple[Tensor, Tensor]:
        """Weight and bias of the last layer."""
        end = self.size - self.outputs
        begin = end - self.outputs * HIDDEN
        return W[:, begin:end].unflatten(1, (self.outputs, HIDDEN)), W[:, end:]

    def _score(self, W: Stack, hidden: Hidden) -> Float[Tensor, "client output batch"]:
        weight, bias = self._view_last_layer(W)
        return torch.bmm(weight, hidden).add_(bias.unsqueeze(-1))

    def _descend(
        self, W: Stack, x: Tensor, slope: ScoreGradient, lr: float = 1.0, decay: DecayFactor = 1.0
    ) -> None:
        """Take the step W ← decay·W − lr·gradient in place, layer by layer."""
        self._subtract(W, W, x, slope, lr, decay)

    def _subtract(
        self,
        into: Stack,
        W: Stack,
        x: Tensor,
        slope: ScoreGradient,
        lr: float = 1.0,
        decay: DecayFactor = 1.0,
    ) -> None:
        """Take the step into ← decay·into − lr·gradient at W; `into` may be W itself."""
        layers = self._choose_hidden_layers(W, into)
        hidden, saved = layers.forward(W, x)
        delta = slope(self._score(W, hidden))
        above = threshold_backward(torch.bmm(self._view_last_layer(W)[0].mT, delta), hidden, 0)
        layers.subtract(into, W, saved, above, lr, decay)
        descend_full_layer(*self._view_last_layer(into), hidden.mT, delta, lr, decay)


@dataclass(frozen=True)
class Convolutional:
    """A ConvolutionalNetwork whose image size and number of labels follow from the data."""

    l2: float = 0.0

    def __post_init__(self) -> None:
        check_l2(self.l2)

    def build(self, inputs: tuple[int, ...], outputs: int) -> ConvolutionalNetwork:
        """Build the network for images of shape (channel, height, width), or (height, width)."""
        image = (1, *inputs) if len(inputs) == 2 else inputs
        if len(image) != 3 or min(image[1:]) < 4:
            raise InputError(
                f"features have shape {inputs}; expected images (channel, height, width) of at least "
                "4×4 pixels; use model linear or mlp for other features",
                scope="cnn",
            )
        return ConvolutionalNetwork((image[0], image[1], image[2]), outputs)


def cnn(l2: float = 0.0) -> Convolutional:
    """The convolutional network of McMahan et al. (2017).

    l2: weight of the term (l2/2)‖w‖² of the loss.
    """
    return Convolutional(l2)
