"""All local steps of a round of dense networks in one kernel (see `cuda/` and, for a CPU, `cpp/`)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedlap.algorithms.conjugates import Conjugate, Hinge, Logistic, Squared
from fedlap.algorithms.task import Setting
from fedlap.data.client_rows import ClientRows
from fedlap.errors import InputError
from fedlap.kernels import cpp_library, nvrtc
from fedlap.models import CrossEntropy, DenseNetwork
from fedlap.models.model import Stack
from fedlap.training.batches import BatchPlan, Cohort
from fedlap.training.scores import Tally

if TYPE_CHECKING:
    from fedlap.training.placement import PlacedClients

KernelCall = Callable[..., None]

CUDA_SOURCES = (
    "cuda/dense/layout.cu",
    "cuda/dense/inner.cu",
    "cpp/dual.hpp",
    "cuda/dense/loss.cu",
    "cuda/dense/first.cu",
    "cuda/dense/steps.cu",
)
# Rows per batch: up to these sizes a GPU's sums stay in its registers, and a CPU's rows in its cache.
LARGEST_BATCH = {"cuda": 32, "cpu": 128}
THREADS = 256  # threads per block


@dataclass(frozen=True)
class AffineStep:
    """Gradient steps with an affine term: w ← w − lr ∇F̃(w) − pull (w − anchor) − shift.

    anchor: None leaves out the pull.
    shift: one row per client, in the shape of w; None leaves out the shift.
    follow: after each batch the anchor moves by follow (w − anchor); None leaves the anchor fixed.
    """

    anchor: Stack | None = None
    pull: Setting = 0.0
    shift: Stack | None = None
    follow: Setting | None = None


@dataclass(frozen=True)
class MamlLookahead:
    """First-order MAML: a trial step on one batch, then a step of length `lr` on the next batch.

    The second gradient is taken at the trial point and applied to the parameters before the trial step.
    """

    lr: Setting


@dataclass(frozen=True)
class TurningStep:
    """Gradient steps that also turn the model: w ← w − lr ∇F̃(w) + pull (v − (v·w) w/‖w‖²)/‖w‖.

    direction: v, one row per client, in the shape of w.
    """

    direction: Stack
    pull: Setting


@dataclass(frozen=True)
class BlockStep:
    """Gradient steps on the parameters from `first` to before `last`, which are whole layers."""

    first: int
    last: int


@dataclass(frozen=True)
class DualAscent:
    """Dual coordinate ascent (SDCA) on linear models.

    alpha: dual variables, updated in place.
    scale: factor per client from a change of α to a change of the model.
    share: fraction of the rows of each batch that take part.
    """

    loss: Conjugate
    alpha: Float[Tensor, "client row output"]
    scale: Float[Tensor, "client 1"]
    share: Float[Tensor, "client 1"]


StepVariant = AffineStep | MamlLookahead | TurningStep | BlockStep | DualAscent | None
PLAIN, ANCHORED, MOVING_ANCHOR, LOOKAHEAD = range(4)  # codes shared with the kernels
TURNING, BLOCK = 4, 5  # only the CPU's kernel has these
DUAL_LOSS_CODES = {Squared: 1, Hinge: 2, Logistic: 3}


@dataclass(frozen=True, eq=False)
class DenseKernel:
    """The kernel for these clients.

    compile: returns the kernel and its shared memory in bytes for a dual loss code (0: gradient steps), with
        or without a shift.
    scratch: on a GPU, one row per block with space for the first layer, the anchor and the shift.
    """

    clients: "PlacedClients"
    compile: Callable[[int, bool], tuple[KernelCall, int] | None]
    scratch: Float[Tensor, "block value"]

    @staticmethod
    def of(clients: "PlacedClients") -> "DenseKernel | None":
        """The kernel, or None if it does not support the network, its loss, the precision or the data.

        Weighted rows are not supported.
        """
        network, store, batch = clients.model.network, clients.train.store, clients.batch
        if clients.train.weight is not None:  # A kernel reads a weight of zero as the end of a batch.
            return None
        if not isinstance(network, DenseNetwork) or not isinstance(clients.model.loss_function, CrossEntropy):
            return None
        if store.device != clients.device or batch == "all" or not _can_read_rows(clients):
            return None
        single, device = clients.dtype == torch.float32, clients.device
        if single and torch.get_float32_matmul_precision() != "highest":
            return None
        shape = network.widths, batch, store.dtype == torch.uint8
        if device.type == "cpu" and batch <= LARGEST_BATCH["cpu"]:
            return DenseKernel(
                clients, partial(cpp_library.bind_kernel, *shape, clients.dtype), torch.empty(1, 0)
            )
        if device.type != "cuda" or not single or batch > LARGEST_BATCH["cuda"]:
            return None
        blocks = torch.cuda.get_device_properties(device).multi_processor_count
        scratch = torch.empty(blocks, count_scratch_values(network.widths), device=device)
        return DenseKernel(clients, partial(compile_kernel, *shape, device.index or 0), scratch)

    def __call__(
        self,
        w: Stack,
        cohort: Cohort,
        plan: BatchPlan,
        lr: Setting = 0.0,
        times: int = 1,
        variant: StepVariant = None,
    ) -> bool:
        """Take all steps of the plan in place, each batch `times` times; return False if no kernel can."""
        ascent = DUAL_LOSS_CODES.get(type(variant.loss)) if isinstance(variant, DualAscent) else 0
        if ascent is None or not w.is_contiguous() or plan.rows.shape[2] != self.clients.batch:
            return False
        if not all(tensor.is_contiguous() for tensor in _list_tensors(variant)):
            return False
        if isinstance(variant, TurningStep | BlockStep) and self.scratch.numel():  # the kernel of a GPU
            return False
        shift = variant.shift if isinstance(variant, AffineStep) else None
        compiled = self.compile(ascent, shift is not None)
        if compiled is None:
            return False
        train, scale, l2 = self.clients.train, self.clients.scale, self.clients.model.l2
        rate = _expand_setting(lr, w)
        # Variants share arguments: `follow` is also a lookahead's decay and an ascent's share, `anchor` is
        # also a direction, and `pull` and `follow` are also the layers of a block. If there is no anchor or
        # no shift, its argument is w, which the kernel then ignores.
        pull, follow, anchor, kind, alphas = rate, rate, w, PLAIN, 0
        if isinstance(variant, AffineStep):
            if variant.anchor is not None:
                pull, anchor, kind = _expand_setting(variant.pull, w), variant.anchor, ANCHORED
                if variant.follow is not None:
                    follow, kind = _expand_setting(variant.follow, w), MOVING_ANCHOR
        elif isinstance(variant, MamlLookahead):
            pull, kind = _expand_setting(variant.lr, w), LOOKAHEAD
            follow = 1 - l2 * pull
        elif isinstance(variant, TurningStep):
            pull, anchor, kind = _expand_setting(variant.pull, w), variant.direction, TURNING
        elif isinstance(variant, BlockStep):
            network = self.clients.model.network
            assert isinstance(network, DenseNetwork)
            layers = find_layers(network.widths, variant)
            if layers is None:
                return False
            pull, follow, kind = _expand_setting(layers[0], w), _expand_setting(layers[1], w), BLOCK
        elif isinstance(variant, DualAscent):
            pull, follow = variant.scale.flatten().contiguous(), variant.share.flatten().contiguous()
            anchor, alphas = variant.alpha, variant.alpha.shape[1]
        kernel, shared = compiled
        row_step, row_client = plan.rows.stride()[:2]
        weight_step, weight_client = plan.weight.stride()[:2]
        arguments = cpp_library.StepArguments(
            w=w,
            scratch=self.scratch,
            anchor=anchor,
            shift=w if shift is None else shift,
            store=train.store,
            place=train.row,
            label=train.y,
            rows=plan.rows,
            weight=plan.weight,
            lr=rate,
            decay=1 - l2 * rate,
            pull=pull,
            follow=follow,
            feature_shift=_gather_scale(scale.kind, scale.shift, cohort.ids, w),
            feature_factor=_gather_scale(scale.kind, scale.factor, cohort.ids, w),
            first=cohort.first.contiguous(),
            next_client=torch.zeros(1, dtype=torch.int32, device=w.device),
            clients=w.shape[0],
            batches=plan.rows.shape[0],
            times=times,
            row_step=row_step,
            row_client=row_client,
            weight_step=weight_step,
            weight_client=weight_client,
            kind=kind,
            has_shift=int(shift is not None),
            alphas=alphas,
        )
        kernel(min(w.shape[0], len(self.scratch)), THREADS, arguments, shared)
        return True

    def tally(self, W: Stack, client_rows: ClientRows) -> Tally | None:
        """Sums of loss and correct predictions over each client's rows; None without the CPU kernel."""
        network, train, scale = self.clients.model.network, self.clients.train, self.clients.scale
        assert isinstance(network, DenseNetwork)
        readable = client_rows.store.dtype == train.store.dtype and client_rows.store.is_contiguous()
        if self.clients.device.type != "cpu" or not readable:
            return None
        everyone = torch.arange(len(W))
        shift, factor = (_gather_scale(scale.kind, t, everyone, W) for t in (scale.shift, scale.factor))
        return cpp_library.tally_rows(W, client_rows, network.widths, shift, factor)


