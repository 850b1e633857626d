"""Checkpoints on disk, written completely or not at all.

A checkpoint is a folder `round-00000040` with the state tensors of server and clients and a manifest. It is
written under a temporary name, flushed to disk, and then renamed. Checksums detect later damage.
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
    decode_with_checksum,
    describe_error,
    encode_with_checksum,
    hash_file,
    read_file,
    refuse_link,
    refuse_links,
    replace_file,
    replace_folder,
)
from fedlap.storage.mapped_tensors import MAPPED_BYTES, map_tensors
from fedlap.storage.tensor_files import parse_tensors, write_tensors
from fedlap.training.result import Progress
from fedlap.training.scores import Score
from fedlap.training.state import list_tensors

CHECKPOINT_FORMAT = 2
CHECKPOINTS_PER_RUN = 2
STATE_FILE, MANIFEST_FILE = "state.safetensors", "manifest.json"


@dataclass(frozen=True)
class Owner:
    """The experiment of a checkpoint, and the experiments of all runs in its stack, as digests."""

    experiment: str
    stack: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A valid checkpoint: its round, owner, manifest and folder."""

    round: int
    owner: Owner
    manifest: dict[str, Any]
    folder: Path

    def load_progress(self, scores: list[Score]) -> Progress:
        """Load the state of the run, with these scores; raise InputError if the checksum does not match."""
        try:
            tensors, (up, down) = self._read_tensors(), self.manifest["sent"]
            server, private = (
                _restore_tensors(self.manifest["state"][name], tensors) for name in ("server", "private")
            )
        except (OSError, ValueError, KeyError, RecursionError) as error:
            raise InputError(
                f"{str(self.folder)!r} is damaged ({describe_error(error)}); rerun with --again"
            ) from error
        return Progress(self.round, server, private, (up, down), self.manifest["seconds"], scores)

    def _read_tensors(self) -> dict[str, Tensor]:
        """Return the tensors, mapped if they are large; raise ValueError if the checksum does not match."""
        path = self.folder / STATE_FILE
        if path.stat().st_size >= MAPPED_BYTES:
            refuse_link(path)
            if hash_file(path) != self.manifest["sha256"]:
                raise ValueError("its checksum differs")
            return map_tensors(path)  # Checkpoints are replaced as a whole, so the mapped file never changes.
        content = read_file(path)
        if sha256(content).hexdigest() != self.manifest["sha256"]:
            raise ValueError("its checksum differs")
        return parse_tensors(content)


class UnusableCheckpointError(ValueError):
    """A checkpoint that cannot be used. The message states the reason."""


def is_finite(progress: Progress) -> bool:
    """Return whether all state tensors are finite, so that the run can be resumed."""
    tensors = [tensor for tensor in list_tensors((progress.server, progress.private)) if tensor.numel()]
    bounds = [torch.stack(tensor.aminmax()) for tensor in tensors if tensor.is_floating_point()]
    return all(bool(pair.isfinite().all()) for pair in bounds)


