"""Scores: definitions and computation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from fedlap.data.client_rows import ClientRows
from fedlap.data.target_scale import TargetScale
from fedlap.errors import InputError
from fedlap.summaries import build_summary, summarise_fields

# Pooled over rows; mean, mean of the worst tenth, and deviation over clients.
Statistics = tuple[float | None, float | None, float | None, float | None]
NOT_APPLICABLE: Statistics = (None, None, None, None)


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over each client's rows; losses and errors of training rows are multiplied by their weights."""

    loss: Float64[Tensor, "client"]  # loss without the L2 term, in the unit that models are trained in
    hits: Float64[Tensor, "client"] | None  # correct predictions; None for regression
    count: Int64[Tensor, "client"]
    # For real targets and each output: the sum of squared errors, the sum of absolute errors, the mean
    # target, and the sum of squared deviations from this mean. None for classification.
    errors: Float64[Tensor, "client 4 output"] | None = None

    __repr__ = summarise_fields

    @staticmethod
    def of_errors(errors: Float64[Tensor, "client 2 output"], rows: ClientRows, clients: Tensor) -> "Tally":
        """Return the tally of squared and absolute errors over the rows of `clients`."""
        mean, spread = (values[clients] for values in rows.target_moments)
        both = torch.stack((mean, spread), 1)
        return Tally(errors[:, 0].sum(-1) / 2, None, rows.count[clients], torch.cat((errors, both), 1))

    def client_scores(self) -> dict[str, Float64[Tensor, "client"]]:
        """Return the score of each client by metric, NaN where it is not defined.

        A client without rows has no score; one whose targets are constant has no R².
        """
        scores = {"loss": self.reported_loss / self.count}
        if self.hits is not None:
            scores["accuracy"] = self.hits / self.count
        if self.errors is not None:
            squared, absolute, _, spread = self.errors.unbind(1)
            rows = self.count.unsqueeze(1)
            scores["rmse"] = (squared / rows).sqrt().mean(1)
            scores["mae"] = (absolute / rows).mean(1)
            scores["r2"] = torch.where((spread > 0).all(1), (1 - squared / spread).mean(1), torch.nan)
        return scores

    def restore_unit(self, scale: TargetScale | None) -> "Tally":
        """Return the tally with errors in the unit of the data; the loss stays in the unit of training."""
        if scale is None or self.errors is None:
            return self
        squared, absolute, mean, spread = self.errors.unbind(1)
        unit, square = scale.deviation, scale.deviation.square()
        errors = torch.stack((squared * square, absolute * unit, scale.restore(mean), spread * square), 1)
        return replace(self, errors=errors)

    @property
    def reported_loss(self) -> Float64[Tensor, "client"]:
        """The sum of losses in the unit of the data: half the squared errors of real targets."""
        return self.loss if self.errors is None else self.errors[:, 0].sum(-1) / 2

    @staticmethod
    def concatenate(tallies: Sequence["Tally"]) -> "Tally":
        """Return the tally of the clients of all tallies, which are of one model."""
        sums: Any = zip(*((t.loss, t.hits, t.count, t.errors) for t in tallies), strict=True)
        loss, hits, count, errors = (None if parts[0] is None else torch.cat(parts) for parts in sums)
        assert loss is not None
        assert count is not None
        return Tally(loss, hits, count, errors)

    def split(self, sizes: Sequence[int]) -> list["Tally"]:
        """Split into tallies of the given numbers of clients."""
        sums = self.loss, self.hits, self.count, self.errors
        parts = [[None] * len(sizes) if total is None else total.split(list(sizes)) for total in sums]
        return [Tally(*of_run) for of_run in zip(*parts, strict=True)]


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
    rmse, rmse_mean, rmse_worst, rmse_std: those of the root of the mean squared error (worst: highest).
    mae, mae_mean, mae_worst, mae_std: those of the mean absolute error (worst: highest).
    r2, r2_mean, r2_worst, r2_std: those of R² = 1 − Σ(y − ŷ)² / Σ(y − ȳ)² (worst: lowest). ȳ is the mean of
        the pooled test rows; in the statistics over clients it is the mean of the client's test rows, and
        only clients count whose test targets are not constant. None if no such client exists.
    train_loss: mean loss over the pooled training rows, without the L2 term. Sample weights count in it and
        in the objective, divided by the mean weight of their client; test scores count every row once. It is
        None, as are objective and gap, in rounds whose training rows were not scored (`score_training` of
        `fit`).
    objective: J(W), the sum of the clients' training losses with the L2 term, plus the method's penalty.
    gap: the duality gap if the method computes it, an upper bound on the objective minus its minimum.
    bytes_up, bytes_down: bytes sent by and to all clients since the first round.
    seconds: training time since the first round, without evaluation.

    Scores of real targets are in the unit of the data. If targets are standardised for training, the
    objective and the gap are in the unit of standardised targets, in which they are minimised.

    Only clients with test rows count in test scores. Accuracies are None for regression; rmse, mae and r2 are
    None for classification. With several targets, rmse, mae and r2 are means over the targets. Every test
    score is None if there are no test rows.
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
    train_loss: float | None
    objective: float | None
    gap: float | None
    bytes_up: int
    bytes_down: int
    seconds: float
    rmse: float | None = None
    rmse_mean: float | None = None
    rmse_worst: float | None = None
    rmse_std: float | None = None
    mae: float | None = None
    mae_mean: float | None = None
    mae_worst: float | None = None
    mae_std: float | None = None
    r2: float | None = None
    r2_mean: float | None = None
    r2_worst: float | None = None
    r2_std: float | None = None

    def __repr__(self) -> str:
        return build_summary("Score", f"round {self.round}", *self.list_values())

    def list_values(self) -> list[str]:
        """Return the main values as texts: those of the test rows, the training loss and the objective."""
        names = ("accuracy", "accuracy_worst", "loss", "rmse", "mae", "r2", "train_loss", "objective")
        values = {name: getattr(self, name) for name in names}
        return [f"{name} {value:.4g}" for name, value in values.items() if value is not None]

    def drop_training_part(self) -> "Score":
        """Return the score without the values of training rows."""
        return replace(self, train_loss=None, objective=None, gap=None)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary, without optional metrics that do not apply to the task."""
        values = asdict(self).items()
        return {name: value for name, value in values if value is not None or name not in OPTIONAL_FIELDS}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Score":
        """Restore a score from its dictionary, exactly, also after a round trip through JSON.

        Optional fields may be missing: older versions did not write them.
        """
        known = {field.name: field.type for field in fields(Score)}
        missing = [name for name in known if name not in values and name not in OPTIONAL_FIELDS]
        wrong = [f"{name} is missing" for name in missing]
        wrong += [f"{name!r} is unknown" for name in values if name not in known]
        if wrong:
            raise InputError(f"score: {', '.join(wrong)}; use the version of fedlap that wrote it")
        return Score(**{name: _parse_value(name, value, known[name]) for name, value in values.items()})


# Metrics of real targets, which are left out of files of classification.
OPTIONAL_FIELDS = frozenset(field.name for field in fields(Score) if field.default is not MISSING)
TRAINING_FIELDS = ("train_loss", "objective", "gap")  # computed from training rows


def compute_score(
    round: int,
    train: Tally | None,
    test: Tally,
    ridge: Float64[Tensor, "client"] | None,
    penalty: float | None,
    gap: float | None,
    sent: tuple[int, int],
    seconds: float,
) -> Score:
    """Compute the scores of a round from the sums over each client's rows.

    train, ridge, penalty: None leaves out the training loss and the objective.
    """
    clients = {name: values[test.count > 0] for name, values in test.client_scores().items()}
    rows = test.count.sum()
    accuracy = rmse = mae = r2 = NOT_APPLICABLE
    if test.hits is not None:
        accuracy = _summarise(float(test.hits.sum() / rows), clients["accuracy"], lowest=True)
    loss = _summarise(float(test.reported_loss.sum() / rows), clients["loss"], lowest=False)
    if test.errors is not None:
        pooled_rmse, pooled_mae, pooled_r2 = _pool_errors(
            test.errors[test.count > 0], test.count[test.count > 0]
        )
        rmse = _summarise(pooled_rmse, clients["rmse"], lowest=False)
        mae = _summarise(pooled_mae, clients["mae"], lowest=False)
        r2 = _summarise(pooled_r2, clients["r2"][~clients["r2"].isnan()], lowest=True)
    objective = pooled = None
    if train is not None:
        assert ridge is not None
        assert penalty is not None
        objective = float((train.loss / train.count + ridge).sum()) + penalty
        pooled = float(train.reported_loss.sum() / train.count.sum())
    return Score(round, *accuracy, *loss, pooled, objective, gap, *sent, seconds, *rmse, *mae, *r2)


def _pool_errors(
    errors: Float64[Tensor, "client 4 output"], count: Int64[Tensor, "client"]
) -> tuple[float, float, float | None]:
    """Return RMSE, mean absolute error and R² of the pooled rows; no R² if the targets are constant."""
    squared, absolute, mean, spread = errors.unbind(1)
    total, rows = count.sum(), count.unsqueeze(1)
    rmse, mae = (squared.sum(0) / total).sqrt().mean(), (absolute.sum(0) / total).mean()
    # The pooled deviations are those within clients and those of the clients' means, which are taken relative
    # to the first one, so that equal means deviate by exactly 0.
    mean = mean - mean[:1]
    between = mean - (mean * rows).sum(0) / total
    pooled_spread = (spread + rows * between.square()).sum(0)
    varied = bool((pooled_spread > 0).all())
    return float(rmse), float(mae), float((1 - squared.sum(0) / pooled_spread).mean()) if varied else None


def _summarise(pooled: float | None, clients: Float64[Tensor, "client"], lowest: bool) -> Statistics:
    """Return the pooled score; mean, mean of the worst tenth, and deviation over clients."""
    if not len(clients):
        return (None if pooled is None or math.isnan(pooled) else pooled, None, None, None)
    ranked = clients.sort(descending=not lowest).values
    worst = ranked[: math.ceil(len(ranked) / 10)]
    # Subtracting the worst client first makes the deviation of equal clients exactly 0, without rounding.
    spread = (ranked - ranked[0]).std(correction=0)
    return pooled, float(ranked.mean()), float(worst.mean()), float(spread)


def _parse_value(name: str, value: Any, kind: Any) -> Any:
    """Return the value of a field with its type; an integer is accepted for a float."""
    if not isinstance(value, kind if kind is int else kind | int) or isinstance(value, bool):
        expected = "an integer" if kind is int else "a number" if kind is float else "a number or null"
        raise InputError(f"score: {name} = {value!r}; expected {expected}")
    return value if value is None or kind is int else float(value)
