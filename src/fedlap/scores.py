"""What is measured, and its exact meaning."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jaxtyping import Bool, Float64, Int64
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over each client's rows."""

    loss: Float64[Tensor, "client"]  # of the loss without the L2 term
    hits: Float64[Tensor, "client"] | None  # of right answers; None where targets are real numbers
    count: Int64[Tensor, "client"]

    def split(self, sizes: Sequence[int]) -> list["Tally"]:
        """Those of so many clients each."""
        loss, count = self.loss.split(list(sizes)), self.count.split(list(sizes))
        hits = [None] * len(sizes) if self.hits is None else self.hits.split(list(sizes))
        return [Tally(*each) for each in zip(loss, hits, count, strict=True)]


@dataclass(frozen=True)
class Score:
    """The state of training after a round.

    round: rounds done.
    accuracy: share of right answers over all test rows of all clients together.
    accuracy_mean: mean over clients of each one's share.
    accuracy_worst: mean over the ⌈N/10⌉ clients with the lowest share.
    loss, loss_mean, loss_worst: the same three of the mean test loss (worst: highest).
    train_loss: mean loss over all training rows together, without the L2 term.
    objective: J(W), the sum of the clients' training losses, L2 term included, and the method's penalty.
    gap: the duality gap, where the method can tell it: no more than this is its objective above its least.
    bytes_up, bytes_down: sent by and to clients, since the first round, all clients together.
    seconds: spent in training since the first round, evaluation left out.

    Only clients with test rows count in test scores. Accuracy is None where targets are real numbers; every
    test score is None where there are no test rows.
    """

    round: int
    accuracy: float | None
    accuracy_mean: float | None
    accuracy_worst: float | None
    loss: float | None
    loss_mean: float | None
    loss_worst: float | None
    train_loss: float
    objective: float
    gap: float | None
    bytes_up: int
    bytes_down: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """The same as a dictionary."""
        return asdict(self)


def score(
    round: int,
    train: Tally,
    test: Tally,
    ridge: Float64[Tensor, "client"],
    penalty: float,
    gap: float | None,
    sent: tuple[int, int],
    seconds: float,
) -> Score:
    """One line of results."""
    tested = test.count > 0
    accuracy = (None, None, None) if test.hits is None else _three(test.hits, test.count, tested, lowest=True)
    loss = _three(test.loss, test.count, tested, lowest=False)
    objective = float((train.loss / train.count + ridge).sum()) + penalty
    pooled = float(train.loss.sum() / train.count.sum())
    return Score(round, *accuracy, *loss, pooled, objective, gap, *sent, seconds)


def _three(
    total: Float64[Tensor, "client"],
    count: Int64[Tensor, "client"],
    tested: Bool[Tensor, "client"],
    lowest: bool,
) -> tuple[float | None, float | None, float | None]:
    """Pooled over rows, mean over clients, worst tenth of clients."""
    if not bool(tested.any()):
        return None, None, None
    total, count = total[tested], count[tested]
    each = (total / count).sort(descending=not lowest).values
    worst = each[: math.ceil(len(each) / 10)]
    return float(total.sum() / count.sum()), float(each.mean()), float(worst.mean())
