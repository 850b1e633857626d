"""Choice of a strength before training: by a rule, or by cross-validation on training rows ("auto")."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from fedlap.algorithms import Algorithm, Coupled, list_settings
from fedlap.algorithms.coupling import AUTO, Coupling
from fedlap.data.federation import Federation
from fedlap.errors import InputError
from fedlap.graph import Graph
from fedlap.models import Architecture
from fedlap.training.schedule import Schedule
from fedlap.training.tuning import TuningResult, cross_validate

STRENGTH_FOLDS: Final = 5
STRENGTH_ROUNDS: Final = 50  # at most; fewer prefer too strong a pull (benchmarks/strengths.py)
# ηρ of the candidates. With standardised features a data term has a curvature of about 1, so that these reach
# from no pull to one much stronger than the data.
PULLS: Final = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
STRENGTH_RULE: Final = f"by {STRENGTH_FOLDS}-fold cross-validation on training rows"
# The best ηρ goes as one over the rows of a client, since the noise of a model does. Their product was 80 on
# radon, 36 on Colorado, 80 on synthetic clients, 20 on digits and 150 on Human Activity
# (benchmarks/strengths.py).
PULL_TIMES_ROWS: Final = 40.0
DEFAULT_RULE: Final = (
    f"by default: min({PULL_TIMES_ROWS:g}/(n·ρ), 1/(lr·R·ρ)), where n is the mean number of training rows "
    "per client and ρ the largest eigenvalue of the graph's Laplacian"
)


def choose_strength(
    algorithm: Algorithm,
    federation: Federation,
    model: Architecture,
    schedule: Schedule,
    seed: int = 0,
    earlier: Algorithm | None = None,
) -> Algorithm:
    """Return the method with a number in place of the default strength or "auto".

    The default is min(40/(nρ), 1/(μRρ)), where n is the mean number of training rows per client and ρ the
    largest eigenvalue of the graph's Laplacian. It costs nothing.

    "auto" takes several times as long as training. Strengths η with ηρ = 0, 0.1, 0.3, 1, 3, 10 and 30 are
    compared by five-fold cross-validation on training rows, for at most 50 rounds, as one stack if the method
    allows it. Strengths that the method refuses, such as those with unstable mixing, are left out. The best
    one, by accuracy or by RMSE for real targets, is refined by a parabola through its neighbours, and
    multiplied by 4/5: the balance between data and penalty goes as one over the number of rows, and a fold
    leaves four fifths of them. Test rows are never used.

    earlier: the method of a run to resume, whose strength is used without cross-validation.
    """
    if not has_open_strength(algorithm):
        return algorithm
    if earlier is not None and "strength" in (known := list_settings(earlier)):
        return _set_strength(algorithm, known["strength"])
    if isinstance(algorithm, Coupled) and not has_auto_strength(algorithm):
        rows = float(federation.train.count.double().mean())
        return _set_strength(algorithm, compute_default_strength(algorithm.coupling, rows))
    graph = list_settings(algorithm)["graph"]
    if graph.rho <= 0:  # without edges every strength is the same
        return _set_strength(algorithm, 0.0)
    combinations, refused = [], []
    for strength in list_candidates(graph):
        try:
            combinations.append(({"strength": strength}, _set_strength(algorithm, strength)))
        except InputError as error:
            refused.append(({"strength": strength}, error))
    few = replace(schedule, rounds=min(schedule.rounds, STRENGTH_ROUNDS), evaluate_every=0)
    tuning = cross_validate(combinations, refused, federation, model, STRENGTH_FOLDS, few, seed)
    return _set_strength(algorithm, refine_strength(tuning))


def has_auto_strength(algorithm: Algorithm) -> bool:
    """Return whether the strength of a method on a graph is still to be chosen."""
    settings = list_settings(algorithm)
    return bool(settings.get("strength") == AUTO) and isinstance(settings.get("graph"), Graph)


def has_open_strength(algorithm: Algorithm) -> bool:
    """Return whether the strength of a method is "auto", or follows from the data by default.

    The network lasso, whose pull does not grow with distance, has a default of its own.
    """
    if has_auto_strength(algorithm):
        return True
    by_rule = isinstance(algorithm, Coupled) and algorithm.coupling.smoothing is None
    return (
        by_rule and list_settings(algorithm).get("strength", 0.0) is None and vars(algorithm)["graph"].rho > 0
    )


def compute_default_strength(coupling: Coupling, rows: float) -> float:
    """Return the default strength for this mean number of training rows per client, with two digits."""
    pull = min(PULL_TIMES_ROWS / rows, 1 / (coupling.lr * coupling.repeats))
    return float(f"{pull / coupling.graph.rho:.2g}")


def list_candidates(graph: Graph) -> list[float]:
    """Return the strengths to compare, in increasing order, on a graph with edges."""
    return [pull / graph.rho for pull in PULLS]


def refine_strength(tuning: TuningResult) -> float:
    """Return the strength for all training rows, with two digits, from the scores of the candidates."""
    best = tuning.best
    strength: float = best.values["strength"]
    place = tuning.tried.index(best)
    around = tuning.tried[max(0, place - 1) : place + 2]
    strengths = [candidate.values["strength"] for candidate in around]
    if len(around) == 3 and strengths[0] > 0 and not any(candidate.diverged for candidate in around):
        strength = find_vertex(strengths, [float(candidate.validation.mean()) for candidate in around])
    return float(f"{strength * (1 - 1 / STRENGTH_FOLDS):.2g}")


def find_vertex(strengths: Sequence[float], scores: Sequence[float]) -> float:
    """Return the vertex of the parabola through three scores over log η; the middle one is the best."""
    left, middle, right = map(math.log, strengths)
    rise = (scores[1] - scores[0]) / (middle - left), (scores[2] - scores[1]) / (right - middle)
    bend = rise[1] - rise[0]
    slope = rise[0] * (right - middle) + rise[1] * (middle - left)  # at the middle, times right − left
    vertex = middle - (slope / (2 * bend) if bend else 0.0)
    return math.exp(min(max(vertex, left), right))


def _set_strength(algorithm: Algorithm, strength: Any) -> Algorithm:
    return replace(algorithm, strength=strength)  # type: ignore[type-var]
