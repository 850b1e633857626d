"""Predictions of rows: labels with their probabilities, or values."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fedlap.data.columns import DataFrame
from fedlap.personal.metadata import ModelMetadata
from fedlap.summaries import summarise_fields

CLIENT_COLUMN, PROBABILITY_COLUMN, UNNAMED_TARGET = "client", "probability", "prediction"
VALUE_DIGITS = 7  # significant digits of a value as text: the precision of float32
PROBABILITY_DECIMALS = 6


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of rows, each by the model of its client.

    clients: the client of each row. scores: the network's output, one score per class, or the values.
    """

    metadata: ModelMetadata
    clients: tuple[str, ...]
    scores: Float[Tensor, "row output"]

    __repr__ = summarise_fields

    @property
    def labels(self) -> list[str] | None:
        """The predicted class of each row; None if targets are real numbers."""
        names = self.metadata.labels
        return None if names is None else [names[number] for number in self.scores.argmax(-1).tolist()]

    @property
    def probabilities(self) -> Float64[Tensor, "row output"] | None:
        """The probability of each class; None if targets are real numbers."""
        return None if self.metadata.labels is None else torch.softmax(self.scores.double(), -1)

    def list_columns(self, every_class: bool = False, rounded: bool = False) -> dict[str, list[Any]]:
        """Return the columns by name: client, prediction and, for classes, the probability of that class.

        The prediction has the name of the target. every_class: add the probability of each class. rounded:
        as `round_value` and `round_probability` do.
        """
        columns: dict[str, list[Any]] = {CLIENT_COLUMN: list(self.clients)}
        labels, probabilities = self.labels, self.probabilities
        if labels is None or probabilities is None:
            values = self.scores.tolist()
            for place, name in enumerate(self._name_values()):
                columns[name] = [round_value(row[place]) if rounded else row[place] for row in values]
            return columns
        rows = probabilities.tolist()
        if rounded:
            rows = [[round_probability(share) for share in row] for row in rows]
        columns[self._name_target()] = labels
        columns[PROBABILITY_COLUMN] = [max(row) for row in rows]
        if every_class:
            for place, name in enumerate(self.metadata.labels or ()):
                columns[f"{PROBABILITY_COLUMN}_{name}"] = [row[place] for row in rows]
        return columns

    def to_frame(self, every_class: bool = False) -> DataFrame:
        """Return the columns as a data frame, with one line per row."""
        import pandas

        return pandas.DataFrame(self.list_columns(every_class))

    def _name_target(self) -> str:
        """Return the target's name, unless it has none or another column has this name."""
        target = self.metadata.target
        is_free = target is not None and target != CLIENT_COLUMN and not target.startswith(PROBABILITY_COLUMN)
        return target if target is not None and is_free else UNNAMED_TARGET

    def _name_values(self) -> list[str]:
        name, outputs = self._name_target(), self.metadata.outputs
        return [name] if outputs == 1 else [f"{name}_{number}" for number in range(1, outputs + 1)]


def round_value(value: float) -> float:
    """Round to seven significant digits."""
    return float(f"{value:.{VALUE_DIGITS}g}")


def round_probability(share: float) -> float:
    """Round to six decimals."""
    return round(share, PROBABILITY_DECIMALS)
