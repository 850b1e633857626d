"""Networks as functions of a stack of flat vectors, one row a client."""

from collections.abc import Callable
from typing import Final

from fedlap.models.convolutional import cnn
from fedlap.models.dense import DenseNetwork, linear, mlp
from fedlap.models.losses import CrossEntropy, Loss, SquaredError
from fedlap.models.model import Architecture, Batch, Goal, Memory, Model, Network, widened
from fedlap.models.module import module

MODELS: Final[dict[str, Callable[..., Architecture]]] = {"linear": linear, "mlp": mlp, "cnn": cnn}

__all__ = [
    "MODELS",
    "Architecture",
    "Batch",
    "CrossEntropy",
    "DenseNetwork",
    "Goal",
    "Loss",
    "Memory",
    "Model",
    "Network",
    "SquaredError",
    "cnn",
    "linear",
    "mlp",
    "module",
    "widened",
]
