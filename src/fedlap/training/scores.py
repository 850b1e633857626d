"""What is measured, and its exact meaning."""

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
    accuracy_std: standard deviation of the shares over clients. It is that of a population (divided by N, not
        by N − 1), since these clients are all there are and not a sample of more; of one client it is 0.
    loss, loss_mean, loss_worst, loss_std: the same four of the mean test loss (worst: highest).
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
        """The same as a dictionary."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Score":
        """The score whose dictionary this is, as it was before JSON, to the last digit."""
        known = {field.name: field.type for field in fields(Score)}
        wrong = [f"{name} is missing" for name in known if name not in values]
        wrong += [f"{name!r} is unknown" for name in values if name not in known]
        if wrong:
            raise InputError(f"score: {', '.join(wrong)}; read it with the version of fedlap that wrote it")
        return Score(**{name: _value(name, values[name], kind) for name, kind in known.items()})


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
    accuracy = (None,) * 4 if test.hits is None else _four(test.hits, test.count, tested, lowest=True)
    loss = _four(test.loss, test.count, tested, lowest=False)
    objective = float((train.loss / train.count + ridge).sum()) + penalty
    pooled = float(train.loss.sum() / train.count.sum())
    return Score(round, *accuracy, *loss, pooled, objective, gap, *sent, seconds)


def _four(
    total: Float64[Tensor, "client"],
    count: Int64[Tensor, "client"],
    tested: Bool[Tensor, "client"],
    lowest: bool,
) -> tuple[float | None, float | None, float | None, float | None]:
    """Pooled over rows, mean over clients, worst tenth of clients, standard deviation over clients."""
    if not bool(tested.any()):
        return None, None, None, None
    total, count = total[tested], count[tested]
    each = (total / count).sort(descending=not lowest).values
    worst = each[: math.ceil(len(each) / 10)]
    # From the worst client on, so that clients that are equal have 0 and not what rounding leaves.
    spread = (each - each[0]).std(correction=0)
    return float(total.sum() / count.sum()), float(each.mean()), float(worst.mean()), float(spread)


def _value(name: str, value: Any, kind: Any) -> Any:
    """A field's value, of its kind; a whole number may stand for a real one."""
    if not isinstance(value, kind if kind is int else kind | int) or isinstance(value, bool):
        what = "a whole number" if kind is int else "a number" if kind is float else "a number or nothing"
        raise InputError(f"score: {name} = {value!r}; it must be {what}")
    return value if value is None or kind is int else float(value)
