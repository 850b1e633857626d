"""Completion of names in a shell, without loading the registries."""

from collections.abc import Callable, Sequence
from pathlib import Path

RUNS_FOLDER = Path("runs")  # the default of --out
DESCRIPTION_FILE_NAMES = ("experiment.toml", "fit.toml")


def complete_names(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a function that completes a name, or the last of several names with commas between them."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete


def complete_run(incomplete: str) -> list[str]:
    """Return the names of the runs in the folder `runs` that begin like this."""
    found = [path for name in DESCRIPTION_FILE_NAMES for path in RUNS_FOLDER.glob(f"*/{name}")]
    return sorted(path.parent.name for path in found if path.parent.name.startswith(incomplete))
