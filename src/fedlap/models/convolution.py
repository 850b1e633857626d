"""5×5 convolutions of a stack of clients, each with its own filters, and their derivatives by hand.

Images lie channels last: then a window is a few long runs of memory, and a product with filters needs no
transposed copy. All ways give the same numbers: one is for CPUs, the others for GPUs.
"""

from functools import cache
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

KERNEL = 5
MARGIN = KERNEL // 2

Images = Float[Tensor, "client batch _ _ _"]  # height, width, channel
Filters = Float[Tensor, "client _ _ 5 5"]  # out, in
Seen = tuple[Tensor, ...]  # what a way remembers of a convolution for its derivative


@runtime_checkable
class Way(Protocol):
    """A way to convolve images with filters, zeros around them, and to take the derivative."""

    clients: int  # that it takes at once
    piece: int  # values inside a convolution that are worth holding at once

    def forward(self, x: Images, filters: Filters) -> tuple[Images, Seen]:
        """The convolution, by operations that autograd knows."""
        ...

    def backward(self, delta: Images, filters: Filters, seen: Seen, images: bool) -> tuple[Filters, Images]:
        """The derivative by filters and, where asked for, by images (else anything)."""
        ...


class Direct:
    """The convolution of PyTorch, for one client: on a CPU it beats every product of unfolded windows."""

    clients = 1
    piece = 2**22

    def forward(self, x: Images, filters: Filters) -> tuple[Images, Seen]:
        """A batch of one client's images through its filters."""
        images = x.squeeze(0).permute(0, 3, 1, 2)
        out = functional.conv2d(images, filters.squeeze(0), padding=MARGIN)
        return out.permute(0, 2, 3, 1).unsqueeze(0), (images,)

    def backward(self, delta: Images, filters: Filters, seen: Seen, images: bool) -> tuple[Filters, Images]:
        """What autograd would call."""
        by_images, by_filters, _ = torch.ops.aten.convolution_backward(
            delta.squeeze(0).permute(0, 3, 1, 2), *seen, filters.squeeze(0), None,
            [1, 1], [MARGIN, MARGIN], [1, 1], False, [0, 0], 1, [images, True, False],
        )  # fmt: skip
        return by_filters.unsqueeze(0), by_images.permute(0, 2, 3, 1).unsqueeze(0) if images else delta


TILE = 4  # rows of an image that are convolved together
POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)  # and infinity
LIFTED = TILE + KERNEL - 1


class Matrices(NamedTuple):
    """Three linear maps along the height: `lower · ((raise_filters · g) ∘ (raise_rows · x))` convolves."""

    raise_rows: Float[Tensor, "raised height"]
    raise_filters: Float[Tensor, "lifted 5"]
    lower: Float[Tensor, "4 lifted"]


def tile_maps() -> tuple[Tensor, Tensor, Tensor]:
    """The algorithm of Toom and Cook, transposed (Winograd's for convolutions), for one tile.

    Polynomials are multiplied by their values at eight points. From eight values to those of the points, from
    five taps, and from the points to four values.
    """
    points = torch.tensor(POINTS, dtype=torch.float64, device="cpu").unsqueeze(1)

    def values(count: int) -> Tensor:
        """From the coefficients of a polynomial to its values; at infinity, its last coefficient."""
        powers = torch.arange(count, dtype=torch.float64, device="cpu")
        return torch.cat([points**powers, (powers == count - 1).double().unsqueeze(0)])

    rows = torch.linalg.inv(values(LIFTED)).T
    scale = rows.abs().amax(1, keepdim=True)  # keeps values of one size, for the sake of float32
    return rows / scale, values(KERNEL) * scale, values(TILE).T


