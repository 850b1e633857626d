"""Metadata of trained models: network, labels, features and scaling."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from fedlap.data.encoding import Encoding
from fedlap.data.federation import Federation
from fedlap.data.standardize import Scaling, Standardizer
from fedlap.data.target_scale import TargetScale
from fedlap.errors import InputError
from fedlap.models import MODELS, CrossEntropy, Loss, Model, Network, SquaredError
from fedlap.models.convolutional import ConvolutionalNetwork
from fedlap.models.dense import DenseNetwork
from fedlap.personal.model_files import invalid_field_error
from fedlap.storage.files import describe_error
from fedlap.summaries import summarise_fields

TARGET_TENSORS = "target_mean", "target_deviation"  # in files of models that predict standardised targets
ArchitectureSettings = dict[str, Any]  # a name in `fedlap.models.MODELS` and its settings


@dataclass(frozen=True)
class ModelMetadata:
    """Everything that prediction needs apart from tensors, as plain values.

    architecture: the network's name and settings; None for a user-defined module.
    inputs, outputs: the shape of one row's features, and the number of scores per row.
    labels: names of the classes; None if targets are real numbers.
    features, target: names of the training columns, if they had any.
    pictures: True if features are bytes.
    scale: the kind of feature scaling.
    scales_target: True if models predict standardised targets, whose constants are among the tensors.
    encoding: how the columns of a table became features; None if they were numbers already.
    """

    architecture: ArchitectureSettings | None
    inputs: tuple[int, ...]
    outputs: int
    labels: tuple[str, ...] | None
    features: tuple[str, ...] | None
    target: str | None
    pictures: bool
    scale: Scaling
    scales_target: bool = False
    encoding: Encoding | None = None

    __repr__ = summarise_fields

    @staticmethod
    def of(federation: Federation, objective: Model) -> "ModelMetadata":
        """Return the metadata of models trained on a federation."""
        return ModelMetadata(
            _describe_architecture(objective),
            federation.inputs,
            federation.outputs,
            federation.labels,
            federation.features,
            federation.target,
            federation.train.store.dtype == torch.uint8,
            federation.scale.kind,
            federation.target_scale is not None,
            federation.encoding,
        )

    @staticmethod
    def parse(values: dict[str, Any], path: Path) -> "ModelMetadata":
        """Return the metadata that file `path` holds; raise InputError for a missing or invalid field."""
        values = {"scales_target": False, **values}  # files of older versions, and of classes, do not have it
        for name, is_valid in FIELD_CHECKS.items():
            if name not in values or not is_valid(values[name]):
                raise invalid_field_error(path, name)
        arguments = {name: values[name] for name in FIELD_CHECKS}
        arguments["architecture"] = arguments["architecture"] and _lists_to_tuples(arguments["architecture"])
        encoding = None
        if values.get("encoding") is not None:  # Files of numbers alone have no such field.
            encoding = Encoding.parse(values["encoding"])
            if encoding is None or list(encoding.features) != values["features"]:
                raise invalid_field_error(path, "encoding")
        metadata = ModelMetadata(**_lists_to_tuples(arguments), encoding=encoding)
        if metadata.labels is not None and len(metadata.labels) != metadata.outputs:
            raise invalid_field_error(path, "labels")
        if metadata.features is not None and len(metadata.features) != math.prod(metadata.inputs):
            raise invalid_field_error(path, "features")
        return metadata

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, from which `parse` restores the metadata."""
        optional: dict[str, Any] = {"scales_target": self.scales_target or None}
        optional["encoding"] = None if self.encoding is None else self.encoding.to_dict()
        values = {name: getattr(self, name) for name in FIELD_CHECKS if name not in optional}
        return values | {name: value for name, value in optional.items() if value is not None}

    @property
    def loss(self) -> Loss:
        """Training loss."""
        return CrossEntropy() if self.labels is not None else SquaredError()

    def build_network(self) -> Network | None:
        """Build the network; None for a user-defined module."""
        if self.architecture is None:
            return None
        settings = dict(self.architecture)
        name = settings.pop("name")
        if name not in MODELS:
            raise InputError(
                f"unknown model {name!r}; pass --plugin with the file that defines it, or use the version of "
                "fedlap that trained it"
            )
        return MODELS[name](**settings).build(self.inputs, self.outputs)

    def unpack_tensors(
        self, tensors: Mapping[str, Tensor], models: str, shape: tuple[int, ...], path: Path
    ) -> tuple[Network | None, Tensor, Standardizer, TargetScale | None]:
        """Return the network, its parameters and the scalings; raise InputError for a wrong shape.

        models: the name of the parameters' tensor. shape: its shape without the last axis.
        """
        try:
            network = self.build_network()
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{path} is damaged: {describe_error(error)}; save the model again") from error
        constants = shape[0] if self.scale == "client" and len(shape) else 1
        for name in (models, "shift", "factor"):
            tensor = tensors.get(name)
            if tensor is None or not tensor.is_floating_point() or not tensor.dim():
                raise _wrong_shape_error(path, name)
            if name != models and (len(tensor) != constants or not self._can_scale(tensor)):
                raise _wrong_shape_error(path, name)
        found, size = tensors[models], None if network is None else network.size
        if found.dim() != len(shape) + 1 or found.shape[:-1] != shape or size not in (None, found.shape[-1]):
            raise _wrong_shape_error(path, models)
        scale = Standardizer(self.scale, tensors["shift"], tensors["factor"])
        return network, found, scale, self._unpack_target_scale(tensors, path)

    def _unpack_target_scale(self, tensors: Mapping[str, Tensor], path: Path) -> TargetScale | None:
        """Return the constants of standardised targets; None if models predict unscaled ones."""
        if not self.scales_target:
            return None
        if self.labels is not None:
            raise invalid_field_error(path, "scales_target")
        for name in TARGET_TENSORS:
            tensor = tensors.get(name)
            if tensor is None or tensor.dtype != torch.float64 or tensor.shape != (self.outputs,):
                raise _wrong_shape_error(path, name)
        return TargetScale(*(tensors[name] for name in TARGET_TENSORS))

    def _can_scale(self, constants: Tensor) -> bool:
        """Return True if constants, one row per client, broadcast to the features of a row."""
        sizes = constants.shape[1:]
        return self.scale == "none" or (
            len(sizes) <= len(self.inputs)
            and all(size in (1, wanted) for size, wanted in zip(sizes[::-1], self.inputs[::-1], strict=False))
        )


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**40


