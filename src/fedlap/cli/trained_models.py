"""Models that a run has trained."""

from pathlib import Path

from fedlap.errors import InputError
from fedlap.personal import Personals


def load_trained_models(run: Path) -> Personals:
    """Load the personal models of a run."""
    if (run / "models" / "about.json").exists():
        return Personals.load(run / "models")
    if not run.exists():
        raise InputError(f"no run {str(run)!r}; pass the folder of a run")
    if (run / "experiment.toml").exists():
        raise InputError(f"the run {str(run)!r} has no models yet; finish it with `fedlap resume {run}`")
    raise InputError(f"{str(run)!r} is not a run (it has no experiment.toml); pass the folder of a run")
