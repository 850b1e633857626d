"""Any user's `torch.nn.Module`, one copy a client, mapped over the client axis by `torch.func.vmap`."""

import copy
import math
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedlap.errors import InputError
from fedlap.models import autograd
from fedlap.models.layout import Shapes, check_l2, fill, size_of, views
from fedlap.models.model import InPlace, Memory, Scores, Slope, Stack


@dataclass(frozen=True, eq=False)
class ModuleNetwork:
    """A module called with each client's own parameters; frozen ones and buffers are shared, and stay."""

    net: nn.Module
    inputs: tuple[int, ...]
    outputs: int
    _placed: dict[tuple[torch.device, torch.dtype], dict[str, Tensor]] = field(
        default_factory=dict, repr=False
    )

    @cached_property
    def trained(self) -> dict[str, nn.Parameter]:
        """The parameters that training changes, in the order of the flat row."""
        return trained(self.net)

    @cached_property
    def shapes(self) -> Shapes:
        """Their shapes."""
        return [tuple(parameter.shape) for parameter in self.trained.values()]

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return size_of(self.shapes)

    def start(self, seed: int) -> Float[Tensor, "param"]:
        """The values the module came with, whatever the seed."""
        return torch.cat([parameter.detach().double().flatten() for parameter in self.trained.values()])

    def scores(self, W: Stack, x: Float[Tensor, "client batch *feature"]) -> Scores:
        """What the network says of each sample."""
        rows = dict(zip(self.trained, views(W, self.shapes), strict=True))
        shared = self._shared(W)
        out: Tensor = vmap(lambda row, batch: functional_call(self.net, {**shared, **row}, (batch,)))(rows, x)
        return out

    @property
    def widest(self) -> int:
        """A guess, since a module does not say: sixteen values for each feature."""
        return 16 * math.prod(self.inputs)

    def _shared(self, W: Stack) -> dict[str, Tensor]:
        """Frozen parameters and buffers where W is; they never change, so they are placed once."""
        place = (W.device, W.dtype)
        if place not in self._placed:
            self._placed[place] = {
                name: tensor.detach().to(W) if tensor.is_floating_point() else tensor.to(W.device)
                for name, tensor in (*self.net.named_parameters(), *self.net.named_buffers())
                if name not in self.trained
            }
        return self._placed[place]

    def gradient(self, W: Stack, x: Float[Tensor, "client batch *feature"], slope: Slope) -> Stack:
        """By automatic differentiation."""
        return autograd.gradient(self.scores, W, x, slope)

    def hold(self, W: Stack, steps: int = 1, memory: Memory | None = None, wide: bool = False) -> InPlace:
        """As it is."""
        return InPlace(partial(autograd.descend, self.scores), W)

    def module(self, row: Float[Tensor, "param"]) -> nn.Module:
        """A copy of the module, holding these parameters."""
        net = copy.deepcopy(self.net).to(row)
        fill(trained(net).values(), row)
        return net


@dataclass(frozen=True, eq=False)
class Wrapped:
    """A module that a user brought."""

    net: nn.Module
    l2: float = 0.0

    def __post_init__(self) -> None:
        check_l2(self.l2)
        if not trained(self.net):
            raise InputError(
                f"module: {type(self.net).__name__} has no parameters to train (with requires_grad)"
            )
        for name, layer in self.net.named_modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.track_running_stats:
                raise InputError(
                    f"module: layer {name!r} is a batch norm with running statistics, which are neither "
                    "parameters nor constant; use GroupNorm, or BatchNorm with track_running_stats=False"
                )
            if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
                raise InputError(
                    f"module: layer {name!r} is a dropout, which draws from torch's global generator, so the "
                    "same seed would not give the same numbers; set its p to 0"
                )

    def build(self, inputs: tuple[int, ...], outputs: int) -> ModuleNetwork:
        """The module, tried once on two rows of zeros."""
        if any(isinstance(p, nn.UninitializedParameter) for p in self.net.parameters()):
            raise InputError(
                "module: it has lazy layers whose sizes are not set; call it once on your data first"
            )
        network = ModuleNetwork(copy.deepcopy(self.net).cpu(), inputs, outputs)
        row = network.start(0).float().unsqueeze(0)
        name = type(self.net).__name__
        try:
            shape = tuple(network.scores(row, row.new_zeros(1, 2, *inputs)).shape)
        except Exception as error:  # the module is the user's, and may raise anything
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"module: {name} fails on features of shape {inputs}: {reason}") from error
        if shape != (1, 2, outputs):
            raise InputError(
                f"module: {name} turns 2 rows of features {inputs} into shape {shape[1:]}; "
                f"this data needs (2, {outputs})"
            )
        return network


def trained(net: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that ask for a gradient, by name."""
    return {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}


def module(net: nn.Module, l2: float = 0.0) -> Wrapped:
    """Any `torch.nn.Module` as a model; training starts from the parameters it holds now."""
    return Wrapped(net, l2)
