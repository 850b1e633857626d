"""The arguments of the CPU kernel are checked, and a lack of memory is an error."""

import subprocess
import sys

import pytest
import torch

import fedlap as fl
from fedlap.algorithms.local_work import LocalWork
from fedlap.kernels import cpp_library
from fedlap.kernels.dense import ANCHORED, PLAIN
from fedlap.models import CrossEntropy, Model
from fedlap.training.placement import PlacedClients

pytestmark = pytest.mark.skipif(cpp_library.load_library(torch.float64) is None, reason="no C++ compiler")

WIDTHS = (6, 3)
SETTINGS = ("lr", "decay", "pull", "follow", "feature_shift", "feature_factor")


def make_clients(model=None, batch=4):
    draw = torch.Generator().manual_seed(3)
    arrays = {
        str(k): (
            torch.randn(n, 6, generator=draw, dtype=torch.float64),
            torch.randint(0, 3, (n,), generator=draw),
        )
        for k, n in enumerate((9, 2, 13))
    }
    federation = fl.Federation.from_arrays(arrays, labels=3)
    model = Model((model or fl.models.linear()).build((6,), 3), CrossEntropy())
    return PlacedClients.of([federation], [0], model, batch, torch.device("cpu"), torch.float64)


@pytest.fixture
def call():
    """A call of the kernel as a round makes it; `change` replaces one of its arguments."""
    clients = make_clients()
    ids = clients.sort_by_count(torch.arange(3))
    cohort = clients.build_cohort(ids)
    plan = clients.draw_plans(cohort, [1], LocalWork(3, False))[0]
    train, w = clients.train, torch.zeros(3, clients.model.size, dtype=torch.float64)
    args = {
        "w": w, "scratch": torch.empty(1, 0), "anchor": torch.full_like(w, 0.1),
        "shift": torch.full_like(w, 0.1), "store": train.store, "place": train.row, "label": train.y,
        "rows": plan.rows.contiguous(), "weight": plan.weight.contiguous(),
        **{name: torch.full((3,), 0.1, dtype=torch.float64) for name in SETTINGS},
        "first": cohort.first, "next_client": torch.zeros(1, dtype=torch.int32),
        "clients": 3, "batches": 3, "times": 1, "row_step": 12, "row_client": 4, "weight_step": 12,
        "weight_client": 4, "kind": ANCHORED, "has_shift": 1, "alphas": 0,
    }  # fmt: skip
    library = cpp_library.load_library(torch.float64)

    def run(ascent=0, **change):
        arguments = cpp_library.StepArguments(**{**args, **change})
        library.steps(arguments, 4, ascent, WIDTHS)

    return args, run


def test_a_right_call_changes_models(call):
    args, run = call
    run()
    assert args["w"].abs().max() > 0


@pytest.mark.parametrize(
    "name",
    ["w", "anchor", "shift", "store", "place", "label", "rows", "weight", *SETTINGS, "first"],
)
@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.half() if t.is_floating_point() else t.int(),
        lambda t: t[..., :-1],
        lambda t: t.unsqueeze(0),
        lambda t: t.to("meta"),
        lambda t: torch.stack([t, t], -1)[..., 0],
    ],
    ids=["type", "shape", "dimensions", "device", "strides"],
)
def test_a_wrong_tensor_is_refused(name, change, call):
    args, run = call
    with pytest.raises(fl.InputError) as error:
        run(**{name: change(args[name])})
    assert "\n" not in str(error.value)
    assert not args["w"].any()


@pytest.mark.parametrize("name", ["anchor", "shift"])
def test_a_tensor_that_is_not_read_is_not_checked(name, call):
    args, run = call
    run(
        **{
            name: torch.empty(0),
            "kind": PLAIN if name == "anchor" else ANCHORED,
            "has_shift": name != "shift",
        }
    )
    assert args["w"].abs().max() > 0


@pytest.mark.parametrize("number", ["clients", "batches"])
@pytest.mark.parametrize("value", [0, 2, 4, -1, 2**40])
def test_a_wrong_number_is_refused(number, value, call):
    with pytest.raises(fl.InputError):
        call[1](**{number: value})


