"""Tuning of every row before a comparison: cross-validation on the training rows of each seed.

Every seed splits the rows of a data set differently, so training rows of one seed are test rows of another.
Settings are therefore chosen for each seed by itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedlap.comparisons.rows import Row, Values
from fedlap.comparisons.training import TrainingSession, train_outcomes
from fedlap.errors import InputError
from fedlap.experiments.prepare import Prepared
from fedlap.experiments.run_folder import RunFolder
from fedlap.experiments.session import RunOutcome
from fedlap.experiments.settings import format_value
from fedlap.report.seed_list import format_seeds
from fedlap.report.tuning_table import Tuning

FOLDS = 5


@dataclass(frozen=True)
class RowTuning:
    """The settings that were chosen for each row, seed by seed, and the runs behind them.

    runs: the folders of all folds of all candidates, by row; empty if nothing was stored.
    """

    folds: int
    seeds: Sequence[int]
    values: Mapping[str, Sequence[Values]]
    runs: Mapping[str, Sequence[str]]

    def describe_rule(self) -> str:
        """Return how settings were chosen, as a sentence."""
        return (
            f"Settings were chosen for each method and seed by {self.folds}-fold cross-validation on "
            "training rows."
        )

    def describe_values(self, label: str) -> str:
        """Return the values of a row, once for all seeds that share them."""
        seeds: dict[str, list[int]] = {}
        for seed, values in zip(self.seeds, self.values[label], strict=True):
            seeds.setdefault(format_values(values), []).append(seed)
        if len(seeds) == 1:
            return next(iter(seeds))
        return "; ".join(f"{text} ({format_seeds(shared)})" for text, shared in seeds.items())

    def as_dict(self) -> dict[str, Any]:
        """Return folds, values by row and seed, and the runs behind them as plain values."""
        return {
            "folds": self.folds,
            "values": {label: [dict(values) for values in rows] for label, rows in self.values.items()},
            "runs": {label: list(names) for label, names in self.runs.items()},
        }


def format_values(values: Values) -> str:
    """Return settings as text, e.g. "lr = 0.1, strength = 0"."""
    return ", ".join(f"{name} = {format_value(value)}" for name, value in values.items()) or "nothing to tune"


def tune_rows(
    rows: Sequence[Row],
    seeds: Sequence[int],
    session: TrainingSession,
    folds: int = FOLDS,
    metric: str | None = None,
) -> RowTuning:
    """Choose settings of every row for every seed; rejected candidates are skipped with a remark.

    All candidates of all rows are trained together. A row of which every candidate diverged keeps its
    defaults. Raise InputError if every candidate of a row is rejected, as by folds without rows.
    """
    ready: list[Prepared] = []
    labels: list[str] = []
    trials: dict[tuple[str, int], list[tuple[Values, range]]] = {}
    for row in rows:
        for seed in seeds:
            accepted = trials[row.label, seed] = []
            rejected: list[tuple[Values, InputError]] = []
            for values in row.list_candidates(seed):
                try:
                    row.prepare(seed, values)
                    runs = [row.prepare(seed, values, _hold_out(folds, place)) for place in range(folds)]
                except InputError as error:  # such as a strength with which mixing is unstable
                    rejected.append((values, error))
                    continue
                accepted.append((values, range(len(ready), len(ready) + folds)))
                ready += runs
                labels += [row.label] * folds
            _report_rejected(row.label, seed, len(accepted), rejected, session)
    outcomes = train_outcomes(session, ready, labels, "settings") if ready else []
    chosen = {
        row.label: [
            _choose_values(row.label, seed, trials[row.label, seed], outcomes, session, metric)
            for seed in seeds
        ]
        for row in rows
    }
    names: dict[str, list[str]] = {}
    if session.folder is not None:
        for run, label in zip(ready, labels, strict=True):
            names.setdefault(label, []).append(RunFolder.of(session.folder, run.experiment).name)
    return RowTuning(folds, seeds, chosen, names)


def _report_rejected(
    label: str,
    seed: int,
    accepted: int,
    rejected: Sequence[tuple[Values, InputError]],
    session: TrainingSession,
) -> None:
    """Remark how many candidates were rejected, and why the first; raise its error if all were."""
    if not rejected:
        return
    values, error = rejected[0]
    if not accepted:
        raise error
    session.on_remark(
        f"note: {label}, seed {seed}: {len(rejected)} of {accepted + len(rejected)} candidates are invalid "
        f"and skipped, such as {format_values(values)}: {error}"
    )


def _hold_out(folds: int, place: int) -> dict[str, int]:
    return {"number": folds, "held_out": place}


def _choose_values(
    label: str,
    seed: int,
    trials: Sequence[tuple[Values, range]],
    outcomes: Sequence[RunOutcome],
    session: TrainingSession,
    metric: str | None,
) -> Values:
    """Return the values with the best mean score over folds; the first of a tie."""
    if not trials:
        return {}
    values = {format_values(candidate): candidate for candidate, _ in trials}
    runs = {format_values(candidate): [outcomes[place] for place in places] for candidate, places in trials}
    folds = len(trials[0][1])
    best = Tuning(label, [seed] * folds, runs, folds=folds, metric_name=metric).best
    if best is None:
        session.on_remark(f"note: {label}, seed {seed}: every candidate diverged; its defaults are used")
        return {}
    return values[best]
