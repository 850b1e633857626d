"""Scores of each client, and its gain over a baseline such as local training."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Float64
from torch import Tensor

from fedlap.data.federation import Federation
from fedlap.errors import InputError
from fedlap.models import Model
from fedlap.personal import Personals
from fedlap.report.page.sections import BarsSection, Records, RecordValue, TableCell, TableSection
from fedlap.training.client_answers import tally_test_rows
from fedlap.training.metrics import METRICS, Metric

MAX_BARS = 120  # over all seeds together
MAX_NAMES_LISTED = 8  # of clients without test rows
ROUNDING_ERROR = 1e-12  # of scores, which are percentages or losses

ClientValues = Float64[np.ndarray, "client"]


@dataclass(frozen=True, eq=False)
class PersonalScores:
    """Test score of each client's personal model, per row and seed; NaN where it is not defined.

    Scores are accuracies in percent, or values of a metric, negated if lower is better: higher is better.
    """

    clients: list[tuple[str, ...]]  # per seed
    scores: Mapping[str, list[ClientValues]]  # per row, per seed
    seeds: list[int]
    shared_clients: bool  # True if all seeds have the same clients
    metric: Metric

    @property
    def unit(self) -> str:
        """Unit of the gains."""
        return "points" if self.metric.is_percent else self.metric.label

    def describe_gain(self, base: str) -> str:
        """Return what a gain is, for a scale of colours."""
        if self.metric.higher_is_better:
            return f"gain over {base}, {self.unit}"
        return f"reduction of {self.unit} over {base}"

    @property
    def column(self) -> str:
        """Unit of the gains, in names of columns."""
        return "points" if self.metric.is_percent else self.metric.name


def score_clients(federation: Federation, trained: Personals, metric: Metric | None = None) -> ClientValues:
    """Score each client's personal model on its test rows, all clients at once."""
    about = trained.metadata
    if trained.network is None:
        raise InputError("the run trained a custom module, which is not stored; score its models in Python")
    if (federation.inputs, federation.labels) != (about.inputs, about.labels):
        raise InputError(
            "the models and the data have different features or labels; use a run of the same data"
        )
    place_of = {name: place for place, name in enumerate(trained.clients)}
    missing = next((name for name in federation.clients if name not in place_of), None)
    if missing is not None:
        raise InputError(
            f"client {missing!r} of the data has no model in the run; use a run of the same data"
        )
    places = [place_of[name] for name in federation.clients]
    scale, target_scale = trained.scale.reorder(places), trained.target_scale
    scaled = replace(federation, scale=scale, target_scale=target_scale)
    return score_models(scaled, Model(trained.network, about.loss), trained.models[places], metric)


def score_models(
    federation: Federation,
    objective: Model,
    W: Float[Tensor, "client param"],
    metric: Metric | None = None,
) -> ClientValues:
    """Score a stack of models, one row per client, on the test rows of its client: higher is better.

    metric: by default accuracy for classes and RMSE for real targets.
    """
    default = "accuracy" if federation.labels is not None else "rmse"
    metric = metric or METRICS[default]
    values = tally_test_rows(federation, objective, W).client_scores()[metric.name]
    return np.asarray((metric.sign * metric.factor * values).numpy())


def build_gain_sections(personal: PersonalScores, base: str | None) -> Iterator[TableSection | BarsSection]:
    """Build a table and bars of gains over the row `base`; without a base, bars of the scores."""
    if base is None:
        metric = personal.metric
        shown = {row: average_scores(personal, row) for row in personal.scores}
        about = f"Test {metric.label} of each client's personal model{metric.direction}"
        name, unit = f"{metric.name}_percent" if metric.is_percent else metric.name, metric.unit.strip()
        yield _build_bars(personal, shown, "Score per client", about, "clients", unit or metric.label, name)
        return
    gains = {row: compute_gains(personal, row, base) for row in personal.scores if row != base}
    if not gains:
        return
    yield _build_count_table(personal, gains, base)
    what = (
        f"Test {personal.metric.label} of each client's personal model"
        if personal.metric.higher_is_better
        else f"Reduction of each client's test {personal.metric.label}"
    )
    about = f"{what} compared with {base}: above zero a client gains, below zero it loses"
    title = f"Gain per client over {base}"
    yield _build_bars(personal, gains, title, about, "gains", personal.unit, f"gain_{personal.column}")


def compute_gains(personal: PersonalScores, row: str, base: str) -> list[ClientValues]:
    """Compute each client's gain over the row `base`.

    If all seeds share the clients, return one array of means over seeds, else one array per seed.
    """
    pairs = zip(personal.scores[row], personal.scores[base], strict=True)
    by_seed = [_drop_rounding(score - base_score) for score, base_score in pairs]
    return _average_shared(personal, by_seed)


def average_scores(personal: PersonalScores, row: str) -> list[ClientValues]:
    """Return each client's score as shown: one array of means if seeds share clients, else one per seed."""
    return _average_shared(personal, [personal.metric.sign * values for values in personal.scores[row]])


