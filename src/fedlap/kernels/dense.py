"""All steps of a round of dense networks as one kernel (see `cuda/` and, for a CPU, `cpp/`)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.conjugates import Conjugate, Hinge, Logistic, Squared
from fedlap.algorithms.per_run import Number, PerRun, at_rows
from fedlap.data.client_rows import ClientRows
from fedlap.errors import InputError
from fedlap.kernels import cpp_library, nvrtc
from fedlap.models import CrossEntropy, DenseNetwork
from fedlap.training.batches import BatchPlan, Cohort
from fedlap.training.scores import Tally

if TYPE_CHECKING:
    from fedlap.training.placement import PlacedClients

Stack = Float[Tensor, "client param"]
Kernel = Callable[..., None]

FILES = (
    "cuda/dense/places.cu",
    "cuda/dense/inner.cu",
    "cpp/dual.hpp",
    "cuda/dense/loss.cu",
    "cuda/dense/first.cu",
    "cuda/dense/steps.cu",
)
# Rows of which the sums stay in the registers of a GPU, and which stay in the cache of a CPU.
LARGEST_BATCH = {"cuda": 32, "cpu": 128}
THREADS = 256  # of a block


@dataclass(frozen=True)
class Pulled:
    """Models that those at work are drawn to, how far in a step, and how far they follow after a batch."""

    to: Stack
    by: Number
    drag: Number | None = None


@dataclass(frozen=True)
class Ahead:
    """Steps of this length by the gradient where another step leads, on the batch after it."""

    lr: Number


@dataclass(frozen=True)
class Ascent:
    """Dual coordinate ascent: α, which is changed, what a change of it scales rows by, and their share."""

    loss: Conjugate
    alpha: Float[Tensor, "client row output"]
    scale: Float[Tensor, "client 1"]
    share: Float[Tensor, "client 1"]


Way = Pulled | Ahead | Ascent | None
FREE, DRAWN, FOLLOWED, AHEAD = range(4)  # as the kernel calls them
LOSSES = {Squared: 1, Hinge: 2, Logistic: 3}


@dataclass(frozen=True, eq=False)
class Fused:
    """The kernel for these clients, and on a GPU room for the first layers of those that are at work at once.

    make: gives the kernel and its shared memory for a loss of ascent, or for none.
    """

    clients: "PlacedClients"
    make: Callable[[int], tuple[Kernel, int] | None]
    room: Float[Tensor, "block value"]

    @staticmethod
    def of(clients: "PlacedClients") -> "Fused | None":
        """None where the network, its loss, the precision or the data are not what the kernel is made for."""
        network, store, batch = clients.model.network, clients.train.store, clients.batch
        if not isinstance(network, DenseNetwork) or not isinstance(clients.model.loss_of, CrossEntropy):
            return None
        if store.device != clients.device or batch == "all" or not _read_as_stored(clients):
            return None
        single, on = clients.dtype == torch.float32, clients.device
        if single and torch.get_float32_matmul_precision() != "highest":
            return None
        shape = network.widths, batch, store.dtype == torch.uint8
        if on.type == "cpu" and batch <= LARGEST_BATCH["cpu"]:
            return Fused(clients, partial(cpp_library.kernel, *shape, clients.dtype), torch.empty(1, 0))
        if on.type != "cuda" or not single or batch > LARGEST_BATCH["cuda"]:
            return None
        blocks = torch.cuda.get_device_properties(on).multi_processor_count
        kept = torch.empty(blocks, room(network.widths), device=on)
        return Fused(clients, partial(compiled, *shape, on.index or 0), kept)

    def __call__(
        self, w: Stack, cohort: Cohort, plan: BatchPlan, lr: Number = 0.0, times: int = 1, way: Way = None
    ) -> bool:
        """All steps of the plan, each batch `times` times, in place, if there is a kernel for them."""
        ascent = LOSSES.get(type(way.loss)) if isinstance(way, Ascent) else 0
        if ascent is None or not w.is_contiguous() or plan.rows.shape[2] != self.clients.batch:
            return False
        if isinstance(way, Ascent) and not way.alpha.is_contiguous():
            return False
        made = self.make(ascent)
        if made is None:
            return False
        train, scale, l2 = self.clients.train, self.clients.scale, self.clients.model.l2
        rate = _each(lr, w)
        shift, factor = (_constants(scale.kind, each, cohort.ids, w) for each in (scale.shift, scale.factor))
        pull, drag, anchor, kind, alphas = rate, rate, w, FREE, 0
        if isinstance(way, Pulled):
            pull, anchor, kind = _each(way.by, w), way.to, DRAWN
            if way.drag is not None:
                drag, kind = _each(way.drag, w), FOLLOWED
        elif isinstance(way, Ahead):
            pull, kind = _each(way.lr, w), AHEAD
            drag = 1 - l2 * pull
        elif isinstance(way, Ascent):
            pull, drag = way.scale.flatten().contiguous(), way.share.flatten().contiguous()
            anchor, alphas = way.alpha, way.alpha.shape[1]
        kernel, shared = made
        apart = *plan.rows.stride()[:2], *plan.weight.stride()[:2]
        kernel(
            min(w.shape[0], len(self.room)),
            THREADS,
            [
                *(w, self.room, anchor, train.store, train.row, train.y, plan.rows, plan.weight),
                *(rate, 1 - l2 * rate, pull, drag, shift, factor, cohort.first.contiguous()),
                torch.zeros(1, dtype=torch.int32, device=w.device),
                *(w.shape[0], plan.rows.shape[0], times, *apart, kind, alphas),
            ],
            shared,
        )
        return True

    def tallied(self, W: Stack, part: ClientRows) -> Tally | None:
        """Sums of loss and right answers over all rows of every client, on a CPU that has a compiler."""
        network, train, scale = self.clients.model.network, self.clients.train, self.clients.scale
        assert isinstance(network, DenseNetwork)
        alike = part.store.dtype == train.store.dtype and part.store.is_contiguous()
        if self.clients.device.type != "cpu" or not alike:
            return None
        everyone = torch.arange(len(W))
        shift, factor = (_constants(scale.kind, each, everyone, W) for each in (scale.shift, scale.factor))
        return cpp_library.tallied(W, part, network.widths, shift, factor)


def room(widths: tuple[int, ...]) -> int:
    """Numbers that a block keeps: the first layer, and all that models are drawn to, filled up and turned."""
    filled = [widths[0] + -widths[0] % 8, *(width + -width % 4 for width in widths[1:])]
    layers = [i * o for i, o in pairwise(filled)]
    return layers[0] + sum(layers)


def _read_as_stored(clients: "PlacedClients") -> bool:
    """Whether rows lie as the kernel reads them: what models see, or bytes with two constants a client."""
    store, scale = clients.train.store, clients.scale
    features = store[0].numel() if len(store) else 0
    if clients.train.y.dtype != torch.int64 or not store.is_contiguous() or not features:
        return False
    if store.dtype == torch.uint8:
        whole = features % 16 == 0 or clients.device.type == "cpu"  # a GPU reads sixteen at once
        return whole and scale.kind != "none" and scale.shift[0].numel() == 1
    return store.dtype == clients.dtype and scale.kind == "none"


def _each(number: Number, w: Stack) -> Float[Tensor, "client"]:
    """A setting of every client."""
    if isinstance(number, PerRun):
        return at_rows(number, w.shape[0]).flatten().to(w).contiguous()
    try:
        return torch.full((w.shape[0],), number, dtype=w.dtype, device=w.device)
    except TypeError as error:
        raise InputError(f"task: a setting of steps is {number!r}; pass a number") from error


def _constants(kind: str, constants: Tensor, ids: Int64[Tensor, "_"], w: Stack) -> Float[Tensor, "client"]:
    """Of the scale, for every client; any where features are read as they are."""
    if kind == "none":
        return torch.zeros(w.shape[0], dtype=w.dtype, device=w.device)
    at = ids[: w.shape[0]] if kind == "client" else torch.zeros_like(ids[: w.shape[0]])
    return constants.to(w).flatten()[at]  # they stay on the host where rows do


def source(
    widths: tuple[int, ...], batch: int, as_bytes: bool, ascent: int, shared: int, threads: int
) -> str:
    """The kernel's text, with its constants."""
    given = {
        "WIDTHS": ",".join(map(str, widths)),
        "BATCH": batch,
        "BYTES": int(as_bytes),
        "ASCENT": ascent,
        "SHARED": shared,
        "THREADS": threads,
    }
    return nvrtc.text(given, Path(__file__).parent, *FILES)


@cache
def compiled(
    widths: tuple[int, ...], batch: int, as_bytes: bool, device: int, ascent: int
) -> tuple[Kernel, int] | None:
    """The kernel and its shared memory; None where it cannot be made, or the network is too large for it."""
    shared = nvrtc.shared_memory(torch.device("cuda", device))
    if not shared:
        return None
    made = nvrtc.compiled(source(widths, batch, as_bytes, ascent, shared, THREADS), ["steps"])
    if made is None:
        return None
    made["steps"].shares(shared)
    return made["steps"], shared
