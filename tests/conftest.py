import os
import signal
import sys

import pytest

import fedlap as fl
from random_inputs import random_arrays, random_weights

pytest.register_assert_rewrite(  # failed assertions in the modules below show both values
    "built_site", "cnn_kernels", "disk", "emulation", "fit_results", "networks", "pages", "run_folders",
    "small_recipes", "table_rows",
)  # fmt: skip


# A shell that starts the tests in the background ignores Ctrl-C, and every process that they start would too.
signal.signal(signal.SIGINT, signal.default_int_handler)


def load_checked_fedlap():
    """Load fedlap with checks of types and shapes in the functions of the whole package."""
    import torch

    from shapes import check_package

    with check_package("fedlap"):
        # Names are loaded on first use, which may be after this block. Comparisons stay outside: they need
        # experiments, and beartype cannot check the protocols of pydantic.
        for public in set(fl.__all__) - {"ComparisonResult", "compare", "sweep"}:
            getattr(fl, public)
    torch.set_num_threads(1)


# Before the conftest of a folder imports a module of fedlap, and not in the process that hands out tests.
if "PYTEST_XDIST_WORKER" in os.environ or not any(word.startswith("-n") for word in sys.argv):
    load_checked_fedlap()


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
    monkeypatch.setattr("fedlap.kernels.cpp_library.load_library", lambda dtype: None)


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run `fedlap …` in this process: exit code, standard output, standard error."""
    from fedlap import cli  # here, since training alone must not need what the command line needs

    def run(*words, out=True):
        arguments = [*words, "--out", str(tmp_path / "runs")] if out else list(words)
        monkeypatch.setattr(sys, "argv", ["fedlap", *arguments])
        # A console takes hold of its stream when it is created; capsys has replaced that stream since.
        monkeypatch.setattr(cli.console, "out", cli.console.Console(width=100))
        monkeypatch.setattr(cli.console, "err", cli.console.Console(stderr=True, width=100))
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        return exit_.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture
def no_figures(monkeypatch):
    """Pages without figures, which take a second per page."""
    monkeypatch.setattr("fedlap.report.page.matplotlib_figures.render_figures", lambda section, places: {})


def pytest_terminal_summary(terminalreporter):
    """Count the tests that were skipped because data, a browser, a build backend or Ray is absent."""
    skipped = [str(report.longrepr) for report in terminalreporter.getreports("skipped")]
    for reason, advice in {
        "genuine files": "on genuine data skipped: set FEDLAP_DATA to their folder",
        "no browser": "in a browser skipped: install selenium, chromium and chromium-driver",
        "no build backend": "of the wheel skipped: install the setuptools that pyproject.toml asks for",
        "fedlap[ray]": "or files of Ray skipped: run pip install 'fedlap[ray]'",
        "another arithmetic": "of synthetic data skipped: log and cos differ here in last digits",
    }.items():
        absent = sum(reason in text for text in skipped)
        if absent:
            terminalreporter.write_line(f"{absent} tests {advice}")
