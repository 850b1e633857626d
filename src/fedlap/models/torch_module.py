"""A user's `torch.nn.Module`, one set of parameters per client, mapped by `torch.func.vmap`."""

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
from fedlap.models.model import BufferFactory, InPlaceWeights, ScoreGradient, Scores, Stack
from fedlap.models.parameters import Shapes, check_l2, copy_row_into, count_parameters, view_parameters
from fedlap.randomness import draws
from fedlap.summaries import summarise_fields

# The probe for batch dependence scores the module twice, the second time with perturbed parameters.
PROBE_PERTURBATION = 0.1  # largest change of a parameter
PROBE_PERIOD = 4093  # numbers drawn for the changes, a prime; larger models repeat them
PROBE_TOLERANCE = 1e-4  # relative difference of float32 scores that counts as rounding


@dataclass(frozen=True, eq=False)
class ModuleNetwork:
    """A module called with each client's parameters; frozen parameters and buffers are shared and constant.

    is_batch_dependent: whether the scores of a row depend on the other rows of its batch.
    single_row_error: why the module cannot take a batch of one row; empty if it can.
    """

    net: nn.Module
    inputs: tuple[int, ...]
    outputs: int
    is_batch_dependent: bool = False
    single_row_error: str = ""
    _shared_copies: dict[tuple[torch.device, torch.dtype], dict[str, Tensor]] = field(
        default_factory=dict, repr=False
    )

    __repr__ = summarise_fields

    @cached_property
    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """Parameters that require a gradient, in the order of the flat row."""
        return find_trained_parameters(self.net)

    @cached_property
    def shapes(self) -> Shapes:
        """Shapes of the trained parameters."""
        return [tuple(parameter.shape) for parameter in self.trained_parameters.values()]

    @cached_property
    def size(self) -> int:
        """Number of parameters."""
        return count_parameters(self.shapes)

    def start(self, seed: int) -> Float[Tensor, "param"]:
        """Values that the module was passed with; the seed is not used."""
        parameters = self.trained_parameters.values()
        return torch.cat([parameter.detach().double().flatten() for parameter in parameters])

    def scores(self, W: Stack, x: Float[Tensor, "client batch *feature"]) -> Scores:
        """Scores of each sample."""
        if self.single_row_error and x.shape[1] == 1:
            raise InputError(
                f"module: {self.single_row_error}; pass at least two rows, or use GroupNorm or LayerNorm"
            )
        rows = dict(zip(self.trained_parameters, view_parameters(W, self.shapes), strict=True))
        shared = self._place_shared(W)
        out: Tensor = vmap(lambda row, batch: functional_call(self.net, {**shared, **row}, (batch,)))(rows, x)
        return out

    @property
    def widest(self) -> int:
        """Sixteen values per feature: a guess, since a module does not report it."""
        return 16 * math.prod(self.inputs)

    def _place_shared(self, W: Stack) -> dict[str, Tensor]:
        """Frozen parameters and buffers on the device of W, copied once, since they never change."""
        place = (W.device, W.dtype)
        if place not in self._shared_copies:
            self._shared_copies[place] = {
                name: tensor.detach().to(W) if tensor.is_floating_point() else tensor.to(W.device)
                for name, tensor in (*self.net.named_parameters(), *self.net.named_buffers())
                if name not in self.trained_parameters
            }
        return self._shared_copies[place]

    def gradient(self, W: Stack, x: Float[Tensor, "client batch *feature"], slope: ScoreGradient) -> Stack:
        """Gradient by automatic differentiation."""
        return autograd.gradient(self.scores, W, x, slope)

    def prepare_weights(
        self, W: Stack, steps: int = 1, buffers: BufferFactory | None = None, padded: bool = False
    ) -> InPlaceWeights:
        """Prepare steps in place."""
        return InPlaceWeights(partial(autograd.descend, self.scores), W)

    def mask_padding(self, inside: Bool[Tensor, "client batch"]) -> "UnpaddedNetwork":
        """The network on batches with rows at these places only, so that padding never influences rows."""
        return UnpaddedNetwork(self, inside.sum(1).tolist())

    def module(self, row: Float[Tensor, "param"]) -> nn.Module:
        """A copy of the module with these parameters."""
        net = copy.deepcopy(self.net).to(row)
        copy_row_into(find_trained_parameters(net).values(), row)
        return net


