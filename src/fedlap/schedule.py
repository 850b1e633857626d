"""What is asked of a run beside its algorithm, data and model: checked before anything is trained."""

import math
from collections.abc import Iterable
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms import Algorithm, PeerAlgorithm, Sampling
from fedlap.errors import InputError, UnsuitedError, unknown, whole
from fedlap.models import Architecture, Model
from fedlap.work import BatchSize

EngineName = Literal["stacked", "one_by_one"]
DtypeName = Literal["float32", "float64"]


def check_schedule(rounds: int, batch: BatchSize, sample: float, evaluate_every: int, seed: int) -> None:
    """Refuse numbers that cannot be run."""
    whole("rounds", rounds, 1)
    whole("evaluate_every", evaluate_every, 0)
    whole("seed", seed)
    if batch != "all" and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise InputError(
            f"batch = {batch!r}; it must be a whole number, at least 1, or 'all' for full gradients"
        )
    if isinstance(sample, bool) or not isinstance(sample, int | float) or not 0 < sample <= 1:
        raise InputError(f"sample = {sample!r}; it must be a share above 0 and at most 1")


def check_makers(algorithm: object, model: object) -> None:
    """Refuse what is neither an algorithm nor an architecture, and say what is meant."""
    if isinstance(algorithm, type) or not isinstance(algorithm, Algorithm):
        raise InputError(f"{algorithm!r} is not an algorithm; give an object, as in fl.FedU(graph)")
    if isinstance(model, torch.nn.Module):
        raise InputError(f"{type(model).__name__} is a torch module; wrap it, as in fl.models.module(net)")
    if isinstance(model, type) or not isinstance(model, Architecture):
        raise InputError(f"{model!r} is not a model; call its maker, as in fl.models.linear()")


def sample_size(algorithm: Algorithm, sample: float, clients: int) -> int:
    """S = max(1, ⌊sample·N + ½⌋); peers all work in every round."""
    size = max(1, math.floor(sample * clients + 0.5))
    if isinstance(algorithm, PeerAlgorithm) and size < clients:
        name = type(algorithm).__name__
        raise UnsuitedError(f"{name}: peers are not sampled, yet sample = {sample:g}; leave it at 1")
    if isinstance(algorithm, Sampling) and size < clients:
        algorithm.check_sampling(size, clients)
    return size


def start_rows(start: Any, model: Model, clients: int, seed: int) -> Float[Tensor, "client param"]:
    """One row a client: the model's own start, one vector for all, or a stack."""
    try:
        given = model.start(seed) if start is None else torch.as_tensor(start)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"start is not an array of numbers: {' '.join(str(error).split())}") from error
    if given.shape not in ((model.size,), (clients, model.size)) or given.is_complex():
        raise InputError(
            f"start has shape {tuple(given.shape)} and type {given.dtype}; it must be real numbers of shape "
            f"({model.size},) for one common start or ({clients}, {model.size}) for a row a client"
        )
    if not bool(given.isfinite().all()):
        raise InputError("start holds NaN or infinity; give finite numbers")
    return given.expand(clients, model.size)


def known(what: str, name: str, names: Iterable[str]) -> str:
    """The name, if it is one of these."""
    if name not in set(names):
        raise unknown(what, name, names)
    return name


def usable(name: str) -> torch.device:
    """The device of this name, if it can be computed on."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split("\n")[0].split())
        raise InputError(f"device {name!r} cannot be used ({reason}); use cpu") from error
    return device
