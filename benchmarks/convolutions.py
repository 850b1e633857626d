"""Compare convolution backends by gradient steps of the convolutional network, interleaved.

Every backend takes the same steps for a stack of clients from the same start: forward, backward, update. On a
GPU the steps also run as a captured CUDA graph, as rounds do there, and the time per kernel is listed. Needs
only PyTorch and jaxtyping. Exits with 1 if a gradient is wrong.


    python benchmarks/convolutions.py [--device cuda] [--clients 20 --batch 20 --image 3,32,32] [--repeats 7]
"""

import argparse
import ctypes
import gc
import statistics
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

# Import the package without its `__init__`, which needs more libraries than a bare machine has.
sys.modules["fedlap"] = types.ModuleType("fedlap")
sys.modules["fedlap"].__path__ = [str(Path(__file__).resolve().parent.parent / "src" / "fedlap")]

from fedlap.models import Batch, BufferFactory, CrossEntropy, Model, autograd  # noqa: E402
from fedlap.models import convolutional as cnn  # noqa: E402
from fedlap.models.cnn_layers import ChunkedLayers, HiddenLayers, apply_full_layer  # noqa: E402
from fedlap.models.convolution import (  # noqa: E402
    BatchedConvolution,
    ConvolutionBackend,
    DirectConvolution,
    TiledConvolution,
    UnfoldedConvolution,
)
from fedlap.models.model import InPlaceWeights, ScoreGradient  # noqa: E402
from fedlap.models.parameters import view_parameters  # noqa: E402

LABELS, LR, STEPS = 10, 0.001, 5
EVALUATED = 100  # scored rows per client
WRONG = 1e-10  # in float64, relative to the gradient; its root in float32


@dataclass(frozen=True)
class Grouped(cnn.ConvolutionalNetwork):
    """All clients as groups of channels of one convolution, differentiated by autograd."""

    layout: torch.memory_format = torch.contiguous_format

    def scores(self, W: Tensor, x: Tensor) -> Tensor:
        """Return the scores of every sample."""
        tensors, (clients, batch) = view_parameters(W, self.shapes), x.shape[:2]
        h = x.reshape(clients, batch, *self.image).transpose(0, 1).flatten(1, 2)
        h = h.contiguous(memory_format=self.layout)
        for w, b in (tensors[:2], tensors[2:4]):
            filters = w.flatten(0, 1).contiguous(memory_format=self.layout)
            h = functional.conv2d(h, filters, b.flatten(), padding=2, groups=clients)
            h = functional.max_pool2d(h.relu(), 2)
        features = h.unflatten(1, (clients, -1)).transpose(0, 1).flatten(2)
        return self._score(W, apply_full_layer(tensors[4], tensors[5], features)).mT

    def gradient(self, W: Tensor, x: Tensor, slope: ScoreGradient) -> Tensor:
        """Return the gradient by autograd."""
        return autograd.gradient(self.scores, W, x, slope)

    def prepare_weights(
        self, W: Tensor, steps: int = 1, buffers: BufferFactory | None = None, padded: bool = False
    ) -> InPlaceWeights:
        """Return weights that are updated in place, with gradients by autograd."""
        return InPlaceWeights(partial(autograd.descend, self.scores), W)


@dataclass(frozen=True)
class ByHand(cnn.ConvolutionalNetwork):
    """The network of the library with a chosen convolution backend."""

    backend: ConvolutionBackend = DirectConvolution()  # noqa: RUF009 (it holds nothing)

    def _choose_hidden_layers(self, W: Tensor, into: Tensor) -> HiddenLayers:
        return ChunkedLayers(self.backend, self.image, self.shapes)


def networks(image: tuple[int, int, int]) -> dict[str, cnn.ConvolutionalNetwork]:
    """Return the compared networks by name."""
    return {
        "grouped, autograd": Grouped(image, LABELS),
        "grouped channels last, autograd": Grouped(image, LABELS, torch.channels_last),
        "conv2d per client": ByHand(image, LABELS, DirectConvolution()),
        "windows": ByHand(image, LABELS, UnfoldedConvolution()),
        "tiles": ByHand(image, LABELS, TiledConvolution()),
        "windows, then tiles": ByHand(image, LABELS, BatchedConvolution()),
        "library default": cnn.ConvolutionalNetwork(image, LABELS),  # on a GPU, by kernels
    }


@dataclass(frozen=True, eq=False)
class Problem:
    """A stack at its start, and the batches of its steps."""

    W: Tensor
    batches: list[Batch]
    rows: Tensor

    @staticmethod
    def of(options: argparse.Namespace) -> "Problem":
        """Draw normal images and random labels."""
        g = torch.Generator().manual_seed(0)
        network = cnn.ConvolutionalNetwork(options.image, LABELS)
        noise = torch.randn(options.clients, network.size, generator=g)
        W, shape = network.start(0).float() + 0.01 * noise, (options.clients, options.batch)
        batches = []
        for _ in range(STEPS):
            x, y = torch.randn(*shape, *options.image, generator=g), torch.randint(LABELS, shape, generator=g)
            weight = torch.full(shape, 1 / options.batch)
            batches.append(Batch(*(tensor.to(options.device) for tensor in (x, y, weight))))
        rows = torch.randn(options.clients, EVALUATED, *options.image, generator=g)
        return Problem(W.to(options.device), batches, rows.to(options.device))


