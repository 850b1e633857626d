"""Any user's `torch.nn.Module`, one copy a client, mapped over the client axis by `torch.func.vmap`."""

import copy
import math
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import pad

from fedlap.errors import InputError
from fedlap.models import autograd
from fedlap.models.model import InPlace, Memory, Scores, Slope, Stack
from fedlap.models.parameters import Shapes, check_l2, fill, size_of, views
from fedlap.randomness import draws

APART = 0.1  # by which parameters are changed to see whether rows of a batch meet
PERIOD = 4093  # numbers that are drawn for these changes, a prime; larger models repeat them
ROUNDING = 1e-4  # of scores in single precision, above which they differ


@dataclass(frozen=True, eq=False)
class ModuleNetwork:
    """A module called with each client's own parameters; frozen ones and buffers are shared, and stay.

    mixes: whether the scores of a row depend on the other rows of its batch.
    lone: why the module cannot take a batch of one row; empty where it can.
    """

    net: nn.Module
    inputs: tuple[int, ...]
    outputs: int
    mixes: bool = False
    lone: str = ""
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
        if self.lone and x.shape[1] == 1:
            raise InputError(f"module: {self.lone}; pass at least two rows, or use GroupNorm or LayerNorm")
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

    def within(self, inside: Bool[Tensor, "client batch"]) -> "Within":
        """The network on batches of which only these places hold rows, so that padding never meets rows."""
        return Within(self, inside.sum(1).tolist())

    def module(self, row: Float[Tensor, "param"]) -> nn.Module:
        """A copy of the module, holding these parameters."""
        net = copy.deepcopy(self.net).to(row)
        fill(trained(net).values(), row)
        return net


@dataclass(frozen=True, eq=False)
class Within:
    """A network on batches of several sizes: rows stand first, and padding after them is cut off.

    Clients with batches of one size are computed together.
    """

    network: ModuleNetwork
    sizes: list[int]  # of the batch of each client

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.network.size

    @property
    def outputs(self) -> int:
        """How many scores it gives for a sample."""
        return self.network.outputs

    @property
    def widest(self) -> int:
        """The most values that one sample takes inside the network."""
        return self.network.widest

    def start(self, seed: int) -> Float[Tensor, "param"]:
        """Fresh parameters, in float64."""
        return self.network.start(seed)

    def scores(self, W: Stack, x: Float[Tensor, "client batch *feature"]) -> Scores:
        """What the network says of each row, and zeros for padding."""
        width, groups, order = x.shape[1], [], []
        for size in sorted(set(self.sizes)):
            if size == width == min(self.sizes):
                return self.network.scores(W, x)
            places = [place for place, own in enumerate(self.sizes) if own == size]
            at = torch.tensor(places, device=x.device)
            made = W.new_zeros(len(places), 0, self.outputs)
            if size:
                made = self.network.scores(W.index_select(0, at), x.index_select(0, at)[:, :size])
            groups.append(pad(made, (0, 0, 0, width - size)))
            order += places
        back = torch.tensor(order, device=x.device).argsort()
        return torch.cat(groups).index_select(0, back)

    def gradient(self, W: Stack, x: Float[Tensor, "client batch *feature"], slope: Slope) -> Stack:
        """By automatic differentiation."""
        return autograd.gradient(self.scores, W, x, slope)

    def hold(self, W: Stack, steps: int = 1, memory: Memory | None = None, wide: bool = False) -> InPlace:
        """As it is."""
        return InPlace(partial(autograd.descend, self.scores), W)

    def module(self, row: Float[Tensor, "param"]) -> nn.Module:
        """A copy of the module, holding these parameters."""
        return self.network.module(row)


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
        """The module, tried on a few rows: for its shapes, and for whether rows of a batch meet."""
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
        if not _mixes(network, row):
            return network
        return replace(network, mixes=True, lone=_why_not_alone(network, row, name))


def _mixes(network: ModuleNetwork, row: Float[Tensor, "1 param"]) -> bool:
    """Return whether the scores of two rows change with the other rows of their batch.

    Rows and changes of parameters are from a draw of their own. A head that starts at zero shows nothing, so
    that the module is tried with other parameters, too.
    """
    stream = draws(0, "data")
    shape = (8, *network.inputs)
    x = stream.uniform(0, 0, math.prod(shape)).view(shape).to(row)
    some = 2 * stream.uniform(0, 1, min(row.numel(), PERIOD)) - 1
    apart = some.repeat(-(-row.numel() // len(some)))[: row.numel()].view_as(row).to(row)
    for W in (row, row + APART * apart):
        one = network.scores(W, x[:4].unsqueeze(0))[0, [0, 3]]
        other = network.scores(W, x[[0, 4, 5, 6, 7, 3]].unsqueeze(0))[0, [0, 5]]
        most = float(one.nan_to_num().abs().max())
        if not torch.allclose(one, other, rtol=0, atol=ROUNDING * max(most, 1e-3), equal_nan=True):
            return True
    return False


def _why_not_alone(network: ModuleNetwork, row: Float[Tensor, "1 param"], name: str) -> str:
    """Return why the module cannot take a batch of one row, or nothing where it can."""
    try:
        network.scores(row, row.new_zeros(1, 1, *network.inputs))
    except Exception as error:  # the module is the user's, and may raise anything
        return f"{name} cannot take a batch of one row ({' '.join(str(error).split())[:200]})"
    return ""


def trained(net: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that ask for a gradient, by name."""
    return {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}


def module(net: nn.Module, l2: float = 0.0) -> Wrapped:
    """Any `torch.nn.Module` as a model; training starts from the parameters it holds now.

    Rows of a batch may meet, as in BatchNorm with track_running_stats=False. Each client's batches are then
    computed without padding, as a loop over clients would. A client is scored on all of its training rows at
    once, and on all of its test rows at once; `predict` takes statistics from the rows that it is given.
    """
    return Wrapped(net, l2)
