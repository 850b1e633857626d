"""The folder of a run: its experiment, environment, scores, checkpoints and models."""

import json
import os
import platform
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Protocol

import tomli_w
import torch

from fedlap.errors import DivergedError, InputError
from fedlap.experiments import checkpoints
from fedlap.experiments.checkpoints import Checkpoint, Owner, UnusableCheckpointError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.fit_description import FIT_FILE, convert_fit_file
from fedlap.experiments.score_log import SCORE_LOG_FILE, format_line, get_stat
from fedlap.kernels import cpp_library
from fedlap.storage.files import (
    check_writable,
    describe_error,
    parse_json,
    read_file,
    read_text,
    refuse_links,
    unwritable_error,
    write_file,
)
from fedlap.training.result import Progress, Result
from fedlap.training.schedule import Schedule
from fedlap.training.scores import Score

RunStatus = Literal["new", "unfinished", "done", "diverged"]
EXPERIMENT_FILE, ENVIRONMENT_FILE = "experiment.toml", "environment.json"
DESCRIPTION_FILES = (EXPERIMENT_FILE, FIT_FILE)  # of the command line and of `fedlap.fit`
FAILURE_FILE = "diverged.json"
CHECKPOINT_FOLDER, MODELS_FOLDER = "checkpoint", "models"
RUN_SUBFOLDERS = (CHECKPOINT_FOLDER, MODELS_FOLDER, "report")  # checked for links


class RunDescription(Protocol):
    """The description of a run: an Experiment, or the arguments of `fedlap.fit`."""

    @property
    def digest(self) -> str:
        """Hexadecimal digits of all that determines the numbers of a run; rounds are not included."""
        ...

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        ...

    @property
    def schedule(self) -> Schedule:
        """The schedule of the run."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return plain values, as the folder stores them."""
        ...


