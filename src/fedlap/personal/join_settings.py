"""The settings of a run that a client needs to join it later, stored with the models."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

from fedlap.algorithms import Algorithm, Coupled
from fedlap.algorithms.coupling import Mixing
from fedlap.algorithms.local_work import LocalWork
from fedlap.errors import InputError
from fedlap.personal.model_files import invalid_field_error


@dataclass(frozen=True)
class JoinSettings:
    """Step size, local work, L2 term and pull of the method that trained a run.

    lr: μ; None if the method has no step size.
    local_steps, local_epochs: R, the local work per round; one of them is None.
    l2: weight of (l2/2)‖w‖² in each client's loss.
    strength: η, of the pull between neighbours; None if the method has no such pull.
    smoothing, mixing: as in the method.
    """

    method: str
    lr: float | None
    local_steps: int | None
    local_epochs: int | None
    l2: float
    strength: float | None
    smoothing: float | None
    mixing: Mixing

    @staticmethod
    def of(algorithm: Algorithm, l2: float) -> "JoinSettings":
        """Return the settings of a method."""
        coupling = algorithm.coupling if isinstance(algorithm, Coupled) else None
        coupling = (
            None if coupling is None or coupling.is_by_block else coupling
        )  # one pull for all parameters
        work = LocalWork.of(algorithm.local_steps, algorithm.local_epochs)
        return JoinSettings(
            type(algorithm).__name__,
            float(algorithm.lr) if algorithm.traits.has_lr else None,
            None if work.epochs else work.repeats,
            work.repeats if work.epochs else None,
            float(l2),
            None if coupling is None else float(coupling.eta),
            None if coupling is None else coupling.smoothing,
            "explicit" if coupling is None else coupling.mixing,
        )

    @staticmethod
    def parse(values: Any, path: Path) -> "JoinSettings | None":
        """Return the settings that file `path` holds, None if it has none; raise InputError if invalid."""
        if values is None:
            return None
        for name, is_valid in JOIN_FIELD_CHECKS.items():
            if not isinstance(values, dict) or name not in values or not is_valid(values[name]):
                raise invalid_field_error(path, f"join.{name}")
        return JoinSettings(**{field.name: values[field.name] for field in fields(JoinSettings)})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, from which `parse` restores the settings."""
        return asdict(self)

    @property
    def work(self) -> LocalWork:
        """Local work per round."""
        return LocalWork.of(self.local_steps, self.local_epochs)

    def choose_lr(self, lr: float | None) -> float:
        """Return the step size, by default that of the method; raise InputError if there is none."""
        if lr is not None:
            return lr
        if self.lr is None:
            raise InputError(
                f"join: {self.method} has no learning rate for the new client; pass one, for example lr=0.03"
            )
        return self.lr


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")


def _is_count_or_none(value: Any) -> bool:
    return value is None or (type(value) is int and value > 0)


# Checks of the fields of a metadata file.
JOIN_FIELD_CHECKS: dict[str, Callable[[Any], bool]] = {
    "method": lambda value: isinstance(value, str),
    "lr": lambda value: value is None or _is_number(value),
    "local_steps": _is_count_or_none,
    "local_epochs": _is_count_or_none,
    "l2": _is_number,
    "strength": lambda value: value is None or _is_number(value),
    "smoothing": lambda value: value is None or (_is_number(value) and value > 0),
    "mixing": lambda value: value in get_args(Mixing),
}
