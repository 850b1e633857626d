"""The kernels of a GPU, compiled for one by NVRTC, which needs none; skipped where it is not installed."""

import ctypes
import importlib.util
import re
from pathlib import Path

import pytest

from fedlap.kernels import cnn, dense, nvrtc
from fedlap.models.convolutional import FILTERS, HIDDEN

FOUND = importlib.util.find_spec("nvidia")
PLACES = [Path(place) for place in (FOUND.submodule_search_locations or [])] if FOUND else []
LIBRARIES = sorted(file for place in PLACES for file in place.rglob("libnvrtc.so*"))
SHARED, LESS = 232_384, 166_848  # bytes, of an H100 and its like, and of an A100

pytestmark = pytest.mark.skipif(not LIBRARIES, reason="NVRTC is not installed")


def compile_source(source, architecture="sm_90"):
    """Compile a source; return True if that succeeded, and the compiler's log."""
    for file in LIBRARIES[-1].parent.glob("libnvrtc-builtins.so*"):
        ctypes.CDLL(str(file))  # some versions do not find it in their folder
    library, program, size = ctypes.CDLL(str(LIBRARIES[-1])), ctypes.c_void_p(), ctypes.c_size_t()
    flags = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17", b"--ptxas-options=-v"]
    options = (ctypes.c_char_p * len(flags))(*flags)
    status = library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    assert status == 0
    failed = library.nvrtcCompileProgram(program, len(flags), options)
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return not failed, log.value.decode()


@pytest.mark.slow
@pytest.mark.parametrize("image", [(3, 32, 32), (1, 28, 28), (2, 9, 11)], ids=str)
def test_convolutions(image):
    succeeded, log = compile_source(cnn.assemble_convolution_source(image, FILTERS, SHARED))
    assert succeeded, log


def test_convolutions_where_less_is_shared():
    succeeded, log = compile_source(cnn.assemble_convolution_source((3, 32, 32), FILTERS, LESS), "sm_80")
    assert succeeded, log


@pytest.mark.parametrize("batch", [1, 20, 32])
def test_full_layers(batch):
    succeeded, log = compile_source(cnn.assemble_full_layer_source((3, 32, 32), FILTERS, HIDDEN, batch))
    assert succeeded, log


@pytest.mark.slow
@pytest.mark.parametrize("widths", [(784, 10), (784, 100, 100, 10)], ids=str)
@pytest.mark.parametrize(
    "as_bytes", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["bytes", "numbers"]
)
@pytest.mark.parametrize("shifted", [False, True])
def test_all_steps_of_a_round(widths, as_bytes, shifted):
    source = dense.assemble_source(widths, 20, as_bytes, 0, shifted, SHARED, dense.THREADS)
    succeeded, log = compile_source(source)
    assert succeeded, log
    assert int(re.search(r"(\d+) bytes smem", log)[1]) <= nvrtc.STATIC_SHARED_BYTES


def test_what_they_are_not_made_for_is_refused():
    succeeded, log = compile_source(cnn.assemble_convolution_source((5, 32, 32), FILTERS, SHARED))
    assert not succeeded
    assert "unsupported sizes" in log
