"""Golden digests: proof that a refactoring changes no number.

Small runs of every method are trained, and SHA-256 digests of their models, states and scores are written to
a JSON file. Two files of one machine are equal if and only if every number is equal to the last bit.

    python -m benchmarks.golden write FILE [--device cuda]       train every case, write the digests
    python -m benchmarks.golden compare A.json B.json            print each difference
    python -m benchmarks.golden check BASE [--device cuda]       compare this working tree with a commit

`compare` and `check` exit with 1 if a digest differs or a case is missing; cases of methods that the first
file's version of fedlap does not have are counted only. Digests depend on the processor and on the version of
PyTorch: compare only files of one machine.

A digest covers dtypes, shapes and raw bytes. It ignores times and all names of classes and fields, and it
flattens nested states in order, so that renaming or regrouping fields changes no digest.

On a CPU every case is trained twice: with the compiled kernel, and in a process that finds no compiler. On a
GPU every case is repeated; cases whose repetition differs are listed as not repeatable and are not compared.

This script uses public names of `fedlap` alone, so it can train other commits. Stacks of runs need internals,
which `golden_stacks.py` imports. `check` reads that file from the other commit; for a commit without the file
it reads the oldest version in the history of git, which suits the layout of older commits best.
"""

import argparse
import dataclasses
import hashlib
import importlib.util
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedlap as fl
from fedlap.graph.sparse_weights import SparseWeights

HERE = Path(__file__).resolve()
ROOT = HERE.parents[1]
STACKS = "golden_stacks.py"
TIMES = ("seconds", "time", "elapsed", "duration")  # names of a score's field that is no number of training

LR = 0.05
SEEDS, FACTORS = (5, 6, 7), (1.0, 0.9, 0.5)  # of the runs of a stack; real-valued settings are scaled
COUNTS = (7, 23, 5, 12, 40, 9)  # rows per client
ROUNDS = 8  # on a CPU
CAPTURED_ROUNDS = 6  # on a GPU, enough for the capture of a CUDA graph
EAGER_ROUNDS = 3  # too few for a capture
WORK = {"steps": {"local_steps": 3}, "epochs": {"local_epochs": 2}}
SHARES = {"all": 1.0, "half": 0.5}
DTYPES = ("float32", "float64")
KERNEL, PLAIN = "kernel", "no-compiler"

Digests = dict[str, dict[str, Any]]  # by the name of a case, then by part of the result


# Methods and problems


@dataclass(frozen=True)
class Method:
    """A line of the table of methods, as in tests/support/laws.py."""

    make: Callable[..., Any]  # (graph, factor of real-valued settings, **work) -> algorithm
    sampled: bool = True  # whether clients can be sampled
    stacked: bool = True  # whether several runs can share a stack
    pooled: bool = False  # whether all runs of a stack need equally many clients
    model: Any = None  # used instead of a linear model


def make_compressed(compression: str, graph: fl.Graph, factor: float, **work: int) -> Any:
    """Build dFedU with compressed messages."""
    settings: dict[str, Any] = {"strength": 0.3 * factor, "lr": LR * factor, **work}
    return fl.DFedU(graph, compression=compression, **settings)


def build_peers_with_blocks(compression: str | None, graph: fl.Graph, factor: float, **work: int) -> Any:
    """Build dFedU with a strength per block of parameters."""
    strengths = {"1": 0.3 * factor, "3.bias": 0.1 * factor}
    rates: dict[str, Any] = {"lr": LR * factor, "compression": compression, **work}
    return fl.DFedU(graph, strength=strengths, **rates)


def build_passing_on_large_graph(graph: fl.Graph, factor: float, **work: int) -> Any:
    """Build fedu-passing on this graph, stored as a large one is."""
    large = fl.Graph(graph.clients, SparseWeights(graph.weights.matrix()))
    rates: dict[str, Any] = {"strength": 0.3 * factor, "lr": LR * factor, **work}
    return fl.FedUPassing(large, **rates)


