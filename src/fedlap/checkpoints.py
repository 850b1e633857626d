"""Checkpoints: where a run is, on disk, whole or not at all.

A checkpoint is a folder `round-00000040` with the tensors that server and clients keep and a manifest. It is
written under another name, brought to the disk, and then renamed. Checksums tell what was damaged since.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedlap.algorithms import State
from fedlap.engines.state import leaves
from fedlap.errors import InputError
from fedlap.files import reason, sha256_of, signed, synced, verified
from fedlap.result import Progress
from fedlap.scores import Score

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
        """Where the run was, with the scores that it had by then."""
        tensors, (up, down) = load_file(self.place / STATE), self.about["sent"]
        server, private = (_unnamed(self.about["state"][name], tensors) for name in ("server", "private"))
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
    final = folder / f"round-{progress.round:08d}"
    temporary = final.with_name(f".{final.name}.{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _clear(folder)
        temporary.mkdir()
        tensors: dict[str, Tensor] = {}
        state = {name: _named(name, getattr(progress, name), tensors) for name in ("server", "private")}
        save_file(tensors, temporary / STATE)
        synced(temporary / STATE)
        about = {
            "format": FORMAT,
            "experiment": owner.experiment,
            "stack": list(owner.stack),
            "round": progress.round,
            "sent": list(progress.sent),
            "seconds": progress.seconds,
            "state": state,
            "bytes": (temporary / STATE).stat().st_size,
            "sha256": sha256_of(temporary / STATE),
        }
        (temporary / MANIFEST).write_bytes(signed(about))
        synced(temporary / MANIFEST)
        synced(temporary)
        if final.exists():  # from before a run was cut back to an earlier round
            final.rename(final.with_name(f".old-{final.name}.{os.getpid()}"))
        temporary.rename(final)
        synced(folder)
        for old in rounds_in(folder)[KEPT:]:
            shutil.rmtree(folder / f"round-{old:08d}")
        _clear(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
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
        about = verified((place / MANIFEST).read_bytes())
        if about is None:
            raise DamagedError("is damaged: the checksum of its manifest differs")
        if about["format"] > FORMAT:
            raise DamagedError("was written by a newer version of fedlap")
        if about["experiment"] != experiment:
            raise DamagedError("belongs to another experiment")
        if about["round"] != round:
            raise DamagedError(f"says that it is of round {about['round']}")
        if (place / STATE).stat().st_size != about["bytes"] or sha256_of(place / STATE) != about["sha256"]:
            raise DamagedError("is damaged: the checksum of its tensors differs")
    except FileNotFoundError as error:
        raise DamagedError(f"is not complete: {Path(error.filename).name} is missing") from error
    except OSError as error:
        raise DamagedError(f"cannot be read: {error.strerror}") from error
    return Checkpoint(round, Owner(experiment, tuple(about["stack"])), about, place)


def _named(name: str, state: State, tensors: dict[str, Tensor]) -> Any:
    """The structure of a state, with names in the place of tensors, which are collected."""
    if state is None:
        return None
    if isinstance(state, tuple):
        return [_named(f"{name}.{place}", part, tensors) for place, part in enumerate(state)]
    taken = {tensor.data_ptr() for tensor in tensors.values()}
    whole = state.detach().cpu().contiguous()
    tensors[name] = whole.clone() if whole.data_ptr() in taken else whole
    return name


def _unnamed(structure: Any, tensors: dict[str, Tensor]) -> State:
    if structure is None:
        return None
    if isinstance(structure, list):
        return tuple(_unnamed(part, tensors) for part in structure)
    return tensors[structure]


def _clear(folder: Path) -> None:
    """Remove what was left by a process that was stopped while it wrote."""
    for path in (*folder.glob(".round-*"), *folder.glob(".old-*")):
        shutil.rmtree(path)
