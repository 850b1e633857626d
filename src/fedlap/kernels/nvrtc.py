"""CUDA kernels, compiled from source by NVRTC when they are first used."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.cuda import _utils

COMMON_SOURCE = Path(__file__).parent / "cuda" / "common.cu"
STATIC_SHARED_BYTES = 64  # bytes of shared memory that a kernel may declare statically


class CudaKernel:
    """A kernel that PyTorch compiled, with a launch that costs less time than PyTorch's."""

    def __init__(self, compiled: Any) -> None:
        """Wrap the object that PyTorch returns, and keep it alive."""
        self._compiled, self._function = compiled, compiled.func
        self._launch, self._check = _utils._get_gpu_runtime_library().cuLaunchKernel, _utils._check_cuda
        self._slots: dict[int, tuple[Any, Any, Any]] = {}

    def set_shared_memory(self, shared: int) -> None:
        """Allow this many bytes of shared memory per block."""
        self._compiled.set_shared_memory_config(shared)

    def __call__(
        self, blocks: int, threads: int, args: Sequence[Tensor | int | float], shared: int = 0
    ) -> None:
        """Launch the kernel; tensors are passed as addresses, numbers as C's int or double."""
        integers, doubles, addresses = self._slots.get(len(args)) or self._allocate_slots(len(args))
        for place, argument in enumerate(args):
            if isinstance(argument, float):
                doubles[place] = argument
            else:
                integers[place] = argument.data_ptr() if isinstance(argument, Tensor) else argument
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._check(
            self._launch(self._function, blocks, 1, 1, threads, 1, 1, shared, stream, addresses, None)
        )

    def _allocate_slots(self, count: int) -> tuple[Any, Any, Any]:
        """Eight-byte slots for `count` arguments, viewed as integers and as doubles, and their addresses.

        A launch copies the arguments, so the slots are reused.
        """
        integers = (ctypes.c_int64 * count)()
        doubles = (ctypes.c_double * count).from_buffer(integers)
        begin = ctypes.addressof(integers)
        addresses = (ctypes.c_void_p * count)(*(begin + 8 * place for place in range(count)))
        self._slots[count] = integers, doubles, addresses
        return self._slots[count]


def join_sources(constants: Mapping[str, object], folder: Path, *files: str) -> str:
    """One source text: the constants as macros, the common code, then these files of the folder."""
    macros = "".join(f"#define {name} {value}\n" for name, value in constants.items())
    return "\n".join(
        [macros, *(path.read_text("utf-8") for path in (COMMON_SOURCE, *map(folder.joinpath, files)))]
    )


def query_shared_memory(device: torch.device) -> int:
    """Bytes of shared memory available to one block; 0 if kernels cannot be compiled."""
    if torch.version.hip or not hasattr(torch.cuda, "_compile_kernel"):
        return 0
    properties = torch.cuda.get_device_properties(device)
    return max(0, getattr(properties, "shared_memory_per_block_optin", 0) - STATIC_SHARED_BYTES)


def compile_kernels(source: str, names: Sequence[str]) -> dict[str, CudaKernel] | None:
    """The named kernels; None if the source does not compile, as for sizes that it rejects."""
    compile_source: Any = getattr(torch.cuda, "_compile_kernel", None)
    try:
        with set_cuda_home():
            module = _utils._CudaModule(compile_source(source, names[0]).module)
        return {name: CudaKernel(getattr(module, name)) for name in names}
    except (RuntimeError, OSError, ImportError, AttributeError):
        return None


@contextmanager
def set_cuda_home() -> Iterator[None]:
    """Give PyTorch a CUDA_HOME while it compiles: it demands one, though the kernels include no header."""
    from torch.utils import cpp_extension  # imported here, since the import is slow

    home = cpp_extension.CUDA_HOME
    vars(cpp_extension)["CUDA_HOME"] = home or "/"
    try:
        yield
    finally:
        vars(cpp_extension)["CUDA_HOME"] = home
