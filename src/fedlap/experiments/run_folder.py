"""The run folder: what was run, how far it is, and what came out."""

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
from typing import Any, Literal

import tomli_w
import torch

from fedlap.errors import DivergedError, InputError
from fedlap.experiments import checkpoints
from fedlap.experiments.checkpoints import Checkpoint, DamagedError, Owner
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.score_log import ROUNDS, line_of, stat_of
from fedlap.kernels import cpp_library
from fedlap.storage.files import (
    check_writable,
    parse_json,
    read_file,
    read_text,
    reason,
    refuse_links,
    unwritable,
    write_file,
)
from fedlap.training.result import Progress, Result
from fedlap.training.scores import Score

State = Literal["new", "unfinished", "done", "diverged"]
EXPERIMENT, ENVIRONMENT = "experiment.toml", "environment.json"
FAILURE = "diverged.json"
CHECKPOINTS, MODELS = "checkpoint", "models"
FOLDERS = (CHECKPOINTS, MODELS, "report")  # of a run, which are written, read and removed


@dataclass(frozen=True)
class RunFolder:
    """A folder named by its experiment; one experiment, whatever its number of rounds, has one folder."""

    folder: Path

    @staticmethod
    def of(out: Path, experiment: Experiment) -> "RunFolder":
        """Where a run of this experiment is kept: its data, its algorithm and its digest."""
        run = RunFolder(out / f"{experiment.title}-{experiment.algorithm['name']}-{experiment.digest}")
        refuse_links(run.folder, FOLDERS)
        if (run.folder / EXPERIMENT).exists() and run.experiment.digest != experiment.digest:
            raise InputError(
                f"out: {str(run.folder)!r} holds another experiment than its name says; move it away"
            )
        return run

    @staticmethod
    def open(path: Path) -> "RunFolder":
        """A folder that is there, without links, which would lead out of it."""
        refuse_links(path, FOLDERS)
        if not (path / EXPERIMENT).is_file():
            raise InputError(f"{str(path)!r} is not the folder of a run; `fedlap runs` lists those there are")
        return RunFolder(path)

    @property
    def experiment(self) -> Experiment:
        """What is run here."""
        refuse_links(self.folder, FOLDERS)
        return read_experiment(self.folder / EXPERIMENT, stored=True)

    @property
    def name(self) -> str:
        """The folder's."""
        return self.folder.name

    @property
    def saved(self) -> list[int]:
        """The rounds that it can go on from, the last first."""
        return checkpoints.rounds_in(self.folder / CHECKPOINTS)

    def state(self, rounds: int | None = None) -> State:
        """How far it is, where so many rounds are wanted; by default those of its own file."""
        if not (self.folder / EXPERIMENT).is_file():
            return "new"
        if (self.folder / FAILURE).is_file():
            return "diverged"
        wanted = self.experiment.rounds if rounds is None else rounds
        return "done" if self.saved and self.saved[0] >= wanted else "unfinished"

    def failure(self) -> DivergedError:
        """Why it diverged."""
        try:
            return DivergedError(str(parse_json(read_file(self.folder / FAILURE))["reason"]))
        except (OSError, ValueError, TypeError, KeyError):
            path = str(self.folder / FAILURE)
            raise InputError(f"{path!r}, why it diverged, is damaged; repeat the run with --again") from None

    def scores(self) -> list[Score]:
        """All lines of its rounds.jsonl; one that was not written to its end is left out."""
        try:
            lines = read_file(self.folder / ROUNDS).split(b"\n")[:-1]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"{str(self.folder / ROUNDS)!r} cannot be read: {reason(error)}") from error
        made = []
        for number, line in enumerate(lines, 1):
            try:
                values = parse_json(line)
                made.append(Score.from_dict(values if isinstance(values, dict) else {}))
            except (ValueError, OverflowError) as error:
                place = f"{str(self.folder / ROUNDS)!r}, line {number}"
                raise InputError(f"{place} is damaged ({error}); repeat the run with --again") from error
        return made

    def checkpoints(self) -> tuple[list[Checkpoint], list[str]]:
        """Those that it can go on from, the last first; and of the others why not."""
        saved, experiment = self.saved, self.experiment  # before scores, which another process may add
        scored = {score.round for score in self.scores()}
        found, remarks = [], []
        for round in saved:
            try:
                made = checkpoints.read(self.folder / CHECKPOINTS, round, experiment.digest)
            except DamagedError as reason:
                remarks.append(f"{self.name}: the checkpoint of round {round} {reason}; it is not used")
                continue
            every = experiment.evaluate_every
            missing = set(range(every, round + 1, every) if every else ()) - scored
            if missing:
                raise InputError(
                    f"{str(self.folder / ROUNDS)!r} has no line for round {min(missing)}, which was scored; "
                    "repeat the run with --again"
                )
            found.append(made)
        return found, remarks

    def progress(self, at: Checkpoint) -> Progress:
        """Where it was then."""
        return at.progress([score for score in self.scores() if score.round <= at.round])

    def begin(self, experiment: Experiment) -> None:
        """Make the folder, empty of rounds."""
        self.clear()
        write_file(self.folder / ROUNDS, b"")
        self.describe(experiment)

    def describe(self, experiment: Experiment) -> None:
        """Keep what is run, and where."""
        write_file(
            self.folder / ENVIRONMENT,
            json.dumps(_environment_of(experiment), indent=1).encode(),
        )
        write_file(self.folder / EXPERIMENT, tomli_w.dumps(experiment.described()).encode())

    def changes(self, experiment: Experiment) -> list[str]:
        """What is not as it was when it was begun, and may change last digits."""
        try:
            before = dict(parse_json(read_file(self.folder / ENVIRONMENT)))
        except (OSError, ValueError, TypeError):
            return [f"{self.name}: environment.json does not say any more where this run was begun"]
        now = _environment_of(experiment)
        return [
            f"{key} was {before[key]!r} and is {now[key]!r} now: last digits may differ from an unbroken run"
            for key in ("torch", "device", "threads", "kernel")
            if key in before and before[key] != now[key]
        ]

    def cut(self, round: int, scores: Sequence[Score]) -> None:
        """Go back to a round, with these scores alone; checkpoints that have more go first."""
        checkpoints.cut(self.folder / CHECKPOINTS, round)
        write_file(self.folder / ROUNDS, b"".join(map(line_of, scores)))

    def clear(self) -> None:
        """Remove what was kept of an earlier run."""
        for name in (EXPERIMENT, ROUNDS, FAILURE):  # without its experiment a folder is no run
            try:
                (self.folder / name).unlink(missing_ok=True)
            except OSError as error:
                raise unwritable(self.folder / name, error) from error
        for name in (CHECKPOINTS, MODELS):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def save(self, progress: Progress, owner: Owner) -> None:
        """Keep where it is, once its scores are on the disk; what is not finite is left for those to find."""
        if checkpoints.finite(progress):
            checkpoints.write(self.folder / CHECKPOINTS, progress, owner)

    def save_models(self, result: Result) -> None:
        """Keep the clients' models."""
        result.personals.save(self.folder / MODELS)

    def fail(self, error: DivergedError) -> None:
        """Keep why it diverged; what was saved before stays."""
        write_file(self.folder / FAILURE, json.dumps({"reason": str(error)}).encode())

    def fingerprint(self) -> tuple[Any, ...]:
        """Values that differ once the run has been trained, cleared or begun."""
        stats = [stat_of(self.folder / name) for name in (EXPERIMENT, ROUNDS, FAILURE)]
        return *self.saved, *((at.st_ino, at.st_size, at.st_mtime_ns) if at else None for at in stats)