@pytest.mark.parametrize("value", [0, -1, 2**40])
def test_wrong_times_are_refused(value, call):
    with pytest.raises(fl.InputError, match="times"):
        call[1](times=value)


def test_strides_are_those_of_the_tensors(call):
    """Numbers that say otherwise lead nowhere."""
    args, run = call
    run(row_step=2**40, weight_client=-7)
    assert args["w"].isfinite().all()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rows", 24, "row number 24, but rows are 0 to 17"),
        ("rows", -1, "row number -1"),
        ("rows", 2**60, "row number 1152921504606846976"),
        ("place", 24, "a row at place 24 of the store, but places are 0 to 23"),
        ("place", -1, "a row at place -1"),
        ("label", 3, "label 3, but labels are 0 to 2"),
        ("label", -1, "label -1"),
    ],
)
def test_values_out_of_range_are_refused(name, value, message, threads, call):
    args, run = call
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with pytest.raises(fl.InputError, match=message):
            run(**{name: torch.full_like(args[name], value)})
    finally:
        torch.set_num_threads(before)


def test_a_row_without_a_dual_variable_is_refused(call):
    alpha = torch.zeros(3, 2, 3, dtype=torch.float64)
    with pytest.raises(fl.InputError, match="its dual variables are 0 to 1"):
        call[1](ascent=1, anchor=alpha, alphas=2, has_shift=0)


@pytest.mark.parametrize("share", [7.0, float("nan"), float("inf"), -1.0])
def test_a_share_of_rows_stays_within_the_batch(share, call):
    alpha, follow = torch.zeros(3, 13, 3, dtype=torch.float64), torch.full((3,), share, dtype=torch.float64)
    call[1](ascent=1, anchor=alpha, alphas=13, follow=follow, has_shift=0)
    assert bool(alpha.any()) == (share > 0)


def test_padding_may_be_anything(call):
    """A place behind the end of a short batch is never read."""
    args, run = call
    run()
    wanted = args["w"].clone()
    args["w"].zero_()
    run(rows=torch.where(args["weight"] > 0, args["rows"], 2**60))
    assert torch.equal(args["w"], wanted)


@pytest.mark.parametrize(("name", "value"), [("count", 99), ("count", -1), ("row", 24), ("y", 3), ("y", -1)])
def test_scores_of_rows_out_of_range_are_refused(name, value):
    clients = make_clients()
    getattr(clients.train, name)[0] = value
    none = torch.zeros(3, dtype=torch.float64)
    with pytest.raises(fl.InputError, match="place 0"):
        cpp_library.tally_rows(torch.zeros(3, 21, dtype=torch.float64), clients.train, WIDTHS, none, none)


MEMORY = """
import resource, torch
import fedlap as fl
from fedlap.kernels import cpp_library
torch.set_num_threads({threads})
cpp_library._find_openmp = (lambda found: lambda: found)({parallel})
rows = torch.ones(256, 1), torch.arange(256) % 2
federation = fl.Federation.from_arrays({{"a": rows, "b": rows}}, labels=2, test_share=0)
assert cpp_library.load_library(torch.float32)
fl.fit(fl.Local(), federation, fl.models.mlp(2), rounds=1, batch=128)  # what is loaded when first used
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 500 * 2**20,) * 2)
try:
    fl.fit(fl.Local(local_steps=1), federation, fl.models.mlp(1_000_000), rounds=1, batch=128)
except fl.InputError as error:
    print(type(error.__cause__).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is limited as on Linux")
@pytest.mark.parametrize(
    ("threads", "parallel"),
    [
        (2, "cpp_library._find_openmp()"),
        pytest.param(1, "cpp_library._find_openmp()", marks=pytest.mark.slow),
        pytest.param(2, "None", marks=pytest.mark.slow),
    ],
    ids=["OpenMP", "one thread", "threads of its own"],
)
def test_no_memory_is_an_error(threads, parallel):
    """Two layers of a million times a batch of 128 need a gigabyte each."""
    script = MEMORY.format(threads=threads, parallel=parallel)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("MemoryError fit: out of memory (kernel: no memory"), (
        done.stdout + done.stderr
    )
