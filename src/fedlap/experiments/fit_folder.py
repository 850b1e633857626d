"""The folder of `fedlap.fit`: the files of a run folder, for a run of Python objects."""

import json
import logging
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedlap.errors import DivergedError, InputError
from fedlap.experiments.fit import FitMonitor
from fedlap.experiments.fit_description import DIGEST_PREFIX, FIT_FILE, FitDescription
from fedlap.experiments.run_folder import (
    ENVIRONMENT_FILE,
    EXPERIMENT_FILE,
    RUN_SUBFOLDERS,
    RunFolder,
)
from fedlap.experiments.score_log import SCORE_LOG_FILE
from fedlap.experiments.session import ProgressCallbacks, RunRecorder, read_valid_checkpoints
from fedlap.storage.files import describe_error, read_text, refuse_links
from fedlap.storage.locks import CLAIM_FILE, LOCK_FILE, lock_folders
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.recorder import RoundEnd
from fedlap.training.result import Result
from fedlap.training.schedule import Schedule
from fedlap.training.scores import Score

# A folder with these files alone is used: a process was killed before it had written the description.
_FIRST_FILES = {LOCK_FILE, CLAIM_FILE, SCORE_LOG_FILE, ENVIRONMENT_FILE}

_LOG = logging.getLogger("fedlap")


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
