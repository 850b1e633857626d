"""The benchmarks that write tables of predictions: complete rows, and what was measured."""

import pytest
from benchmarks import large_methods, planned
from rich.console import Console

from cost_rates import RATES


@pytest.fixture
def read_rows(tmp_path):
    """Run a benchmark and return its exit code and the cells of its rows."""

    def run(module, *words):
        results = tmp_path / "RESULTS.md"
        code = module.main([*words, "--results", str(results)])
        lines = [line for line in results.read_text().splitlines() if line.startswith("| ")]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        assert tuple(cells[0]) == module.HEADERS
        assert {len(row) for row in cells} == {len(module.HEADERS)}
        return code, cells[2:]

    return run


def test_predictions_for_many_clients_are_one_table(read_rows, monkeypatch):
    monkeypatch.setattr(planned, "calibrate", lambda *_: RATES)
    code, rows = read_rows(planned)
    assert code == 0
    assert {row[0] for row in rows} == set(planned.METHODS)
    spread = [row for row in rows if row[1] == "100,000,000" and row[2] == "ray × 64"]
    on_disk = [row[planned.HEADERS.index("GB on disk")] for row in spread]
    assert on_disk == ["26.4", "13.2"]  # models and states of FedU; FedAvg has one model, and gathers copies


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (2.0, 1)])
def test_methods_are_compared_with_the_plan(factor, code, read_rows, monkeypatch, tmp_path):
    """The exit code tells whether a prediction is off; bytes are counted by shards in this process."""
    estimates = []

    def measure(folder, case, engine):
        """Return what is predicted, times a factor."""
        return large_methods.Found(*(factor * value for value in estimates.pop()))

    def estimate(function):
        def call(*arguments):
            found = function(*arguments)
            estimates.append((found.round_seconds, found.machine_bytes, found.worker_bytes))
            return found

        return call

    monkeypatch.setattr(large_methods, "calibrate", lambda *_: RATES)
    monkeypatch.setattr(large_methods, "Console", lambda **_: Console(quiet=True))
    monkeypatch.setattr(large_methods, "estimate_stacked", estimate(large_methods.estimate_stacked))
    monkeypatch.setattr(large_methods, "estimate_spread", estimate(large_methods.estimate_spread))
    monkeypatch.setattr(large_methods, "measure", measure)
    words = ("--clients", "2000", "--cases", "fedavg,scaffold", "--workers", "2", "--folder", str(tmp_path))
    found, rows = read_rows(large_methods, *words)
    assert found == code
    assert [row[2] for row in rows] == ["stacked, 1 thread", "stacked, 2 threads", "ray, 2 workers"] * 2
    assert all(1 / 1.5 < float(row[-1]) < 1.5 for row in rows if row[-1])