def time_call(function: Callable[[], object], device: str) -> float:
    """Return the seconds until the device has finished the call."""
    began = time.perf_counter()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def peak_of(function: Callable[[], object], device: str) -> float:
    """Return the peak megabytes that the call allocates."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    ctypes.CDLL(None).malloc_trim(0)  # return freed memory, which would be reused without being counted
    Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
    before = _kilobytes("VmRSS")
    function()
    return (_kilobytes("VmHWM") - before) / 1e3


def _kilobytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def steps_of(network: cnn.ConvolutionalNetwork, problem: Problem, W: Tensor) -> Callable[[], None]:
    """Return a function that takes all steps in place."""
    model = Model(network, CrossEntropy())

    def run() -> None:
        for batch in problem.batches:
            model.descend(W, batch, LR)

    return run


def capture(run: Callable[[], None]) -> Callable[[], None]:
    """Return the replay of a function captured as a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def errors_of(network: cnn.ConvolutionalNetwork, problem: Problem) -> tuple[float, float]:
    """Relative distance of the first gradient from autograd's in float64, computed in float64 and float32.

    In float32 the maximum of a window may differ where two values are nearly equal: 1e-3 is not wrong.
    """
    first, model = problem.batches[0], Model(network, CrossEntropy())
    exact, W = Batch(first.x.double(), first.y, first.weight.double()), problem.W.double()
    expected = Model(Grouped(network.image, LABELS), CrossEntropy()).gradient(W, exact)
    pair = model.gradient(W, exact), model.gradient(problem.W, first)
    return tuple(float((gradient - expected).norm() / expected.norm()) for gradient in pair)


def measure(options: argparse.Namespace) -> tuple[list[list[str]], bool]:
    """Return one table row per backend, and whether all gradients are right."""
    problem, runs, rows, right = Problem.of(options), {}, {}, True
    for name, network in networks(options.image).items():
        if options.only and not any(word in name for word in options.only.split(";")):
            continue
        print(f"… {name}", file=sys.stderr)
        W = problem.W.clone()
        run = steps_of(network, problem, W)
        exact, error = errors_of(network, problem)
        right &= exact < WRONG and error < WRONG**0.5
        run()
        rows[name] = [f"{exact:.0e}", f"{error:.0e}", f"{peak_of(run, options.device):.0f}"]
        runs[name, "steps"] = run
        if options.device == "cuda":
            try:
                runs[name, "graph"] = capture(run)
            except RuntimeError as failure:
                print(f"{name} cannot be captured: {failure}", file=sys.stderr)
        runs[name, "scores"] = torch.no_grad()(lambda n=network, W=W: n.scores(W, problem.rows))
        runs[name, "scores"]()
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    for _ in range(options.repeats):
        for key, run in runs.items():
            seconds[key].append(time_call(run, options.device))
    for name, row in rows.items():
        for kind in ("steps", "graph", "scores"):
            times = seconds.get((name, kind))
            row.append(f"{1000 * statistics.median(times):.2f}" if times else "")
    return [[name, *row] for name, row in rows.items()], right


def profile(options: argparse.Namespace, name: str) -> None:
    """Print the GPU time of one backend per kernel."""
    problem = Problem.of(options)
    run = steps_of(networks(options.image)[name], problem, problem.W)
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    events = sorted(found.key_averages(), key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events)
    print(f"\n{name}: {total / 1000:.2f} ms in kernels")
    for event in events[: options.kernels]:
        print(f"{event.self_device_time_total / 1000:8.3f} ms {event.count:5d} × {event.key[:90]}")


def show(table: list[list[str]], head: list[str]) -> None:
    """Print the table, with rich where it is installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        for row in [head, *table]:
            print(f"{row[0]:34}" + "".join(f"{cell:>19}" for cell in row[1:]))
        return
    grid = Table(*head)
    for row in table:
        grid.add_row(*row)
    Console(width=130).print(grid)


def main() -> int:
    """Measure every backend and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--image", type=lambda text: tuple(map(int, text.split(","))), default=(3, 32, 32))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="words in backend names (separated by ;)")
    parser.add_argument("--profile", default="library default")
    parser.add_argument("--kernels", type=int, default=16, help="kernels to list per backend")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    place = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} threads"
    if options.device == "cuda":
        for name in filter(None, options.profile.split(";")):
            profile(options, name)
    table, right = measure(options)
    print(
        f"\n{options.clients} clients, batches of {options.batch}, images {options.image}, {STEPS} steps, "
        f"float32; {place}, torch {torch.__version__}, median of {options.repeats}"
    )
    head = [
        "backend",
        "error, float64",
        "error, float32",
        "peak MB",
        "steps, ms",
        "steps as a CUDA graph, ms",
        f"scores of {EVALUATED}, ms",
    ]
    show(table, head)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
