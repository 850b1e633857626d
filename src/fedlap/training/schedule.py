"""The schedule of a run: rounds, sampling, precision and device, checked before training begins."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from fedlap.algorithms import Algorithm, PeerAlgorithm, Sampling
from fedlap.algorithms.local_work import BatchSize
from fedlap.data.federation import Federation
from fedlap.errors import InputError, UnsuitedError, check_integer, unknown_name_error
from fedlap.models import Architecture, Model

EngineName = Literal["stacked", "one_by_one", "ray"]
DtypeName = Literal["float32", "float64"]
Precision = Literal["float32", "tf32", "bf16"]
KeepName = Literal["auto", "device", "host"]
ScoringInterval = int | Literal["auto"]  # rounds between scores
TrainingRowsScored = Literal["never", "last", "always"]
DEVICES: Final = ("cpu", "cuda")
AUTO_INTERVAL: Final = "auto"

# PyTorch's names for the precisions of float32 matrix products.
PRECISIONS: Final[dict[Precision, str]] = {"float32": "highest", "tf32": "high", "bf16": "medium"}

# Share of a device's free memory for data and models; models count three times, since a round creates
# copies of them.
DEVICE_MEMORY_SHARE = 0.9


@dataclass(frozen=True)
class Schedule:
    """Settings of a run that do not depend on the method; `fedlap.fit` documents every field."""

    rounds: int = 100
    batch: BatchSize = 20
    sample: float = 1.0
    dtype: DtypeName = "float32"
    device: str = "cpu"
    engine: EngineName = "stacked"
    precision: Precision = "float32"
    keep: KeepName = "auto"
    evaluate_every: ScoringInterval = AUTO_INTERVAL
    score_training: TrainingRowsScored = "last"

    def __post_init__(self) -> None:
        check_integer("rounds", self.rounds, 1)
        if isinstance(self.evaluate_every, str) and self.evaluate_every != AUTO_INTERVAL:
            raise InputError(
                f"evaluate_every = {self.evaluate_every!r}; expected 'auto' or an integer of at least 0",
                field="evaluate_every",
            )
        if self.evaluate_every != AUTO_INTERVAL:
            check_integer("evaluate_every", self.evaluate_every, 0)
        batch, sample = self.batch, self.sample
        if batch != "all" and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise InputError(
                f"batch = {batch!r}; expected an integer of at least 1, or 'all' for full gradients",
                field="batch",
            )
        if isinstance(sample, bool) or not isinstance(sample, int | float) or not 0 < sample <= 1:
            raise InputError(f"sample = {sample!r}; expected a share above 0 and at most 1", field="sample")
        for field, name, names in (
            ("dtype", self.dtype, get_args(DtypeName)),
            ("engine", self.engine, get_args(EngineName)),
            ("precision", self.precision, PRECISIONS),
            ("keep", self.keep, get_args(KeepName)),
            ("score_training", self.score_training, get_args(TrainingRowsScored)),
        ):
            check_name(field, name, names)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The floating-point type of the computation."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    def resolve_device(self) -> torch.device:
        """Return the device of this process; raise InputError if it cannot be used.

        With Ray other processes use the device of the schedule, and this one the host.
        """
        return open_device("cpu" if self.engine == "ray" else self.device)

    def is_scored(self, round: int) -> bool:
        """Return whether this round is scored; the interval must be a number."""
        every = self.evaluate_every
        assert not isinstance(every, str)
        return round == self.rounds or bool(every and round % every == 0)

    def list_intermediate_rounds(self, last: int) -> range:
        """Return the rounds up to `last` that are scored even if more rounds follow."""
        every = self.evaluate_every
        return range(every, last + 1, every) if isinstance(every, int) and every else range(0)

    def is_training_scored(self, round: int) -> bool:
        """Return whether the training rows are scored in this round."""
        if self.score_training == "last":
            return round == self.rounds
        return self.score_training == "always" and self.is_scored(round)

    def choose_home(
        self, device: torch.device, federations: Sequence[Federation], model: Model
    ) -> torch.device:
        """Return the device that stores data and models between rounds."""
        host = torch.device("cpu")
        if self.keep != "auto" or device.type != "cuda":
            return host if self.keep == "host" else device
        size = torch.finfo(self.torch_dtype).bits // 8
        models = sum(len(federation.clients) for federation in federations) * model.size * size
        stores = {id(rows.store): rows.store for f in federations for rows in (f.train, f.test)}
        data = sum(s.numel() * (1 if s.dtype == torch.uint8 else size) for s in stores.values())
        free, _ = torch.cuda.mem_get_info(device)
        return device if 3 * models + data <= DEVICE_MEMORY_SHARE * free else host

    def should_store_bytes(self, home: torch.device, federations: Sequence[Federation]) -> bool:
        """Return whether images stay bytes until a batch is gathered; a GPU with enough memory need not."""
        if home.type != "cuda":
            return True
        distinct = {id(federation): federation for federation in federations}.values()
        values = sum(len(rows.row) * math.prod(f.inputs) for f in distinct for rows in (f.train, f.test))
        free, _ = torch.cuda.mem_get_info(home)
        return 4 * values * torch.finfo(self.torch_dtype).bits // 8 > free


@contextmanager
def use_precision(precision: Precision) -> Iterator[None]:
    """Set the precision of float32 matrix products, and restore the previous one afterwards."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(PRECISIONS[precision])
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def check_algorithm_and_model(algorithm: object, model: object) -> None:
    """Raise InputError unless these are an algorithm and an architecture."""
    if isinstance(algorithm, type) or not isinstance(algorithm, Algorithm):
        raise InputError(f"{algorithm!r} is not an algorithm; pass an instance, such as fl.FedU(graph)")
    if isinstance(model, torch.nn.Module):
        raise InputError(f"{type(model).__name__} is a torch module; pass fl.models.module(net)")
    if isinstance(model, type) or not isinstance(model, Architecture):
        raise InputError(f"{model!r} is not a model; pass an instance, such as fl.models.linear()")


