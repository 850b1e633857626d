"""The benchmark of large federations writes its table whatever is installed."""

from benchmarks import large_federations
from benchmarks.alternatives import UnavailableError
from rich.console import Console

from cost_rates import RATES, SIZES
from fedlap.costs.estimate import estimate_stacked


class Missing:
    """A system whose environment cannot be built."""

    def running(self, data, threads):
        raise UnavailableError("no network | 3 tries\nmore")


def test_what_is_not_installed_is_a_row_with_the_reason(monkeypatch, tmp_path):
    def measure(folder, engine, workers):
        workload = large_federations.build_workload(large_federations.build_settings(folder.clients))
        estimate = estimate_stacked(workload, SIZES, RATES)
        return large_federations.Measured(estimate.round_seconds, estimate.machine_bytes)

    systems = dict.fromkeys(("ours", "flower", "pfl_research"), Missing())
    monkeypatch.setattr(large_federations, "ALTERNATIVES", systems)
    monkeypatch.setattr(large_federations, "find_spec", lambda name: None)
    monkeypatch.setattr(large_federations, "calibrate", lambda *_: RATES)
    monkeypatch.setattr(large_federations, "measure", measure)
    monkeypatch.setattr(large_federations, "Console", lambda **_: Console(quiet=True))
    results = tmp_path / "RESULTS.md"
    words = ["--clients", "50,100", "--workers", "2", "--results", str(results), "--folder", str(tmp_path)]
    assert large_federations.main(words) == 0
    lines = [line for line in results.read_text().splitlines() if line.startswith("| ")][2:]
    assert {line.count("|") for line in lines} == {len(large_federations.HEADERS) + 1}
    engines = [line.split("|")[2].strip() for line in lines]
    no_ray = "ray, 2 workers: unavailable here (run pip install 'fedlap[ray]')"
    others = [f"{name}: unavailable here (no network / 3 tries)" for name in systems]
    assert engines == ["stacked", no_ray, "stacked", no_ray, *others]
