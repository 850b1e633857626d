"""Kernels of a GPU, compiled for the CPU and run thread by thread; slow, and right to the last barrier."""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from fedlap.engines import fused

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
HEADER = Path(__file__).with_name("emulated.h")
THREADS, SHARED = 64, 100_000
LAUNCH = """
extern "C" void launch(int blocks, void **p, int *n) {
    emulated::run(blocks, THREADS, SHARED, [=] {
        steps(%s);
    });
}
"""
POINTERS = (
    *("float", "float", "float", "void", "long long", "long long", "long long", "double"),
    *(["float"] * 6),
    *("long long", "int"),
)
NUMBERS = 9


@functools.cache
def kernel(widths, batch, as_bytes, ascent):
    """What `fused.compiled` would return on a GPU."""
    source = f'#include "{HEADER}"\n' + fused.source(widths, batch, as_bytes, ascent, SHARED, THREADS)
    source = source.replace("extern __shared__ float s[];", "float *s = emulated::memory;")
    arguments = [f"({kind} *)p[{at}]" for at, kind in enumerate(POINTERS)]
    source += LAUNCH % ", ".join([*arguments, *(f"n[{at}]" for at in range(NUMBERS))])
    folder = Path(tempfile.gettempdir()) / "fedlap-kernels"
    folder.mkdir(exist_ok=True)
    name = hashlib.sha256((source + HEADER.read_text()).encode()).hexdigest()[:16]
    library = folder / f"{name}.so"
    if not library.exists():
        code, made = folder / f"{name}-{os.getpid()}.cpp", folder / f"{name}-{os.getpid()}.so"
        code.write_text(source)
        flags = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-ffp-contract=off"]
        subprocess.run([COMPILER, *flags, "-o", str(made), str(code)], check=True)
        made.replace(library)  # whole, or not there
        code.unlink()
    launch = ctypes.CDLL(str(library)).launch

    def call(grid, block, args, shared_mem):
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        numbers = [each for each in args if isinstance(each, int)]
        assert (len(tensors), len(numbers)) == (len(POINTERS), NUMBERS)
        assert all(each.device.type == "cpu" for each in tensors)
        pointers = (ctypes.c_void_p * len(tensors))(*(each.data_ptr() for each in tensors))
        launch(grid[0], pointers, (ctypes.c_int * len(numbers))(*numbers))

    return call, SHARED
