"""The kernel of `cpp/`: every call into it is checked here, so that none reads or writes out of bounds."""

import ctypes
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.data.client_rows import ClientRows
from fedlap.errors import InputError
from fedlap.kernels.cpp_compiler import Built, build_library
from fedlap.training.scores import Tally

TYPES = {torch.float32: "float", torch.float64: "double"}
AT_ONCE = 64  # rows that are scored together
LARGEST = 2**31 - 64  # numbers of a layer and a batch together, which the kernel counts by C's int
FREE = 0  # as the kernel calls steps without a second stack of models
SETTINGS = (
    *("learning rates", "shares of models that stay", "pulls", "drags"),
    *("shifts of features", "factors of features"),
)

MEMORY = 1  # of the codes that the kernel returns; the others are these
FAILURES = {
    2: "row number {}, but training or test rows are 0 to {rows}",
    3: "a row at place {} of the store, which has places 0 to {places}",
    4: "label {}, but labels are 0 to {labels}",
    5: "row number {} among its own, but its dual variables are 0 to {duals}",
}


class Library:
    """The functions of the compiled library, for numbers of one type."""

    def __init__(self, built: Built, dtype: torch.dtype) -> None:
        """Load it from its file."""
        self.compiler, self._dtype = built.compiler, dtype
        library = ctypes.CDLL(str(built.path))
        self._steps, self._tally = library.steps, library.tally
        self._steps.restype = self._tally.restype = ctypes.c_longlong

    def steps(self, args: Sequence[Any], batch: int, ascent: int, widths: tuple[int, ...]) -> None:
        """Make all steps of a round, given what a GPU's kernel is given."""
        tensors = [each for each in args if isinstance(each, Tensor)]
        w, _, anchor, store, row, y, rows, weight, *each, first, _ = tensors
        clients, batches, times, *_, kind, alphas = (each for each in args if isinstance(each, int))
        real, whole = self._dtype, torch.int64
        stored, placed = self._check_rows(store, row, y, widths)
        _check("models", w, real, (clients, _size(widths)))
        if ascent:
            if len(widths) != 2:
                raise InputError(f"kernel: dual ascent on {len(widths) - 1} layers; use a linear model")
            _check("dual variables", anchor, real, (clients, alphas, widths[1]))
        elif kind != FREE:
            _check("models to be pulled to", anchor, real, (clients, _size(widths)))
        for name, setting in zip(SETTINGS, each, strict=True):
            _check(name, setting, real, (clients,))
        _check("first rows", first, whole, (clients,))
        for name, planned, dtype in (
            ("row numbers", rows, whole),
            ("weights of rows", weight, torch.float64),
        ):
            _check(name, planned, dtype, (batches, clients, batch), strided=True)
        if not 0 < times <= LARGEST:
            raise InputError(f"kernel: each batch {times} times; it must be 1 to {LARGEST}")
        apart = *rows.stride()[:2], *weight.stride()[:2]
        shape = (batch, int(store.dtype == torch.uint8), ascent, len(widths) - 1, *widths)
        numbers = (clients, batches, times, *apart, kind, alphas, placed, stored, *shape)
        self._call(self._steps, tensors, numbers, (placed, stored, widths[-1], alphas))

    def tally(
        self,
        W: Tensor,
        part: ClientRows,
        widths: tuple[int, ...],
        shift: Float[Tensor, "client"],
        factor: Float[Tensor, "client"],
    ) -> Tally:
        """Sum loss and right answers over all rows of every client."""
        clients, store, row, real = part.count.shape[0], part.store, part.row, self._dtype
        stored, placed = self._check_rows(store, row, part.y, widths)
        _check("models", W, real, (clients, _size(widths)), strided=True)
        for name, tensor in (("numbers of rows", part.count), ("first rows", part.first)):
            _check(name, tensor, torch.int64, (clients,))
        for name, constants in zip(SETTINGS[-2:], (shift, factor), strict=True):
            _check(name, constants, real, (clients,))
        loss, hits = torch.zeros(2, clients, dtype=torch.float64).unbind()
        tensors = [W, store, row, part.y, part.first, part.count, shift, factor, loss, hits]
        shape = (AT_ONCE, int(store.dtype == torch.uint8), len(widths) - 1, *widths)
        numbers = (clients, W.stride(0), placed, stored, *shape)
        self._call(self._tally, tensors, numbers, (placed, stored, widths[-1], 0))
        return Tally(loss, hits, part.count)

    def _check_rows(self, store: Tensor, row: Tensor, y: Tensor, widths: tuple[int, ...]) -> tuple[int, int]:
        """Raise InputError unless rows lie as the kernel reads them; count those stored and placed."""
        if store.dim() < 2 or store.numel() != store.shape[0] * widths[0]:
            raise InputError(
                f"kernel: rows of shape {tuple(store.shape[1:])} for a model of {widths[0]} features; "
                "pass rows and models of one federation"
            )
        stored, placed = store.shape[0], row.numel()  # `len` of a tensor takes a microsecond
        bytes_or_real = torch.uint8 if store.dtype == torch.uint8 else self._dtype
        _check("features", store, bytes_or_real, store.shape)
        _check("places of rows", row, torch.int64, (placed,))
        _check("labels", y, torch.int64, (placed,))
        return stored, placed

    def _call(
        self, function: Any, tensors: Sequence[Tensor], numbers: Sequence[int], ends: tuple[int, ...]
    ) -> None:
        """Call it with as many threads as PyTorch has, and raise what failed; `ends` bound what it checks."""
        where = (ctypes.c_longlong * 2)()
        code = function(
            (ctypes.c_void_p * len(tensors))(*(each.data_ptr() for each in tensors)),
            (ctypes.c_longlong * len(numbers))(*numbers),
            ctypes.c_longlong(torch.get_num_threads()),
            _parallel(),
            where,
        )
        if code == MEMORY:
            raise MemoryError(
                "kernel: no memory for a batch; use a smaller batch, model or number of threads"
            )
        if code:
            last = dict(zip(("rows", "places", "labels", "duals"), (end - 1 for end in ends), strict=True))
            what = FAILURES[code].format(where[1], **last)
            raise InputError(f"kernel: the client at place {where[0]} has {what}; correct its rows")


