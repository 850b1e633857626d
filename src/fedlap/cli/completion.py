"""Completion of names in a shell, without loading the registries."""

from collections.abc import Callable, Sequence
from pathlib import Path

RUNS_FOLDER = Path("runs")  # the default of --out
EXPERIMENT_FILE_NAME = "experiment.toml"


def complete_names(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a function that completes a name, or the last of several names with commas between them."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete


def complete_run(incomplete: str) -> list[str]:
    """Return the names of the runs in the folder `runs` that begin like this."""
    found = RUNS_FOLDER.glob(f"*/{EXPERIMENT_FILE_NAME}")
    return sorted(path.parent.name for path in found if path.parent.name.startswith(incomplete))
