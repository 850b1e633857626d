"""Training of a client that joins after a run, from its neighbours' models and its rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms.coupling import compute_pull
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.local_work import BatchSize
from fedlap.data.client_rows import ClientRows
from fedlap.data.federation import Federation
from fedlap.data.standardize import Standardizer
from fedlap.data.validate import ArrayPair, TensorPair, check_row_values, convert_pair
from fedlap.errors import DivergedError, InputError, check_integer, check_number, unknown_name_error
from fedlap.models import Model
from fedlap.personal.join_settings import JoinSettings
from fedlap.personal.metadata import ModelMetadata
from fedlap.personal.models import Personal, Personals, restore_bytes
from fedlap.training.placement import PlacedClients
from fedlap.training.task import StackTask


@torch.no_grad()
def join_client(
    trained: Personals,
    rows: ArrayPair,
    neighbours: Mapping[Any, Any],
    *,
    rounds: int,
    batch: BatchSize,
    lr: float | None,
    seed: int,
    name: str,
) -> Personal:
    """Train the model of a new client, as `Personals.join` describes."""
    check_integer("rounds", rounds, 0, scope="join")
    check_integer("seed", seed, scope="join")
    if batch != "all":
        check_integer("batch", batch, 1, scope="join")
    if str(name) in trained.clients:
        raise InputError(f"join: client {str(name)!r} already exists; use another name")
    settings = _require_settings(trained)
    learning_rate = settings.choose_lr(
        None if lr is None else check_number("lr", lr, zero=False, scope="join")
    )
    network = trained.require_network()
    objective = Model(network, trained.metadata.loss, settings.l2)
    models, weights = _gather_neighbours(trained, neighbours)
    federation = _build_federation(trained, str(name), _check_rows(rows, trained.metadata))
    device, dtype = models.device, models.dtype
    placed_federation = federation.to_device(device, dtype)
    clients = PlacedClients.of([placed_federation], [seed], objective, batch, device, dtype)
    cohort = clients.build_cohort(torch.zeros(1, dtype=torch.int64))
    step = _compute_mixing_step(settings, learning_rate * settings.work.repeats, weights)
    w = _average_models(models, weights)
    for round in range(1, rounds + 1):
        w = StackTask(clients, cohort, round, settings.work).run(sgd, w, lr=learning_rate)
        if step:
            w = w - step * compute_pull(w, models, weights, settings.smoothing)
    if not bool(w.isfinite().all()):
        raise DivergedError(
            f"join: training diverged with lr = {learning_rate:g}; lower lr, or scale the features"
        )
    scales = federation.scale, federation.target_scale
    return Personal(str(name), trained.metadata, network, w[0], *scales)


def _require_settings(trained: Personals) -> JoinSettings:
    if trained.join_settings is None:
        raise InputError(
            "join: these models were saved without the settings of their method, by an earlier version of "
            "fedlap; train and save them again"
        )
    return trained.join_settings


def _gather_neighbours(
    trained: Personals, neighbours: Mapping[Any, Any]
) -> tuple[Float[Tensor, "neighbour param"], Float[Tensor, "neighbour 1"]]:
    """Return the neighbours' models and edge weights, in the order of the run's clients."""
    if not isinstance(neighbours, Mapping):
        raise InputError(
            f"join: neighbours is a {type(neighbours).__name__}; "
            "pass a dictionary of names and weights, for example {'north': 1.0}"
        )
    if not neighbours:
        raise InputError(
            "join: neighbours is empty; name at least one, whose model the new client starts from"
        )
    weight_of: dict[int, float] = {}
    for name, value in neighbours.items():
        if str(name) not in trained.clients:
            raise unknown_name_error("client among the neighbours", name, trained.clients)
        place = trained.find_position(str(name))
        if place in weight_of:
            raise InputError(f"join: neighbour {str(name)!r} is named twice; remove one entry")
        weight_of[place] = check_number(
            f"weight of neighbour {str(name)!r}", value, zero=False, scope="join", field="neighbours"
        )
    places = sorted(weight_of)
    models = trained.models[places]
    weights = torch.tensor([[weight_of[place]] for place in places], dtype=models.dtype, device=models.device)
    return models, weights


def _average_models(
    models: Float[Tensor, "neighbour param"], weights: Float[Tensor, "neighbour 1"]
) -> Float[Tensor, "1 param"]:
    """Return Σ a_ℓ w_ℓ / Σ a_ℓ."""
    share = weights.double() / weights.double().sum()
    return (share * models.double()).sum(0, keepdim=True).to(models.dtype)


def _compute_mixing_step(
    settings: JoinSettings, length: float, weights: Float[Tensor, "neighbour 1"]
) -> float:
    """Return μRη if the method pulls neighbours together, else 0; raise InputError if this would diverge.

    Implicit mixing is a shorter step along the pull: w⁺ = w + s Σ a_ℓ (w_ℓ − w⁺).
    """
    if settings.strength is None:
        return 0.0
    step = length * settings.strength
    product = step * float(weights.sum()) / (settings.smoothing or 1)
    if settings.mixing == "implicit":
        return step / (1 + product)
    if product > 2:
        raise InputError(
            f"join: the neighbours' weights sum to {float(weights.sum()):g}, so lr·R·strength·Σ = "
            f"{product:.4g} > 2 and the pull to them diverges; use smaller weights or a smaller lr"
        )
    return step


def _build_federation(trained: Personals, name: str, rows: TensorPair) -> Federation:
    """Return a federation of the new client alone, standardised as in the run."""
    x, y = rows
    train = ClientRows.of(x, y, torch.tensor([len(x)]))
    test = train.select(torch.zeros(len(x), dtype=torch.bool))
    scale = Standardizer.of("client", train) if trained.scale.kind == "client" else trained.scale
    labels, target_scale = trained.metadata.labels, trained.target_scale
    return Federation((name,), train, test, labels, scale, target_scale=target_scale)


def _check_rows(rows: ArrayPair, metadata: ModelMetadata) -> TensorPair:
    """Return the new client's rows as tensors; raise InputError unless they fit the trained models."""
    x, y = convert_pair("join: the new client", (rows[0], _convert_targets(rows[1], metadata)))
    x = restore_bytes(x.cpu(), metadata)
    if not len(x) or tuple(x.shape[1:]) != metadata.inputs:
        raise InputError(
            f"join: x has shape {tuple(x.shape)}; pass at least one row of "
            f"features of shape {metadata.inputs}"
        )
    if metadata.pictures and x.dtype != torch.uint8:
        raise InputError(
            "join: the models were trained on pictures of bytes; pass whole numbers from 0 to 255"
        )
    if y.is_floating_point() != (metadata.labels is None):
        raise InputError("join: y holds real numbers; pass label numbers, 0, 1, …, or label names")
    if metadata.labels is None and y.shape[1] != metadata.outputs:
        raise InputError(f"join: y has {y.shape[1]} targets per row; expected {metadata.outputs}")
    classes = None if metadata.labels is None else len(metadata.labels)
    check_row_values("join: the new client", x, y.cpu(), classes, "row")
    return x, y.cpu()


def _convert_targets(y: Any, metadata: ModelMetadata) -> Any:
    """Return labels as numbers if they are given as names, and real targets as floats."""
    if isinstance(y, Tensor):
        return y if metadata.labels is not None or y.is_floating_point() else y.double()
    array = np.asarray(y)
    if metadata.labels is None:
        return array.astype(np.float64) if array.dtype.kind in "iub" else array
    if array.dtype.kind not in "UO":
        return array
    place = {label: number for number, label in enumerate(metadata.labels)}
    for name in array.flatten().tolist():
        if str(name) not in place:
            raise unknown_name_error("label", name, metadata.labels)
    return np.array([place[str(name)] for name in array.flatten().tolist()]).reshape(array.shape)
