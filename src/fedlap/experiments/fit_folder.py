"""The folder of `fedlap.fit`: the files of a run folder, for a run of Python objects."""

import hashlib
import json
import logging
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlap.algorithms import list_settings
from fedlap.errors import DivergedError, InputError
from fedlap.experiments.content_digest import digest_content
from fedlap.experiments.fit import FitMonitor
from fedlap.experiments.run_folder import (
    ENVIRONMENT_FILE,
    EXPERIMENT_FILE,
    RUN_SUBFOLDERS,
    RunFolder,
)
from fedlap.experiments.score_log import SCORE_LOG_FILE
from fedlap.experiments.session import ProgressCallbacks, RunRecorder, read_valid_checkpoints
from fedlap.graph import Graph
from fedlap.graph.weights import CompleteWeights
from fedlap.models.torch_module import ModuleNetwork
from fedlap.storage.files import describe_error, read_text, refuse_links
from fedlap.storage.locks import CLAIM_FILE, LOCK_FILE, lock_folders
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job, bind_algorithm
from fedlap.training.recorder import RoundEnd
from fedlap.training.result import Result
from fedlap.training.schedule import Schedule
from fedlap.training.scores import Score

FIT_FILE = "fit.toml"
DIGEST_PREFIX = "sha256:"
# A folder with these files alone is used: a process was killed before it had written the description.
_FIRST_FILES = {LOCK_FILE, CLAIM_FILE, SCORE_LOG_FILE, ENVIRONMENT_FILE}

_LOG = logging.getLogger("fedlap")


@dataclass(frozen=True)
class FitDescription:
    """The arguments of `fedlap.fit` as plain values; digests stand for data, graphs and modules."""

    schedule: Schedule
    objects: dict[str, Any]  # method, model, data, seed and start

    @staticmethod
    def of(job: Job, schedule: Schedule) -> "FitDescription":
        """Describe a run; raise InputError if its method does not fit the data or the model."""
        algorithm, model = bind_algorithm(job.algorithm, job.federation, job.model)
        federation = job.federation
        settings = {name: describe_value(value) for name, value in list_settings(algorithm).items()}
        return FitDescription(
            schedule,
            {
                "seed": job.seed,
                "start": "default" if job.start is None else _digest(torch.as_tensor(job.start)),
                "data": {
                    "clients": len(federation.clients),
                    "training_rows": int(federation.train.count.sum()),
                    "test_rows": int(federation.test.count.sum()),
                    "content": DIGEST_PREFIX + digest_content(federation),
                },
                "algorithm": {"name": type(algorithm).__name__, **settings},
                "model": {"l2": model.l2, **describe_value(model.network)},
            },
        )

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return self.schedule.rounds

    @property
    def digest(self) -> str:
        """16 hexadecimal digits of all that determines the numbers of a run; rounds are not included."""
        fixed = {key: value for key, value in self.describe().items() if key != "rounds"}
        return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]

    def describe(self) -> dict[str, Any]:
        """Return plain values, as the folder stores them."""
        schedule = asdict(self.schedule)
        if self.schedule.score_training == "last":
            del schedule["score_training"]  # so that folders of earlier versions continue
        return {**schedule, **self.objects}


@dataclass(frozen=True, eq=False)
class FitFolder:
    """A locked folder, and the job of its run, which resumes from the folder's last checkpoint."""

    run: RunFolder
    description: FitDescription
    job: Job
    schedule: Schedule

    def train(self, monitor: FitMonitor) -> Result | DivergedError:
        """Train the remaining rounds; scores, checkpoints and models are written meanwhile."""
        callbacks = ProgressCallbacks(
            should_stop=lambda: monitor.should_stop, on_remark=lambda remark: _LOG.warning("%s", remark)
        )
        recorder = RunRecorder([0], [self.run], callbacks, [None])

        def on_score(place: int, score: Score) -> None:
            recorder.on_score(place, score)
            monitor.on_score(place, score)

        def on_round(end: RoundEnd) -> None:
            monitor.on_round(end)
            recorder.on_round(end)

        with ExitStack() as open_logs:
            recorder.open([self.description], [self.job], open_logs)
            results = fit_all([self.job], self.schedule, on_score, on_round)
            recorder.close(results)
        return results[0]