def build_learning_peers(graph: fl.Graph, factor: float, **work: int) -> Any:
    """Build dFedU on a graph that peers learn."""
    rates: dict[str, Any] = {"graph_lr": 0.1 * factor, "lr": LR * factor, **work}
    return fl.DFedULearned(graph, 0.3 * factor, 0.2 * factor, **rates)


METHODS = {
    "fedu": Method(lambda g, f, **work: fl.FedU(g, strength=0.3 * f, lr=LR * f, **work)),
    "fedu-sampled": Method(
        lambda g, f, **work: fl.FedU(g, strength=0.3 * f, lr=LR * f, neighbours="sampled", **work)
    ),
    "dfedu": Method(lambda g, f, **work: fl.DFedU(g, strength=0.3 * f, lr=LR * f, **work), sampled=False),
    "fedu-implicit": Method(
        lambda g, f, **work: fl.FedU(g, strength=30.0 * f, lr=LR * f, mixing="implicit", **work)
    ),
    "dfedu-implicit": Method(
        lambda g, f, **work: fl.DFedU(
            g, strength=30.0 * f, lr=LR * f, mixing="implicit", exchanges=3, **work
        ),
        sampled=False,
    ),
    "dfedu-int8": Method(partial(make_compressed, "int8"), sampled=False),
    "dfedu-top-k": Method(partial(make_compressed, "top-k:0.2"), sampled=False),
    "fedu-learned": Method(
        lambda g, f, **work: fl.FedULearned(
            g, strength=0.3 * f, lr=LR * f, nearest=2, warmup=2, every=2, **work
        )
    ),
    "fedu-blocks": Method(
        lambda g, f, **work: fl.FedU(g, strength={"1": 0.3 * f, "3.bias": 0.1 * f}, lr=LR * f, **work),
        model=fl.models.mlp((5,), l2=0.01),
        stacked=False,
    ),
    "dfedu-blocks": Method(
        partial(build_peers_with_blocks, None),
        sampled=False,
        stacked=False,
        model=fl.models.mlp((5,), l2=0.01),
    ),
    "dfedu-blocks-int8": Method(
        partial(build_peers_with_blocks, "int8"),
        sampled=False,
        stacked=False,
        model=fl.models.mlp((5,), l2=0.01),
    ),
    "fedu-passing": Method(lambda g, f, **work: fl.FedUPassing(g, strength=0.3 * f, lr=LR * f, **work)),
    "fedu-passing-complete": Method(
        lambda g, f, **work: fl.FedUPassing(fl.Graph.complete(g.clients), strength=0.3 * f, lr=LR * f, **work)
    ),
    "fedu-passing-large": Method(build_passing_on_large_graph),
    "local": Method(lambda g, f, **work: fl.Local(lr=LR * f, **work)),
    "global": Method(lambda g, f, **work: fl.Global(lr=LR * f, **work), pooled=True),
    "fedavg": Method(lambda g, f, **work: fl.FedAvg(lr=LR * f, **work)),
    "fedavg-tuned": Method(lambda g, f, **work: fl.FedAvg(lr=LR * f, fine_tune_steps=2, **work)),
    "fedprox": Method(lambda g, f, **work: fl.FedProx(0.3 * f, lr=LR * f, **work)),
    "afl": Method(lambda g, f, **work: fl.AFL(0.2 * f, lr=LR * f, **work)),
    "pfedme": Method(lambda g, f, **work: fl.PFedMe(3.0 * f, 4, 0.1 * f, 1.2 * f, lr=LR * f, **work)),
    "perfedavg": Method(lambda g, f, **work: fl.PerFedAvg("first-order", 0.1 * f, lr=LR * f, **work)),
    "perfedavg-hessian": Method(lambda g, f, **work: fl.PerFedAvg("hessian", 0.1 * f, lr=LR * f, **work)),
    "mocha": Method(
        lambda g, f, **work: fl.Mocha(g, 0.3 * f, drop=0.2 * f, least_work=0.4 * f, **work)
    ),  # it has no lr
    "scaffold": Method(lambda g, f, **work: fl.Scaffold(1.1 * f, lr=LR * f, **work)),
    "ditto": Method(lambda g, f, **work: fl.Ditto(0.7 * f, lr=LR * f, **work)),
    "apfl": Method(lambda g, f, **work: fl.APFL(0.4 * f, adaptive=True, lr=LR * f, **work)),
    "fedper": Method(lambda g, f, **work: fl.FedPer(lr=LR * f, **work), model=fl.models.mlp((5,), l2=0.01)),
    "l2gd": Method(lambda g, f, **work: fl.L2GD(2.0 * f, 0.4 * f, 5, lr=LR * f, **work), stacked=False),
    "lasso": Method(lambda g, f, **work: fl.NetworkLasso(g, 0.3 * f, 0.3 * f, lr=LR * f, **work)),
    "dpsgd": Method(lambda g, f, **work: fl.DPSGD(g, lr=LR * f, **work), sampled=False),
    "fedrep": Method(lambda g, f, **work: fl.FedRep(lr=LR * f, **work), model=fl.models.mlp((5,), l2=0.01)),
    "ifca": Method(lambda g, f, **work: fl.IFCA(lr=LR * f, **work)),
    "cfl": Method(lambda g, f, **work: fl.CFL(0.9 * f, 0.5 * f, lr=LR * f, **work)),
    "fedamp": Method(lambda g, f, **work: fl.FedAMP(0.5 * f, 2.0 * f, lr=LR * f, **work)),
    "pfedgraph": Method(lambda g, f, **work: fl.PFedGraph(0.5 * f, 0.3 * f, lr=LR * f, **work)),
    "fedfomo": Method(lambda g, f, **work: fl.FedFomo(2, 0.2 * f, 3, lr=LR * f, **work)),
    "dfedu-learned": Method(build_learning_peers, sampled=False),
    "gtvmin": Method(lambda g, f, **work: fl.GTVMin(g, 0.1 * f, lr=LR * f, **work), sampled=False),
}
ON_EVERY_PROBLEM = ("fedu", "fedprox")