def compute_sample_size(algorithm: Algorithm, sample: float, clients: int) -> int:
    """Return S = max(1, ⌊sample·N + ½⌋); raise UnsuitedError if peers would be sampled."""
    size = max(1, math.floor(sample * clients + 0.5))
    if isinstance(algorithm, PeerAlgorithm) and size < clients:
        name = type(algorithm).__name__
        raise UnsuitedError(
            f"sample = {sample:g}; peers are not sampled, so set sample to 1", field="sample", scope=name
        )
    if isinstance(algorithm, Sampling) and size < clients:
        algorithm.check_sampling(size, clients)
    return size


def build_start(
    start: Any, model: Model, clients: int, seed: int, device: torch.device, dtype: torch.dtype
) -> Float[Tensor, "client param"]:
    """Return one row per client: the model's start, one vector for all clients, or a stack."""
    values = model.start(seed) if start is None else _to_tensor(start)
    if values.shape not in ((model.size,), (clients, model.size)) or values.is_complex():
        raise InputError(
            f"start has shape {tuple(values.shape)} and type {values.dtype}; expected real numbers of shape "
            f"({model.size},) for one common start or ({clients}, {model.size}) for one row per client",
            field="start",
        )
    if not bool(values.isfinite().all()):
        raise InputError("start contains NaN or infinity; pass finite numbers", field="start")
    return values.to(device, dtype).expand(clients, model.size)


def _to_tensor(start: Any) -> Tensor:
    try:
        return torch.as_tensor(start)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"start is not numeric ({reason}); pass an array of numbers", field="start"
        ) from error


def check_name(field: str, name: str, names: Iterable[str]) -> None:
    """Raise InputError unless the value of a field is one of the names."""
    if name not in set(names):
        raise unknown_name_error(field, name, names, field=field)


def open_device(name: str) -> torch.device:
    """Return the device of this name; raise InputError unless a tensor can be created on it."""
    try:
        device = torch.device(name)
        probe = torch.zeros(1, device=device if device.type in DEVICES else "cpu")
        probe.item()
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split("\n")[0].split()).partition(". ")[0]
        raise InputError(f"device = {name!r} cannot be used ({reason}); use cpu", field="device") from error
    if device.type not in DEVICES:
        raise InputError(f"device = {name!r} is not supported; use {' or '.join(DEVICES)}", field="device")
    return probe.device  # with its index