@contextmanager
def open_fit_folder(folder: Path, job: Job, schedule: Schedule) -> Iterator[FitFolder]:
    """Lock a folder and yield its run; raise InputError for a folder that has other content.

    A run that has diverged raises its error again.
    """
    run = RunFolder(folder.expanduser(), FIT_FILE)
    description = FitDescription.of(job, schedule)
    _check_folder(run.folder)
    with lock_folders([run.folder]):
        status = run.get_status(schedule.rounds)
        if status != "new":
            _check_same_run(run.folder, description.describe())
            job = replace(job, progress=None)
        if status == "diverged":
            raise run.read_failure()
        if status != "new":
            with _advise_removal(run.folder):
                found, rejected = read_valid_checkpoints(run, description)
                for remark in rejected:
                    _LOG.warning("%s", remark)
                if found:
                    job = replace(job, progress=run.load_progress(found[0]))
            for remark in run.find_environment_changes(description) if job.progress else ():
                _LOG.warning("%s", remark)
        if job.rounds_done > schedule.rounds:
            raise InputError(
                f"folder: the run in {str(folder)!r} has finished {job.rounds_done} rounds, but rounds = "
                f"{schedule.rounds}; set rounds to {job.rounds_done} or more, or use another folder",
                field="folder",
            )
        if job.progress:
            _LOG.info("%s: the run continues after round %d", run.folder, job.rounds_done)
        yield FitFolder(run, description, job, schedule)


def _check_folder(folder: Path) -> None:
    """Raise InputError unless the folder is new, is empty, or has a run of `fedlap.fit`."""
    refuse_links(folder, RUN_SUBFOLDERS)
    try:
        names = {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(
            f"folder: {str(folder)!r} cannot be used ({describe_error(error)}); use another", field="folder"
        ) from error
    if EXPERIMENT_FILE in names:
        raise InputError(
            f"folder: {str(folder)!r} has a run of the command line; resume it by `fedlap resume`, or use "
            "another folder",
            field="folder",
        )
    others = {name for name in names - _FIRST_FILES if not name.startswith(".fedlap-")}
    if FIT_FILE not in names and others:
        raise InputError(
            f"folder: {str(folder)!r} has other files, such as {min(others)!r}; use a new or empty folder",
            field="folder",
        )


def _check_same_run(folder: Path, passed: Mapping[str, Any]) -> None:
    """Raise InputError if the run in a folder has other data, another method or other settings."""
    try:
        stored = tomllib.loads(read_text(folder / FIT_FILE))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"folder: {str(folder / FIT_FILE)!r} cannot be read ({describe_error(error)}); use another "
            "folder",
            field="folder",
        ) from error
    before, now = _flatten(stored), _flatten(passed)
    for name in dict.fromkeys((*now, *before)):
        old, new = before.get(name, "unset"), now.get(name, "unset")
        if name == "rounds" or old == new:
            continue
        subject = name.partition(".")[0]
        if subject != "data":
            subject = name.removesuffix(".name").removesuffix(".content").removeprefix("algorithm.")
        if subject == "data" or any(str(value).startswith(DIGEST_PREFIX) for value in (old, new)):
            difference, same = f"other {subject}", f"the same {subject}"
        else:
            difference, same = f"{subject} = {old}, but {subject} = {new} was passed", f"{subject}={old}"
        raise InputError(
            f"folder: {str(folder)!r} has a run with {difference}; use another folder, or pass {same}",
            field="folder",
        )


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values under dotted names, as JSON text if they are lists."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = json.dumps(value) if isinstance(value, list) else value
    return flat


@contextmanager
def _advise_removal(folder: Path) -> Iterator[None]:
    """Replace the advice for the command line in errors about damaged files."""
    try:
        yield
    except InputError as error:
        advice = f"remove {str(folder)!r} to train again"
        message = error.message.replace("rerun with --again", advice)
        raise error.reword(message, field="folder", scope=error.scope) from error


def describe_value(value: Any) -> Any:
    """Return a setting as plain values; digests stand for tensors, graphs and modules."""
    if value is None:
        return "none"
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Graph | Tensor | np.ndarray | nn.Module | ModuleNetwork):
        return {"name": type(value).__name__, "content": _digest(value)}
    if isinstance(value, list | tuple):
        return [describe_value(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): describe_value(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        inner = {field.name: getattr(value, field.name) for field in fields(value)}
        described = {name: describe_value(item) for name, item in inner.items() if name[0] != "_"}
        return {"name": type(value).__name__, **described}
    return repr(value)


def _digest(value: Any) -> str:
    """Return a digest of the content of a tensor, graph or module; a module's start values count, too."""
    total = hashlib.sha256()
    if isinstance(value, Graph):
        total.update(json.dumps([value.clients, value.server, value.size]).encode())
        if isinstance(value.weights, CompleteWeights):
            total.update(repr(value.weights.weight).encode())
        else:
            matrix = value.weights.matrix().tocoo()
            for array in (matrix.row, matrix.col, matrix.data):
                total.update(np.ascontiguousarray(array).tobytes())
    elif isinstance(value, nn.Module | ModuleNetwork):
        net = value.net if isinstance(value, ModuleNetwork) else value
        total.update(repr(net).encode())
        for name, tensor in net.state_dict().items():
            total.update(f"{name} {_digest(tensor)}".encode())
    else:
        array = value.detach().cpu().contiguous().numpy() if isinstance(value, Tensor) else value
        total.update(json.dumps([str(array.dtype), list(array.shape)]).encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return DIGEST_PREFIX + total.hexdigest()[:32]
