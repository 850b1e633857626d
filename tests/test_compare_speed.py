"""Comparisons of speed: intervals, the rule of the verdict, turns, and both exit codes."""

import importlib.util
import math
import statistics
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FAKE = """
class Fake:
    def measure(self, device):
        print("this line is no answer")
        return {ms}

def list_workloads(device):
    return {{"fake": Fake(), "{device}-only": Fake()}}
"""


def load(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def compare():
    yield load("compare")
    del sys.modules["compare"]


@pytest.fixture(scope="module")
def workloads():
    yield load("compare_workloads")
    del sys.modules["compare_workloads"]


@pytest.fixture
def build_tree(tmp_path):
    """Return a function that writes a checkout whose rounds take this time."""

    def build(name, ms):
        for folder in ("src/fedlap", "benchmarks"):
            (tmp_path / name / folder).mkdir(parents=True)
        (tmp_path / name / "src/fedlap/__init__.py").touch()
        (tmp_path / name / "benchmarks/compare_workloads.py").write_text(FAKE.format(ms=ms, device=name))
        return str(tmp_path / name)

    return build


@pytest.mark.parametrize(
    ("count", "low"), [(1, 1), (5, 1), (6, 1), (8, 1), (9, 2), (20, 6), (30, 10), (100, 40)]
)
def test_ranks_of_the_interval(compare, count, low):
    # For 30 values, P(Bin(30, ½) ≤ 9) = 0.021 and P(Bin(30, ½) ≤ 10) = 0.049: the bound is the tenth value.
    assert compare.bound_median(range(count, 0, -1)) == (low, count + 1 - low)


@pytest.mark.parametrize("count", [6, 17, 30])
def test_the_interval_is_the_narrowest_of_its_confidence(compare, count):
    low, high = compare.bound_median(range(count))

    def cover(rank):
        return 1 - 2 * sum(math.comb(count, below) for below in range(rank + 1)) / 2**count

    assert high == count - 1 - low
    assert cover(low) >= 0.95 > cover(low + 1)


@pytest.mark.parametrize(
    ("a", "b", "is_slower"),
    [
        (1.0, 1.02, False),  # 20 µs, but 2 %
        (1.0, 1.04, True),
        (0.1, 0.1049, False),  # 4.9 %, but 4.9 µs
        (0.1, 0.1051, True),
        (1.04, 1.0, False),
        (1.0, 1.0, False),
    ],
)
def test_slower_is_above_both_limits(compare, a, b, is_slower):
    comparison = compare.Comparison([a] * 7, [b] * 7)
    assert comparison.is_slower is is_slower
    assert comparison.format_cells()[-1] == ("SLOWER" if is_slower else "ok")


def test_ratios_are_paired(compare):
    a = [1.0, 2.0, 4.0, 8.0, 16.0]  # The machine slows down; every pair agrees that B takes 10 % longer.
    comparison = compare.Comparison(a, [1.1 * ms for ms in a])
    assert compare.bound_median(comparison.ratios) == pytest.approx((1.1, 1.1))
    outlier = compare.Comparison([1.0] * 5, [1.0, 1.0, 1.0, 9.0, 9.0])
    assert statistics.median(outlier.ratios) == 1.0
    assert not outlier.is_slower


def test_sides_take_turns(compare):
    order = []

    class Recorder:
        def __init__(self, label):
            self.label = label

        def measure(self, workload):
            order.append(self.label)
            return float(len(order))

    comparison = compare.compare_sides(Recorder("A"), Recorder("B"), "any", 3)
    assert "".join(order) == "AB" + "ABBAAB"  # after the first two, which warm up
    assert comparison == compare.Comparison([3.0, 6.0, 7.0], [4.0, 5.0, 8.0])


def test_both_directions_can_fail(compare, build_tree, tmp_path, capfd):
    fast, slow = build_tree("fast", 1.0), build_tree("slow", 1.5)
    assert compare.main([fast, slow, "--repeats", "2"]) == 1
    output, errors = capfd.readouterr()
    assert "fake | 1 | 1.5 | 1.500 | 1.500 to 1.500 | +500.0 | SLOWER\n" in output
    assert "this line is no answer" not in output
    assert "compare_workloads.py differs" in errors
    assert "fast-only" not in output
    assert compare.main([slow, fast, "--repeats", "2"]) == 0
    assert "fake | 1.5 | 1 | 0.667 | 0.667 to 0.667 | -500.0 | ok\n" in capfd.readouterr().out


def test_errors_are_one_line(compare, build_tree, capfd):
    good, broken = build_tree("good", 1.0), build_tree("broken", "1 / 0")
    with pytest.raises(
        SystemExit, match=r"^compare: no workload contains 'absent'; use one of fake, good-only$"
    ):
        compare.main([good, good, "--only", "absent"])
    with pytest.raises(SystemExit, match=r"^compare: the process of .*broken failed at 'fake'"):
        compare.main([good, broken])
    with pytest.raises(SystemExit, match=r"^compare: 'git rev-parse .* failed"):
        compare.main(["no-such-commit", good])
    with pytest.raises(SystemExit, match="2"):
        compare.main([good, good, "--repeats", "0"])


def test_old_checkouts_use_the_present_workloads(compare, build_tree, tmp_path):
    assert compare.find_workloads(tmp_path) == BENCHMARKS / "compare_workloads.py"
    tree = Path(build_tree("new", 1.0))
    assert compare.find_workloads(tree) == tree / "benchmarks" / "compare_workloads.py"


def test_workloads_measure(workloads):
    assert len(workloads.list_workloads("cpu")) == 5 + len(workloads.METHODS)
    assert "cifar-cnn" in workloads.list_workloads("cuda")
    assert set(workloads.SAMPLED_ROUNDS) <= set(workloads.METHODS)
    small = workloads.list_workloads("cpu")["small-fedu"]
    brief = workloads.Workload(small.build_federation, small.build_method, small.model, rounds=2)
    assert brief.measure("cpu") > 0
    for build_method in workloads.METHODS.values():
        build_method(small.build_federation())