@cache
def build_module() -> torch.nn.Module:
    """A user's network, with a layer that no built-in model has."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(16, 5),
            torch.nn.GroupNorm(1, 5),
            torch.nn.Tanh(),
            torch.nn.Linear(5, 3),
        )


@dataclass(frozen=True)
class Problem:
    """Kind of rows, model and batch size that methods are trained with."""

    rows: str  # "classes", "images" or "reals"
    model: Any
    batch: Any = 4


PROBLEMS = {
    "linear": Problem("classes", fl.models.linear(l2=0.01)),
    "mlp": Problem("classes", fl.models.mlp((6, 5), l2=0.01)),
    "cnn": Problem("images", fl.models.cnn(l2=0.01)),
    "module": Problem("images", fl.models.module(build_module(), l2=0.01)),
    "regression": Problem("reals", fl.models.linear(l2=0.01)),
    "full-batch": Problem("classes", fl.models.linear(l2=0.01), "all"),
}


@cache
def build_federation(rows: str, clients: int) -> tuple[fl.Federation, fl.Graph]:
    """Clients of unequal size with random rows, and a random graph between them."""
    rng = np.random.default_rng(0)
    shape = (4, 4) if rows == "images" else (4,)
    arrays = {}
    for name, count in zip("abcdef", COUNTS, strict=True):
        x = rng.normal(size=(count, *shape)) + 0.5 * rng.normal(size=shape)
        y = rng.normal(size=(count, 3)) if rows == "reals" else rng.integers(0, 3, count)
        arrays[name] = (x, y)
    size = (len(COUNTS),) * 2
    upper = np.triu(rng.uniform(0.2, 1.5, size) * (rng.uniform(size=size) < 0.7), 1)
    weights = (upper + upper.T)[:clients, :clients]
    chosen = dict(itertools.islice(arrays.items(), clients))
    labels = None if rows == "reals" else 3
    federation = fl.Federation.from_arrays(chosen, test_share=0.25, seed=3, labels=labels, scale="none")
    return federation, fl.Graph.from_matrix(weights, federation.clients)


# Cases


@dataclass(frozen=True)
class Case:
    """One small training, alone or as a stack of three runs."""

    method: str
    problem: str = "linear"
    work: str = "steps"
    share: str = "all"
    dtype: str = "float32"
    stacked: bool = False
    mode: str = KERNEL  # or "no-compiler"; on a GPU "captured", "eager", or "host" for data on the host
    device: str = "cpu"

    @property
    def name(self) -> str:
        """The settings, separated by slashes."""
        runs = "stack" if self.stacked else "alone"
        return "/".join([self.method, self.problem, self.work, self.share, self.dtype, runs, self.mode])

    def train(self, fit_stack: Callable[..., list[fl.Result]]) -> list[fl.Result]:
        """Train the case and return the result of each run."""
        schedule = {
            "batch": PROBLEMS[self.problem].batch,
            "sample": SHARES[self.share],
            "dtype": self.dtype,
            "device": self.device,
            "keep": "host" if self.mode == "host" else "auto",
            "evaluate_every": 2,
        }
        if "score_training" in signature(fl.fit).parameters:  # Earlier versions scored them in any case.
            schedule["score_training"] = "always"
        rounds = ROUNDS if self.device == "cpu" else CAPTURED_ROUNDS
        if self.stacked:
            rounds = EAGER_ROUNDS if self.mode == "eager" else rounds
            return fit_stack(list(self._describe_runs()), rounds=rounds, **schedule)
        method, federation, model, seed = next(self._describe_runs())
        if self.mode != "eager":
            return [fl.fit(method, federation, model, seed=seed, rounds=rounds, **schedule)]
        result = None  # The eager run has as many rounds, in parts that are too short for a capture.
        for done in range(EAGER_ROUNDS, rounds + 1, EAGER_ROUNDS):
            result = fl.fit(method, federation, model, seed=seed, rounds=done, resume=result, **schedule)
        return [result]

    def _describe_runs(self) -> Iterator[tuple[Any, fl.Federation, Any, int]]:
        """Method, federation, model and seed of each run; the last run of a stack has one client less."""
        method, problem = METHODS[self.method], PROBLEMS[self.problem]
        for place, (seed, factor) in enumerate(zip(SEEDS, FACTORS, strict=True)):
            fewer = place == len(SEEDS) - 1 and not method.pooled
            federation, graph = build_federation(problem.rows, len(COUNTS) - fewer)
            yield (
                method.make(graph, factor, **WORK[self.work]),
                federation,
                method.model or problem.model,
                seed,
            )


def list_cases(device: str = "cpu", mode: str = KERNEL) -> list[Case]:
    """All cases of a device; on a CPU those with the kernel, or those without a compiler."""
    on_problems = [(method, "linear") for method in METHODS]
    on_problems += [
        (method, problem_name)
        for method in ON_EVERY_PROBLEM
        for problem_name in PROBLEMS
        if problem_name != "linear"
    ]
    unknown = find_unknown_methods()
    cases = []
    for (method, problem), dtype in itertools.product(on_problems, DTYPES):
        fixed = {"method": method, "problem": problem, "dtype": dtype, "device": device}
        if device == "cpu":
            for work, share, stacked in itertools.product(WORK, SHARES, (False, True)):
                cases.append(Case(work=work, share=share, stacked=stacked, mode=mode, **fixed))
        else:
            for engine_mode, share, stacked in itertools.product(
                ("captured", "eager"), SHARES, (False, True)
            ):
                cases.append(Case(share=share, stacked=stacked, mode=engine_mode, **fixed))
            cases.append(Case(mode="captured", work="epochs", share="half", stacked=True, **fixed))
            cases.append(Case(mode="host", share="half", **fixed))
    return [case for case in cases if case.method not in unknown and _is_possible(case)]


def find_unknown_methods() -> list[str]:
    """Return the methods that the imported fedlap cannot build; earlier versions lack some."""
    _, graph = build_federation("classes", len(COUNTS))
    unknown = []
    for name, method in METHODS.items():
        try:
            method.make(graph, 1.0, **WORK["steps"])
        except (AttributeError, TypeError, fl.InputError):
            unknown.append(name)
    return unknown


def _is_possible(case: Case) -> bool:
    method = METHODS[case.method]
    return (method.sampled or case.share == "all") and (method.stacked or not case.stacked)


# Digests


def flatten(state: Any) -> Iterator[Any]:
    """Leaves of a nested state in order, without names and without None."""
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        state = [getattr(state, field.name) for field in dataclasses.fields(state)]
    if isinstance(state, Mapping):
        state = list(state.values())
    if isinstance(state, list | tuple):
        for item in state:
            yield from flatten(item)
    elif isinstance(state, torch.Tensor | np.ndarray | bool | int | float | str):
        yield state
    elif state is not None:
        raise TypeError(f"cannot digest {type(state).__name__}; let flatten() handle this type")


def digest_state(state: Any) -> str:
    """SHA-256 of dtype, shape and raw bytes of every leaf."""
    found = hashlib.sha256()
    for leaf in flatten(state):
        if isinstance(leaf, torch.Tensor | np.ndarray):
            tensor = torch.as_tensor(leaf).detach().cpu()
            tensor = (tensor.to_dense() if tensor.layout != torch.strided else tensor).contiguous()
            found.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
            found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            found.update(f"{_spell(leaf)}\n".encode())
    return found.hexdigest()


def list_values(score: Any) -> list[Any]:
    """Known values of a score in order, without the time, which is the last field if no name says so."""
    values = score.as_dict() if hasattr(score, "as_dict") else dataclasses.asdict(score)
    values = {name: value for name, value in values.items() if value is not None or name in TIMES}
    timed = [name for name in values if name in TIMES] or list(values)[-1:]
    return [value for name, value in values.items() if name not in timed and value is not None]


def digest_scores(scores: Sequence[Any]) -> str:
    """SHA-256 of the exact values of all scores."""
    lines = [" ".join(_spell(value) for value in list_values(score)) for score in scores]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def count_bytes(score: Any) -> list[int]:
    """Bytes up and down so far: the whole numbers of a score that follow the round."""
    whole = [value for value in list_values(score) if isinstance(value, int)]
    return whole[1:]


def digest_results(results: Sequence[fl.Result]) -> dict[str, Any]:
    """Digest every part of the results, all runs of a stack together."""
    return {
        "models": digest_state([result.models for result in results]),
        "server": digest_state([result.server for result in results]),
        "private": digest_state([result.private for result in results]),
        "scores": digest_scores([score for result in results for score in result.scores]),
        "bytes": [count_bytes(result.scores[-1]) for result in results],
    }


def _spell(value: Any) -> str:
    """The type and the exact value of a number."""
    if isinstance(value, float):
        return f"float {float(value).hex()}"
    return f"{type(value).__name__} {value}"


def digest_cases(
    cases: Sequence[Case], fit_stack: Callable[..., list[fl.Result]]
) -> tuple[Digests, list[str]]:
    """Train all cases; return their digests and the names of cases that are not repeatable."""
    digests, differing = {}, []
    for case in cases:
        digests[case.name] = digest_results(case.train(fit_stack))
        if case.device != "cpu" and digest_results(case.train(fit_stack)) != digests[case.name]:
            differing.append(case.name)
    return digests, differing


def load_adapter(path: Path) -> Callable[..., list[fl.Result]]:
    """The function `fit_stack` of an adapter file."""
    spec = importlib.util.spec_from_file_location("golden_stacks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.fit_stack


# Commands


def describe_environment(device: str) -> dict[str, Any]:
    """Everything except fedlap that numbers may depend on, and the path of the imported fedlap."""
    processor = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        processor = next((line.split(": ")[1] for line in lines if line.startswith("model name")), processor)
    return {
        "torch": torch.__version__,
        "processor": processor,
        "device": torch.cuda.get_device_name() if device != "cpu" else "cpu",
        "threads": torch.get_num_threads(),
        "compiler": os.environ.get("CXX", shutil.which("c++") or shutil.which("g++") or "none"),
        "fedlap": str(Path(fl.__file__).resolve().parent),
    }


def check_source(source: Path | None) -> None:
    """Exit with an error unless fedlap was imported from this folder."""
    found = Path(fl.__file__).resolve()
    if source is not None and not found.is_relative_to(source.resolve()):
        sys.exit(f"golden: fedlap was imported from {found}, expected {source}; set PYTHONPATH={source}")


def write_part(options: argparse.Namespace) -> int:
    """Train the cases of one process and write their digests."""
    check_source(options.source)
    torch.set_num_threads(1)
    cases = [case for case in list_cases(options.device, options.mode) if options.only in case.name]
    digests, differing = digest_cases(cases, load_adapter(options.stacks))
    environment = describe_environment(options.device)
    content = {"environment": environment, "digests": digests, "not repeatable": differing}
    _write_json(options.file, {**content, "unknown methods": find_unknown_methods()})
    return 0


def write(options: argparse.Namespace) -> int:
    """Train every case and write all digests to one file."""
    began = time.perf_counter()
    modes = (KERNEL, PLAIN) if options.device == "cpu" else ("gpu",)
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for mode in modes:
            path = Path(folder) / f"{mode}.json"
            words = ["part", str(path), "--mode", mode, "--device", options.device, "--only", options.only]
            words += ["--stacks", str(options.stacks)]
            words += [] if options.source is None else ["--source", str(options.source)]
            run_golden(words, {"CXX": ""} if mode == PLAIN else {})
            parts.append(json.loads(path.read_text("utf-8")))
    digests = {name: digest for part in parts for name, digest in part["digests"].items()}
    differing = [name for part in parts for name in part["not repeatable"]]
    environment = parts[0]["environment"]
    unknown = parts[0]["unknown methods"]
    content = {"environment": environment, "digests": digests, "not repeatable": differing}
    _write_json(options.file, {**content, "unknown methods": unknown})
    seconds = time.perf_counter() - began
    print(f"fedlap from {environment['fedlap']}")
    print(
        f"{len(digests)} cases written to {options.file} in {seconds:.0f} s; {len(differing)} not repeatable"
    )
    if unknown:
        print(f"methods that this version does not have: {', '.join(unknown)}")
    report_modes(digests)
    return 0


def report_modes(digests: Digests) -> None:
    """Print how many cases differ between two modes, and warn if no kernel was compiled.

    Captured and eager runs of a stack have different numbers of rounds, so they are left out.
    """
    for mode, other, runs in ((KERNEL, PLAIN, "/"), ("captured", "eager", "/alone/")):
        names = [name for name in digests if f"/{mode}" in name and runs in name]
        pairs = [(name, name.replace(f"/{mode}", f"/{other}")) for name in names]
        pairs = [(one, two) for one, two in pairs if two in digests]
        differing = sum(digests[one] != digests[two] for one, two in pairs)
        if pairs:
            print(f"{differing} of {len(pairs)} cases differ between {mode} and {other}")
        if mode == KERNEL and pairs and not differing:
            print("golden: the kernel was not compiled; install a C++ compiler", file=sys.stderr)


def drop_new_cases(first: Mapping[str, Any], second: Mapping[str, Any]) -> Digests:
    """Return the second file's digests without those of methods that the first file's version lacks."""
    unknown = first.get("unknown methods", ())
    return {name: digest for name, digest in second["digests"].items() if name.split("/")[0] not in unknown}


def compare_digests(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[int, list[str], int]:
    """Return the number of digests compared, all differences, and the number of cases left out."""
    one, two = first["digests"], drop_new_cases(first, second)
    unstable = {*first.get("not repeatable", ()), *second.get("not repeatable", ())}
    compared, differences = 0, []
    for name in sorted({*one, *two}):
        if name not in one or name not in two:
            differences.append(f"{name}: missing from the {'first' if name not in one else 'second'} file")
        elif name not in unstable:
            parts = sorted({*one[name], *two[name]})
            compared += len(parts)
            unequal = [part for part in parts if one[name].get(part) != two[name].get(part)]
            if unequal:
                differences.append(f"{name}: different {', '.join(unequal)}")
    return compared, differences, len(unstable)


def compare(options: argparse.Namespace) -> int:
    """Print how many digests of two files were compared and how they differ."""
    first, second = (json.loads(path.read_text("utf-8")) for path in (options.first, options.second))
    for key, value in first["environment"].items():
        other = second["environment"].get(key)
        if key != "fedlap" and other != value:
            print(
                f"golden: {key} is {value!r} in the first file and {other!r} in the second", file=sys.stderr
            )
    compared, differences, unstable = compare_digests(first, second)
    for line in differences:
        print(line)
    new = len(second["digests"]) - len(drop_new_cases(first, second))
    print(
        f"{compared} digests compared: {len(differences)} cases differ or are missing, "
        f"{unstable} cases are not repeatable, {new} cases of new methods"
    )
    return int(bool(differences) or not compared)


def check(options: argparse.Namespace) -> int:
    """Write the digests of a commit and of this working tree, and compare them."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        _call_git("worktree", "add", "--quiet", "--detach", str(tree), options.base)
        try:
            stacks = find_adapter(tree, Path(folder))
            files = [Path(folder) / "base.json", Path(folder) / "here.json"]
            places = [(tree / "src", stacks), (ROOT / "src", HERE.with_name(STACKS))]
            others = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
            for path, (source, adapter) in zip(files, places, strict=True):
                words = ["write", str(path), "--device", options.device, "--only", options.only]
                words += ["--stacks", str(adapter), "--source", str(source)]
                run_golden(words, {"PYTHONPATH": os.pathsep.join([str(source), *others])})
        finally:
            _call_git("worktree", "remove", "--force", str(tree))
        return compare(argparse.Namespace(first=files[0], second=files[1]))


