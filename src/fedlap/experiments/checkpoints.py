"""Checkpoints: where a run is, on disk, whole or not at all.

A checkpoint is a folder `round-00000040` with the tensors that server and clients keep and a manifest. It is
written under another name, brought to the disk, and then renamed. Checksums tell what was damaged since.
"""

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedlap.algorithms import State
from fedlap.errors import InputError
from fedlap.storage.files import (
    read_file,
    reason,
    refuse_links,
    sha256_of,
    signed,
    verified,
    writing,
    writing_folder,
)
from fedlap.storage.tensor_files import tensors_in, write_tensors
from fedlap.training.result import Progress
from fedlap.training.scores import Score
from fedlap.training.state import leaves

FORMAT = 1
KEPT = 2
STATE, MANIFEST = "state.safetensors", "manifest.json"


@dataclass(frozen=True)
class Owner:
    """Whose a checkpoint is: its experiment, and those of all runs that were trained as one stack."""

    experiment: str
    stack: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """One that was found whole: of which round and whose it is, and what its manifest says."""

    round: int
    owner: Owner
    about: dict[str, Any]
    place: Path

    def progress(self, scores: list[Score]) -> Progress:
        """Where the run was, with the scores that it had by then; tensors are those of the checksum."""
        try:
            content = read_file(self.place / STATE)
            if sha256(content).hexdigest() != self.about["sha256"]:
                raise ValueError("its checksum differs")
            tensors, (up, down) = tensors_in(content), self.about["sent"]
            server, private = (_unnamed(self.about["state"][name], tensors) for name in ("server", "private"))
        except (OSError, ValueError, KeyError, RecursionError) as error:
            raise InputError(
                f"{str(self.place)!r} is damaged ({reason(error)}); repeat the run with --again"
            ) from error
        return Progress(self.round, server, private, (up, down), self.about["seconds"], scores)


class DamagedError(ValueError):
    """A checkpoint that cannot be used. The message says why."""


def finite(progress: Progress) -> bool:
    """Whether a run can go on from there."""
    tensors = [tensor for tensor in leaves((progress.server, progress.private)) if tensor.numel()]
    bounds = [torch.stack(tensor.aminmax()) for tensor in tensors if tensor.is_floating_point()]
    return all(bool(both.isfinite().all()) for both in bounds)


def write(folder: Path, progress: Progress, owner: Owner) -> None:
    """Write a checkpoint, and remove all but the last two."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder)
        with writing_folder(folder / f"round-{progress.round:08d}") as made:
            tensors: dict[str, Tensor] = {}
            state = {name: _named(name, getattr(progress, name), tensors) for name in ("server", "private")}
            with writing(made / STATE, durable=True) as file:
                size, checksum = write_tensors(file, tensors)
            about = {
                "format": FORMAT,
                "experiment": owner.experiment,
                "stack": list(owner.stack),
                "round": progress.round,
                "sent": list(progress.sent),
                "seconds": progress.seconds,
                "state": state,
                "bytes": size,
                "sha256": checksum,
            }
            with writing(made / MANIFEST, durable=True) as file:
                file.write(signed(about))
        for old in rounds_in(folder)[KEPT:]:
            shutil.rmtree(folder / f"round-{old:08d}")
    except OSError as error:
        saved = rounds_in(folder)
        kept = f"what is saved is of round {saved[0]}" if saved else "nothing is saved yet"
        raise InputError(
            f"checkpoint of round {progress.round} cannot be written in {str(folder)!r} ({reason(error)}); "
            f"{kept}; make room there and resume"
        ) from error


def cut(folder: Path, round: int) -> None:
    """Remove those of later rounds."""
    for later in rounds_in(folder):
        if later > round:
            shutil.rmtree(folder / f"round-{later:08d}")


def rounds_in(folder: Path) -> list[int]:
    """The rounds of which there are checkpoints, good or not, the last first."""
    names = (path.name.removeprefix("round-") for path in folder.glob("round-*"))
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def read(folder: Path, round: int, experiment: str) -> Checkpoint:
    """A checkpoint, if it is whole and of this experiment."""
    place = folder / f"round-{round:08d}"
    try:
        refuse_links(place)
        about = verified(read_file(place / MANIFEST))
        if about is None:
            raise DamagedError("is damaged: the checksum of its manifest differs")
        if wrong := _wrong_field(about):
            raise DamagedError(f"is damaged: its manifest has no valid {wrong!r}")
        if about["format"] > FORMAT:
            raise DamagedError("was written by a newer version of fedlap")
        if about["experiment"] != experiment:
            raise DamagedError("belongs to another experiment")
        if experiment not in about["stack"]:
            raise DamagedError("is damaged: its manifest names a stack of other runs")
        if about["round"] != round:
            raise DamagedError(f"says that it is of round {about['round']}")
        if (place / STATE).stat().st_size != about["bytes"] or sha256_of(place / STATE) != about["sha256"]:
            raise DamagedError("is damaged: the checksum of its tensors differs")
    except FileNotFoundError as error:
        raise DamagedError(f"is not complete: {Path(error.filename).name} is missing") from error
    except OSError as error:
        raise DamagedError(f"cannot be read: {reason(error)}") from error
    return Checkpoint(round, Owner(experiment, tuple(about["stack"])), about, place)


def _wrong_field(about: dict[str, Any]) -> str | None:
    """The first field of a manifest that is missing or of another type than was written."""
    kinds: dict[str, Callable[[Any], bool]] = {
        "format": _is_count,
        "experiment": lambda value: isinstance(value, str),
        "stack": lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
        "round": _is_count,
        "sent": lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_count, value)),
        "seconds": lambda value: type(value) in (int, float) and 0 <= value < math.inf,
        "state": lambda value: isinstance(value, dict) and {"server", "private"} <= set(value),
        "bytes": _is_count,
        "sha256": lambda value: isinstance(value, str),
    }
    return next((name for name, fits in kinds.items() if name not in about or not fits(about[name])), None)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _named(name: str, state: State, tensors: dict[str, Tensor]) -> Any:
    """The structure of a state, with names in the place of tensors, which are collected."""
    if state is None:
        return None
    if isinstance(state, tuple):
        return [_named(f"{name}.{place}", part, tensors) for place, part in enumerate(state)]
    tensors[name] = state
    return name


def _unnamed(structure: Any, tensors: dict[str, Tensor]) -> State:
    if structure is None:
        return None
    if isinstance(structure, list):
        return tuple(_unnamed(part, tensors) for part in structure)
    if not isinstance(structure, str):
        raise ValueError(f"its manifest names a tensor {structure!r}")
    return tensors[structure]


def _clear(folder: Path) -> None:
    """Remove what an older version left when it was stopped while it wrote."""
    for path in (*folder.glob(".round-*"), *folder.glob(".old-*")):
        shutil.rmtree(path)