def kernel(
    widths: tuple[int, ...], batch: int, as_bytes: bool, dtype: torch.dtype, ascent: int
) -> tuple[Callable[..., None], int] | None:
    """All steps of a round, called as a GPU's kernel is; None where it cannot be compiled."""
    library = compiled(dtype)
    if library is None or max(widths) * batch > LARGEST:
        return None

    def call(blocks: int, threads: int, args: list[Any], shared: int) -> None:
        library.steps(args, batch, ascent, widths)

    return call, 0


def tallied(
    W: Float[Tensor, "client param"],
    part: ClientRows,
    widths: tuple[int, ...],
    shift: Float[Tensor, "client"],
    factor: Float[Tensor, "client"],
) -> Tally | None:
    """Sums of loss and right answers over all rows of every client; None where it cannot be compiled."""
    library = compiled(W.dtype)
    if library is None or W.stride(1) != 1 or max(widths) * AT_ONCE > LARGEST:
        return None
    return library.tally(W, part, widths, shift, factor)


@cache
def compiled(dtype: torch.dtype) -> Library | None:
    """The library for numbers of this type; None where it cannot be compiled or its folder is not safe."""
    if dtype not in TYPES:
        return None
    try:
        built = build_library(f"-DREAL={TYPES[dtype]}")
        return None if built is None else Library(built, dtype)
    except (OSError, subprocess.SubprocessError):  # no place for it, or no such compiler
        return None


def identify_kernel(dtype: torch.dtype) -> str | None:
    """The compiler of the kernel that steps on a CPU use; None where they go without one."""
    library = compiled(dtype)
    return None if library is None else library.compiler


@cache
def _parallel() -> ctypes.c_void_p:
    """OpenMP's function for threads, which PyTorch has loaded; null where it uses another."""
    found = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    return ctypes.c_void_p(None) if found is None else ctypes.cast(found, ctypes.c_void_p)


def _size(widths: tuple[int, ...]) -> int:
    """How many parameters a network of these widths has."""
    return sum((ins + 1) * outs for ins, outs in pairwise(widths))


def _check(
    name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], strided: bool = False
) -> None:
    """Raise InputError unless the kernel can read this: contiguous or, if strided, along its last axis."""
    alike = tensor.dtype is dtype and tensor.is_cpu and tensor.shape == shape
    if alike and (tensor.is_contiguous() or (strided and (tensor.stride(-1) == 1 or shape[-1] == 1))):
        return
    raise InputError(
        f"kernel: {name} are {tensor.dtype} of shape {tuple(tensor.shape)} and strides {tensor.stride()} on "
        f"{tensor.device}; pass a contiguous tensor of {dtype} and shape {tuple(shape)} on cpu"
    )
