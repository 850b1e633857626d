"""Scores: definitions and computation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from fedlap.errors import InputError


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over each client's rows."""

    loss: Float64[Tensor, "client"]  # loss without the L2 term
    hits: Float64[Tensor, "client"] | None  # correct predictions; None for regression
    count: Int64[Tensor, "client"]

    def split(self, sizes: Sequence[int]) -> list["Tally"]:
        """Split into tallies of the given numbers of clients."""
        loss, count = self.loss.split(list(sizes)), self.count.split(list(sizes))
        hits = [None] * len(sizes) if self.hits is None else self.hits.split(list(sizes))
        return [Tally(*sums) for sums in zip(loss, hits, count, strict=True)]


@dataclass(frozen=True)
class Score:
    """The state of training after a round.

    round: rounds done.
    accuracy: share of correct predictions over the pooled test rows of all clients.
    accuracy_mean: mean over clients of their accuracies.
    accuracy_worst: mean over the ⌈N/10⌉ clients with the lowest accuracies.
    accuracy_std: standard deviation of the accuracies over clients, divided by N and not by N − 1, since the
        clients are the whole population and not a sample; 0 for one client.
    loss, loss_mean, loss_worst, loss_std: the same four statistics of the mean test loss (worst: highest).
    train_loss: mean loss over the pooled training rows, without the L2 term.
    objective: J(W), the sum of the clients' training losses with the L2 term, plus the method's penalty.
    gap: the duality gap if the method computes it, an upper bound on the objective minus its minimum.
    bytes_up, bytes_down: bytes sent by and to all clients since the first round.
    seconds: training time since the first round, without evaluation.

    Only clients with test rows count in test scores. Accuracies are None for regression; every test score is
    None if there are no test rows.
    """

    round: int
    accuracy: float | None
    accuracy_mean: float | None
    accuracy_worst: float | None
    accuracy_std: float | None
    loss: float | None
    loss_mean: float | None
    loss_worst: float | None
    loss_std: float | None
    train_loss: float
    objective: float
    gap: float | None
    bytes_up: int
    bytes_down: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Score":
        """Restore a score from its dictionary, exactly, also after a round trip through JSON."""
        known = {field.name: field.type for field in fields(Score)}
        wrong = [f"{name} is missing" for name in known if name not in values]
        wrong += [f"{name!r} is unknown" for name in values if name not in known]
        if wrong:
            raise InputError(f"score: {', '.join(wrong)}; use the version of fedlap that wrote it")
        return Score(**{name: _parse_value(name, values[name], kind) for name, kind in known.items()})


def compute_score(
    round: int,
    train: Tally,
    test: Tally,
    ridge: Float64[Tensor, "client"],
    penalty: float,
    gap: float | None,
    sent: tuple[int, int],
    seconds: float,
) -> Score:
    """Compute the scores of a round from the sums over each client's rows."""
    tested = test.count > 0
    accuracy = (None,) * 4 if test.hits is None else _summarise(test.hits, test.count, tested, lowest=True)
    loss = _summarise(test.loss, test.count, tested, lowest=False)
    objective = float((train.loss / train.count + ridge).sum()) + penalty
    pooled = float(train.loss.sum() / train.count.sum())
    return Score(round, *accuracy, *loss, pooled, objective, gap, *sent, seconds)


def _summarise(
    total: Float64[Tensor, "client"],
    count: Int64[Tensor, "client"],
    tested: Bool[Tensor, "client"],
    lowest: bool,
) -> tuple[float | None, float | None, float | None, float | None]:
    """Return the pooled mean over rows; mean, mean of the worst tenth, and deviation over clients."""
    if not bool(tested.any()):
        return None, None, None, None
    total, count = total[tested], count[tested]
    means = (total / count).sort(descending=not lowest).values
    worst = means[: math.ceil(len(means) / 10)]
    # Subtracting the worst client first makes the deviation of equal clients exactly 0, without rounding.
    spread = (means - means[0]).std(correction=0)
    return float(total.sum() / count.sum()), float(means.mean()), float(worst.mean()), float(spread)


def _parse_value(name: str, value: Any, kind: Any) -> Any:
    """Return the value of a field with its type; an integer is accepted for a float."""
    if not isinstance(value, kind if kind is int else kind | int) or isinstance(value, bool):
        expected = "an integer" if kind is int else "a number" if kind is float else "a number or null"
        raise InputError(f"score: {name} = {value!r}; expected {expected}")
    return value if value is None or kind is int else float(value)
