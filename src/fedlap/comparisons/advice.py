"""Advice for a comparison in which the method of this library does not lead."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedlap.algorithms import DEFAULT_METHOD
from fedlap.algorithms.coupling import AUTO
from fedlap.report.comparison import Comparison
from fedlap.report.page.reported_runs import ReportedRun

OTHER_GRAPHS = ("nearest", "complete")  # can be built for any data


def advise(
    comparison: Comparison,
    runs: Mapping[str, Sequence[ReportedRun]],
    is_tuned: bool,
    format_option: Callable[[str, Any], str],
) -> list[str]:
    """Return one line on what to try if the default method takes part and does not lead, else nothing.

    format_option: returns an option (tune, graph or strength) and its value as the user types them.
    """
    rows = {
        name: row_runs[0].experiment
        for name, row_runs in runs.items()
        if row_runs[0].experiment.algorithm["name"] == DEFAULT_METHOD
    }
    best = comparison.best
    if not rows or best is None or best in rows:
        return []
    ideas = [] if is_tuned else [f"tune every method ({format_option('tune', True)})"]
    tried = [experiment.graph.get("name") for experiment in rows.values()]
    ideas += [
        f"use another graph ({format_option('graph', graph)})"
        for graph in [graph for graph in OTHER_GRAPHS if graph not in tried][:1]
    ]
    if not is_tuned and all("strength" in experiment.algorithm for experiment in rows.values()):
        ideas.append(f"let cross-validation choose its strength ({format_option('strength', AUTO)})")
    return [f"{next(iter(rows))} does not lead; to improve it, {_join(ideas)}"] if ideas else []


def _join(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])}, or {words[-1]}"