def find_adapter(tree: Path, folder: Path) -> Path:
    """The adapter of a checkout, else its oldest version in the history, else the one next to this script."""
    adapter = tree / "benchmarks" / STACKS
    if adapter.exists():
        return adapter
    path = f"benchmarks/{STACKS}"
    added = _call_git("log", "--diff-filter=A", "--format=%H", "--", path).split()
    if not added:
        return HERE.with_name(STACKS)
    oldest = folder / STACKS
    oldest.write_text(_call_git("show", f"{added[-1]}:{path}"), "utf-8")
    return oldest


def run_golden(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run this script in a process with one thread; exit if it fails."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1", **environment}
    code = subprocess.run([sys.executable, str(HERE), *words], env=variables).returncode
    if code:
        sys.exit(f"golden: '{' '.join(words[:2])}' failed with exit code {code}; see the error above")


def _call_git(*words: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *words], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"golden: 'git {words[0]}' failed with exit code {done.returncode}; see the error above")
    return done.stdout


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def parse_words(words: Sequence[str] | None) -> argparse.Namespace:
    """The command and its options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.golden", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    writing, checking = argparse.ArgumentParser(add_help=False), argparse.ArgumentParser(add_help=False)
    checking.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="device to train on")
    checking.add_argument("--only", default="", help="train only cases whose name contains this text")
    writing.add_argument("file", type=Path, help="JSON file to write")
    writing.add_argument("--stacks", type=Path, default=HERE.with_name(STACKS), help="adapter to internals")
    writing.add_argument("--source", type=Path, help="folder that fedlap must be imported from")
    added = commands.add_parser("write", parents=[writing, checking], help="train every case, write digests")
    added.set_defaults(call=write)
    added = commands.add_parser("part", parents=[writing, checking], help="write the cases of one process")
    added.add_argument("--mode", required=True, choices=(KERNEL, PLAIN, "gpu"), help="cases to train")
    added.set_defaults(call=write_part)
    added = commands.add_parser("compare", help="print the differences of two files")
    added.add_argument("first", type=Path, help="JSON file")
    added.add_argument("second", type=Path, help="JSON file")
    added.set_defaults(call=compare)
    added = commands.add_parser("check", parents=[checking], help="compare this working tree with a commit")
    added.add_argument("base", help="commit")
    added.set_defaults(call=check)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    options = parse_words(words)
    return options.call(options)


if __name__ == "__main__":
    sys.exit(main())