def write_checkpoint(folder: Path, progress: Progress, owner: Owner) -> None:
    """Write a checkpoint and remove all but the last two."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        with replace_folder(folder / f"round-{progress.round:08d}") as temporary:
            tensors: dict[str, Tensor] = {}
            state = {
                name: _name_tensors(name, getattr(progress, name), tensors) for name in ("server", "private")
            }
            with replace_file(temporary / STATE_FILE, durable=True) as file:
                size, checksum = write_tensors(file, tensors)
            manifest = {
                "format": CHECKPOINT_FORMAT,
                "experiment": owner.experiment,
                "stack": list(owner.stack),
                "round": progress.round,
                "sent": list(progress.sent),
                "seconds": progress.seconds,
                "state": state,
                "bytes": size,
                "sha256": checksum,
            }
            with replace_file(temporary / MANIFEST_FILE, durable=True) as file:
                file.write(encode_with_checksum(manifest))
        for old in list_checkpoint_rounds(folder)[CHECKPOINTS_PER_RUN:]:
            shutil.rmtree(folder / f"round-{old:08d}")
    except OSError as error:
        saved = list_checkpoint_rounds(folder)
        last = f"the last checkpoint is of round {saved[0]}" if saved else "there is no checkpoint yet"
        raise InputError(
            f"checkpoint of round {progress.round} cannot be written to {str(folder)!r} "
            f"({describe_error(error)}); {last}; make room there and resume"
        ) from error


def remove_checkpoints_after(folder: Path, round: int) -> None:
    """Remove the checkpoints of all later rounds."""
    for later in list_checkpoint_rounds(folder):
        if later > round:
            shutil.rmtree(folder / f"round-{later:08d}")


def list_checkpoint_rounds(folder: Path) -> list[int]:
    """Return the rounds of all checkpoints, valid or not, newest first."""
    names = (path.name.removeprefix("round-") for path in folder.glob("round-*"))
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def read_checkpoint(folder: Path, round: int, experiment: str) -> Checkpoint:
    """Read a checkpoint; raise UnusableCheckpointError unless it is valid and belongs to the experiment."""
    path = folder / f"round-{round:08d}"
    try:
        refuse_links(path)
        manifest = decode_with_checksum(read_file(path / MANIFEST_FILE))
        if manifest is None:
            raise UnusableCheckpointError("is damaged: the checksum of its manifest does not match")
        if wrong := _find_invalid_field(manifest):
            raise UnusableCheckpointError(f"is damaged: its manifest has no valid {wrong!r}")
        if manifest["format"] != CHECKPOINT_FORMAT:
            age = "newer" if manifest["format"] > CHECKPOINT_FORMAT else "older"
            raise UnusableCheckpointError(
                f"was written by {'a' if age == 'newer' else 'an'} {age} version of fedlap "
                f"(format {manifest['format']}, expected {CHECKPOINT_FORMAT})"
            )
        if manifest["experiment"] != experiment:
            raise UnusableCheckpointError("belongs to another experiment")
        if experiment not in manifest["stack"]:
            raise UnusableCheckpointError("is damaged: its manifest lists a stack without this run")
        if manifest["round"] != round:
            raise UnusableCheckpointError(f"contains round {manifest['round']}")
        state = path / STATE_FILE
        if state.stat().st_size != manifest["bytes"] or hash_file(state) != manifest["sha256"]:
            raise UnusableCheckpointError("is damaged: the checksum of its tensors does not match")
    except FileNotFoundError as error:
        raise UnusableCheckpointError(f"is incomplete: {Path(error.filename).name} is missing") from error
    except OSError as error:
        raise UnusableCheckpointError(f"cannot be read: {describe_error(error)}") from error
    return Checkpoint(round, Owner(experiment, tuple(manifest["stack"])), manifest, path)


def _find_invalid_field(manifest: dict[str, Any]) -> str | None:
    """Return the first field of a manifest that is missing or has an invalid value."""
    checks: dict[str, Callable[[Any], bool]] = {
        "format": _is_count,
        "experiment": lambda value: isinstance(value, str),
        "stack": lambda value: isinstance(value, list) and all(isinstance(digest, str) for digest in value),
        "round": _is_count,
        "sent": lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_count, value)),
        "seconds": lambda value: type(value) in (int, float) and 0 <= value < math.inf,
        "state": lambda value: isinstance(value, dict) and {"server", "private"} <= set(value),
        "bytes": _is_count,
        "sha256": lambda value: isinstance(value, str),
    }
    invalid = (name for name, check in checks.items() if name not in manifest or not check(manifest[name]))
    return next(invalid, None)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _name_tensors(name: str, state: State, tensors: dict[str, Tensor]) -> Any:
    """Return the structure of a state with names instead of tensors, and collect the tensors by name."""
    if state is None:
        return None
    if isinstance(state, tuple):
        return [_name_tensors(f"{name}.{index}", part, tensors) for index, part in enumerate(state)]
    tensors[name] = state
    return name


def _restore_tensors(structure: Any, tensors: dict[str, Tensor]) -> State:
    if structure is None:
        return None
    if isinstance(structure, list):
        return tuple(_restore_tensors(part, tensors) for part in structure)
    if not isinstance(structure, str):
        raise ValueError(f"its manifest lists a tensor {structure!r}")
    return tensors[structure]


def _remove_leftovers(folder: Path) -> None:
    """Remove temporary folders of interrupted writes."""
    for path in (*folder.glob(".round-*"), *folder.glob(".old-*")):
        shutil.rmtree(path)
