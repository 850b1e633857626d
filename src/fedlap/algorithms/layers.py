"""Layers of a network in a flat model: the last ones are a client's head, the others the shared base."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedlap.errors import UnsuitedError
from fedlap.models import Model

BaseStack = Float[Tensor, "client base"]
HeadStack = Float[Tensor, "client head"]


def count_head_parameters(model: Model, layers: int, scope: str) -> int:
    """Return the number of parameters in the last layers of a model; raise UnsuitedError if it has fewer."""
    sizes = count_layer_parameters(model.network.module(torch.zeros(model.size)))
    if layers > len(sizes):
        raise UnsuitedError(
            f"personal_layers = {layers}; expected at most {len(sizes)}, the number of layers of the model",
            field="personal_layers",
            scope=scope,
        )
    return sum(sizes[len(sizes) - layers :])


def count_layer_parameters(net: nn.Module) -> list[int]:
    """Return the number of trained parameters of each layer, in the order of the flat model."""
    sizes: dict[str, int] = {}
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            layer = name.rpartition(".")[0]
            sizes[layer] = sizes.get(layer, 0) + parameter.numel()
    return list(sizes.values())
