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

from fedlap.kernels import cnn, dense

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
HEADER = Path(__file__).with_name("emulated.h")
THREADS, SHARED = 64, 100_000
LAUNCH = """
extern "C" void launch_%s(int blocks, int threads, int shared, void **p, int *n, double *r) {
    emulated::run(blocks, threads, shared, [=] { %s(%s); });
}
"""
STEPS = (
    *(["float"] * 4),
    *("void", "long long", "long long", "long long", "double"),
    *(["float"] * 6),
    *("long long", "int"),
    *(["number"] * 10),
)
FLOAT, BYTE, INT, REAL = "float", "unsigned char", "number", "real"
LAYER = (FLOAT, FLOAT, FLOAT, FLOAT, BYTE, INT, INT)
CONVOLUTIONS = {
    "first_forward": LAYER,
    "second_forward": LAYER,
    "second_images": (FLOAT, BYTE, FLOAT, FLOAT, FLOAT, INT),
    "second_filters": (FLOAT, FLOAT, BYTE, FLOAT, INT, INT, INT),
    "first_filters": (FLOAT, FLOAT, BYTE, FLOAT),
    "transform_filters": (*[FLOAT] * 4, INT),
    "update_parameters": (*[FLOAT] * 6, *[INT] * 5, REAL, REAL),
    "sizes": ("int",),
}
FULLS = {
    "full_forward": (FLOAT, FLOAT, FLOAT, INT),
    "full_backward": (*[FLOAT] * 6, INT, INT, INT, REAL, REAL),
    "sizes": ("int",),
}
KINDS = {INT: "n", REAL: "r"}


class UnsupportedKernelError(Exception):
    """A kernel does not support these constants."""


def _launcher(name, kinds):
    """A function that launches a kernel with addresses and numbers in the order of its arguments."""
    counts, arguments = {"p": 0, "n": 0, "r": 0}, []
    for kind in kinds:
        of = KINDS.get(kind, "p")
        arguments.append(f"({kind} *)p[{counts[of]}]" if of == "p" else f"{of}[{counts[of]}]")
        counts[of] += 1
    return LAUNCH % (name, name, ", ".join(arguments))


def _compile(text, signatures):
    """Return for each kernel a function of blocks, threads, bytes that are shared, and arguments."""
    source = f'#include "{HEADER}"\n' + text
    source = source.replace("extern __shared__ float s[];", "float *s = emulated::memory;")
    source += "".join(_launcher(name, kinds) for name, kinds in signatures.items())
    folder = Path(tempfile.gettempdir()) / "fedlap-kernels"
    folder.mkdir(exist_ok=True)
    name = hashlib.sha256((source + HEADER.read_text()).encode()).hexdigest()[:16]
    library = folder / f"{name}.so"
    if not library.exists():
        code, unfinished = folder / f"{name}-{os.getpid()}.cpp", folder / f"{name}-{os.getpid()}.so"
        code.write_text(source)
        flags = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-ffp-contract=off"]
        done = subprocess.run(
            [COMPILER, *flags, "-o", str(unfinished), str(code)], capture_output=True, text=True
        )
        if done.returncode:
            raise UnsupportedKernelError(done.stderr)
        unfinished.replace(library)  # whole, or not there
        code.unlink()
    loaded = ctypes.CDLL(str(library))
    return {name: functools.partial(_call, loaded[f"launch_{name}"], signatures[name]) for name in signatures}


def _call(launch, kinds, blocks, threads, shared, args):
    tensors, whole, real = (
        [value for value in args if isinstance(value, k)] for k in (torch.Tensor, int, float)
    )
    for value, kind in zip(args, kinds, strict=True):
        assert isinstance(value, {INT: int, REAL: float}.get(kind, torch.Tensor))
    assert all(tensor.device.type == "cpu" for tensor in tensors)
    launch(
        *(blocks, threads, shared),
        (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors)),
        (ctypes.c_int * len(whole))(*whole),
        (ctypes.c_double * len(real))(*real),
    )


@functools.cache
def kernel(widths, batch, as_bytes, ascent, shifted):
    """Return the kernel that `dense.compile_kernel` would return on a GPU."""
    text = dense.assemble_source(widths, batch, as_bytes, ascent, shifted, SHARED, THREADS)
    steps = _compile(text, {"steps": STEPS})["steps"]

    def call(blocks, threads, args, shared):
        steps(blocks, THREADS, SHARED, args)

    return call, SHARED


def _launches(text, signatures):
    """Return the launches that `cnn._compile_launches` would return on a GPU."""
    launchers, names = _compile(text, signatures), list(signatures)[:-1]
    sizes = torch.zeros(len(names), 3, dtype=torch.int32)
    launchers["sizes"](1, 1, 0, [sizes])

    def launching(name, threads, shared, blocks):
        return lambda units, args: launchers[name](units * blocks, threads, shared, args)

    return {name: launching(name, *size) for name, size in zip(names, sizes.tolist(), strict=True)}


@functools.cache
def body(image, filters, hidden, shared=232_384):
    """Return what `cnn.compile_cnn_kernels` returns on a GPU with this much shared memory, as an H100's."""

    @functools.cache
    def full(batch):
        if batch > cnn.LARGEST_FULL_LAYER_BATCH:
            return None
        return _launches(cnn.assemble_full_layer_source(image, filters, hidden, batch), FULLS)

    convolution = _launches(cnn.assemble_convolution_source(image, filters, shared), CONVOLUTIONS)
    return cnn.CnnKernels(image, filters, hidden, convolution, full)
