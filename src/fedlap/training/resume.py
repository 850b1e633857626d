"""Checks of a resumed run: clients are matched by name, and whatever changes the numbers is refused."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlap.algorithms import Algorithm
from fedlap.data.federation import Federation
from fedlap.data.standardize import Standardizer
from fedlap.errors import InputError
from fedlap.graph import Graph
from fedlap.graph.weights import CompleteWeights
from fedlap.models import Model
from fedlap.models.module import ModuleNetwork
from fedlap.training.jobs import Job, suited
from fedlap.training.result import Origin
from fedlap.training.schedule import Schedule

ANYWAY = "or set allow_changes=True to resume with the change"
ROUNDING = 1e-9
SAME_CLIENTS = "pass the clients that it began with, under the same names"


def in_state_order(trial: Job) -> Job:
    """Return the trial with its clients in the order of the rows of the state that it resumes from."""
    clients = None if trial.progress is None else trial.progress.clients
    given = trial.federation.clients
    if clients is None or clients == given:
        return trial
    for name in sorted(set(given) - set(clients)):
        raise InputError(f"resume: client {name!r} is not among the clients of the run; {SAME_CLIENTS}")
    for name in sorted(set(clients) - set(given)):
        raise InputError(f"resume: client {name!r} of the run is missing; {SAME_CLIENTS}")
    # A graph without names is in the order of the federation that was passed, so it is bound to that first.
    bound, _ = suited(trial.algorithm, trial.federation, trial.model)
    federation, start = trial.federation.reordered(clients), trial.start
    if start is not None and np.ndim(start) == 2:
        start = torch.as_tensor(start)[places_of(clients, given)]
    return replace(trial, algorithm=bound, federation=federation, start=start)


def places_of(names: Sequence[str], among: Sequence[str]) -> list[int]:
    """Return where each of these names is among the others."""
    at = {name: place for place, name in enumerate(among)}
    return [at[name] for name in names]


def origin_of(trial: Job, algorithm: Algorithm, model: Model, schedule: Schedule) -> Origin:
    """Return all that fixes the numbers of this run; device, engine and `keep` change rounding alone."""
    settings = {
        "seed": trial.seed,
        "batch": schedule.batch,
        "sample": schedule.sample,
        "dtype": schedule.dtype,
        "precision": schedule.precision,
    }
    return Origin(trial.federation, algorithm, model, trial.start, settings)


def check_unchanged(trial: Job, now: Origin) -> None:
    """Refuse to resume a run with anything that changes its numbers, unless the trial allows changes.

    A checkpoint on disk has no origin: its folder is found by the digest of the whole experiment.
    """
    before = None if trial.progress is None else trial.progress.origin
    if before is None or trial.allow_changes:
        return
    for difference in _differences(now, before):
        raise InputError(f"resume: {difference}, {ANYWAY}")


def _differences(now: Origin, before: Origin) -> Iterator[str]:
    """Describe what differs, the plainest cause first."""
    for name, value in now.settings.items():
        if value != before.settings[name]:
            yield _other(name, repr(value), repr(before.settings[name]))
    yield from _of_algorithms(now.algorithm, before.algorithm)
    if now.objective.l2 != before.objective.l2:
        yield _other("l2", repr(now.objective.l2), repr(before.objective.l2))
    yield from _of_data(now.federation, before.federation)
    if not _same(now.objective.network, before.objective.network):
        yield "the model is not that of the run; pass the same model"
    if now.start is not None and not _same(_plain(now.start), _plain(before.start)):
        yield "start is not that of the run; leave it out"


def _other(name: str, given: str, expected: str) -> str:
    return f"{name} = {given} was passed and the run began with {expected}; pass {name}={expected}"


def _of_algorithms(now: Algorithm, before: Algorithm) -> Iterator[str]:
    if type(now) is not type(before):
        yield _other("algorithm", type(now).__name__, type(before).__name__)
        return
    for name, value in _settings(now).items():
        expected = _settings(before).get(name)
        if isinstance(value, Graph) and not _same(value, expected):
            yield f"the {name} is not that of the run; pass the same {name}"
        elif not _same(value, expected):
            yield _other(name, repr(value), repr(expected))


def _settings(algorithm: Algorithm) -> dict[str, Any]:
    """Return the hyper-parameters of a method; fields that binding fills in follow from data and model."""
    if not is_dataclass(algorithm):
        return dict(vars(algorithm))
    return {field.name: getattr(algorithm, field.name) for field in fields(algorithm) if field.init}


def _of_data(now: Federation, before: Federation) -> Iterator[str]:
    """Describe how two federations, with clients in one order, differ."""
    if now is before:
        return
    if now.inputs != before.inputs:
        yield f"features have shape {now.inputs}, those of the run {before.inputs}; pass the same data"
        return
    if now.labels != before.labels:
        yield f"labels {now.labels} are not those of the run, {before.labels}; pass the same data"
    for what in ("train", "test"):
        place = getattr(now, what).first_difference(getattr(before, what))
        if place is not None:
            rows = f"the {'training' if what == 'train' else 'test'} rows of client {now.clients[place]!r}"
            yield f"{rows} are not those of the run; pass the same data"
    if not _same_scale(now.scale, before.scale):
        yield f"the scaling is not that of the run; pass data with scale={before.scale.kind!r}"


def _same_scale(a: Standardizer, b: Standardizer) -> bool:
    """Return whether constants are equal; sums over clients in another order differ in their last digits."""
    if a.kind != b.kind or a.shift.shape != b.shift.shape:
        return False
    both = ((a.shift, b.shift), (a.factor, b.factor))
    return all(torch.allclose(x.double(), y.double(), rtol=ROUNDING, atol=ROUNDING) for x, y in both)


def _plain(start: Any) -> Any:
    return None if start is None else torch.as_tensor(start).double().cpu()


def _same(a: Any, b: Any) -> bool:
    """Return whether two values are equal; tensors, graphs and dataclasses without `==` by their content."""
    if a is b:
        return True
    if type(a) is not type(b):
        return bool(isinstance(a, int | float) and isinstance(b, int | float) and a == b)
    if isinstance(a, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu())
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, Graph):
        return a.clients == b.clients and a.server == b.server and _same_weights(a, b)
    if isinstance(a, ModuleNetwork):
        return _same_modules(a, b)
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(_same(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if is_dataclass(a) and type(a).__eq__ is object.__eq__:
        return all(_same(getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    return bool(a == b)


def _same_weights(a: Graph, b: Graph) -> bool:
    if a.weights is b.weights or a.size != b.size or a.edges != b.edges:
        return a.weights is b.weights
    if isinstance(a.weights, CompleteWeights) and isinstance(b.weights, CompleteWeights):
        return a.weights == b.weights  # their matrices may be too large
    return int((a.weights.matrix() != b.weights.matrix()).nnz) == 0


def _same_modules(a: ModuleNetwork, b: ModuleNetwork) -> bool:
    """Return whether two modules are the same function; the values that they start from do not matter."""
    if (a.inputs, a.outputs, a.shapes, repr(a.net)) != (b.inputs, b.outputs, b.shapes, repr(b.net)):
        return False
    return _same(_constants(a), _constants(b))


def _constants(network: ModuleNetwork) -> dict[str, Tensor]:
    """Return frozen parameters and buffers, by name."""
    named = (*network.net.named_parameters(), *network.net.named_buffers())
    return {name: tensor.detach() for name, tensor in named if name not in network.trained}
