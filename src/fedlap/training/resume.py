"""Checks of a resumed run: clients are matched by name; changes that affect the numbers raise InputError."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlap.algorithms import Algorithm, list_settings
from fedlap.data.federation import Federation
from fedlap.data.standardize import Standardizer
from fedlap.errors import InputError
from fedlap.graph import Graph
from fedlap.graph.weights import CompleteWeights
from fedlap.models import Model
from fedlap.models.torch_module import ModuleNetwork
from fedlap.training.jobs import Job, bind_algorithm
from fedlap.training.result import RunOrigin
from fedlap.training.schedule import Schedule

ALLOW_CHANGES_HINT = "or set allow_changes=True to resume with the change"
SCALE_TOLERANCE = 1e-9  # sums over clients in another order differ by rounding
SAME_CLIENTS_HINT = "pass the clients of the run, with the same names"


def match_client_order(job: Job) -> Job:
    """Return the job with its clients in the row order of the state that it resumes from."""
    clients = None if job.progress is None else job.progress.clients
    passed = job.federation.clients
    if clients is None or clients == passed:
        return job
    for name in sorted(set(passed) - set(clients)):
        raise InputError(f"resume: client {name!r} is not among the clients of the run; {SAME_CLIENTS_HINT}")
    for name in sorted(set(clients) - set(passed)):
        raise InputError(f"resume: client {name!r} of the run is missing; {SAME_CLIENTS_HINT}")
    # A graph without names follows the order of the passed federation, so it is bound before reordering.
    bound, _ = bind_algorithm(job.algorithm, job.federation, job.model)
    federation, start = job.federation.reorder(clients), job.start
    if start is not None and np.ndim(start) == 2:
        start = torch.as_tensor(start)[find_positions(clients, passed)]
    return replace(job, algorithm=bound, federation=federation, start=start)


def find_positions(names: Sequence[str], among: Sequence[str]) -> list[int]:
    """Return the position of each name in `among`."""
    positions = {name: position for position, name in enumerate(among)}
    return [positions[name] for name in names]


def describe_origin(job: Job, algorithm: Algorithm, model: Model, schedule: Schedule) -> RunOrigin:
    """Return all that determines the numbers of a run; device, engine and `keep` affect only rounding."""
    settings = {
        "seed": job.seed,
        "batch": schedule.batch,
        "sample": schedule.sample,
        "dtype": schedule.dtype,
        "precision": schedule.precision,
    }
    return RunOrigin(job.federation, algorithm, model, job.start, settings)


def check_unchanged(job: Job, now: RunOrigin) -> None:
    """Raise InputError if a change affects the numbers of a resumed run, unless changes are allowed.

    Checkpoints on disk have no origin: the digest of the whole experiment names their folder.
    """
    before = None if job.progress is None else job.progress.origin
    if before is None or job.allow_changes:
        return
    for difference in _find_differences(now, before):
        raise InputError(f"resume: {difference}, {ALLOW_CHANGES_HINT}")


def _find_differences(now: RunOrigin, before: RunOrigin) -> Iterator[str]:
    """Describe every difference, the most obvious cause first."""
    for name, value in now.settings.items():
        if value != before.settings[name]:
            yield _describe_change(name, repr(value), repr(before.settings[name]))
    yield from _compare_algorithms(now.algorithm, before.algorithm)
    if now.objective.l2 != before.objective.l2:
        yield _describe_change("l2", repr(now.objective.l2), repr(before.objective.l2))
    yield from _compare_data(now.federation, before.federation)
    if not _is_same(now.objective.network, before.objective.network):
        yield "the model differs from the model of the run; pass the same model"
    if now.start is not None and not _is_same(_to_tensor(now.start), _to_tensor(before.start)):
        yield "start differs from the start of the run; remove it"


def _describe_change(name: str, passed: str, expected: str) -> str:
    return f"{name} = {passed}, but the run began with {expected}; pass {name}={expected}"


def _compare_algorithms(now: Algorithm, before: Algorithm) -> Iterator[str]:
    if type(now) is not type(before):
        yield _describe_change("algorithm", type(now).__name__, type(before).__name__)
        return
    for name, value in list_settings(now).items():
        expected = list_settings(before).get(name)
        if isinstance(value, Graph) and not _is_same(value, expected):
            yield f"the {name} differs from the {name} of the run; pass the same {name}"
        elif not _is_same(value, expected):
            yield _describe_change(name, repr(value), repr(expected))


def _compare_data(now: Federation, before: Federation) -> Iterator[str]:
    """Describe how two federations with equally ordered clients differ."""
    if now is before:
        return
    if now.inputs != before.inputs:
        yield f"features have shape {now.inputs}, but {before.inputs} in the run; pass the same data"
        return
    if now.labels != before.labels:
        yield f"labels are {now.labels}, but {before.labels} in the run; pass the same data"
    for part in ("train", "test"):
        place = getattr(now, part).find_difference(getattr(before, part))
        if place is not None:
            rows = f"the {'training' if part == 'train' else 'test'} rows of client {now.clients[place]!r}"
            yield f"{rows} differ from those of the run; pass the same data"
    if not _has_same_scale(now.scale, before.scale) or not _has_same_target_scale(now, before):
        yield f"the scaling differs from the scaling of the run; pass data with scale={before.scale.kind!r}"


def _has_same_scale(a: Standardizer, b: Standardizer) -> bool:
    """Return whether scaling constants are equal up to rounding."""
    if a.kind != b.kind or a.shift.shape != b.shift.shape:
        return False
    both = ((a.shift, b.shift), (a.factor, b.factor))
    return all(
        torch.allclose(x.double(), y.double(), rtol=SCALE_TOLERANCE, atol=SCALE_TOLERANCE) for x, y in both
    )


def _has_same_target_scale(a: Federation, b: Federation) -> bool:
    """Return whether the constants of real targets are equal up to rounding."""
    if a.target_scale is None or b.target_scale is None:
        return a.target_scale is b.target_scale
    return a.target_scale.is_close(b.target_scale, SCALE_TOLERANCE)


def _to_tensor(start: Any) -> Any:
    return None if start is None else torch.as_tensor(start).double().cpu()


def _is_same(a: Any, b: Any) -> bool:
    """Return whether two values are equal; tensors, graphs and dataclasses without `==` by content."""
    if a is b:
        return True
    if type(a) is not type(b):
        return bool(isinstance(a, int | float) and isinstance(b, int | float) and a == b)
    if isinstance(a, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu())
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, Graph):
        return a.clients == b.clients and a.server == b.server and _has_same_weights(a, b)
    if isinstance(a, ModuleNetwork):
        return _is_same_module(a, b)
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_is_same(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_is_same, a, b))
    if is_dataclass(a) and type(a).__eq__ is object.__eq__:
        return all(_is_same(getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    return bool(a == b)


def _has_same_weights(a: Graph, b: Graph) -> bool:
    if a.weights is b.weights or a.size != b.size or a.edges != b.edges:
        return a.weights is b.weights
    if isinstance(a.weights, CompleteWeights) and isinstance(b.weights, CompleteWeights):
        return a.weights == b.weights  # their dense matrices may be too large
    return int((a.weights.matrix() != b.weights.matrix()).nnz) == 0


def _is_same_module(a: ModuleNetwork, b: ModuleNetwork) -> bool:
    """Return whether two modules compute the same function; their start values are ignored."""
    if (a.inputs, a.outputs, a.shapes, repr(a.net)) != (b.inputs, b.outputs, b.shapes, repr(b.net)):
        return False
    return _is_same(_get_constants(a), _get_constants(b))


def _get_constants(network: ModuleNetwork) -> dict[str, Tensor]:
    """Return frozen parameters and buffers, by name."""
    named = (*network.net.named_parameters(), *network.net.named_buffers())
    return {name: tensor.detach() for name, tensor in named if name not in network.trained_parameters}
