"""5×5 convolutions of a stack of clients, with separate filters per client, and their derivatives by hand.

Images are stored channels last: then a window is a few long runs of memory, and a product with filters needs
no transposed copy. All backends compute the same convolution: one is for CPUs, the others for GPUs.
"""

from functools import cache
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

KERNEL_SIZE = 5
PADDING = KERNEL_SIZE // 2

Images = Float[Tensor, "client batch _ _ _"]  # height, width, channel
Filters = Float[Tensor, "client _ _ 5 5"]  # out, in
SavedTensors = tuple[Tensor, ...]  # values that the derivative needs


@runtime_checkable
class ConvolutionBackend(Protocol):
    """An algorithm for convolutions with zero padding, and for their derivatives."""

    clients_at_once: int
    values_at_once: int  # most values worth holding inside one convolution

    def forward(self, x: Images, filters: Filters) -> tuple[Images, SavedTensors]:
        """The convolution, by operations that autograd supports, and the values to save."""
        ...

    def backward(
        self, delta: Images, filters: Filters, saved: SavedTensors, images: bool
    ) -> tuple[Filters, Images]:
        """The derivative by filters and, if `images`, by images (else an arbitrary tensor)."""
        ...


class DirectConvolution:
    """PyTorch's convolution, for one client: on a CPU it is faster than products of unfolded windows."""

    clients_at_once = 1
    values_at_once = 2**22

    def forward(self, x: Images, filters: Filters) -> tuple[Images, SavedTensors]:
        """Convolve a batch of one client's images with its filters."""
        images = x.squeeze(0).permute(0, 3, 1, 2)
        out = functional.conv2d(images, filters.squeeze(0), padding=PADDING)
        return out.permute(0, 2, 3, 1).unsqueeze(0), (images,)

    def backward(
        self, delta: Images, filters: Filters, saved: SavedTensors, images: bool
    ) -> tuple[Filters, Images]:
        """Call the operation that autograd would call."""
        by_images, by_filters, _ = torch.ops.aten.convolution_backward(
            delta.squeeze(0).permute(0, 3, 1, 2), *saved, filters.squeeze(0), None,
            [1, 1], [PADDING, PADDING], [1, 1], False, [0, 0], 1, [images, True, False],
        )  # fmt: skip
        return by_filters.unsqueeze(0), by_images.permute(0, 2, 3, 1).unsqueeze(0) if images else delta


ROWS_PER_TILE = 4  # rows of an image that are convolved together
TOOM_COOK_POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)  # and infinity
POINTS_PER_TILE = ROWS_PER_TILE + KERNEL_SIZE - 1


class TileMatrices(NamedTuple):
    """Three linear maps along the height: `lower · ((raise_filters · g) ∘ (raise_rows · x))` convolves."""

    raise_rows: Float[Tensor, "raised height"]
    raise_filters: Float[Tensor, "lifted 5"]
    lower: Float[Tensor, "4 lifted"]


def compute_tile_maps() -> tuple[Tensor, Tensor, Tensor]:
    """The matrices of the transposed Toom-Cook algorithm (Winograd's convolution) for one tile.

    Polynomials are multiplied through their values at eight points. The three matrices map eight rows to
    points, five taps to points, and points to four rows.
    """
    points = torch.tensor(TOOM_COOK_POINTS, dtype=torch.float64, device="cpu").unsqueeze(1)

    def build_evaluation(count: int) -> Tensor:
        """Build the map from a polynomial's coefficients to its values; at infinity, its last coefficient."""
        powers = torch.arange(count, dtype=torch.float64, device="cpu")
        return torch.cat([points**powers, (powers == count - 1).double().unsqueeze(0)])

    rows = torch.linalg.inv(build_evaluation(POINTS_PER_TILE)).T
    scale = rows.abs().amax(1, keepdim=True)  # gives all values one magnitude, for accuracy in float32
    return rows / scale, build_evaluation(KERNEL_SIZE) * scale, build_evaluation(ROWS_PER_TILE).T


