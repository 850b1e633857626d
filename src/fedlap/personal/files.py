"""Tensors in one file and what they mean in another beside it: both whole, and made for each other."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedlap.errors import InputError
from fedlap.files import beside, sha256_of, signed, synced, unwritable, verified

FORMAT = 1


def write_pair(
    tensors_at: Path, facts_at: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Write both under other names, bring them to the disk, and only then rename them."""
    first, second = (beside(path) for path in (tensors_at, facts_at))
    own = {name: _alone(tensor.detach().cpu()) for name, tensor in tensors.items()}
    try:
        tensors_at.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_file(own, first)
            second.write_bytes(signed({"format": FORMAT, **facts, "sha256": sha256_of(first)}))
            for path in (first, second):
                synced(path)
            first.replace(tensors_at)
            second.replace(facts_at)
        finally:
            first.unlink(missing_ok=True)
            second.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        raise unwritable(tensors_at, error) from error


def read_pair(tensors_at: Path, facts_at: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Both, if they are whole and belong together."""
    try:
        facts = verified(facts_at.read_bytes())
        if facts is None:
            raise InputError(
                f"{facts_at} is damaged or was changed by hand: its checksum differs; save the model again"
            )
        if facts["format"] > FORMAT:
            raise InputError(f"{facts_at} was written by a newer version of fedlap; use that one")
        if sha256_of(tensors_at) != facts["sha256"]:
            raise InputError(
                f"{tensors_at} is damaged, or not the one that {facts_at.name} belongs to; save both again"
            )
        return load_file(tensors_at), facts
    except OSError as error:
        raise InputError(
            f"{error.filename or tensors_at} cannot be read ({error.strerror}); a model is two files, "
            f"{tensors_at.name} and {facts_at.name}"
        ) from error


def _alone(tensor: Tensor) -> Tensor:
    """In memory of its own: views of one block are no tensors of their own to safetensors."""
    whole = tensor.contiguous()
    return whole.clone() if whole.untyped_storage().nbytes() > whole.nbytes else whole
