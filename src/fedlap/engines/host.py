"""The kernel of `cpp/`, compiled for this machine where it has a compiler, once for all shapes."""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.parts import Part
from fedlap.scores import Tally

FILES = [Path(__file__).with_name("cpp") / name for name in ("steps.cpp", "layers.hpp", "dual.hpp")]
FLAGS = ("-std=c++20", "-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC", "-pthread")
TYPES = {torch.float32: "float", torch.float64: "double"}
AT_ONCE = 64  # rows that are scored together
PATIENCE = 120  # seconds that a compiler may take


class Library:
    """Its functions, which take addresses and numbers."""

    def __init__(self, path: Path) -> None:
        """Loaded from a file."""
        self._library = ctypes.CDLL(str(path))

    def __call__(self, function: str, tensors: Sequence[Tensor], numbers: Sequence[int]) -> None:
        """With as many threads as PyTorch has."""
        self._library[function](
            (ctypes.c_void_p * len(tensors))(*(each.data_ptr() for each in tensors)),
            (ctypes.c_longlong * len(numbers))(*numbers),
            ctypes.c_longlong(torch.get_num_threads()),
            _parallel(),
        )


def kernel(
    widths: tuple[int, ...], batch: int, as_bytes: bool, dtype: torch.dtype, ascent: int
) -> tuple[Callable[..., None], int] | None:
    """All steps of a round, called as a GPU's kernel is; None where it cannot be compiled."""
    library = compiled(dtype)
    if library is None:
        return None
    shape = (batch, int(as_bytes), ascent, len(widths) - 1, *widths)

    def call(blocks: int, threads: int, args: list[Any], shared: int) -> None:
        tensors = [each for each in args if isinstance(each, Tensor)]
        library("steps", tensors, [*(each for each in args if isinstance(each, int)), *shape])

    return call, 0


def tallied(
    W: Float[Tensor, "client param"],
    part: Part,
    widths: tuple[int, ...],
    shift: Float[Tensor, "client"],
    factor: Float[Tensor, "client"],
) -> Tally | None:
    """Sums of loss and right answers over all rows of every client; None where it cannot be compiled."""
    library, as_bytes = compiled(W.dtype), part.store.dtype == torch.uint8
    if library is None or W.stride(1) != 1:
        return None
    loss, hits = torch.zeros(2, len(W), dtype=torch.float64).unbind()
    tensors = [W, part.store, part.row, part.y, part.first, part.count, shift, factor, loss, hits]
    library("tally", tensors, [len(W), W.stride(0), AT_ONCE, int(as_bytes), len(widths) - 1, *widths])
    return Tally(loss, hits, part.count)


@cache
def _parallel() -> ctypes.c_void_p:
    """OpenMP's function for threads, which PyTorch has loaded; null where it uses another."""
    found = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    return ctypes.c_void_p(None) if found is None else ctypes.cast(found, ctypes.c_void_p)


@cache
def compiled(dtype: torch.dtype) -> Library | None:
    """The library for numbers of this type; it lies in the cache folder from then on."""
    compiler = _compiler()
    if compiler is None or dtype not in TYPES:
        return None
    flags = [*FLAGS, f"-DREAL={TYPES[dtype]}"]
    made_of = b"".join(each.read_bytes() for each in FILES) + repr((compiler, flags, _processor())).encode()
    library = _folder() / f"steps-{TYPES[dtype]}-{hashlib.sha256(made_of).hexdigest()[:16]}.so"
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        if not library.exists():
            _compile([*compiler, *flags], library)
        return Library(library)
    except (OSError, subprocess.SubprocessError):  # no place to keep it, or no such compiler
        return None


def _compile(command: list[str], library: Path) -> None:
    """Whole, or not at all: others may look for it meanwhile."""
    made = library.with_suffix(f".{os.getpid()}.so")
    try:
        command = [*command, "-o", str(made), str(FILES[0])]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
        made.replace(library)
    finally:
        made.unlink(missing_ok=True)


def _compiler() -> list[str] | None:
    """$CXX or the system's; none where $CXX is empty."""
    named = os.environ.get("CXX")
    if named is not None:
        words = shlex.split(named)
        return words if words and shutil.which(words[0]) else None
    found = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    return [found] if found else None


def _processor() -> str:
    """What the code is made for: a cache folder may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    about = {line.split(":")[0].strip(): line for line in lines}
    return (
        platform.machine()
        + platform.processor()
        + "".join(about.get(key, "") for key in ("model name", "flags", "Features"))
    )


def _folder() -> Path:
    from fedlap.data.storage import cache_folder  # which knows how to fetch data, and is slow to load

    return cache_folder() / "kernels"
