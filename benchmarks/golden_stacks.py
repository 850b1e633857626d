"""The adapter of `benchmarks.golden` to fedlap's internals: several runs trained as one stack.

This is the only file of golden digests that imports internals. A commit that moves them changes this file,
and `golden check` reads each commit's own copy.
"""

from collections.abc import Sequence
from typing import Any

import fedlap as fl
from fedlap.training.fit import fit_all
from fedlap.training.jobs import Job
from fedlap.training.schedule import Schedule

Run = tuple[Any, fl.Federation, Any, int]  # method, federation, model, seed


def fit_stack(runs: Sequence[Run], **schedule: Any) -> list[fl.Result]:
    """Train these runs as one stack; raise the error of a run that diverges."""
    results = []
    for result in fit_all([Job(*run) for run in runs], Schedule(**schedule)):
        if isinstance(result, fl.DivergedError):
            raise result
        results.append(result)
    return results
