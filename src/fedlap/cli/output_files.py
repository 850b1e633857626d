"""Checks of files to write: a command overwrites neither its inputs nor a device or folder."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from fedlap.errors import InputError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.run_folder import (
    CHECKPOINT_FOLDER,
    DESCRIPTION_FILES,
    ENVIRONMENT_FILE,
    FAILURE_FILE,
    MODELS_FOLDER,
)
from fedlap.experiments.score_log import SCORE_LOG_FILE


def check_output(to: Path, inputs: Iterable[str | Path]) -> None:
    """Raise if the file is one of the inputs, under any name or link, or is not a regular file."""
    if not to.exists():
        return
    if not to.is_file():
        raise InputError(f"{str(to)!r} is not a regular file; choose another output file")
    for path in map(Path, inputs):
        if path.exists() and path.samefile(to):
            raise InputError(f"{str(to)!r} is an input of this command; choose another output file")


def list_run_files(folder: Path) -> Iterator[Path]:
    """Return the files of a run that no command may overwrite; tables and figures are not among them."""
    yield from (
        folder / name for name in (*DESCRIPTION_FILES, ENVIRONMENT_FILE, SCORE_LOG_FILE, FAILURE_FILE)
    )
    for name in (CHECKPOINT_FOLDER, MODELS_FOLDER):
        yield from (folder / name).glob("*")


def list_input_files(experiment: Experiment) -> list[str]:
    """Return the data and graph files that an experiment reads."""
    paths = (experiment.data.get("path"), experiment.data.get("test"), experiment.graph.get("path"))
    return [path for path in paths if path]
