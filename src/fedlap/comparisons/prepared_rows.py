"""Rows of a comparison, prepared for all seeds before the first run is trained."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedlap.comparisons.rows import Row, Values
from fedlap.errors import InputError, UnsuitedError
from fedlap.experiments.prepare import Prepared

ValuesByRow = Mapping[str, Sequence[Values]]  # one choice of settings per seed, by label


@dataclass(frozen=True, eq=False)
class PreparedRows:
    """The runs of all rows: all rows of the first seed, then those of the next."""

    rows: Sequence[Row]
    seeds: Sequence[int]
    ready: list[Prepared]

    @property
    def labels(self) -> list[str]:
        """The label of each run."""
        return [row.label for row in self.rows] * len(self.seeds)

    def runs_of(self, label: str) -> list[Prepared]:
        """Return the runs of a row, seed by seed."""
        return [run for run, other in zip(self.ready, self.labels, strict=True) if other == label]


def prepare_rows(
    rows: Sequence[Row],
    seeds: Sequence[int],
    tuned: ValuesByRow | None = None,
    on_skip: Callable[[str, UnsuitedError], None] | None = None,
) -> PreparedRows:
    """Check and prepare every run before the first is trained.

    tuned: values of the methods' settings, by row and seed.
    on_skip: called with a row that cannot be trained on these data, which is then skipped; None raises.
    """
    ready: list[Prepared] = []
    # Runs are prepared seed by seed, so that a mistake is found before much data are loaded.
    for place, seed in enumerate(seeds):
        for row in rows:
            try:
                ready.append(row.prepare(seed, tuned[row.label][place] if tuned else None))
            except UnsuitedError as error:
                rest = [other for other in rows if other.label != row.label]
                if on_skip is None or not rest:
                    raise
                on_skip(row.label, error)
                return prepare_rows(rest, seeds, tuned, on_skip)
    return PreparedRows(rows, seeds, _share_intervals(ready, len(rows)))


def _share_intervals(ready: Sequence[Prepared], rows: int) -> list[Prepared]:
    """Return the runs with the scored rounds of the first seed, so that all seeds of a row share them.

    The numbers of rows may depend on the seed, and with them the interval that is chosen.
    """
    shared = [ready[place % rows].experiment.evaluate_every for place in range(len(ready))]
    return [
        replace(run, experiment=run.experiment.model_copy(update={"evaluate_every": every}))
        for run, every in zip(ready, shared, strict=True)
    ]


def check_same_task(ready: Sequence[Prepared]) -> None:
    """Raise if classification and regression runs would be ranked together."""
    if len({run.federation.labels is None for run in ready}) > 1:
        raise InputError(
            "some runs have classes and others real targets, so they cannot be ranked; compare every task "
            "separately"
        )
