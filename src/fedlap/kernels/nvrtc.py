"""Kernels for a GPU, compiled from their text when they are first used."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.cuda import _utils

COMMON = Path(__file__).parent / "cuda" / "common.cu"
STATIC = 64  # bytes of shared memory that a kernel may have beside what it is given


class Kernel:
    """A kernel that PyTorch has compiled, launched with less ado than PyTorch's own call makes."""

    def __init__(self, made: Any) -> None:
        """From what PyTorch makes of it, which must stay."""
        self._made, self._function = made, made.func
        self._launch, self._check = _utils._get_gpu_runtime_library().cuLaunchKernel, _utils._check_cuda
        self._slots: dict[int, tuple[Any, Any, Any]] = {}

    def shares(self, shared: int) -> None:
        """So many bytes will be shared by a block."""
        self._made.set_shared_memory_config(shared)

    def __call__(
        self, blocks: int, threads: int, args: Sequence[Tensor | int | float], shared: int = 0
    ) -> None:
        """Launch it: tensors are given as addresses, numbers as C's int or double."""
        whole, real, addresses = self._slots.get(len(args)) or self._laid(len(args))
        for at, each in enumerate(args):
            if isinstance(each, float):
                real[at] = each
            else:
                whole[at] = each.data_ptr() if isinstance(each, Tensor) else each
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._check(
            self._launch(self._function, blocks, 1, 1, threads, 1, 1, shared, stream, addresses, None)
        )

    def _laid(self, count: int) -> tuple[Any, Any, Any]:
        """Places for so many arguments, eight bytes each, seen as numbers of both kinds, and their addresses.

        What is there is copied at a launch.
        """
        whole = (ctypes.c_int64 * count)()
        real = (ctypes.c_double * count).from_buffer(whole)
        begin = ctypes.addressof(whole)
        addresses = (ctypes.c_void_p * count)(*(begin + 8 * at for at in range(count)))
        self._slots[count] = whole, real, addresses
        return self._slots[count]


def text(constants: Mapping[str, object], folder: Path, *files: str) -> str:
    """The text of kernels: their constants, what all have in common, and files, one after another."""
    given = "".join(f"#define {name} {value}\n" for name, value in constants.items())
    return "\n".join([given, *(path.read_text("utf-8") for path in (COMMON, *map(folder.joinpath, files)))])


def shared_memory(device: torch.device) -> int:
    """Bytes that a block of threads may share; none where nothing can be compiled."""
    if torch.version.hip or not hasattr(torch.cuda, "_compile_kernel"):
        return 0
    properties = torch.cuda.get_device_properties(device)
    return max(0, getattr(properties, "shared_memory_per_block_optin", 0) - STATIC)


def compiled(source: str, names: Sequence[str]) -> dict[str, Kernel] | None:
    """The kernels of these names; None where they cannot be made, or say that they are not for this."""
    make: Any = getattr(torch.cuda, "_compile_kernel", None)
    try:
        with no_toolkit():
            module = _utils._CudaModule(make(source, names[0]).module)
        return {name: Kernel(getattr(module, name)) for name in names}
    except (RuntimeError, OSError, ImportError, AttributeError):
        return None


@contextmanager
def no_toolkit() -> Iterator[None]:
    """PyTorch asks where CUDA's headers are before it compiles; the kernels need none of them."""
    from torch.utils import cpp_extension  # slow, and for this alone

    home = cpp_extension.CUDA_HOME
    vars(cpp_extension)["CUDA_HOME"] = home or "/"
    try:
        yield
    finally:
        vars(cpp_extension)["CUDA_HOME"] = home
