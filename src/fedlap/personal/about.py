"""What the models of a run have in common, beside their parameters."""

from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from fedlap.errors import InputError
from fedlap.federation import Federation
from fedlap.models import MODELS, CrossEntropy, Loss, Model, Network, SquaredError
from fedlap.models.convolutional import ConvolutionalNetwork
from fedlap.models.dense import DenseNetwork
from fedlap.parts import Scaling

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
    def read(values: dict[str, Any]) -> "About":
        """From the values that a file holds."""
        given = {field.name: values[field.name] for field in fields(About)}
        given["architecture"] = given["architecture"] and _tuples(given["architecture"])
        return About(**_tuples(given))

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
