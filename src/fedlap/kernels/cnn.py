"""The layers of a convolutional network below its last, by kernels, for a whole stack on a GPU.

See `cuda/`. Autograd does not know them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedlap.kernels import nvrtc
from fedlap.models.cnn_layers import Batches, Features, Hidden, full, full_subtract
from fedlap.models.convolution import KERNEL, LIFTED, tile_maps
from fedlap.models.dense import threshold_backward
from fedlap.models.model import Keep, Stack

CUDA = Path(__file__).parent / "cuda" / "cnn"
CONVOLUTIONS = (
    "first_forward",
    "second_forward",
    "second_images",
    "second_filters",
    "first_filters",
    "turn",
    "settle",
)
FULLS = ("full_forward", "full_backward")
# Of a batch parts of the sum by filters are taken side by side: so many, or more where clients are few.
SPLITS, AT_WORK = 4, 64
FILLED = 28  # taps of a filter for the way back, in whole float4
LARGEST = 32  # rows of a batch for which a full layer has kernels; for more, products are as good

Launch = Callable[[int, Sequence[Any]], None]  # so many units, with these arguments
Launches = Mapping[str, Launch]


@dataclass(frozen=True, eq=False)
class Seen:
    """What the derivative needs: what entered and left each layer, and the places of maxima."""

    x: Batches
    first: Tensor
    first_places: Tensor
    second: Features
    second_places: Tensor
    back: Tensor  # the second filters, turned for the way back


@dataclass(frozen=True, eq=False)
class Kernels:
    """All clients at once, in float32.

    full: gives the kernels of the full layer for batches of a size, if there are some.
    """

    image: tuple[int, int, int]
    filters: tuple[int, int]
    hidden_units: int
    convolution: Launches
    full: Callable[[int], Launches | None]

    @property
    def features(self) -> int:
        """Values that enter the full layer."""
        return flat(self.image, self.filters)

    def hidden(self, W: Stack, x: Batches) -> Hidden:
        """What leaves them."""
        return self._full(W, self._convolved(W, x).second, None)

    def forward(self, W: Stack, x: Batches) -> tuple[Hidden, Seen]:
        """The same, and what the derivative will need."""
        seen = self._convolved(W, x)
        return self._full(W, seen.second, self.full(x.shape[1])), seen

    def subtract(self, into: Stack, W: Stack, seen: Seen, delta: Hidden, lr: float, keep: Keep) -> None:
        """into ← keep·into − lr·gradient at W."""
        clients, batch = seen.second.shape[:2]
        below, launch = self._below(into, W, seen, delta, lr, keep), self.convolution
        between = torch.empty_like(seen.first)
        launch["second_images"](
            clients * batch, [below, seen.second_places, seen.back, seen.first, between, batch]
        )
        splits = max(SPLITS, min(batch, AT_WORK // clients))
        by_second = below.new_empty(splits, clients, self.filters[1] * KERNEL**2 * self.filters[0])
        args = [seen.first, below, seen.second_places, by_second, clients, batch, splits]
        launch["second_filters"](clients * splits, args)
        by_first = below.new_empty(clients * batch, self.image[0] * KERNEL**2 * self.filters[0])
        launch["first_filters"](clients * batch, [seen.x, between, seen.first_places, by_first])
        sums, (keeps, how) = [between, below, by_first, by_second], _change(into, lr, keep)
        launch["settle"](clients, [into, *sums, keeps, clients, batch, splits, into.stride(0), *how])

    def _below(self, into: Stack, W: Stack, seen: Seen, delta: Hidden, lr: float, keep: Keep) -> Features:
        """The derivative by what enters the full layer, cut by ReLU; the layer itself is changed."""
        kernels, x = self.full(seen.second.shape[1]), seen.second
        if kernels is None:
            weights, _ = self._layer(W)
            below: Tensor = threshold_backward(torch.bmm(delta.mT, weights), x, 0)
            full_subtract(*self._layer(into), x, delta, lr, keep)
            return below
        below, (keeps, how) = torch.empty_like(x), _change(into, lr, keep)
        tensors, strides = [W, into, x, delta.contiguous(), below, keeps], [W.stride(0), into.stride(0)]
        kernels["full_backward"](len(W), [*tensors, *strides, *how])
        return below

    def _convolved(self, W: Stack, x: Batches) -> Seen:
        x, (clients, batch), (channels, height, width) = x.contiguous(), x.shape[:2], self.image
        (one, two), launch, stride = self.filters, self.convolution, W.stride(0)
        turned = W.new_empty(clients, channels * KERNEL**2 * one)
        raised = W.new_empty(clients, one * KERNEL * LIFTED * two)
        back = W.new_empty(clients, two * FILLED * one)
        launch["turn"](clients, [W, turned, raised, back, stride])
        first = W.new_empty(clients * batch, one, height // 2, width // 2)
        second = W.new_empty(clients, batch, self.features)
        places, second_places = (torch.empty_like(each, dtype=torch.uint8) for each in (first, second))
        launch["first_forward"](clients * batch, [x, turned, W, first, places, batch, stride])
        args = [first, raised, W, second, second_places, batch, stride]
        launch["second_forward"](clients * batch, args)
        return Seen(x, first, places, second, second_places, back)

    def _full(self, W: Stack, x: Features, kernels: Launches | None) -> Hidden:
        if kernels is None:
            return full(*self._layer(W), x)
        hidden = x.new_empty(len(W), self.hidden_units, x.shape[1])
        kernels["full_forward"](len(W), [W, x, hidden, W.stride(0)])
        return hidden

    def _layer(self, W: Stack) -> tuple[Tensor, Tensor]:
        """Weights and bias of the full layer."""
        begin, units = full_at(self.image, self.filters), self.hidden_units
        end = begin + units * self.features
        return W[:, begin:end].unflatten(1, (units, -1)), W[:, end : end + units]


def _change(into: Stack, lr: float, keep: Keep) -> tuple[Tensor, list[Any]]:
    """What is kept of each client, if it differs; whether it does, what is kept if not, and lr."""
    if isinstance(keep, Tensor):
        return keep.contiguous(), [1, 1.0, float(lr)]
    return into, [0, float(keep), float(lr)]


def flat(image: tuple[int, int, int], filters: tuple[int, int]) -> int:
    """How many values leave the convolutions."""
    return filters[1] * (image[1] // 4) * (image[2] // 4)


def full_at(image: tuple[int, int, int], filters: tuple[int, int]) -> int:
    """Where the full layer begins in a row of parameters."""
    channels, (one, two) = image[0], filters
    return one * (KERNEL**2 * channels + 1) + two * (KERNEL**2 * one + 1)


def convolution_source(image: tuple[int, int, int], filters: tuple[int, int], shared: int) -> str:
    """The kernels' text, with its constants."""
    given = zip(("CHANNELS", "HEIGHT", "WIDTH", "FIRST", "SECOND"), (*image, *filters), strict=True)
    maps = tile_maps()
    listed = {
        name: ",".join(f"{number!r}f" for number in each.flatten().tolist())
        for name, each in zip(("RAISE_ROWS", "RAISE_FILTERS", "LOWER"), maps, strict=True)
    }
    constants = {**dict(given), **listed, "SHARED": shared}
    return nvrtc.text(constants, CUDA, "forward.cu", "images.cu", "filters.cu")


