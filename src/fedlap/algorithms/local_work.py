"""Local work of a round: R mini-batch steps, or R passes over a client's rows."""

from dataclasses import dataclass
from typing import Literal

from fedlap.errors import InputError, whole

BatchSize = int | Literal["all"]


DEFAULT_STEPS = 5  # of a client in a round, where neither steps nor epochs are given


@dataclass(frozen=True)
class LocalWork:
    """R mini-batch steps, or R passes over the client's rows."""

    repeats: int
    epochs: bool

    @staticmethod
    def of(local_steps: int | None, local_epochs: int | None) -> "LocalWork":
        """What an algorithm's two fields say: steps (5 where neither is given) or epochs."""
        if local_steps is not None and local_epochs is not None:
            raise InputError(
                f"local_steps = {local_steps} and local_epochs = {local_epochs} are both given; "
                "give one of them",
                field="local_steps",
                scope="algorithm",
            )
        name, repeats = (
            ("local_steps", local_steps) if local_epochs is None else ("local_epochs", local_epochs)
        )
        repeats = whole(name, DEFAULT_STEPS if repeats is None else repeats, 1, scope="algorithm")
        return LocalWork(repeats, local_epochs is not None)

    def steps(self, rows: int, batch: BatchSize) -> int:
        """How many mini-batches a client with so many rows has in a round."""
        if not self.epochs or batch == "all":
            return self.repeats
        return self.repeats * -(-rows // batch)

    def times(self, factor: int) -> "LocalWork":
        """More steps; a pass stays a pass."""
        return self if self.epochs else LocalWork(self.repeats * factor, False)