@dataclass(frozen=True)
class RunFolder:
    """A folder named by its experiment; the number of rounds does not change the name.

    description_file: the file of the run's description. `fedlap.fit` uses another name, and any folder.
    """

    folder: Path
    description_file: str = EXPERIMENT_FILE

    @staticmethod
    def of(out: Path, experiment: Experiment) -> "RunFolder":
        """Return the folder of an experiment, named by its data, algorithm and digest."""
        name = f"{experiment.folder_title}-{experiment.algorithm['name']}-{experiment.digest}"
        run = RunFolder(out / name)
        refuse_links(run.folder, RUN_SUBFOLDERS)
        if (run.folder / EXPERIMENT_FILE).exists() and run.experiment.digest != experiment.digest:
            raise InputError(
                f"out: {str(run.folder)!r} contains an experiment that does not match its name; move it away"
            )
        return run

    @staticmethod
    def open(path: Path) -> "RunFolder":
        """Open an existing folder; raise InputError for links, which would lead out of it."""
        refuse_links(path, RUN_SUBFOLDERS)
        file = find_description(path)
        if not path.exists():
            raise InputError(f"no run {str(path)!r}; `fedlap runs` lists all runs")
        if file is None:
            raise InputError(f"{str(path)!r} is not the folder of a run; `fedlap runs` lists all runs")
        return RunFolder(path, file)

    @property
    def experiment(self) -> Experiment:
        """The stored experiment."""
        refuse_links(self.folder, RUN_SUBFOLDERS)
        return read_experiment(self.folder / self.description_file, stored=True)

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.name

    @property
    def saved_rounds(self) -> list[int]:
        """Rounds of all checkpoints, newest first."""
        return checkpoints.list_checkpoint_rounds(self.folder / CHECKPOINT_FOLDER)

    def get_status(self, rounds: int | None = None) -> RunStatus:
        """Return the status for this number of rounds; default: the number in its file."""
        if not (self.folder / self.description_file).is_file():
            return "new"
        if (self.folder / FAILURE_FILE).is_file():
            return "diverged"
        wanted = self.experiment.rounds if rounds is None else rounds
        return "done" if self.saved_rounds and self.saved_rounds[0] >= wanted else "unfinished"

    def read_failure(self) -> DivergedError:
        """Return the stored error of a diverged run."""
        try:
            return DivergedError(str(parse_json(read_file(self.folder / FAILURE_FILE))["reason"]))
        except (OSError, ValueError, TypeError, KeyError):
            path = str(self.folder / FAILURE_FILE)
            raise InputError(f"{path!r} is damaged; rerun with --again") from None

    def read_scores(self) -> list[Score]:
        """Return the scores of rounds.jsonl; an incomplete last line is ignored."""
        try:
            lines = read_file(self.folder / SCORE_LOG_FILE).split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        except OSError as error:
            path = str(self.folder / SCORE_LOG_FILE)
            raise InputError(f"{path!r} cannot be read: {describe_error(error)}") from error
        scores = []
        for number, line in enumerate(lines, 1):
            try:
                values = parse_json(line)
                scores.append(Score.from_dict(values if isinstance(values, dict) else {}))
            except (ValueError, OverflowError) as error:
                place = f"{str(self.folder / SCORE_LOG_FILE)!r}, line {number}"
                raise InputError(f"{place} is damaged ({error}); rerun with --again") from error
        return scores

    def read_checkpoints(
        self, description: RunDescription | None = None
    ) -> tuple[list[Checkpoint], list[str]]:
        """Return valid checkpoints, newest first, and why the others were rejected.

        description: that of the run; default: the stored experiment.
        """
        # Rounds are read before the scores, since another process may write both in the meantime.
        saved, described = self.saved_rounds, description or self.experiment
        scored = {score.round for score in self.read_scores()}
        found, remarks = [], []
        for round in saved:
            try:
                checkpoint = checkpoints.read_checkpoint(
                    self.folder / CHECKPOINT_FOLDER, round, described.digest
                )
            except UnusableCheckpointError as reason:
                remarks.append(f"{self.name}: the checkpoint of round {round} {reason}; it is ignored")
                continue
            missing = set(described.schedule.list_intermediate_rounds(round)) - scored
            if missing:
                path = str(self.folder / SCORE_LOG_FILE)
                raise InputError(f"{path!r} has no score of round {min(missing)}; rerun with --again")
            found.append(checkpoint)
        return found, remarks

    def load_progress(self, checkpoint: Checkpoint) -> Progress:
        """Load the state of a checkpoint with the scores up to its round."""
        scores = [score for score in self.read_scores() if score.round <= checkpoint.round]
        return checkpoint.load_progress(scores)

    def create(self, description: RunDescription) -> None:
        """Create the folder of a new run, and remove what an earlier run stored in it."""
        self.clear()
        write_file(self.folder / SCORE_LOG_FILE, b"")
        self.write_description(description)

    def write_description(self, description: RunDescription) -> None:
        """Write the description of the run and its environment."""
        write_file(
            self.folder / ENVIRONMENT_FILE,
            json.dumps(_describe_run_environment(description), indent=1).encode(),
        )
        write_file(self.folder / self.description_file, tomli_w.dumps(description.describe()).encode())

    def find_environment_changes(self, description: RunDescription) -> list[str]:
        """Describe changes of the environment since the run began that may change the last digits."""
        try:
            before = dict(parse_json(read_file(self.folder / ENVIRONMENT_FILE)))
        except (OSError, ValueError, TypeError):
            return [f"{self.name}: environment.json is missing or damaged; last digits may differ"]
        now = _describe_run_environment(description)
        return [
            f"{key} was {before[key]!r} and is now {now[key]!r}; last digits may differ from an unbroken run"
            for key in ("torch", "device", "threads", "kernel")
            if key in before and before[key] != now[key]
        ]

    def truncate(self, round: int, scores: Sequence[Score]) -> None:
        """Go back to a round with these scores; checkpoints of later rounds are removed first."""
        checkpoints.remove_checkpoints_after(self.folder / CHECKPOINT_FOLDER, round)
        write_file(self.folder / SCORE_LOG_FILE, b"".join(map(format_line, scores)))

    def clear(self) -> None:
        """Remove the files of an earlier run."""
        # The description is removed first: a folder without it does not count as a run.
        for name in (self.description_file, SCORE_LOG_FILE, FAILURE_FILE):
            try:
                (self.folder / name).unlink(missing_ok=True)
            except OSError as error:
                raise unwritable_error(self.folder / name, error) from error
        for name in (CHECKPOINT_FOLDER, MODELS_FOLDER):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def save_checkpoint(self, progress: Progress, owner: Owner) -> None:
        """Write a checkpoint after its scores are on disk; a state that is not finite is not written."""
        if checkpoints.is_finite(progress):
            checkpoints.write_checkpoint(self.folder / CHECKPOINT_FOLDER, progress, owner)

    def save_models(self, result: Result) -> None:
        """Save the clients' models."""
        result.personals.save(self.folder / MODELS_FOLDER)

    def save_failure(self, error: DivergedError) -> None:
        """Write the error of a diverged run; earlier checkpoints stay."""
        write_file(self.folder / FAILURE_FILE, json.dumps({"reason": str(error)}).encode())

    def compute_fingerprint(self) -> tuple[Any, ...]:
        """Return values that change whenever the run is created, trained or cleared."""
        stats = [
            get_stat(self.folder / name) for name in (self.description_file, SCORE_LOG_FILE, FAILURE_FILE)
        ]
        return *self.saved_rounds, *(
            (stat.st_ino, stat.st_size, stat.st_mtime_ns) if stat else None for stat in stats
        )