def full_source(image: tuple[int, int, int], filters: tuple[int, int], hidden: int, batch: int) -> str:
    """The kernels' text, with its constants."""
    places = {"FLAT": flat(image, filters), "AT": full_at(image, filters)}
    return nvrtc.text({**places, "HIDDEN": hidden, "BATCH": batch}, CUDA, "full.cu")


@cache
def kernels_for(
    image: tuple[int, int, int], filters: tuple[int, int], hidden: int, device: torch.device
) -> Kernels | None:
    """None where they cannot be compiled, or images are not what they are made for."""
    shared = nvrtc.shared_memory(device)
    launches = _launches(convolution_source(image, filters, shared), CONVOLUTIONS, device) if shared else None
    if launches is None:
        return None

    @cache
    def full_for(batch: int) -> Launches | None:
        if not 0 < batch <= LARGEST:
            return None
        return _launches(full_source(image, filters, hidden, batch), FULLS, device)

    return Kernels(image, filters, hidden, launches, full_for)


def _launches(source: str, names: Sequence[str], device: torch.device) -> Launches | None:
    """Kernels that know their blocks, which one more kernel tells."""
    made = nvrtc.compiled(source, (*names, "sizes"))
    if made is None:
        return None
    sizes = torch.zeros(len(names), 3, dtype=torch.int32, device=device)
    made["sizes"](1, 1, [sizes])
    launches = {}
    for name, (threads, shared, blocks) in zip(names, sizes.tolist(), strict=True):
        made[name].shares(shared)
        launches[name] = partial(launch, made[name], threads, shared, blocks)
    return launches


def launch(
    kernel: nvrtc.Kernel, threads: int, shared: int, blocks: int, units: int, args: Sequence[Any]
) -> None:
    """So many blocks of each unit."""
    if units:
        kernel(units * blocks, threads, args, shared)