@cache
def build_tile_matrices(height: int, device: torch.device, dtype: torch.dtype) -> TileMatrices:
    """Build the maps for all tiles of an image; cached, so that no copy is part of a captured CUDA graph."""
    with torch.inference_mode(False):  # autograd cannot use inference tensors
        rows, raise_filters, lower = compute_tile_maps()
        tiles = -(-height // ROWS_PER_TILE)
        windows = torch.zeros(
            POINTS_PER_TILE, tiles, ROWS_PER_TILE * tiles + KERNEL_SIZE - 1, dtype=torch.float64, device="cpu"
        )
        for tile in range(tiles):
            windows[:, tile, ROWS_PER_TILE * tile : ROWS_PER_TILE * tile + POINTS_PER_TILE] = rows
        raise_rows = windows[:, :, PADDING : PADDING + height].flatten(0, 1)  # the rest multiplies zeros
        maps = raise_rows, raise_filters, lower
        return TileMatrices(*(matrix.to(device, dtype).contiguous() for matrix in maps))


class UnfoldedConvolution:
    """Windows unfolded both ways, times filters, for all clients at once: fastest with few channels."""

    clients_at_once = 2**16
    values_at_once = 2**26

    def forward(self, x: Images, filters: Filters) -> tuple[Images, SavedTensors]:
        """Multiply filters with one row of 25·channels values per pixel."""
        clients, batch, height, width, channels = x.shape
        padded = functional.pad(x, (0, 0, PADDING, PADDING, PADDING, PADDING))
        windows = padded.unfold(2, KERNEL_SIZE, 1).unfold(3, KERNEL_SIZE, 1).permute(0, 1, 2, 3, 5, 6, 4)
        windows = windows.reshape(clients, batch * height * width, KERNEL_SIZE**2 * channels)
        weights = filters.permute(0, 1, 3, 4, 2).flatten(2)
        return torch.bmm(windows, weights.mT).view(*x.shape[:4], filters.shape[1]), (windows, weights)

    def backward(
        self, delta: Images, filters: Filters, saved: SavedTensors, images: bool
    ) -> tuple[Filters, Images]:
        """Compute two products and 25 shifted sums."""
        (clients, batch, height, width, out), (windows, weights) = delta.shape, saved
        channels = filters.shape[2]
        flat = delta.reshape(clients, -1, out)
        by_weights = multiply_and_sum(flat, windows, batch).view(
            clients, out, KERNEL_SIZE, KERNEL_SIZE, channels
        )
        by_filters = by_weights.permute(0, 1, 4, 2, 3)
        if not images:
            return by_filters, delta
        by_windows = torch.bmm(flat, weights).view(
            clients, batch, height, width, KERNEL_SIZE, KERNEL_SIZE, channels
        )
        padded = delta.new_zeros(clients, batch, height + 2 * PADDING, width + 2 * PADDING, channels)
        for y in range(KERNEL_SIZE):
            for x in range(KERNEL_SIZE):
                padded[:, :, y : y + height, x : x + width] += by_windows[:, :, :, :, y, x]
        return by_filters, padded[:, :, PADDING:-PADDING, PADDING:-PADDING]


class TiledConvolution:
    """Batched products for all clients at once: unfolded along the width, Toom-Cook along the height.

    Compared to windows unfolded both ways, this takes 2/5 of the arithmetic and of the memory traffic, which
    bound float32 convolutions on a GPU.
    """

    clients_at_once = 2**16
    values_at_once = 2**26

    def forward(self, x: Images, filters: Filters) -> tuple[Images, SavedTensors]:
        """Map rows and filters to eight points per tile, multiply there, and map the result back."""
        clients, batch, height, width, channels = x.shape
        maps, out = build_tile_matrices(height, x.device, x.dtype), filters.shape[1]
        samples, tiles = clients * batch, -(-height // ROWS_PER_TILE)
        padded = functional.pad(x, (0, 0, PADDING, PADDING)).flatten(0, 1).flatten(2)
        lifted = torch.bmm(maps.raise_rows.expand(samples, -1, -1), padded)
        lifted = lifted.view(clients, batch, POINTS_PER_TILE, tiles, width + 2 * PADDING, channels)
        windows = lifted.permute(2, 0, 1, 3, 4, 5).unfold(4, KERNEL_SIZE, 1).transpose(-1, -2)
        windows = windows.reshape(POINTS_PER_TILE * clients, batch * tiles * width, KERNEL_SIZE * channels)
        weights = torch.einsum("iy,kocyx->ikoxc", maps.raise_filters, filters)
        weights = weights.reshape(POINTS_PER_TILE * clients, out, KERNEL_SIZE * channels)
        product = torch.bmm(windows, weights.mT).view(POINTS_PER_TILE, samples * tiles, width * out)
        rows = torch.bmm(maps.lower.expand(samples * tiles, -1, -1), product.transpose(0, 1))
        rows = rows.view(clients, batch, tiles * ROWS_PER_TILE, width, out)
        return rows[:, :, :height], (windows, weights)

    def backward(
        self, delta: Images, filters: Filters, saved: SavedTensors, images: bool
    ) -> tuple[Filters, Images]:
        """Apply the transposed maps of `forward`."""
        (clients, batch, height, width, out), (windows, weights) = delta.shape, saved
        maps, tiles = build_tile_matrices(height, delta.device, delta.dtype), -(-height // ROWS_PER_TILE)
        rows = functional.pad(delta, (0, 0, 0, 0, 0, tiles * ROWS_PER_TILE - height))
        product = delta.new_empty(POINTS_PER_TILE, clients * batch * tiles, width * out)
        lower = maps.lower.T.expand(clients * batch * tiles, -1, -1)
        torch.bmm(lower, rows.reshape(-1, ROWS_PER_TILE, width * out), out=product.transpose(0, 1))
        product = product.view(POINTS_PER_TILE * clients, -1, out)
        by_weights = multiply_and_sum(product, windows, batch).view(
            POINTS_PER_TILE, clients, out, KERNEL_SIZE, -1
        )
        by_filters = torch.einsum("iy,ikoxc->kocyx", maps.raise_filters, by_weights)
        if not images:
            return by_filters, delta
        by_windows = torch.bmm(product, weights).view(
            POINTS_PER_TILE, clients, batch, tiles, width, KERNEL_SIZE, -1
        )
        return by_filters, _fold_windows(by_windows.permute(1, 2, 0, 3, 4, 5, 6), maps.raise_rows)


def multiply_and_sum(
    delta: Float[Tensor, "group place out"], windows: Float[Tensor, "group place value"], batch: int
) -> Float[Tensor, "group out value"]:
    """deltaᵀ windows; a small result of long sums is computed per sample, which gives all cores work."""
    groups, places, values = windows.shape
    if places // batch <= values:
        return torch.bmm(delta.mT, windows)
    by_sample = torch.bmm(
        delta.view(groups * batch, -1, delta.shape[-1]).mT, windows.view(groups * batch, -1, values)
    )
    return by_sample.view(groups, batch, -1, values).sum(1)


def _fold_windows(
    by_windows: Float[Tensor, "client batch lifted tile width 5 channel"],
    raise_rows: Float[Tensor, "raised height"],
) -> Images:
    """The derivative by the images: each value is in five windows and two tiles."""
    clients, batch, lifted, tiles, width, _, channels = by_windows.shape
    sums = by_windows.new_zeros(clients, batch, lifted, tiles, width + 2 * PADDING, channels)
    for shift in range(KERNEL_SIZE):
        sums[..., shift : shift + width, :] += by_windows[..., shift, :]
    samples = clients * batch
    images = torch.bmm(raise_rows.T.expand(samples, -1, -1), sums.view(samples, lifted * tiles, -1))
    return images.view(clients, batch, -1, width + 2 * PADDING, channels)[:, :, :, PADDING:-PADDING]


class PooledLayer(NamedTuple):
    """Outputs of a convolution with pooling and ReLU, and the values that its derivative needs."""

    out: Images
    saved: SavedTensors
    before: Float[Tensor, "sample out height width"]  # the values before pooling
    places: Int64[Tensor, "sample out half_height half_width"]  # the places of the maxima


def convolve_and_pool(
    convolution: ConvolutionBackend, x: Images, filters: Filters, bias: Float[Tensor, "client out"]
) -> PooledLayer:
    """Apply convolution, 2×2 max-pooling (a last odd row or column is dropped), bias and ReLU.

    The bias is added after pooling, since it shifts all four values of a window equally.
    """
    full, saved = convolution.forward(x, filters)
    before = full.flatten(0, 1).permute(0, 3, 1, 2)
    maxima, places = functional.max_pool2d(before, 2, return_indices=True)
    maxima = maxima.permute(0, 2, 3, 1).unflatten(0, full.shape[:2])
    return PooledLayer((maxima + bias[:, None, None, None]).relu(), saved, before, places)


def backpropagate(
    convolution: ConvolutionBackend, layer: PooledLayer, delta: Images, filters: Filters, images: bool = True
) -> tuple[Filters, Float[Tensor, "client out"], Images]:
    """Derivatives by filters, by bias and, if `images`, by images, from the derivative by `layer.out`."""
    delta = delta * (layer.out > 0)
    full = torch.ops.aten.max_pool2d_with_indices_backward(
        delta.flatten(0, 1).permute(0, 3, 1, 2),
        *(layer.before, [2, 2], [2, 2], [0, 0], [1, 1], False, layer.places),
    )
    full = full.permute(0, 2, 3, 1).unflatten(0, delta.shape[:2])
    by_filters, by_images = convolution.backward(full, filters, layer.saved, images)
    return by_filters, delta.sum((1, 2, 3)), by_images


MIN_TILED_CHANNELS = 8  # with fewer channels, unfolded windows are faster than tiles


class BatchedConvolution:
    """Unfolded windows for few channels, as in the first layer, and tiles for more."""

    clients_at_once = 2**16
    values_at_once = 2**26

    def forward(self, x: Images, filters: Filters) -> tuple[Images, SavedTensors]:
        """Convolve with the backend for this number of channels."""
        return self._choose(filters).forward(x, filters)

    def backward(
        self, delta: Images, filters: Filters, saved: SavedTensors, images: bool
    ) -> tuple[Filters, Images]:
        """Differentiate with the backend for this number of channels."""
        return self._choose(filters).backward(delta, filters, saved, images)

    def _choose(self, filters: Filters) -> ConvolutionBackend:
        return UnfoldedConvolution() if filters.shape[2] < MIN_TILED_CHANNELS else TiledConvolution()


def choose_convolution(device: torch.device) -> ConvolutionBackend:
    """Choose the faster backend for a device, as measured by `benchmarks/convolutions.py`."""
    return BatchedConvolution() if device.type == "cuda" else DirectConvolution()
