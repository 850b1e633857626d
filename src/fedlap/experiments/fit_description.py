"""Descriptions of Python objects as plain values: the arguments of `fedlap.fit`, methods and models."""

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlap.algorithms import Algorithm, list_settings
from fedlap.errors import InputError
from fedlap.experiments.content_digest import digest_content
from fedlap.graph import Graph
from fedlap.graph.weights import CompleteWeights
from fedlap.models import Model
from fedlap.models.torch_module import ModuleNetwork
from fedlap.training.jobs import Job, bind_algorithm
from fedlap.training.schedule import Schedule

FIT_FILE = "fit.toml"
DIGEST_PREFIX = "sha256:"
LIBRARIES = ("fedlap", "torch", "builtins", "typing", "abc")  # whose classes have versions instead of digests
FEDERATION = "Federation"  # the name of data that are an object


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
                "algorithm": describe_method(algorithm),
                "model": describe_model(model),
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


def describe_method(algorithm: Algorithm) -> dict[str, Any]:
    """Return the class of a method, its settings and, if a user wrote it, a digest of its code."""
    settings = {name: describe_value(value) for name, value in list_settings(algorithm).items()}
    code = _read_own_code(type(algorithm))
    return {
        "name": type(algorithm).__name__,
        **settings,
        **({"code": digest_description({"source": code})} if code else {}),
    }


def describe_model(model: Model) -> dict[str, Any]:
    """Return the class of a network, its content and the L2 term."""
    return {"l2": model.l2, **describe_value(model.network)}


def digest_description(description: Mapping[str, Any]) -> str:
    """Return a digest of plain values."""
    text = json.dumps(description, sort_keys=True)
    return DIGEST_PREFIX + hashlib.sha256(text.encode()).hexdigest()[:32]


def convert_fit_file(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file of `fedlap.fit` as the description of an experiment; raise InputError if it is damaged.

    Its sections are those of Python objects: classes, plain settings, and digests of the others.
    """
    values, start = dict(stored), stored.get("start")
    sections = {name: values.get(name) for name in ("data", "algorithm", "model")}
    for name, section in sections.items():
        if not isinstance(section, Mapping) or (name != "data" and not isinstance(section.get("name"), str)):
            raise InputError(f"{name} is missing in {FIT_FILE}; restore the file", field=name)
    values.pop("start", None)
    data, model = dict(values["data"]), dict(values["model"])
    content = str(data.pop("content", "")).removeprefix(DIGEST_PREFIX)
    if start != "default":
        model["start"] = start
    return values | {
        "data": {"name": FEDERATION, **data},
        "model": model,
        "graph": {},
        "content": content,
        "objects": {name: digest_description(dict(section or {})) for name, section in sections.items()},
    }


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
        for kind in dict.fromkeys(type(part) for part in net.modules()):
            total.update(_read_own_code(kind).encode())
        for name, tensor in net.state_dict().items():
            total.update(f"{name} {_digest(tensor)}".encode())
    else:
        array = value.detach().cpu().contiguous().numpy() if isinstance(value, Tensor) else value
        total.update(json.dumps([str(array.dtype), list(array.shape)]).encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return DIGEST_PREFIX + total.hexdigest()[:32]


def _read_own_code(kind: type) -> str:
    """Return the source of a user's class and of its bases, as far as Python can find it."""
    classes = [part for part in kind.__mro__ if part.__module__.partition(".")[0] not in LIBRARIES]
    sources = []
    for part in classes:
        try:
            sources.append(inspect.getsource(part))
        except (OSError, TypeError):  # a class that was typed at the prompt has no source
            sources.append(part.__qualname__)
    return "\n".join(sources)
