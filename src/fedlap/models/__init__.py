"""Networks as functions of a stack of flat parameter vectors, one row per client."""

from collections.abc import Callable
from typing import Final

from fedlap.models.convolutional import cnn
from fedlap.models.dense import DenseNetwork, linear, mlp
from fedlap.models.losses import CrossEntropy, Loss, SquaredError
from fedlap.models.model import (
    Architecture,
    Batch,
    BufferFactory,
    Model,
    Network,
    WeightedTargets,
    compute_padded_width,
)
from fedlap.models.torch_module import module

MODELS: Final[dict[str, Callable[..., Architecture]]] = {"linear": linear, "mlp": mlp, "cnn": cnn}

__all__ = [
    "MODELS",
    "Architecture",
    "Batch",
    "BufferFactory",
    "CrossEntropy",
    "DenseNetwork",
    "Loss",
    "Model",
    "Network",
    "SquaredError",
    "WeightedTargets",
    "cnn",
    "compute_padded_width",
    "linear",
    "mlp",
    "module",
]