def _average_shared(personal: PersonalScores, by_seed: list[ClientValues]) -> list[ClientValues]:
    """Return means over seeds if all seeds share the clients, else the values per seed."""
    return [_average_seeds(by_seed)] if personal.shared_clients else by_seed


def describe_seeds(personal: PersonalScores, places: Sequence[int] = ()) -> str:
    """Return the seeds behind the gains as text; without shared clients, the seeds at `places`."""
    if len(personal.seeds) == 1:
        return f"seed {personal.seeds[0]}"
    if personal.shared_clients:
        return f"mean over {len(personal.seeds)} seeds"
    return f"clients of {_format_seed_list([personal.seeds[place] for place in places])}"


def _format_seed_list(seeds: Sequence[int]) -> str:
    """Format seeds as text, e.g. "seeds 0, 1"."""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _average_seeds(by_seed: Sequence[ClientValues]) -> ClientValues:
    """Average over the seeds at which a client has test rows; NaN if it never has any."""
    known = np.isfinite(np.stack(by_seed))
    total = np.where(known, np.stack(by_seed), 0).sum(0)
    return _drop_rounding(total / np.where(known.any(0), known.sum(0), np.nan))


def _drop_rounding(values: ClientValues) -> ClientValues:
    """Set rounding errors to zero, so that unchanged clients have a gain of exactly zero."""
    return np.where(np.abs(values) < ROUNDING_ERROR, 0.0, values)


def _build_count_table(
    personal: PersonalScores, gains: Mapping[str, list[ClientValues]], base: str
) -> TableSection:
    """Build a table of how many clients gain and lose."""
    digits = personal.metric.digits
    rows: list[list[TableCell]] = []
    records: list[list[RecordValue]] = []
    for row, by_seed in gains.items():
        every = np.concatenate(by_seed)
        sides = (every > 0).sum(), (every == 0).sum(), (every < 0).sum(), np.isnan(every).sum()
        counts, values = [int(count) for count in sides], _summarise_gains(every[np.isfinite(every)])
        rows.append(
            [
                TableCell(row),
                *(TableCell(f"{count}") for count in counts),
                *(TableCell(_format_gain(v, digits)) for v in values),
            ]
        )
        records.append([row, *counts, *values])
    unit = personal.unit
    columns = ["method", "gain", "unchanged", "lose", "no test rows"]
    columns += [f"{what}, {unit}" for what in ("mean", "worst tenth", "largest loss", "largest gain")]
    names = ["method", "clients_gain", "clients_same", "clients_lose", "clients_without_test_rows"]
    names += [f"{what}_{personal.column}" for what in ("mean", "worst_tenth", "largest_loss", "largest_gain")]
    seeds = describe_seeds(personal, range(len(personal.seeds)))
    about = (
        f"Clients whose personal model scores higher, equal or lower on their test rows than that of {base}"
    )
    return TableSection(
        f"Clients compared with {base}", f"{about}; {seeds}.", "clients", columns, rows,
        records=Records(names, records),
    )  # fmt: skip


def _summarise_gains(every: Float64[np.ndarray, "_"]) -> tuple[float, float, float, float]:
    if not len(every):
        return (math.nan,) * 4
    rising = np.sort(every)
    worst = rising[: math.ceil(len(rising) / 10)]
    return float(every.mean()), float(worst.mean()), float(rising[0]), float(rising[-1])


def _format_gain(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:+z.{digits}f}".replace("-", "−")


def _build_bars(
    personal: PersonalScores,
    values: Mapping[str, list[ClientValues]],
    title: str,
    about: str,
    name: str,
    unit: str,
    column: str,
) -> BarsSection:
    """Build bars, one per client, with the values of all clients as records.

    If seeds do not share clients, as many seeds are drawn as fit.
    """
    seeds = (
        1
        if personal.shared_clients
        else min(len(personal.seeds), max(1, MAX_BARS // max(1, len(personal.clients[0]))))
    )
    labels = [
        f"{client}, seed {personal.seeds[place]}" if seeds > 1 else client
        for place in range(seeds)
        for client in personal.clients[place]
    ]
    series = [(row, np.concatenate(by_seed[:seeds]).tolist()) for row, by_seed in values.items()]
    several = not personal.shared_clients and len(personal.seeds) > 1
    note = " (each seed has different clients)" if several else ""
    first = next(iter(series))[1]
    untested = [label for label, value in zip(labels, first, strict=True) if math.isnan(value)]
    text = f"{about}; {describe_seeds(personal, range(seeds))}{note}."
    if untested:
        more = f" and {len(untested) - MAX_NAMES_LISTED:,} more" if len(untested) > MAX_NAMES_LISTED else ""
        text += f" Clients without test rows have no bar: {', '.join(untested[:MAX_NAMES_LISTED])}{more}."
    records = [
        [client, *([personal.seeds[place]] if several else []), row, value]
        for row, by_seed in values.items()
        for place, client_values in enumerate(by_seed)
        for client, value in zip(personal.clients[place], client_values.tolist(), strict=True)
    ]
    names = ["client", *(["seed"] if several else []), "method", column]
    return BarsSection(title, text, name, labels, series, unit, Records(names, records))