def find_layers(widths: tuple[int, ...], block: BlockStep) -> tuple[int, int] | None:
    """Return the first layer of a block and the one after its last, or None if it has parts of layers."""
    ends = [0, *accumulate((ins + 1) * outs for ins, outs in pairwise(widths))]
    if block.first not in ends or block.last not in ends:
        return None
    return ends.index(block.first), ends.index(block.last)


def count_scratch_values(widths: tuple[int, ...]) -> int:
    """Values per block in global memory: the first layer, the anchor and the shift, padded and transposed."""
    padded = [widths[0] + -widths[0] % 8, *(width + -width % 4 for width in widths[1:])]
    layers = [i * o for i, o in pairwise(padded)]
    return layers[0] + 2 * sum(layers)


def _list_tensors(variant: StepVariant) -> list[Tensor]:
    """The tensors of a variant that the kernel reads by address."""
    if isinstance(variant, AffineStep):
        return [tensor for tensor in (variant.anchor, variant.shift) if tensor is not None]
    if isinstance(variant, TurningStep):
        return [variant.direction]
    return [variant.alpha] if isinstance(variant, DualAscent) else []


def _can_read_rows(clients: "PlacedClients") -> bool:
    """Return whether the kernel can read rows as stored: unscaled floats, or bytes with scalar scaling."""
    store, scale = clients.train.store, clients.scale
    features = store[0].numel() if len(store) else 0
    if clients.train.y.dtype != torch.int64 or not store.is_contiguous() or not features:
        return False
    if store.dtype == torch.uint8:
        aligned = features % 16 == 0 or clients.device.type == "cpu"  # a GPU reads sixteen bytes at once
        return aligned and scale.kind != "none" and scale.shift[0].numel() == 1
    return store.dtype == clients.dtype and scale.kind == "none"


