"""Files that a command writes: never over what it reads, and never over a device or a folder."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from fedlap.errors import InputError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.run_folder import CHECKPOINTS, ENVIRONMENT, EXPERIMENT, FAILURE, MODELS
from fedlap.experiments.score_log import ROUNDS


def check_output(to: Path, inputs: Iterable[str | Path]) -> None:
    """Refuse to write over one of the inputs, by whatever link or name, or over what is no plain file."""
    if not to.exists():
        return
    if not to.is_file():
        raise InputError(f"{str(to)!r} is not a plain file; name another file to write")
    for path in map(Path, inputs):
        if path.exists() and path.samefile(to):
            raise InputError(f"{str(to)!r} is read by this command; name another file to write")


def files_of_run(folder: Path) -> Iterator[Path]:
    """The files that make up a run; a table or a picture beside them may be written again."""
    yield from (folder / name for name in (EXPERIMENT, ENVIRONMENT, ROUNDS, FAILURE))
    for name in (CHECKPOINTS, MODELS):
        yield from (folder / name).glob("*")


def files_of_experiment(experiment: Experiment) -> list[str]:
    """The files of data and of a graph that an experiment reads."""
    given = (experiment.data.get("path"), experiment.data.get("test"), experiment.graph.get("path"))
    return [path for path in given if path]