def folder_for_all(out: Path, experiments: Sequence[Experiment], kind: str) -> Path:
    """Where a comparison or a sweep of these experiments is kept."""
    digest = sha256("".join(f"{e.digest}{e.rounds}" for e in experiments).encode()).hexdigest()[:16]
    return out / f"{experiments[0].title}-{kind}-{digest}"


def runs_in(out: Path) -> list[RunFolder]:
    """The runs that are kept in a folder."""
    return [RunFolder(path.parent) for path in sorted(out.glob(f"*/{EXPERIMENT}"))]


def read_experiment(path: Path, stored: bool = False) -> Experiment:
    """An experiment from its file; a mistake is one line that names the field.

    stored: as for `Experiment.of`.
    """
    try:
        described = tomllib.loads(read_text(path))
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {reason(error)}") from error
    except (ValueError, RecursionError) as error:  # not TOML, not text, numbers too long, nested too deep
        raise InputError(f"{str(path)!r} is not a TOML file: {error}") from error
    return Experiment.of(described, stored)


def environment(device: torch.device) -> dict[str, Any]:
    """What numbers and times may depend on beside the experiment."""
    packages = {name: version(name) for name in ("fedlap", "torch", "numpy", "scipy")}
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "python": platform.python_version(),
        **packages,
        "commit": _commit(),
        "device": name,
        "threads": torch.get_num_threads(),
    }


def _environment_of(experiment: Experiment) -> dict[str, Any]:
    """The environment of a run, with the compiler of the CPU's kernel; a GPU has its own kernels."""
    device, dtype = experiment.schedule.placed(), experiment.schedule.real
    kernel = cpp_library.identify_kernel(dtype) if device.type == "cpu" else None
    return environment(device) | {"kernel": kernel}


@cache
def _commit() -> str | None:
    """Of the source that runs, where it is a checkout or $FEDLAP_COMMIT tells."""
    if os.environ.get("FEDLAP_COMMIT"):
        return os.environ["FEDLAP_COMMIT"]
    root = Path(__file__).parents[3]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return None
    said = subprocess.run(
        ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return said.stdout.strip() or None


def prepare(out: Path) -> None:
    """Make the folder for results, and see that it can be written, before anything is trained."""
    try:
        check_writable(out)
    except OSError as error:
        raise unwritable(out, error) from error