def _expand_setting(number: Setting, w: Stack) -> Float[Tensor, "client"]:
    """A setting as one value per client."""
    if isinstance(number, Tensor):
        return number.flatten().to(w).contiguous()
    try:
        return torch.full((w.shape[0],), number, dtype=w.dtype, device=w.device)
    except TypeError as error:
        raise InputError(f"task: a step setting is {number!r}; pass a number") from error


def _gather_scale(kind: str, constants: Tensor, ids: Int64[Tensor, "_"], w: Stack) -> Float[Tensor, "client"]:
    """One scaling constant per client; zeros if features are not scaled, since the kernel ignores them."""
    if kind == "none":
        return torch.zeros(w.shape[0], dtype=w.dtype, device=w.device)
    places = ids[: w.shape[0]] if kind == "client" else torch.zeros_like(ids[: w.shape[0]])
    return constants.to(w).flatten()[places]  # constants of rows in host memory are on the host, too


def assemble_source(
    widths: tuple[int, ...],
    batch: int,
    as_bytes: bool,
    ascent: int,
    shifted: bool,
    shared: int,
    threads: int,
) -> str:
    """The source of the kernel, preceded by its constants."""
    constants = {
        "WIDTHS": ",".join(map(str, widths)),
        "BATCH": batch,
        "BYTES": int(as_bytes),
        "ASCENT": ascent,
        "SHIFT": int(shifted),
        "SHARED": shared,
        "THREADS": threads,
    }
    return nvrtc.join_sources(constants, Path(__file__).parent, *CUDA_SOURCES)


@cache
def compile_kernel(
    widths: tuple[int, ...], batch: int, as_bytes: bool, device: int, ascent: int, shifted: bool
) -> tuple[KernelCall, int] | None:
    """The kernel and its shared memory in bytes; None if it does not compile or the network is too large."""
    shared = nvrtc.query_shared_memory(torch.device("cuda", device))
    if not shared:
        return None
    kernels = nvrtc.compile_kernels(
        assemble_source(widths, batch, as_bytes, ascent, shifted, shared, THREADS), ["steps"]
    )
    if kernels is None:
        return None
    kernels["steps"].set_shared_memory(shared)
    return kernels["steps"], shared
