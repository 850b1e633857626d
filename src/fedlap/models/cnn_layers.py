"""All layers of a convolutional network but the last, by PyTorch operations, a chunk of clients at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.models.convolution import (
    KERNEL_SIZE,
    ConvolutionBackend,
    Images,
    PooledLayer,
    backpropagate,
    convolve_and_pool,
)
from fedlap.models.dense import choose_subtraction
from fedlap.models.model import DecayFactor, Stack
from fedlap.models.parameters import Shapes, view_parameters

Batches = Float[Tensor, "client batch *feature"]
Features = Float[Tensor, "client batch flat"]  # channel by channel
Hidden = Float[Tensor, "client hidden batch"]


@runtime_checkable
class HiddenLayers(Protocol):
    """Two convolutions with 2×2 max-pooling and ReLU, and a full layer with ReLU, with their gradients."""

    def compute_hidden(self, W: Stack, x: Batches) -> Hidden:
        """Outputs of the full layer."""
        ...

    def forward(self, W: Stack, x: Batches) -> tuple[Hidden, Any]:
        """Outputs of the full layer, and the values that `subtract` needs."""
        ...

    def subtract(
        self, into: Stack, W: Stack, saved: Any, delta: Hidden, lr: float, decay: DecayFactor
    ) -> None:
        """Take the step into ← decay·into − lr·gradient at W; `into` may be W itself.

        delta: the derivative by the outputs, zero where their ReLU is zero.
        """
        ...


LayerChunk = tuple[list[Tensor], tuple[PooledLayer, PooledLayer]]


@dataclass(frozen=True, eq=False)
class ChunkedLayers:
    """Layers that process clients and samples in chunks, within the convolution's `values_at_once`."""

    convolution: ConvolutionBackend
    image: tuple[int, int, int]
    shapes: Shapes

    def compute_hidden(self, W: Stack, x: Batches) -> Hidden:
        """Outputs of the full layer, by operations that autograd supports."""
        tensors = view_parameters(W, self.shapes)
        rows = max(
            1, self.convolution.values_at_once // (self._count_clients_at_once(x) * self._values_per_sample)
        )
        out = [
            torch.cat([self._apply_convolutions(chunk, part)[-1].out for part in images.split(rows, 1)], 1)
            for chunk, images in self._split_clients(tensors, x)
        ]
        return apply_full_layer(tensors[4], tensors[5], _flatten_channels(torch.cat(out)))

    def forward(self, W: Stack, x: Batches) -> tuple[Hidden, tuple[Features, list[LayerChunk]]]:
        """Outputs and saved values, with all samples of a client at once."""
        tensors = view_parameters(W, self.shapes)
        chunks = [
            (chunk, self._apply_convolutions(chunk, images))
            for chunk, images in self._split_clients(tensors, x)
        ]
        features = _flatten_channels(torch.cat([second.out for _, (_, second) in chunks]))
        return apply_full_layer(tensors[4], tensors[5], features), (features, chunks)

    def subtract(
        self,
        into: Stack,
        W: Stack,
        saved: tuple[Features, list[LayerChunk]],
        delta: Hidden,
        lr: float,
        decay: DecayFactor,
    ) -> None:
        """Take the step, chunk by chunk for the convolutions."""
        targets, weights = view_parameters(into, self.shapes), view_parameters(W, self.shapes)[4]
        features, chunks = saved
        below = torch.bmm(delta.mT, weights).unflatten(2, (*self.shapes[3], -1))
        parts = list(self._differentiate_filters(chunks, below))
        for target, part in zip(targets, zip(*parts, strict=True), strict=False):
            decay_in_place(target, decay).sub_(torch.cat(part), alpha=lr)
        descend_full_layer(targets[4], targets[5], features, delta, lr, decay)

    def _differentiate_filters(
        self, chunks: list[LayerChunk], below: Float[Tensor, "client batch channel place"]
    ) -> Iterator[tuple[Tensor, ...]]:
        """Derivatives by filters and biases, in the order of parameters, chunk by chunk."""
        height, width = self.image[1] // 4, self.image[2] // 4
        deltas = below.unflatten(3, (height, width)).permute(0, 1, 3, 4, 2).contiguous()
        place = 0
        for chunk, (first, second) in chunks:
            delta = deltas[place : place + len(chunk[0])]
            place += len(delta)
            w2, b2, between = backpropagate(self.convolution, second, delta, chunk[2])
            w1, b1, _ = backpropagate(self.convolution, first, between, chunk[0], images=False)
            yield w1, b1, w2, b2

    @property
    def _values_per_sample(self) -> int:
        """Largest number of values per sample inside a convolution: its transformed windows or products."""
        (_, height, width), first, second = self.image, self.shapes[0], self.shapes[2]
        return 2 * max(
            height * width * max(KERNEL_SIZE * first[1], first[0]),
            (height // 2) * (width // 2) * max(KERNEL_SIZE * second[1], second[0]),
        )

    def _count_clients_at_once(self, x: Tensor) -> int:
        """Number of clients per chunk."""
        values_per_client = max(1, x.shape[1]) * self._values_per_sample
        return min(
            self.convolution.clients_at_once, max(1, self.convolution.values_at_once // values_per_client)
        )

    def _split_clients(self, tensors: Sequence[Tensor], x: Tensor) -> Iterator[tuple[list[Tensor], Images]]:
        """Iterate over chunks of clients: their filters and biases, and their images, channels last."""
        images = x.reshape(*x.shape[:2], *self.image).permute(0, 1, 3, 4, 2)
        # `contiguous` would give a single channel a stride that PyTorch takes for channels first.
        images = images.flatten().view(images.shape)
        clients = self._count_clients_at_once(x)
        for place in range(0, len(x), clients):
            chunk = slice(place, place + clients)
            yield [tensor[chunk] for tensor in tensors[:4]], images[chunk]

    def _apply_convolutions(self, tensors: list[Tensor], images: Images) -> tuple[PooledLayer, PooledLayer]:
        w1, b1, w2, b2 = tensors
        first = convolve_and_pool(self.convolution, images, w1, b1)
        return first, convolve_and_pool(self.convolution, first.out, w2, b2)


def apply_full_layer(
    w: Float[Tensor, "client hidden flat"], b: Float[Tensor, "client hidden"], x: Features
) -> Hidden:
    """Outputs of a full layer with ReLU."""
    return torch.bmm(w, x.mT).add_(b.unsqueeze(-1)).relu_()


def descend_full_layer(w: Tensor, b: Tensor, x: Tensor, delta: Tensor, lr: float, decay: DecayFactor) -> None:
    """Take the step w, b ← decay·w, b − lr·gradient of a full layer with inputs x and derivative delta."""
    choose_subtraction(decay_in_place(w, decay))(delta, x, lr)
    decay_in_place(b, decay).sub_(delta.sum(-1), alpha=lr)


def decay_in_place(tensor: Tensor, decay: DecayFactor) -> Tensor:
    """Multiply a tensor by the decay factor in place, one factor for all clients or one per client."""
    if isinstance(decay, float):
        return tensor if decay == 1.0 else tensor.mul_(decay)
    return tensor.mul_(decay.view(-1, *[1] * (tensor.dim() - 1)))


def _flatten_channels(out: Images) -> Features:
    return out.permute(0, 1, 4, 2, 3).flatten(2)
