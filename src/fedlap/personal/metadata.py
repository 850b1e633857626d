"""What the models of a run have in common, beside their parameters."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from fedlap.data.federation import Federation
from fedlap.data.standardize import Scaling, Standardizer
from fedlap.errors import InputError
from fedlap.models import MODELS, CrossEntropy, Loss, Model, Network, SquaredError
from fedlap.models.convolutional import ConvolutionalNetwork
from fedlap.models.dense import DenseNetwork
from fedlap.personal.model_files import damaged
from fedlap.storage.files import reason

Architecture = dict[str, Any]  # a name of `fedlap.models.MODELS` and its settings


@dataclass(frozen=True)
class About:
    """All that using a model needs to be told; plain values.

    architecture: the network's name and settings; None for a module of the user's own.
    inputs, outputs: the shape of one row's features, and how many scores the network gives.
    labels: names of the classes; None where targets are real numbers.
    features, target: names of the columns that it was trained on, where they had any.
    pictures: whether features are bytes.
    scale: how features are scaled.
    """

    architecture: Architecture | None
    inputs: tuple[int, ...]
    outputs: int
    labels: tuple[str, ...] | None
    features: tuple[str, ...] | None
    target: str | None
    pictures: bool
    scale: Scaling

    @staticmethod
    def of(federation: Federation, objective: Model) -> "About":
        """What a run knows."""
        return About(
            _architecture(objective),
            federation.inputs,
            federation.outputs,
            federation.labels,
            federation.features,
            federation.target,
            federation.train.store.dtype == torch.uint8,
            federation.scale.kind,
        )

    @staticmethod
    def read(values: dict[str, Any], where: Path) -> "About":
        """From the values that the file `where` holds, each of the type that was written."""
        for name, fits in FIELDS.items():
            if name not in values or not fits(values[name]):
                raise damaged(where, name)
        given = {field.name: values[field.name] for field in fields(About)}
        given["architecture"] = given["architecture"] and _tuples(given["architecture"])
        made = About(**_tuples(given))
        if made.labels is not None and len(made.labels) != made.outputs:
            raise damaged(where, "labels")
        if made.features is not None and len(made.features) != math.prod(made.inputs):
            raise damaged(where, "features")
        return made

    def described(self) -> dict[str, Any]:
        """Plain values that make it again."""
        return asdict(self)

    @property
    def loss(self) -> Loss:
        """What was minimised."""
        return CrossEntropy() if self.labels is not None else SquaredError()

    def network(self) -> Network | None:
        """The network, where it is one that has a name."""
        if self.architecture is None:
            return None
        settings = dict(self.architecture)
        name = settings.pop("name")
        if name not in MODELS:
            raise InputError(f"model {name!r} is not known here; use the version of fedlap that trained it")
        return MODELS[name](**settings).build(self.inputs, self.outputs)

    def loaded(
        self, tensors: Mapping[str, Tensor], models: str, shape: tuple[int, ...], where: Path
    ) -> tuple[Network | None, Tensor, Standardizer]:
        """The network, its parameters and the scale, which must be of these sizes, from a pair of files."""
        try:
            network = self.network()
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{where} is damaged: {reason(error)}; save the model again") from error
        constants = shape[0] if self.scale == "client" and len(shape) else 1
        for name in (models, "shift", "factor"):
            held = tensors.get(name)
            if held is None or not held.is_floating_point() or not held.dim():
                raise _unfit(where, name)
            if name != models and (len(held) != constants or not self._scales(held)):
                raise _unfit(where, name)
        found, size = tensors[models], None if network is None else network.size
        if found.dim() != len(shape) + 1 or found.shape[:-1] != shape or size not in (None, found.shape[-1]):
            raise _unfit(where, models)
        return network, found, Standardizer(self.scale, tensors["shift"], tensors["factor"])

    def _scales(self, constants: Tensor) -> bool:
        """Whether these constants, a row for each client, go with rows of features."""
        own = constants.shape[1:]
        return self.scale == "none" or (
            len(own) <= len(self.inputs)
            and all(each in (1, wanted) for each, wanted in zip(own[::-1], self.inputs[::-1], strict=False))
        )


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**40


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


FIELDS: dict[str, Callable[[Any], bool]] = {
    "architecture": lambda value: value is None or (isinstance(value, dict) and "name" in value),
    "inputs": lambda value: isinstance(value, list) and 0 < len(value) < 8 and all(map(_is_size, value)),
    "outputs": _is_size,
    "labels": lambda value: value is None or _is_names(value),
    "features": lambda value: value is None or _is_names(value),
    "target": lambda value: value is None or isinstance(value, str),
    "pictures": lambda value: isinstance(value, bool),
    "scale": lambda value: value in get_args(Scaling),
}  # what a file of facts holds


def _unfit(where: Path, name: str) -> InputError:
    return InputError(f"{where}: the tensor {name!r} has not the shape that it says; save the model again")


def _architecture(objective: Model) -> Architecture | None:
    network = objective.network
    if isinstance(network, ConvolutionalNetwork):
        return {"name": "cnn", "l2": objective.l2}
    if not isinstance(network, DenseNetwork):
        return None
    hidden = network.widths[1:-1]
    return (
        {"name": "mlp", "hidden": hidden, "l2": objective.l2}
        if hidden
        else {"name": "linear", "l2": objective.l2}
    )


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    """What JSON has as lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
