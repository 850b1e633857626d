"""How well each client is served: who gains and who loses against training alone."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64

from fedlap.data.federation import Federation
from fedlap.errors import InputError
from fedlap.experiments.outcomes import tally_test_rows
from fedlap.models import Model
from fedlap.personal import Personals
from fedlap.report.page.sections import BarsSection, Cell, Records, TableSection, Value

MOST_BARS = 120  # clients of all seeds together
NAMED = 8  # clients without test rows that are named
TINY = 1e-12  # of scores that are percents or losses; less is rounding

Each = Float64[np.ndarray, "client"]


@dataclass(frozen=True, eq=False)
class Served:
    """The test score of each client's own model: row, seed, client. More is better; NaN without test rows.

    Scores are accuracies in percent, or minus the loss where targets are real numbers.
    """

    clients: list[tuple[str, ...]]  # of each seed
    scores: Mapping[str, list[Each]]  # for each row, of each seed
    seeds: list[int]
    same: bool  # whether clients are the same ones at every seed
    classifies: bool

    @property
    def unit(self) -> str:
        """What scores are counted in."""
        return "points" if self.classifies else "loss"


def scored(federation: Federation, trained: Personals) -> Each:
    """Each client's score by its own model on its test rows, all clients at once."""
    about = trained.about
    if trained.network is None:
        raise InputError("the models are of a module of your own, which is not stored; score them in Python")
    if (federation.inputs, federation.labels) != (about.inputs, about.labels):
        raise InputError("the models have other features or labels than the data; name a run of these data")
    at = {name: place for place, name in enumerate(trained.clients)}
    missing = next((name for name in federation.clients if name not in at), None)
    if missing is not None:
        raise InputError(f"client {missing!r} of the data has no model in the run; name a run of these data")
    places = [at[name] for name in federation.clients]
    scaled = replace(federation, scale=trained.scale.reordered(places))
    tally = tally_test_rows(scaled, Model(trained.network, about.loss), trained.models[places])
    total = -tally.loss if tally.hits is None else 100 * tally.hits
    return np.asarray((total / tally.count).numpy())  # NaN is 0 / 0


def sections(served: Served, base: str | None) -> Iterator[TableSection | BarsSection]:
    """Gains over a row as a table and as bars; without such a row the scores themselves."""
    if base is None:
        sign = 1 if served.classifies else -1
        unit, what = ("%", "accuracy") if served.classifies else ("loss", "loss")
        shown = {
            row: _common(served, [sign * values for values in each]) for row, each in served.scores.items()
        }
        about = f"Test {what} of each client's own model"
        name = "accuracy_percent" if served.classifies else "loss"
        yield _bars(served, shown, "Client by client", about, "clients", unit, name)
        return
    gains = {row: gains_of(served, row, base) for row in served.scores if row != base}
    if not gains:
        return
    yield _counts(served, gains, base)
    what = "Test accuracy of each client's own model" if served.classifies else "Fall of each client's loss"
    about = f"{what} minus that of {base}: above zero a client gains, below it loses"
    title = f"Who gains, who loses against {base}"
    yield _bars(served, gains, title, about, "gains", served.unit, f"gain_{served.unit}")


def gains_of(served: Served, row: str, base: str) -> list[Each]:
    """Each client's gain over a row, as every section shows it.

    Clients that are the same at every seed have their mean over seeds; else there is a list for each seed.
    """
    pairs = zip(served.scores[row], served.scores[base], strict=True)
    each = [_clean(mine - alone) for mine, alone in pairs]
    return _common(served, each)


def _common(served: Served, each: list[Each]) -> list[Each]:
    """Values of one mean over seeds where clients are the same at every seed, else seed by seed."""
    return [_mean(each)] if served.same else each


def over(served: Served, places: Sequence[int] = ()) -> str:
    """The seeds that clients' gains are of, in words; of those without clients in common, these seeds."""
    if len(served.seeds) == 1:
        return f"seed {served.seeds[0]}"
    if served.same:
        return f"mean over {len(served.seeds)} seeds"
    return f"clients of {seeds_named([served.seeds[place] for place in places])}"


