"""All layers of a convolutional network but the last, by CUDA kernels, for a whole stack on a GPU.

The kernels are in `cuda/cnn/`. Autograd does not support them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedlap.kernels import nvrtc
from fedlap.models.cnn_layers import Batches, Features, Hidden, apply_full_layer, descend_full_layer
from fedlap.models.convolution import KERNEL_SIZE, POINTS_PER_TILE, compute_tile_maps
from fedlap.models.dense import threshold_backward
from fedlap.models.model import DecayFactor, Stack

CNN_SOURCES = Path(__file__).parent / "cuda" / "cnn"
CONVOLUTION_KERNELS = (
    "first_forward",
    "second_forward",
    "second_images",
    "second_filters",
    "first_filters",
    "transform_filters",
    "update_parameters",
)
FULL_LAYER_KERNELS = ("full_forward", "full_backward")
# The sum over a batch in the derivative by filters is computed in this number of parts, or in more for few
# clients, until clients times parts reach the second number.
MIN_BATCH_PARTS, MIN_BLOCKS = 4, 64
PADDED_TAPS = 28  # taps of a filter, padded to a multiple of four for the backward pass
# Rows per batch: up to this size a full layer has kernels; for larger batches, products are as fast.
LARGEST_FULL_LAYER_BATCH = 32

Launch = Callable[[int, Sequence[Any]], None]  # called with the number of units and the arguments
Launches = Mapping[str, Launch]


@dataclass(frozen=True, eq=False)
class SavedActivations:
    """Values that the derivative needs: inputs and outputs of each layer, and the places of maxima."""

    x: Batches
    first: Tensor
    first_places: Tensor
    second: Features
    second_places: Tensor
    backward_filters: Tensor  # filters of the second layer, in the order of the backward pass


@dataclass(frozen=True, eq=False)
class CnnKernels:
    """`HiddenLayers` by kernels, for all clients at once, in float32.

    full: returns the kernels of the full layer for a batch size, or None if there are none.
    """

    image: tuple[int, int, int]
    filters: tuple[int, int]
    hidden_units: int
    convolution: Launches
    full: Callable[[int], Launches | None]

    @property
    def features(self) -> int:
        """Values that enter the full layer."""
        return count_features(self.image, self.filters)

    def compute_hidden(self, W: Stack, x: Batches) -> Hidden:
        """Outputs of the full layer."""
        return self._apply_full_layer(W, self._convolve(W, x).second, None)

    def forward(self, W: Stack, x: Batches) -> tuple[Hidden, SavedActivations]:
        """Outputs of the full layer, and the values that `subtract` needs."""
        saved = self._convolve(W, x)
        return self._apply_full_layer(W, saved.second, self.full(x.shape[1])), saved

    def subtract(
        self, into: Stack, W: Stack, saved: SavedActivations, delta: Hidden, lr: float, decay: DecayFactor
    ) -> None:
        """Take the step into ← decay·into − lr·gradient at W; `into` may be W itself."""
        clients, batch = saved.second.shape[:2]
        below, launch = self._descend_full_layer(into, W, saved, delta, lr, decay), self.convolution
        between = torch.empty_like(saved.first)
        launch["second_images"](
            clients * batch, [below, saved.second_places, saved.backward_filters, saved.first, between, batch]
        )
        parts = max(MIN_BATCH_PARTS, min(batch, MIN_BLOCKS // clients))
        by_second = below.new_empty(parts, clients, self.filters[1] * KERNEL_SIZE**2 * self.filters[0])
        args = [saved.first, below, saved.second_places, by_second, clients, batch, parts]
        launch["second_filters"](clients * parts, args)
        by_first = below.new_empty(clients * batch, self.image[0] * KERNEL_SIZE**2 * self.filters[0])
        launch["first_filters"](clients * batch, [saved.x, between, saved.first_places, by_first])
        sums, (decays, step) = [between, below, by_first, by_second], _pack_step(into, lr, decay)
        args = [into, *sums, decays, clients, batch, parts, into.stride(0), *step]
        launch["update_parameters"](clients, args)

    def _descend_full_layer(
        self, into: Stack, W: Stack, saved: SavedActivations, delta: Hidden, lr: float, decay: DecayFactor
    ) -> Features:
        """Update the full layer; return the derivative by its inputs, zero where their ReLU is zero."""
        kernels, x = self.full(saved.second.shape[1]), saved.second
        if kernels is None:
            weights, _ = self._view_full_layer(W)
            below: Tensor = threshold_backward(torch.bmm(delta.mT, weights), x, 0)
            descend_full_layer(*self._view_full_layer(into), x, delta, lr, decay)
            return below
        below, (decays, step) = torch.empty_like(x), _pack_step(into, lr, decay)
        tensors, strides = [W, into, x, delta.contiguous(), below, decays], [W.stride(0), into.stride(0)]
        kernels["full_backward"](len(W), [*tensors, *strides, *step])
        return below

    def _convolve(self, W: Stack, x: Batches) -> SavedActivations:
        x, (clients, batch), (channels, height, width) = x.contiguous(), x.shape[:2], self.image
        (one, two), launch, stride = self.filters, self.convolution, W.stride(0)
        first_filters = W.new_empty(clients, channels * KERNEL_SIZE**2 * one)
        second_filters = W.new_empty(clients, one * KERNEL_SIZE * POINTS_PER_TILE * two)
        backward_filters = W.new_empty(clients, two * PADDED_TAPS * one)
        launch["transform_filters"](clients, [W, first_filters, second_filters, backward_filters, stride])
        first = W.new_empty(clients * batch, one, height // 2, width // 2)
        second = W.new_empty(clients, batch, self.features)
        places, second_places = (torch.empty_like(t, dtype=torch.uint8) for t in (first, second))
        launch["first_forward"](clients * batch, [x, first_filters, W, first, places, batch, stride])
        args = [first, second_filters, W, second, second_places, batch, stride]
        launch["second_forward"](clients * batch, args)
        return SavedActivations(x, first, places, second, second_places, backward_filters)

    def _apply_full_layer(self, W: Stack, x: Features, kernels: Launches | None) -> Hidden:
        if kernels is None:
            return apply_full_layer(*self._view_full_layer(W), x)
        hidden = x.new_empty(len(W), self.hidden_units, x.shape[1])
        kernels["full_forward"](len(W), [W, x, hidden, W.stride(0)])
        return hidden

    def _view_full_layer(self, W: Stack) -> tuple[Tensor, Tensor]:
        """View the weights and the bias of the full layer."""
        begin, units = find_full_layer_offset(self.image, self.filters), self.hidden_units
        end = begin + units * self.features
        return W[:, begin:end].unflatten(1, (units, -1)), W[:, end : end + units]


def _pack_step(into: Stack, lr: float, decay: DecayFactor) -> tuple[Tensor, list[Any]]:
    """Return a tensor of decay factors, and the numbers 1 if it is used, else 0, the common factor, and lr.

    With a common factor the kernels do not read the tensor, so any tensor may be passed.
    """
    if isinstance(decay, Tensor):
        return decay.contiguous(), [1, 1.0, float(lr)]
    return into, [0, float(decay), float(lr)]


def count_features(image: tuple[int, int, int], filters: tuple[int, int]) -> int:
    """Number of outputs of the convolutions."""
    return filters[1] * (image[1] // 4) * (image[2] // 4)


def find_full_layer_offset(image: tuple[int, int, int], filters: tuple[int, int]) -> int:
    """Offset of the full layer in a row of parameters."""
    channels, (one, two) = image[0], filters
    return one * (KERNEL_SIZE**2 * channels + 1) + two * (KERNEL_SIZE**2 * one + 1)


def assemble_convolution_source(image: tuple[int, int, int], filters: tuple[int, int], shared: int) -> str:
    """The source of the convolutions, preceded by its constants."""
    sizes = zip(("CHANNELS", "HEIGHT", "WIDTH", "FIRST", "SECOND"), (*image, *filters), strict=True)
    maps = compute_tile_maps()
    matrices = {
        name: ",".join(f"{number!r}f" for number in matrix.flatten().tolist())
        for name, matrix in zip(("RAISE_ROWS", "RAISE_FILTERS", "LOWER"), maps, strict=True)
    }
    constants = {**dict(sizes), **matrices, "SHARED": shared}
    return nvrtc.join_sources(constants, CNN_SOURCES, "forward.cu", "images.cu", "filters.cu")


def assemble_full_layer_source(
    image: tuple[int, int, int], filters: tuple[int, int], hidden: int, batch: int
) -> str:
    """The source of the full layer, preceded by its constants."""
    places = {"FLAT": count_features(image, filters), "OFFSET": find_full_layer_offset(image, filters)}
    return nvrtc.join_sources({**places, "HIDDEN": hidden, "BATCH": batch}, CNN_SOURCES, "full.cu")


@cache
def compile_cnn_kernels(
    image: tuple[int, int, int], filters: tuple[int, int], hidden: int, device: torch.device
) -> CnnKernels | None:
    """The kernels; None if they cannot be compiled or do not support images of this shape."""
    shared = nvrtc.query_shared_memory(device)
    launches = (
        _compile_launches(assemble_convolution_source(image, filters, shared), CONVOLUTION_KERNELS, device)
        if shared
        else None
    )
    if launches is None:
        return None

    @cache
    def compile_full_layer(batch: int) -> Launches | None:
        if not 0 < batch <= LARGEST_FULL_LAYER_BATCH:
            return None
        return _compile_launches(
            assemble_full_layer_source(image, filters, hidden, batch), FULL_LAYER_KERNELS, device
        )

    return CnnKernels(image, filters, hidden, launches, compile_full_layer)


def _compile_launches(source: str, names: Sequence[str], device: torch.device) -> Launches | None:
    """Compile kernels and bind them to their launch sizes, which the kernel `sizes` reports."""
    kernels = nvrtc.compile_kernels(source, (*names, "sizes"))
    if kernels is None:
        return None
    sizes = torch.zeros(len(names), 3, dtype=torch.int32, device=device)
    kernels["sizes"](1, 1, [sizes])
    launches = {}
    for name, (threads, shared, blocks) in zip(names, sizes.tolist(), strict=True):
        kernels[name].set_shared_memory(shared)
        launches[name] = partial(launch_kernel, kernels[name], threads, shared, blocks)
    return launches


def launch_kernel(
    kernel: nvrtc.CudaKernel, threads: int, shared: int, blocks: int, units: int, args: Sequence[Any]
) -> None:
    """Launch a kernel with a number of blocks per unit, if there are units."""
    if units:
        kernel(units * blocks, threads, args, shared)
