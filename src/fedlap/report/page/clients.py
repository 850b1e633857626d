"""How well each client is served: who gains and who loses against training alone."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from fedlap.federation import Federation
from fedlap.personal import Personals
from fedlap.report.page.sections import BarsSection, Cell, TableSection

MOST_BARS = 120  # clients of all seeds together
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
    """Each client's score by its own model on its test rows."""
    made = np.full(len(federation.clients), np.nan)
    for place in federation.test.count.nonzero().flatten().tolist():
        x, y = federation.test.client(place)
        said = trained.of_client(federation.clients[place]).predict(x)
        if federation.labels is not None:
            made[place] = 100 * (said == y).double().mean()
        else:
            made[place] = -0.5 * (said - y.reshape(said.shape)).double().square().sum(1).mean()
    return made


def sections(served: Served, base: str | None) -> Iterator[TableSection | BarsSection]:
    """Gains over a row as a table and as bars; without such a row the scores themselves."""
    labels, places = _bars(served)
    if base is None:
        series = [(row, _picked(served, each, places)) for row, each in served.scores.items()]
        sign = 1 if served.classifies else -1
        unit = "%" if served.classifies else "loss"
        what = "accuracy" if served.classifies else "loss"
        shown = [(row, [sign * value for value in values]) for row, values in series]
        about = f"Test {what} of each client's own model, {_over(served, places)}."
        yield BarsSection("Client by client", about, "clients", labels, shown, unit)
        return
    gains = {
        row: [_gap(mine, alone) for mine, alone in zip(each, served.scores[base], strict=True)]
        for row, each in served.scores.items()
        if row != base
    }
    if not gains:
        return
    yield _counts(served, gains, base)
    bars = [(row, _picked(served, each, places)) for row, each in gains.items()]
    what = "Test accuracy of each client's own model" if served.classifies else "Fall of each client's loss"
    about = (
        f"{what} minus that of {base}: above zero a client gains, below it loses; {_over(served, places)}."
    )
    yield BarsSection(f"Who gains, who loses against {base}", about, "gains", labels, bars, served.unit)


def first_gains(served: Served, row: str, base: str) -> dict[str, float]:
    """By how much each of the first seed's clients is better off."""
    gap = _gap(served.scores[row][0], served.scores[base][0])
    return dict(zip(served.clients[0], gap.tolist(), strict=True))


def _gap(mine: Each, alone: Each) -> Each:
    return _clean(mine - alone)


def _clean(values: Each) -> Each:
    """Without what rounding leaves, so that those who neither gain nor lose have zero."""
    return np.where(np.abs(values) < TINY, 0.0, values)


def _counts(served: Served, gains: Mapping[str, list[Each]], base: str) -> TableSection:
    """How many gain and lose."""
    digits = 2 if served.classifies else 4
    rows = []
    for row, each in gains.items():
        every = np.concatenate([some[np.isfinite(some)] for some in each])
        sides = (every > 0).sum(), (every == 0).sum(), (every < 0).sum()
        counted = [Cell(f"{int(count)}") for count in sides]
        rows.append([Cell(row), *counted, *(Cell(_signed(value, digits)) for value in _four(every))])
    unit = served.unit
    columns = ["method", "gain", "the same", "lose"]
    columns += [f"{what}, {unit}" for what in ("mean", "worst tenth", "largest loss", "largest gain")]
    seeds = f", counted over {len(served.seeds)} seeds" if len(served.seeds) > 1 else ""
    about = (
        f"Clients with test rows whose own model is better, the same, or worse than that of {base}{seeds}."
    )
    return TableSection(f"Clients against {base}", about, "clients", columns, rows)


def _four(every: Float64[np.ndarray, "_"]) -> tuple[float, float, float, float]:
    if not len(every):
        return (math.nan,) * 4
    rising = np.sort(every)
    worst = rising[: math.ceil(len(rising) / 10)]
    return float(every.mean()), float(worst.mean()), float(rising[0]), float(rising[-1])


def _signed(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:+z.{digits}f}".replace("-", "−")


def _bars(served: Served) -> tuple[list[str], list[int]]:
    """Names of the bars, and the seeds that they are of; none for the mean over all."""
    if served.same:
        return list(served.clients[0]), []
    number = max(1, MOST_BARS // max(1, len(served.clients[0])))
    places = list(range(min(number, len(served.seeds))))
    several = len(places) > 1
    names = [
        f"{name}, seed {served.seeds[place]}" if several else name
        for place in places
        for name in served.clients[place]
    ]
    return names, places


def _picked(served: Served, each: Sequence[Each], places: list[int]) -> list[float]:
    if places:
        return [float(value) for place in places for value in each[place]]
    stacked, known = np.stack(each), np.isfinite(np.stack(each))
    total = np.where(known, stacked, 0).sum(0)
    return [float(value) for value in _clean(total / np.where(known.any(0), known.sum(0), np.nan))]


def _over(served: Served, places: list[int]) -> str:
    if len(served.seeds) == 1:
        return f"seed {served.seeds[0]}"
    if not places:
        return f"mean over {len(served.seeds)} seeds"
    shown = f"clients of seeds {', '.join(str(served.seeds[place]) for place in places)}"
    if len(places) == 1:
        shown = f"clients of seed {served.seeds[places[0]]}"
    return f"{shown} (each seed deals out clients of its own)"
