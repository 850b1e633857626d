"""The kernels of a GPU, compiled for one by NVRTC, which needs none; skipped where it is not installed."""

import ctypes
import importlib.util
from pathlib import Path

import pytest

from fedlap.kernels import cnn, dense
from fedlap.models.convolutional import FILTERS, HIDDEN

FOUND = importlib.util.find_spec("nvidia")
PLACES = [Path(place) for place in (FOUND.submodule_search_locations or [])] if FOUND else []
LIBRARIES = sorted(file for place in PLACES for file in place.rglob("libnvrtc.so*"))
SHARED, LESS = 232_384, 166_848  # bytes, of an H100 and its like, and of an A100

pytestmark = pytest.mark.skipif(not LIBRARIES, reason="NVRTC is not installed")


def compiled(source, architecture="sm_90"):
    """Whether it could be, and what was said."""
    for file in LIBRARIES[-1].parent.glob("libnvrtc-builtins.so*"):
        ctypes.CDLL(str(file))  # some versions do not find it beside themselves
    library, program, size = ctypes.CDLL(str(LIBRARIES[-1])), ctypes.c_void_p(), ctypes.c_size_t()
    given = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17", b"--ptxas-options=-v"]
    options = (ctypes.c_char_p * len(given))(*given)
    made = library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    assert made == 0
    failed = library.nvrtcCompileProgram(program, len(given), options)
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return not failed, log.value.decode()


@pytest.mark.parametrize("image", [(3, 32, 32), (1, 28, 28), (2, 9, 11)], ids=str)
def test_convolutions(image):
    made, log = compiled(cnn.assemble_convolution_source(image, FILTERS, SHARED))
    assert made, log


def test_convolutions_where_less_is_shared():
    made, log = compiled(cnn.assemble_convolution_source((3, 32, 32), FILTERS, LESS), "sm_80")
    assert made, log


@pytest.mark.parametrize("batch", [1, 20, 32])
def test_full_layers(batch):
    made, log = compiled(cnn.assemble_full_layer_source((3, 32, 32), FILTERS, HIDDEN, batch))
    assert made, log


@pytest.mark.parametrize("widths", [(784, 10), (784, 100, 100, 10)], ids=str)
@pytest.mark.parametrize(
    "as_bytes", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["bytes", "numbers"]
)
def test_all_steps_of_a_round(widths, as_bytes):
    made, log = compiled(dense.assemble_source(widths, 20, as_bytes, 0, SHARED, dense.THREADS))
    assert made, log


def test_what_they_are_not_made_for_is_refused():
    made, log = compiled(cnn.assemble_convolution_source((5, 32, 32), FILTERS, SHARED))
    assert not made
    assert "unsupported sizes" in log
