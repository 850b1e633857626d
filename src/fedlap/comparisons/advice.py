"""Advice for a comparison in which the method of this library does not lead."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedlap.algorithms import ALGORITHMS, DEFAULT_METHOD
from fedlap.report.comparison import Comparison
from fedlap.report.page.reported_runs import ReportedRun

OTHER_GRAPHS = ("nearest", "complete")  # can be built for any data
# Factors of a strength to try: a leader with one model shares more, another leader shares less. Twice the
# default strength is always stable.
MORE, LESS = 2.0, 0.1


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
    strengths = [experiment.algorithm.get("strength") for experiment in rows.values()]
    if not is_tuned and isinstance(strengths[0], float) and strengths[0] > 0:
        leader = ALGORITHMS.get(runs[best][0].experiment.algorithm["name"])
        factor = MORE if leader is not None and leader.traits.kind == "one model" else LESS
        strength = float(f"{strengths[0] * factor:.1g}")
        size = "larger" if factor > 1 else "smaller"
        ideas.append(f"use a {size} strength ({format_option('strength', strength)})")
    return [f"{next(iter(rows))} does not lead; to improve it, {_join(ideas)}"] if ideas else []


def _join(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])}, or {words[-1]}"
