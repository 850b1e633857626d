"""A client that comes after training: from its neighbours' models, and with its own rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms import Algorithm, Coupled, Local, Mocha, NetworkLasso
from fedlap.algorithms.local_work import BatchSize, LocalWork
from fedlap.algorithms.network_lasso import distances
from fedlap.data.client_rows import ClientRows
from fedlap.data.federation import Federation
from fedlap.data.standardize import Standardizer
from fedlap.data.validate import Given, Rows, check_values, formed
from fedlap.errors import DivergedError, InputError, real, unknown, whole
from fedlap.models import Model
from fedlap.personal.metadata import About
from fedlap.personal.models import Personal, Personals, as_trained
from fedlap.training.placement import PlacedClients
from fedlap.training.task import StackTask


@torch.no_grad()
def joined(
    trained: Personals,
    objective: Model,
    algorithm: Algorithm,
    given: Given,
    neighbours: Mapping[Any, Any],
    *,
    rounds: int,
    batch: BatchSize,
    lr: float | None,
    seed: int,
    name: str,
) -> Personal:
    """The model of a new client; `Result.join` says how it is made."""
    whole("rounds", rounds, 0, scope="join")
    whole("seed", seed, scope="join")
    if batch != "all":
        whole("batch", batch, 1, scope="join")
    if str(name) in trained.clients:
        raise InputError(f"join: a client {str(name)!r} is there already; give the new one another name")
    length = _length(algorithm) if lr is None else real("lr", lr, zero=False, scope="join")
    near, weights = _heard(trained, neighbours)
    federation = _alone(trained, str(name), _rows(given, trained.about))
    device, dtype = near.device, near.dtype
    resident = federation.resident(device, dtype)
    clients = PlacedClients.of([resident], [seed], objective, batch, device, dtype)
    cohort = clients.cohort(torch.zeros(1, dtype=torch.int64))
    work = LocalWork.of(algorithm.local_steps, algorithm.local_epochs)
    method = Local(length, algorithm.local_steps, algorithm.local_epochs)
    step = _step(algorithm, length * work.repeats, weights)
    w = _mean(near, weights)
    for round in range(1, rounds + 1):
        w, _ = method.local(w, None, StackTask(clients, cohort, round, work))
        if step:
            w = w - step * _pull(algorithm, w, near, weights)
    if not bool(w.isfinite().all()):
        raise DivergedError(f"join: training diverged; lower lr (now {length:g}), or scale the features")
    return Personal(str(name), trained.about, objective.network, w[0], federation.scale)


def _length(algorithm: Algorithm) -> float:
    if isinstance(algorithm, Mocha):
        raise InputError(
            "join: MOCHA's own steps have no length; give one for those of the new client, as in lr=0.03"
        )
    return algorithm.lr


def _heard(
    trained: Personals, neighbours: Mapping[Any, Any]
) -> tuple[Float[Tensor, "neighbour param"], Float[Tensor, "neighbour 1"]]:
    """The neighbours' models and the weights of the edges to them, in the order of the run's clients."""
    if not isinstance(neighbours, Mapping):
        raise InputError("join: neighbours are a dictionary of names and weights, as in {'north': 1.0}")
    if not neighbours:
        raise InputError("join: a new client starts from its neighbours' models; name at least one")
    weight_of: dict[int, float] = {}
    for name, value in neighbours.items():
        if str(name) not in trained.clients:
            raise unknown("client among the neighbours", name, trained.clients)
        place = trained.place(str(name))
        if place in weight_of:
            raise InputError(f"join: neighbour {str(name)!r} is named twice; name it once")
        weight_of[place] = real(
            f"weight of neighbour {str(name)!r}", value, zero=False, scope="join", field="neighbours"
        )
    places = sorted(weight_of)
    near = trained.models[places]
    return near, torch.tensor([[weight_of[place]] for place in places], dtype=near.dtype, device=near.device)


def _mean(
    near: Float[Tensor, "neighbour param"], weights: Float[Tensor, "neighbour 1"]
) -> Float[Tensor, "1 param"]:
    """Σ a_ℓ w_ℓ / Σ a_ℓ."""
    share = weights.double() / weights.double().sum()
    return (share * near.double()).sum(0, keepdim=True).to(near.dtype)


def _step(algorithm: Algorithm, length: float, weights: Float[Tensor, "neighbour 1"]) -> float:
    """μRη where the method pulls neighbours together, 0 elsewhere; refused where that would not settle.

    Implicit mixing is a shorter step along the same pull: w + s Σ a_ℓ (w_ℓ − w⁺) = w⁺.
    """
    if not isinstance(algorithm, Coupled):
        return 0.0
    coupling = algorithm.coupling
    step = length * coupling.eta
    product = step * float(weights.sum()) / coupling.smoothing
    if coupling.mixing == "implicit":
        return step / (1 + product)
    if product > 2:
        raise InputError(
            f"join: the neighbours' weights sum to {float(weights.sum()):g}, with which lr·R·strength·Σ = "
            f"{product:.4g} > 2 and the pull towards them does not settle; give smaller ones, or a smaller lr"
        )
    return step


def _pull(
    algorithm: Algorithm,
    w: Float[Tensor, "1 param"],
    near: Float[Tensor, "neighbour param"],
    weights: Float[Tensor, "neighbour 1"],
) -> Float[Tensor, "1 param"]:
    """Σ a_ℓ (w − w_ℓ); in the network lasso each over its length, or over the smoothing."""
    if isinstance(algorithm, NetworkLasso):
        weights = weights / distances(w, near).clamp_min(algorithm.smoothing).mT
    return (weights * (w - near)).sum(0, keepdim=True)


def _alone(trained: Personals, name: str, rows: Rows) -> Federation:
    """A federation of the new client, in the units of the run."""
    x, y = rows
    train = ClientRows.of(x, y, torch.tensor([len(x)]))
    test = train.kept(torch.zeros(len(x), dtype=torch.bool))
    scale = Standardizer.of("client", train) if trained.scale.kind == "client" else trained.scale
    return Federation((name,), train, test, trained.about.labels, scale)


def _rows(given: Given, about: About) -> Rows:
    """The new client's rows, checked against what the models were trained on."""
    x, y = formed("join: the new client", (given[0], _targets(given[1], about)))
    x = as_trained(x.cpu(), about)
    if not len(x) or tuple(x.shape[1:]) != about.inputs:
        raise InputError(
            f"join: x has shape {tuple(x.shape)}; give at least one row, of features of shape {about.inputs}"
        )
    if about.pictures and x.dtype != torch.uint8:
        raise InputError(
            "join: the models were trained on pictures of bytes; give whole numbers from 0 to 255"
        )
    if y.is_floating_point() != (about.labels is None):
        raise InputError("join: y holds real numbers; give the labels' numbers, 0, 1, …, or their names")
    if about.labels is None and y.shape[1] != about.outputs:
        raise InputError(f"join: y has {y.shape[1]} targets a row; the models have {about.outputs}")
    classes = None if about.labels is None else len(about.labels)
    check_values("join: the new client", x, y.cpu(), classes, "row")
    return x, y.cpu()


def _targets(y: Any, about: About) -> Any:
    """Labels by their numbers, where they are given by their names; targets as real numbers."""
    if isinstance(y, Tensor):
        return y if about.labels is not None or y.is_floating_point() else y.double()
    array = np.asarray(y)
    if about.labels is None:
        return array.astype(np.float64) if array.dtype.kind in "iub" else array
    if array.dtype.kind not in "UO":
        return array
    place = {label: number for number, label in enumerate(about.labels)}
    for name in array.flatten().tolist():
        if str(name) not in place:
            raise unknown("label", name, about.labels)
    return np.array([place[str(name)] for name in array.flatten().tolist()]).reshape(array.shape)