def seeds_named(seeds: Sequence[int]) -> str:
    """Seeds in words."""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _mean(each: Sequence[Each]) -> Each:
    """Mean over those seeds at which a client has test rows; NaN where it has none at any."""
    known = np.isfinite(np.stack(each))
    total = np.where(known, np.stack(each), 0).sum(0)
    return _clean(total / np.where(known.any(0), known.sum(0), np.nan))


def _clean(values: Each) -> Each:
    """Without what rounding leaves, so that those who neither gain nor lose have zero."""
    return np.where(np.abs(values) < TINY, 0.0, values)


def _counts(served: Served, gains: Mapping[str, list[Each]], base: str) -> TableSection:
    """How many gain and lose."""
    digits = 2 if served.classifies else 4
    rows: list[list[Cell]] = []
    records: list[list[Value]] = []
    for row, each in gains.items():
        every = np.concatenate(each)
        sides = (every > 0).sum(), (every == 0).sum(), (every < 0).sum(), np.isnan(every).sum()
        counts, values = [int(count) for count in sides], _four(every[np.isfinite(every)])
        rows.append(
            [Cell(row), *(Cell(f"{count}") for count in counts), *(Cell(_signed(v, digits)) for v in values)]
        )
        records.append([row, *counts, *values])
    unit = served.unit
    columns = ["method", "gain", "the same", "lose", "no test rows"]
    columns += [f"{what}, {unit}" for what in ("mean", "worst tenth", "largest loss", "largest gain")]
    names = ["method", "clients_gain", "clients_same", "clients_lose", "clients_without_test_rows"]
    names += [f"{what}_{unit}" for what in ("mean", "worst_tenth", "largest_loss", "largest_gain")]
    seeds = over(served, range(len(served.seeds)))
    about = f"Clients whose own model is better on their test rows, the same, or worse than that of {base}"
    return TableSection(
        f"Clients against {base}", f"{about}; {seeds}.", "clients", columns, rows,
        records=Records(names, records),
    )  # fmt: skip


def _four(every: Float64[np.ndarray, "_"]) -> tuple[float, float, float, float]:
    if not len(every):
        return (math.nan,) * 4
    rising = np.sort(every)
    worst = rising[: math.ceil(len(rising) / 10)]
    return float(every.mean()), float(worst.mean()), float(rising[0]), float(rising[-1])


def _signed(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:+z.{digits}f}".replace("-", "−")


def _bars(
    served: Served,
    values: Mapping[str, list[Each]],
    title: str,
    about: str,
    name: str,
    unit: str,
    column: str,
) -> BarsSection:
    """A bar for each client, and the values of all clients as records.

    Of clients without a common name over seeds, as many seeds are drawn as there is room for.
    """
    seeds = 1 if served.same else min(len(served.seeds), max(1, MOST_BARS // max(1, len(served.clients[0]))))
    labels = [
        f"{client}, seed {served.seeds[place]}" if seeds > 1 else client
        for place in range(seeds)
        for client in served.clients[place]
    ]
    series = [(row, np.concatenate(each[:seeds]).tolist()) for row, each in values.items()]
    several = not served.same and len(served.seeds) > 1
    note = " (each seed deals out clients of its own)" if several else ""
    first = next(iter(series))[1]
    untested = [label for label, value in zip(labels, first, strict=True) if math.isnan(value)]
    text = f"{about}; {over(served, range(seeds))}{note}."
    if untested:
        more = f" and {len(untested) - NAMED:,} more" if len(untested) > NAMED else ""
        text += f" Without test rows, and so without a bar: {', '.join(untested[:NAMED])}{more}."
    records = [
        [client, *([served.seeds[place]] if several else []), row, value]
        for row, each in values.items()
        for place, own in enumerate(each)
        for client, value in zip(served.clients[place], own.tolist(), strict=True)
    ]
    names = ["client", *(["seed"] if several else []), "method", column]
    return BarsSection(title, text, name, labels, series, unit, Records(names, records))
