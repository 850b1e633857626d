"""Calls of the C++ kernel, with checks of every argument, so that none reads or writes out of bounds."""

import ctypes
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.data.client_rows import ClientRows
from fedlap.errors import InputError
from fedlap.kernels.cpp_compiler import CompiledLibrary, build_library
from fedlap.training.scores import Tally

CPP_TYPES = {torch.float32: "float", torch.float64: "double"}
ROWS_PER_SCORED_BLOCK = 64  # rows
LARGEST_BLOCK = 2**31 - 64  # largest width times batch, which the kernel indexes by C's int
NO_ANCHOR = 0  # the kernel's code for steps without an anchor
SETTING_NAMES = (
    *("learning rates", "decay factors", "pulls", "follow factors"),
    *("shifts of features", "factors of features"),
)

OUT_OF_MEMORY = 1  # code returned by the kernel; the other codes follow
FAILURE_TEXTS = {
    2: "row number {}, but rows are 0 to {rows}",
    3: "a row at place {} of the store, but places are 0 to {places}",
    4: "label {}, but labels are 0 to {labels}",
    5: "its row number {}, but its dual variables are 0 to {duals}",
}


class StepArguments(NamedTuple):
    """The arguments of a round's steps, in the order of the CUDA kernel's parameters.

    Tensors per client have one row or one value for each of the `clients`; models are flat rows.
    """

    w: Tensor  # models, updated in place
    scratch: Tensor  # a GPU's memory for transposed models, one row per block
    anchor: Tensor  # in the shape of w; in dual ascent the dual variables
    shift: Tensor  # in the shape of w; read only if `has_shift`
    store: Tensor
    place: Tensor  # of each row in the store
    label: Tensor
    rows: Tensor
    weight: Tensor
    lr: Tensor
    decay: Tensor
    pull: Tensor
    follow: Tensor
    feature_shift: Tensor
    feature_factor: Tensor
    first: Tensor
    next_client: Tensor  # a GPU's counter of the clients that blocks have taken
    clients: int
    batches: int
    times: int
    row_step: int
    row_client: int
    weight_step: int
    weight_client: int
    kind: int
    has_shift: int
    alphas: int


class StepLibrary:
    """The functions of the compiled library, for one floating-point type."""

    def __init__(self, compiled: CompiledLibrary, dtype: torch.dtype) -> None:
        """Load the library from its file."""
        self.compiler, self._dtype = compiled.compiler, dtype
        library = ctypes.CDLL(str(compiled.path))
        self._steps, self._tally = library.steps, library.tally
        self._steps.restype = self._tally.restype = ctypes.c_longlong

    def steps(self, args: StepArguments, batch: int, ascent: int, widths: tuple[int, ...]) -> None:
        """Take all steps of a round in place, after a check of every argument."""
        clients, times, alphas = args.clients, args.times, args.alphas
        real, integer, models = self._dtype, torch.int64, (clients, _count_parameters(widths))
        stored, all_rows = self._check_rows(args.store, args.place, args.label, widths)
        _check_tensor("models", args.w, real, models)
        if ascent:
            if len(widths) != 2:
                raise InputError(f"kernel: dual ascent for {len(widths) - 1} layers; use a linear model")
            _check_tensor("dual variables", args.anchor, real, (clients, alphas, widths[1]))
        elif args.kind != NO_ANCHOR:
            _check_tensor("anchors", args.anchor, real, models)
        if args.has_shift:
            _check_tensor("shifts of steps", args.shift, real, models)
        settings = args.lr, args.decay, args.pull, args.follow, args.feature_shift, args.feature_factor
        for name, setting in zip(SETTING_NAMES, settings, strict=True):
            _check_tensor(name, setting, real, (clients,))
        _check_tensor("first rows", args.first, integer, (clients,))
        for name, planned, dtype in (
            ("row numbers", args.rows, integer),
            ("weights of rows", args.weight, torch.float64),
        ):
            _check_tensor(name, planned, dtype, (args.batches, clients, batch), strided=True)
        if not 0 < times <= LARGEST_BLOCK:
            raise InputError(f"kernel: times = {times}; expected 1 to {LARGEST_BLOCK}")
        # Strides are read from the tensors that were checked, not from the numbers of the call.
        row_strides, weight_strides = args.rows.stride()[:2], args.weight.stride()[:2]
        tensors = [argument for argument in args if isinstance(argument, Tensor)]
        numbers = (
            *(clients, args.batches, times, *row_strides, *weight_strides),
            *(args.kind, args.has_shift, alphas, all_rows, stored),
            *(batch, int(args.store.dtype == torch.uint8), ascent, len(widths) - 1, *widths),
        )
        self._call(self._steps, tensors, numbers, (all_rows, stored, widths[-1], alphas))

    def tally(
        self,
        W: Tensor,
        client_rows: ClientRows,
        widths: tuple[int, ...],
        shift: Float[Tensor, "client"],
        factor: Float[Tensor, "client"],
    ) -> Tally:
        """Sum losses and correct predictions over all rows of every client."""
        clients, store, row, real = (
            client_rows.count.shape[0],
            client_rows.store,
            client_rows.row,
            self._dtype,
        )
        stored, all_rows = self._check_rows(store, row, client_rows.y, widths)
        _check_tensor("models", W, real, (clients, _count_parameters(widths)), strided=True)
        for name, tensor in (("numbers of rows", client_rows.count), ("first rows", client_rows.first)):
            _check_tensor(name, tensor, torch.int64, (clients,))
        for name, constants in zip(SETTING_NAMES[-2:], (shift, factor), strict=True):
            _check_tensor(name, constants, real, (clients,))
        loss, hits = torch.zeros(2, clients, dtype=torch.float64).unbind()
        tensors = [
            W,
            store,
            row,
            client_rows.y,
            client_rows.first,
            client_rows.count,
            shift,
            factor,
            loss,
            hits,
        ]
        shape = (ROWS_PER_SCORED_BLOCK, int(store.dtype == torch.uint8), len(widths) - 1, *widths)
        numbers = (clients, W.stride(0), all_rows, stored, *shape)
        self._call(self._tally, tensors, numbers, (all_rows, stored, widths[-1], 0))
        return Tally(loss, hits, client_rows.count)

    def _check_rows(self, store: Tensor, row: Tensor, y: Tensor, widths: tuple[int, ...]) -> tuple[int, int]:
        """Return the numbers of stored features and of rows; raise InputError for a wrong layout."""
        if store.dim() < 2 or store.numel() != store.shape[0] * widths[0]:
            raise InputError(
                f"kernel: rows of shape {tuple(store.shape[1:])} for a model of {widths[0]} features; "
                "pass rows and models of one federation"
            )
        stored, all_rows = store.shape[0], row.numel()  # `len` of a tensor takes a microsecond
        bytes_or_real = torch.uint8 if store.dtype == torch.uint8 else self._dtype
        _check_tensor("features", store, bytes_or_real, store.shape)
        _check_tensor("places of rows", row, torch.int64, (all_rows,))
        _check_tensor("labels", y, torch.int64, (all_rows,))
        return stored, all_rows

    def _call(
        self, function: Any, tensors: Sequence[Tensor], numbers: Sequence[int], ends: tuple[int, ...]
    ) -> None:
        """Call the function with PyTorch's number of threads; raise InputError if it reports a failure.

        ends: numbers of rows, stored features, labels and dual variables, for the message.
        """
        where = (ctypes.c_longlong * 2)()
        code = function(
            (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors)),
            (ctypes.c_longlong * len(numbers))(*numbers),
            ctypes.c_longlong(torch.get_num_threads()),
            _find_openmp(),
            where,
        )
        if code == OUT_OF_MEMORY:
            raise MemoryError(
                "kernel: no memory for a batch; use a smaller batch, a smaller model or fewer threads"
            )
        if code:
            last = dict(zip(("rows", "places", "labels", "duals"), (end - 1 for end in ends), strict=True))
            failure = FAILURE_TEXTS[code].format(where[1], **last)
            raise InputError(f"kernel: the client at place {where[0]} has {failure}; correct its rows")