@cache
def matrices(height: int, device: torch.device, dtype: torch.dtype) -> Matrices:
    """The maps of tiles for every tile of an image; kept, so that no copy is left to a recorded round."""
    with torch.inference_mode(False):  # or autograd could not use them later
        rows, raise_filters, lower = tile_maps()
        tiles = -(-height // TILE)
        windows = torch.zeros(LIFTED, tiles, TILE * tiles + KERNEL - 1, dtype=torch.float64, device="cpu")
        for tile in range(tiles):
            windows[:, tile, TILE * tile : TILE * tile + LIFTED] = rows
        raise_rows = windows[:, :, MARGIN : MARGIN + height].flatten(0, 1)  # the rest meets zeros
        every = raise_rows, raise_filters, lower
        return Matrices(*(each.to(device, dtype).contiguous() for each in every))


class Windows:
    """Windows unfolded both ways, times filters, for all clients at once: the fastest with few channels."""

    clients = 2**16
    piece = 2**26

    def forward(self, x: Images, filters: Filters) -> tuple[Images, Seen]:
        """One row of 25·channels values for each pixel."""
        clients, batch, height, width, channels = x.shape
        padded = functional.pad(x, (0, 0, MARGIN, MARGIN, MARGIN, MARGIN))
        windows = padded.unfold(2, KERNEL, 1).unfold(3, KERNEL, 1).permute(0, 1, 2, 3, 5, 6, 4)
        windows = windows.reshape(clients, batch * height * width, KERNEL**2 * channels)
        weights = filters.permute(0, 1, 3, 4, 2).flatten(2)
        return torch.bmm(windows, weights.mT).view(*x.shape[:4], filters.shape[1]), (windows, weights)

    def backward(self, delta: Images, filters: Filters, seen: Seen, images: bool) -> tuple[Filters, Images]:
        """Two products, and 25 shifted sums."""
        (clients, batch, height, width, out), (windows, weights) = delta.shape, seen
        channels = filters.shape[2]
        flat = delta.reshape(clients, -1, out)
        by_weights = summed_product(flat, windows, batch).view(clients, out, KERNEL, KERNEL, channels)
        by_filters = by_weights.permute(0, 1, 4, 2, 3)
        if not images:
            return by_filters, delta
        by_windows = torch.bmm(flat, weights).view(clients, batch, height, width, KERNEL, KERNEL, channels)
        padded = delta.new_zeros(clients, batch, height + 2 * MARGIN, width + 2 * MARGIN, channels)
        for y in range(KERNEL):
            for x in range(KERNEL):
                padded[:, :, y : y + height, x : x + width] += by_windows[:, :, :, :, y, x]
        return by_filters, padded[:, :, MARGIN:-MARGIN, MARGIN:-MARGIN]


class Tiled:
    """Batched products for all clients at once: unfolded along the width, by Toom and Cook along the height.

    Against windows unfolded both ways, this takes 2/5 of the arithmetic and of the memory, which is what
    convolutions in float32 wait for on a GPU.
    """

    clients = 2**16
    piece = 2**26

    def forward(self, x: Images, filters: Filters) -> tuple[Images, Seen]:
        """Raise both to eight points a tile, multiply there, lower the result."""
        clients, batch, height, width, channels = x.shape
        known, out = matrices(height, x.device, x.dtype), filters.shape[1]
        samples, tiles = clients * batch, -(-height // TILE)
        padded = functional.pad(x, (0, 0, MARGIN, MARGIN)).flatten(0, 1).flatten(2)
        lifted = torch.bmm(known.raise_rows.expand(samples, -1, -1), padded)
        lifted = lifted.view(clients, batch, LIFTED, tiles, width + 2 * MARGIN, channels)
        windows = lifted.permute(2, 0, 1, 3, 4, 5).unfold(4, KERNEL, 1).transpose(-1, -2)
        windows = windows.reshape(LIFTED * clients, batch * tiles * width, KERNEL * channels)
        weights = torch.einsum("iy,kocyx->ikoxc", known.raise_filters, filters)
        weights = weights.reshape(LIFTED * clients, out, KERNEL * channels)
        product = torch.bmm(windows, weights.mT).view(LIFTED, samples * tiles, width * out)
        rows = torch.bmm(known.lower.expand(samples * tiles, -1, -1), product.transpose(0, 1))
        rows = rows.view(clients, batch, tiles * TILE, width, out)
        return rows[:, :, :height], (windows, weights)

    def backward(self, delta: Images, filters: Filters, seen: Seen, images: bool) -> tuple[Filters, Images]:
        """The same maps, transposed."""
        (clients, batch, height, width, out), (windows, weights) = delta.shape, seen
        known, tiles = matrices(height, delta.device, delta.dtype), -(-height // TILE)
        rows = functional.pad(delta, (0, 0, 0, 0, 0, tiles * TILE - height))
        product = delta.new_empty(LIFTED, clients * batch * tiles, width * out)
        lower = known.lower.T.expand(clients * batch * tiles, -1, -1)
        torch.bmm(lower, rows.reshape(-1, TILE, width * out), out=product.transpose(0, 1))
        product = product.view(LIFTED * clients, -1, out)
        by_weights = summed_product(product, windows, batch).view(LIFTED, clients, out, KERNEL, -1)
        by_filters = torch.einsum("iy,ikoxc->kocyx", known.raise_filters, by_weights)
        if not images:
            return by_filters, delta
        by_windows = torch.bmm(product, weights).view(LIFTED, clients, batch, tiles, width, KERNEL, -1)
        return by_filters, _folded(by_windows.permute(1, 2, 0, 3, 4, 5, 6), known.raise_rows)


def summed_product(
    delta: Float[Tensor, "some place out"], windows: Float[Tensor, "some place value"], batch: int
) -> Float[Tensor, "some out value"]:
    """deltaᵀ windows. A small result of long sums is made sample by sample, or few cores could share it."""
    some, places, values = windows.shape
    if places // batch <= values:
        return torch.bmm(delta.mT, windows)
    by_sample = torch.bmm(
        delta.view(some * batch, -1, delta.shape[-1]).mT, windows.view(some * batch, -1, values)
    )
    return by_sample.view(some, batch, -1, values).sum(1)


def _folded(
    by_windows: Float[Tensor, "client batch lifted tile width 5 channel"],
    raise_rows: Float[Tensor, "raised height"],
) -> Images:
    """The derivative by the images: each value was in five windows and in two tiles."""
    clients, batch, lifted, tiles, width, _, channels = by_windows.shape
    sums = by_windows.new_zeros(clients, batch, lifted, tiles, width + 2 * MARGIN, channels)
    for shift in range(KERNEL):
        sums[..., shift : shift + width, :] += by_windows[..., shift, :]
    samples = clients * batch
    images = torch.bmm(raise_rows.T.expand(samples, -1, -1), sums.view(samples, lifted * tiles, -1))
    return images.view(clients, batch, -1, width + 2 * MARGIN, channels)[:, :, :, MARGIN:-MARGIN]


class Layer(NamedTuple):
    """A convolution that was made, pooled and put through ReLU, and what its derivative needs."""

    out: Images
    seen: Seen
    before: Float[Tensor, "sample out height width"]  # the pooling
    places: Int64[Tensor, "sample out half_height half_width"]  # of the maxima


def convolved(way: Way, x: Images, filters: Filters, bias: Float[Tensor, "client out"]) -> Layer:
    """Convolution, 2×2 maxima (a last odd row or column is left out), bias and ReLU.

    A bias moves all four values of a window alike, so it is added to the maximum alone.
    """
    full, seen = way.forward(x, filters)
    before = full.flatten(0, 1).permute(0, 3, 1, 2)
    maxima, places = functional.max_pool2d(before, 2, return_indices=True)
    maxima = maxima.permute(0, 2, 3, 1).unflatten(0, full.shape[:2])
    return Layer((maxima + bias[:, None, None, None]).relu(), seen, before, places)


def derivatives(
    way: Way, layer: Layer, delta: Images, filters: Filters, images: bool = True
) -> tuple[Filters, Float[Tensor, "client out"], Images]:
    """By filters, by bias and, where asked for, by images, from the derivative by `layer.out`."""
    delta = delta * (layer.out > 0)
    full = torch.ops.aten.max_pool2d_with_indices_backward(
        delta.flatten(0, 1).permute(0, 3, 1, 2),
        *(layer.before, [2, 2], [2, 2], [0, 0], [1, 1], False, layer.places),
    )
    full = full.permute(0, 2, 3, 1).unflatten(0, delta.shape[:2])
    by_filters, by_images = way.backward(full, filters, layer.seen, images)
    return by_filters, delta.sum((1, 2, 3)), by_images


FEW = 8  # channels, below which windows beat tiles


class Batched:
    """Windows where an image has few channels, as the first layer's have, and tiles above."""

    clients = 2**16
    piece = 2**26

    def forward(self, x: Images, filters: Filters) -> tuple[Images, Seen]:
        """Either."""
        return self._for(filters).forward(x, filters)

    def backward(self, delta: Images, filters: Filters, seen: Seen, images: bool) -> tuple[Filters, Images]:
        """Either."""
        return self._for(filters).backward(delta, filters, seen, images)

    def _for(self, filters: Filters) -> Way:
        return Windows() if filters.shape[2] < FEW else Tiled()


def way_for(device: torch.device) -> Way:
    """The faster one, as `benchmarks/convolutions.py` measures."""
    return Batched() if device.type == "cuda" else Direct()