def choose_group_folder(out: Path, experiments: Sequence[Experiment], kind: str) -> Path:
    """Return the folder of a comparison or sweep."""
    digest = sha256("".join(f"{e.digest}{e.rounds}" for e in experiments).encode()).hexdigest()[:16]
    return out / f"{experiments[0].folder_title}-{kind}-{digest}"


def list_run_folders(out: Path) -> list[RunFolder]:
    """Return all run folders in `out`."""
    return [RunFolder(path.parent) for path in sorted(out.glob(f"*/{EXPERIMENT_FILE}"))]


def read_experiment(path: Path, stored: bool = False) -> Experiment:
    """Read an experiment from its file; raise InputError, with the field, for an invalid value.

    stored: as for `Experiment.of`.
    """
    try:
        description = tomllib.loads(read_text(path))
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {describe_error(error)}") from error
    except (ValueError, RecursionError) as error:  # invalid TOML or text, too many digits, too deep nesting
        raise InputError(f"{str(path)!r} is not a TOML file: {error}") from error
    is_fit = stored and path.name == FIT_FILE
    return Experiment.of(convert_fit_file(description) if is_fit else description, stored)


def find_description(folder: Path) -> str | None:
    """Return the name of the file that describes the run in a folder; None if there is none."""
    return next((name for name in DESCRIPTION_FILES if (folder / name).is_file()), None)


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return the versions, device and threads that numbers and times may depend on."""
    packages = {name: version(name) for name in ("fedlap", "torch", "numpy", "scipy")}
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "python": platform.python_version(),
        **packages,
        "commit": _find_commit(),
        "device": name,
        "threads": torch.get_num_threads(),
    }


def _describe_run_environment(description: RunDescription) -> dict[str, Any]:
    """Return the environment of a run, with the compiler of the C++ kernel if it runs on a CPU."""
    device, dtype = description.schedule.resolve_device(), description.schedule.torch_dtype
    kernel = cpp_library.identify_kernel(dtype) if device.type == "cpu" else None
    return describe_environment(device) | {"kernel": kernel}


@cache
def _find_commit() -> str | None:
    """Return $FEDLAP_COMMIT, or the commit of the checkout that runs, or None."""
    if os.environ.get("FEDLAP_COMMIT"):
        return os.environ["FEDLAP_COMMIT"]
    root = Path(__file__).parents[3]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    described = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return described.stdout.strip() or None


def create_out_folder(out: Path) -> None:
    """Create the folder for results; raise InputError, before any training, if it is not writable."""
    try:
        check_writable(out)
    except OSError as error:
        raise unwritable_error(out, error) from error