def bind_kernel(
    widths: tuple[int, ...], batch: int, as_bytes: bool, dtype: torch.dtype, ascent: int, shifted: bool
) -> tuple[Callable[..., None], int] | None:
    """Return a function that takes all steps of a round, with the signature of the CUDA kernel, or None.

    The library takes steps with and without a shift, so `shifted` makes no difference here.
    """
    library = load_library(dtype)
    if library is None or max(widths) * batch > LARGEST_BLOCK:
        return None

    def call(blocks: int, threads: int, args: StepArguments, shared: int) -> None:
        library.steps(args, batch, ascent, widths)

    return call, 0


def tally_rows(
    W: Float[Tensor, "client param"],
    client_rows: ClientRows,
    widths: tuple[int, ...],
    shift: Float[Tensor, "client"],
    factor: Float[Tensor, "client"],
) -> Tally | None:
    """Sum losses and correct predictions over each client's rows; None if the kernel is not available."""
    library = load_library(W.dtype)
    if library is None or W.stride(1) != 1 or max(widths) * ROWS_PER_SCORED_BLOCK > LARGEST_BLOCK:
        return None
    return library.tally(W, client_rows, widths, shift, factor)


@cache
def load_library(dtype: torch.dtype) -> StepLibrary | None:
    """Return the library for this type; None if it cannot be compiled or its folder is not safe."""
    if dtype not in CPP_TYPES:
        return None
    try:
        compiled = build_library(f"-DREAL={CPP_TYPES[dtype]}")
        return None if compiled is None else StepLibrary(compiled, dtype)
    except (OSError, subprocess.SubprocessError):  # the folder cannot be written, or the compiler failed
        return None


def identify_kernel(dtype: torch.dtype) -> str | None:
    """Return the compiler of the kernel for steps on a CPU; None if no kernel is used."""
    library = load_library(dtype)
    return None if library is None else library.compiler


@cache
def _find_openmp() -> ctypes.c_void_p:
    """Return the address of GOMP_parallel, if PyTorch has loaded this OpenMP, else a null pointer."""
    found = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    return ctypes.c_void_p(None) if found is None else ctypes.cast(found, ctypes.c_void_p)


def _count_parameters(widths: tuple[int, ...]) -> int:
    """Number of parameters of a network with these widths."""
    return sum((ins + 1) * outs for ins, outs in pairwise(widths))


def _check_tensor(
    name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], strided: bool = False
) -> None:
    """Raise InputError unless a tensor is contiguous or, if `strided`, contiguous along its last axis."""
    matches = tensor.dtype is dtype and tensor.is_cpu and tensor.shape == shape
    if matches and (tensor.is_contiguous() or (strided and (tensor.stride(-1) == 1 or shape[-1] == 1))):
        return
    raise InputError(
        f"kernel: {name} are {tensor.dtype} of shape {tuple(tensor.shape)} and strides {tensor.stride()} on "
        f"{tensor.device}; pass a contiguous tensor of {dtype} and shape {tuple(shape)} on cpu"
    )
