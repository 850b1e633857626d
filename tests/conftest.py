import sys

import numpy as np
import pytest
import torch
from jaxtyping import install_import_hook

pytest.register_assert_rewrite("disk", "emulation", "kept_runs", "table_rows")  # to see what differs
with install_import_hook("fedlap", "shapes.check"):
    import fedlap as fl

torch.set_num_threads(1)


def random_arrays(counts, features=4, labels=3, seed=0, real=False):
    """Unequal clients called a, b, c, … with normal features and unrelated labels."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for place, count in enumerate(counts):
        x = rng.normal(size=(count, features)) + 0.5 * rng.normal(size=features)
        y = rng.normal(size=(count, labels)) if real else rng.integers(0, labels, count)
        arrays[chr(ord("a") + place)] = (x, y)
    return arrays


def random_weights(names, seed=0, density=0.7):
    rng = np.random.default_rng(seed)
    a = np.triu(rng.uniform(0.2, 1.5, (len(names),) * 2) * (rng.uniform(size=(len(names),) * 2) < density), 1)
    return a + a.T


@pytest.fixture(scope="session")
def arrays():
    return random_arrays([7, 23, 5, 12, 40, 9])


@pytest.fixture(scope="session")
def federation(arrays):
    return fl.Federation.from_arrays(arrays, test_share=0.25, seed=3, labels=3, scale="none")


@pytest.fixture(scope="session")
def graph(federation):
    return fl.Graph.from_matrix(random_weights(federation.clients), federation.clients)


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """A cache folder of the test's own, no other data, and no proxy."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("FEDLAP_DATA", raising=False)


@pytest.fixture
def no_compiler(monkeypatch):
    """A machine without one: everything goes step by step."""
    monkeypatch.setattr("fedlap.engines.host.compiled", lambda dtype: None)


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run `fedlap …` in this process: exit code, standard output, standard error."""
    from fedlap import cli  # here, since training alone must not need what the command line needs

    def run(*words, out=True):
        given = [*words, "--out", str(tmp_path / "runs")] if out else list(words)
        monkeypatch.setattr(sys, "argv", ["fedlap", *given])
        # Consoles take hold of a stream when made; capsys has replaced it since.
        monkeypatch.setattr(cli.console, "out", cli.console.Console(width=100))
        monkeypatch.setattr(cli.console, "err", cli.console.Console(stderr=True, width=100))
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        return exit_.value.code or 0, captured.out, captured.err

    return run


def pytest_terminal_summary(terminalreporter):
    """Say how much was not tested for want of genuine data, or of a browser."""
    skipped = [str(report.longrepr) for report in terminalreporter.getreports("skipped")]
    for reason, said in {
        "genuine files": "on genuine data skipped: set FEDLAP_DATA to their folder",
        "no browser": "in a browser skipped: install selenium, chromium and chromium-driver",
    }.items():
        absent = sum(reason in text for text in skipped)
        if absent:
            terminalreporter.write_line(f"{absent} tests {said}")
