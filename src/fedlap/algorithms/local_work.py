"""Local work of a round: R mini-batch steps, or R passes over a client's rows."""

from dataclasses import dataclass
from typing import Literal

from fedlap.errors import InputError, check_integer

BatchSize = int | Literal["all"]

DEFAULT_LR = 0.03  # of every method whose local steps have a length
DEFAULT_STEPS = 5  # per client and round, if neither steps nor epochs are given


@dataclass(frozen=True)
class LocalWork:
    """R mini-batch steps, or R passes over the client's rows."""

    repeats: int
    epochs: bool

    @staticmethod
    def of(local_steps: int | None, local_epochs: int | None) -> "LocalWork":
        """Return the work that a method's two fields describe: epochs, or steps (5 if neither is given)."""
        if local_steps is not None and local_epochs is not None:
            raise InputError(
                f"local_steps = {local_steps} and local_epochs = {local_epochs} are both set; "
                "set one of them",
                field="local_steps",
                scope="algorithm",
            )
        name, repeats = (
            ("local_steps", local_steps) if local_epochs is None else ("local_epochs", local_epochs)
        )
        repeats = check_integer(name, DEFAULT_STEPS if repeats is None else repeats, 1, scope="algorithm")
        return LocalWork(repeats, local_epochs is not None)

    def count_steps(self, rows: int, batch: BatchSize) -> int:
        """Count the mini-batches per round of a client with this number of rows."""
        if not self.epochs or batch == "all":
            return self.repeats
        return self.repeats * -(-rows // batch)

    def multiply(self, factor: int) -> "LocalWork":
        """Return `factor` times as many steps; epochs stay unchanged."""
        return self if self.epochs else LocalWork(self.repeats * factor, False)
