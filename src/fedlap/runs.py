"""The run folder: what was run and what came out."""

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tomli_w
from safetensors.torch import save

from fedlap.errors import InputError
from fedlap.experiment import Experiment
from fedlap.result import Result


def folder_for(out: Path, experiment: Experiment) -> Path:
    """Where a run of this experiment is kept: its data, its algorithm and its digest."""
    return out / f"{experiment.data['name']}-{experiment.algorithm['name']}-{experiment.digest}"


def folder_for_all(out: Path, experiments: Sequence[Experiment]) -> Path:
    """Where a comparison of these experiments is kept."""
    digest = hashlib.sha256("".join(e.digest for e in experiments).encode()).hexdigest()[:16]
    return out / f"{experiments[0].data['name']}-compare-{digest}"


def write_run(out: Path, experiment: Experiment, result: Result) -> Path:
    """Keep the experiment, its scores round by round, and the clients' models."""
    folder = folder_for(out, experiment)
    write_file(folder / "experiment.toml", tomli_w.dumps(experiment.described()).encode())
    lines = "".join(json.dumps(score.as_dict()) + "\n" for score in result.scores)
    write_file(folder / "rounds.jsonl", lines.encode())
    clients = json.dumps(list(result.federation.clients))
    models = save({"models": result.models.cpu().contiguous()}, metadata={"clients": clients})
    write_file(folder / "models.safetensors", models)
    return folder


def write_file(path: Path, content: bytes) -> None:
    """Write a whole file or none: under another name first, then renamed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        raise InputError(
            f"out: {str(path)!r} cannot be written ({error.strerror}); choose another --out"
        ) from error