def _is_name_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


# Checks of the fields of a metadata file.
FIELD_CHECKS: dict[str, Callable[[Any], bool]] = {
    "architecture": lambda value: value is None or (isinstance(value, dict) and "name" in value),
    "inputs": lambda value: isinstance(value, list) and 0 < len(value) < 8 and all(map(_is_size, value)),
    "outputs": _is_size,
    "labels": lambda value: value is None or _is_name_list(value),
    "features": lambda value: value is None or _is_name_list(value),
    "target": lambda value: value is None or isinstance(value, str),
    "pictures": lambda value: isinstance(value, bool),
    "scale": lambda value: value in get_args(Scaling),
    "scales_target": lambda value: isinstance(value, bool),
}


def _wrong_shape_error(path: Path, name: str) -> InputError:
    return InputError(f"{path}: tensor {name!r} does not have the stated shape; save the model again")


def _describe_architecture(objective: Model) -> ArchitectureSettings | None:
    """Return the name and settings of a registered architecture; None for a module, which has neither."""
    architecture, network = objective.architecture, objective.network
    for name, make in MODELS.items():
        if type(architecture) is make and is_dataclass(architecture):
            return {"name": name} | {
                field.name: getattr(architecture, field.name) for field in fields(architecture)
            }
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


def _lists_to_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """Convert lists, as JSON stores them, back to tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
