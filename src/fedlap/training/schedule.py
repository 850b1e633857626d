"""What is asked of a run beside its algorithm, data and model: checked before anything is trained."""

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
from fedlap.errors import InputError, UnsuitedError, unknown, whole
from fedlap.models import Architecture, Model

EngineName = Literal["stacked", "one_by_one"]
DtypeName = Literal["float32", "float64"]


Precision = Literal["float32", "tf32", "bf16"]
KeepName = Literal["auto", "device", "host"]
DEVICES: Final = ("cpu", "cuda")

# What PyTorch calls the precisions of products of float32 matrices.
PRECISIONS: Final[dict[Precision, str]] = {"float32": "highest", "tf32": "high", "bf16": "medium"}

# The share of a device's free memory that data and models may take, counted three times over for what is
# made of them in a round.
USABLE = 0.9


@dataclass(frozen=True)
class Schedule:
    """How runs are made, whatever the method: `fedlap.fit` says what each means."""

    rounds: int = 100
    batch: BatchSize = 20
    sample: float = 1.0
    dtype: DtypeName = "float32"
    device: str = "cpu"
    engine: EngineName = "stacked"
    precision: Precision = "float32"
    keep: KeepName = "auto"
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        whole("rounds", self.rounds, 1)
        whole("evaluate_every", self.evaluate_every, 0)
        batch, sample = self.batch, self.sample
        if batch != "all" and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise InputError(
                f"batch = {batch!r}; it must be a whole number, at least 1, or 'all' for full gradients",
                field="batch",
            )
        if isinstance(sample, bool) or not isinstance(sample, int | float) or not 0 < sample <= 1:
            raise InputError(f"sample = {sample!r}; it must be a share above 0 and at most 1", field="sample")
        for what, name, names in (
            ("dtype", self.dtype, get_args(DtypeName)),
            ("engine", self.engine, get_args(EngineName)),
            ("precision", self.precision, PRECISIONS),
            ("keep", self.keep, get_args(KeepName)),
        ):
            known(what, name, names)

    @property
    def real(self) -> torch.dtype:
        """The numbers that are computed with."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    def placed(self) -> torch.device:
        """The device, if it can be used."""
        return usable(self.device)

    def scores(self, done: int) -> bool:
        """Whether this round is scored."""
        return done == self.rounds or bool(self.evaluate_every and done % self.evaluate_every == 0)

    def home(self, device: torch.device, federations: Sequence[Federation], model: Model) -> torch.device:
        """Where data and models stay between rounds."""
        host = torch.device("cpu")
        if self.keep != "auto" or device.type != "cuda":
            return host if self.keep == "host" else device
        size = torch.finfo(self.real).bits // 8
        models = sum(len(each.clients) for each in federations) * model.size * size
        stores = {id(p.store): p.store for each in federations for p in (each.train, each.test)}
        data = sum(s.numel() * (1 if s.dtype == torch.uint8 else size) for s in stores.values())
        free, _ = torch.cuda.mem_get_info(device)
        return device if 3 * models + data <= USABLE * free else host

    def as_bytes(self, home: torch.device, federations: Sequence[Federation]) -> bool:
        """Whether images stay bytes until a batch is taken: on a GPU with room to spare they need not."""
        if home.type != "cuda":
            return True
        distinct = {id(each): each for each in federations}.values()
        values = sum(
            len(part.row) * math.prod(each.inputs) for each in distinct for part in (each.train, each.test)
        )
        free, _ = torch.cuda.mem_get_info(home)
        return 4 * values * torch.finfo(self.real).bits // 8 > free


@contextmanager
def precisely(precision: Precision) -> Iterator[None]:
    """Products of float32 matrices as precise as this, and as before afterwards."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(PRECISIONS[precision])
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def check_makers(algorithm: object, model: object) -> None:
    """Refuse what is neither an algorithm nor an architecture, and say what is meant."""
    if isinstance(algorithm, type) or not isinstance(algorithm, Algorithm):
        raise InputError(f"{algorithm!r} is not an algorithm; give an object, as in fl.FedU(graph)")
    if isinstance(model, torch.nn.Module):
        raise InputError(f"{type(model).__name__} is a torch module; wrap it, as in fl.models.module(net)")
    if isinstance(model, type) or not isinstance(model, Architecture):
        raise InputError(f"{model!r} is not a model; call its maker, as in fl.models.linear()")


def sample_size(algorithm: Algorithm, sample: float, clients: int) -> int:
    """S = max(1, ⌊sample·N + ½⌋); peers all work in every round."""
    size = max(1, math.floor(sample * clients + 0.5))
    if isinstance(algorithm, PeerAlgorithm) and size < clients:
        name = type(algorithm).__name__
        raise UnsuitedError(
            f"peers are not sampled, yet sample = {sample:g}; leave it at 1", field="sample", scope=name
        )
    if isinstance(algorithm, Sampling) and size < clients:
        algorithm.check_sampling(size, clients)
    return size


def start_rows(
    start: Any, model: Model, clients: int, seed: int, device: torch.device, dtype: torch.dtype
) -> Float[Tensor, "client param"]:
    """One row a client: the model's own start, one vector for all, or a stack."""
    given = model.start(seed) if start is None else _array(start)
    if given.shape not in ((model.size,), (clients, model.size)) or given.is_complex():
        raise InputError(
            f"start has shape {tuple(given.shape)} and type {given.dtype}; it must be real numbers of shape "
            f"({model.size},) for one common start or ({clients}, {model.size}) for a row a client",
            field="start",
        )
    if not bool(given.isfinite().all()):
        raise InputError("start holds NaN or infinity; give finite numbers", field="start")
    return given.to(device, dtype).expand(clients, model.size)


def _array(start: Any) -> Tensor:
    try:
        return torch.as_tensor(start)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"start is not an array of numbers: {reason}", field="start") from error


def known(what: str, name: str, names: Iterable[str]) -> str:
    """The name, if it is one of these."""
    if name not in set(names):
        raise unknown(what, name, names, field=what)
    return name


def usable(name: str) -> torch.device:
    """The device of this name, if it can be computed on."""
    try:
        device = torch.device(name)
        made = torch.zeros(1, device=device if device.type in DEVICES else "cpu")
        made.item()
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split("\n")[0].split()).partition(". ")[0]
        raise InputError(f"device = {name!r} cannot be used ({reason}); use cpu", field="device") from error
    if device.type not in DEVICES:
        raise InputError(f"device = {name!r} is not supported; use {' or '.join(DEVICES)}", field="device")
    return made.device  # with its number
