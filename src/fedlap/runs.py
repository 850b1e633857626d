"""The run folder: what was run and what came out."""

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w
import torch
from safetensors.torch import save
from torch import Tensor

from fedlap.errors import InputError
from fedlap.experiment import Experiment
from fedlap.result import Result


def folder_for(out: Path, experiment: Experiment) -> Path:
    """Where a run of this experiment is kept: its data, its algorithm and its digest."""
    return out / f"{experiment.title}-{experiment.algorithm['name']}-{experiment.digest}"


def folder_for_all(out: Path, experiments: Sequence[Experiment], kind: str) -> Path:
    """Where a comparison or a sweep of these experiments is kept."""
    digest = hashlib.sha256("".join(e.digest for e in experiments).encode()).hexdigest()[:16]
    return out / f"{experiments[0].title}-{kind}-{digest}"


def write_run(out: Path, experiment: Experiment, result: Result) -> Path:
    """Keep the experiment, its scores round by round, and the clients' models."""
    folder = folder_for(out, experiment)
    write_file(folder / "experiment.toml", tomli_w.dumps(experiment.described()).encode())
    lines = "".join(json.dumps(score.as_dict()) + "\n" for score in result.scores)
    write_file(folder / "rounds.jsonl", lines.encode())
    scale, federation = result.federation.scale, result.federation
    tensors = {"models": result.models, "shift": scale.shift, "factor": scale.factor}
    if isinstance(result.server, Tensor):
        tensors["server"] = result.server
    about = {"clients": federation.clients, "labels": federation.labels, "scale": scale.kind}
    models = save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        metadata={key: json.dumps(value) for key, value in about.items()},
    )
    write_file(folder / "models.safetensors", models)
    write_file(folder / "environment.json", json.dumps(environment(), indent=1).encode())
    return folder


def environment() -> dict[str, Any]:
    """What numbers and times may depend on beside the experiment."""
    packages = {name: version(name) for name in ("fedlap", "torch", "numpy", "scipy")}
    return {"python": platform.python_version(), "threads": torch.get_num_threads(), **packages}


def prepare(out: Path) -> None:
    """Make the folder for results, and see that it can be written, before anything is trained."""
    write_file(out / ".writable", b"")
    (out / ".writable").unlink()


def write_file(path: Path, content: bytes) -> None:
    """Write a whole file or none: under another name first, then renamed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"out: {str(path)!r} cannot be written ({error.strerror}); choose another --out"
        ) from error