@dataclass(frozen=True, eq=False)
class UnpaddedNetwork:
    """A network on batches of several sizes; the padding after the rows is cut off.

    Clients with equally large batches are computed together.
    """

    network: ModuleNetwork
    sizes: list[int]  # rows in the batch of each client

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self.network.size

    @property
    def outputs(self) -> int:
        """Number of scores per sample."""
        return self.network.outputs

    @property
    def widest(self) -> int:
        """Largest number of values per sample inside the network."""
        return self.network.widest

    def start(self, seed: int) -> Float[Tensor, "param"]:
        """Initial parameters, in float64."""
        return self.network.start(seed)

    def scores(self, W: Stack, x: Float[Tensor, "client batch *feature"]) -> Scores:
        """Scores of each row, and zeros for padding."""
        width, groups, order = x.shape[1], [], []
        for size in sorted(set(self.sizes)):
            if size == width == min(self.sizes):
                return self.network.scores(W, x)
            places = [place for place, rows in enumerate(self.sizes) if rows == size]
            group = torch.tensor(places, device=x.device)
            scores = W.new_zeros(len(places), 0, self.outputs)
            if size:
                scores = self.network.scores(W.index_select(0, group), x.index_select(0, group)[:, :size])
            groups.append(pad(scores, (0, 0, 0, width - size)))
            order += places
        back = torch.tensor(order, device=x.device).argsort()
        return torch.cat(groups).index_select(0, back)

    def gradient(self, W: Stack, x: Float[Tensor, "client batch *feature"], slope: ScoreGradient) -> Stack:
        """Gradient by automatic differentiation."""
        return autograd.gradient(self.scores, W, x, slope)

    def prepare_weights(
        self, W: Stack, steps: int = 1, buffers: BufferFactory | None = None, padded: bool = False
    ) -> InPlaceWeights:
        """Prepare steps in place."""
        return InPlaceWeights(partial(autograd.descend, self.scores), W)

    def module(self, row: Float[Tensor, "param"]) -> nn.Module:
        """A copy of the module with these parameters."""
        return self.network.module(row)


@dataclass(frozen=True, eq=False)
class WrappedModule:
    """A user's module as an architecture."""

    net: nn.Module
    l2: float = 0.0

    __repr__ = summarise_fields

    def __post_init__(self) -> None:
        check_l2(self.l2)
        if not find_trained_parameters(self.net):
            raise InputError(
                f"module: {type(self.net).__name__} has no parameters to train; set requires_grad=True"
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
        """Build the network, after a trial on a few rows that checks shapes and batch dependence."""
        if any(isinstance(p, nn.UninitializedParameter) for p in self.net.parameters()):
            raise InputError(
                f"module: {type(self.net).__name__} has lazy layers without sizes; call it on your data first"
            )
        network = ModuleNetwork(copy.deepcopy(self.net).cpu(), inputs, outputs)
        row = network.start(0).float().unsqueeze(0)
        name = type(self.net).__name__
        try:
            shape = tuple(network.scores(row, row.new_zeros(1, 2, *inputs)).shape)
        except Exception as error:  # the module is the user's, and may raise anything
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"module: {name} fails on features of shape {inputs} ({reason}); change its layers"
            ) from error
        if shape != (1, 2, outputs):
            raise InputError(
                f"module: {name} turns 2 rows of features {inputs} into shape {shape[1:]}; "
                f"expected (2, {outputs}): change its last layer"
            )
        if not _is_batch_dependent(network, row):
            return network
        single_row_error = _describe_single_row_error(network, row, name)
        return replace(network, is_batch_dependent=True, single_row_error=single_row_error)


def _is_batch_dependent(network: ModuleNetwork, row: Float[Tensor, "1 param"]) -> bool:
    """Return whether the scores of two rows change with the other rows of their batch.

    Rows and changes of parameters come from a separate draw. The module is also tried with perturbed
    parameters, since a last layer that starts at zero hides any dependence.
    """
    stream = draws(0, "data")
    shape = (8, *network.inputs)
    x = stream.uniform(0, 0, math.prod(shape)).view(shape).to(row)
    offsets = 2 * stream.uniform(0, 1, min(row.numel(), PROBE_PERIOD)) - 1
    change = offsets.repeat(-(-row.numel() // len(offsets)))[: row.numel()].view_as(row).to(row)
    for W in (row, row + PROBE_PERTURBATION * change):
        one = network.scores(W, x[:4].unsqueeze(0))[0, [0, 3]]
        other = network.scores(W, x[[0, 4, 5, 6, 7, 3]].unsqueeze(0))[0, [0, 5]]
        largest = float(one.nan_to_num().abs().max())
        if not torch.allclose(one, other, rtol=0, atol=PROBE_TOLERANCE * max(largest, 1e-3), equal_nan=True):
            return True
    return False


def _describe_single_row_error(network: ModuleNetwork, row: Float[Tensor, "1 param"], name: str) -> str:
    """Return why the module cannot take a batch of one row, or an empty text if it can."""
    try:
        network.scores(row, row.new_zeros(1, 1, *network.inputs))
    except Exception as error:  # the module is the user's, and may raise anything
        return f"{name} cannot take a batch of one row ({' '.join(str(error).split())[:200]})"
    return ""


def find_trained_parameters(net: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that require a gradient, by name."""
    return {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}


def module(net: nn.Module, l2: float = 0.0) -> WrappedModule:
    """Use any `torch.nn.Module` as a model; training starts from its current parameters.

    Rows of a batch may influence each other, as in BatchNorm with track_running_stats=False. Each client's
    batches are then computed without padding, as in a loop over clients. A client is scored on all of its
    training rows at once, and on all of its test rows at once; `predict` takes statistics from the rows that
    are passed to it.
    """
    return WrappedModule(net, l2)
