"""Conditions under which rounds with late models end at the point of rounds without them.

They are those of the theorem on late models (the page on theory). A peer checks what its plan and its own
rows show; the conditions must hold at every peer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from fedlap.algorithms.compression import parse_compression
from fedlap.data.federation import Federation
from fedlap.deploy.plan import Plan
from fedlap.graph import Graph
from fedlap.theory.curvature import bound_curvature
from fedlap.theory.problem import LaplacianProblem, is_linear_network

MOST_DECOMPOSED: Final = 500  # rows or features, whichever are fewer, of a decomposition in under a second
FLAT: Final = 1e-10  # α/β below which rounding decides whether a loss is strongly convex


def explain_late_models(
    plan: Plan, method: Any, rows: Federation | None = None, counts: Sequence[int] = ()
) -> str | None:
    """Return why late models may lead to another end, and what to do; None if nothing is known against it.

    method: that of the plan; its strength may be the default one, which tolerates late models.
    rows: scaled rows of this peer, for conditions that depend on them.
    counts: training rows of all peers, as far as they are known.
    """
    unmet = [*list_unmet_settings(plan, method, counts), *list_unmet_curvature(plan, method, rows)]
    if not unmet:
        return None
    return "it is not proved that training with late models ends where it ends without them: " + "; ".join(
        unmet
    )


def list_unmet_settings(plan: Plan, method: Any, counts: Sequence[int] = ()) -> Iterator[str]:
    """Yield the conditions of the theorem that the settings of a plan do not meet."""
    assert plan.peers is not None
    if method.strength is not None and (remark := method.coupling.explain_delays()):
        yield remark
    if not is_linear(plan):
        yield f"model = {plan.model['name']} is a network, whose loss is not convex"
    elif plan.data.classes is not None and plan.build_architecture().l2 == 0:
        yield "l2 = 0 with cross-entropy, which is not strongly convex; set model.l2 > 0"
    if plan.batch != "all" and not (counts and plan.batch >= max(counts)):
        advice = 'use batch = "all"'
        if method.local_epochs is not None:
            yield f"batch = {plan.batch} with local_epochs: passes over the rows are not covered; {advice}"
        else:
            yield f"batch = {plan.batch}: mini-batches end in a neighbourhood of that point; {advice}"
    if parse_compression(method.compression) is not None:
        yield f"compression = {method.compression} is not covered"
    if plan.peers.clip is not None:
        yield f"clip = {plan.peers.clip:g} has another limit while it acts"


def list_unmet_curvature(plan: Plan, method: Any, rows: Federation | None) -> Iterator[str]:
    """Yield the conditions on α and β of this peer's loss that are not met, if they can be computed."""
    if rows is None or not is_linear(plan):
        return
    if min(int(rows.train.count.max()), plan.data.inputs + 1) > MOST_DECOMPOSED:
        return
    alone = replace(method, graph=Graph.from_edges([], rows.clients), strength=0.0)
    problem = LaplacianProblem.of(alone, rows, plan.build_architecture(), batch=plan.batch)
    curvature = bound_curvature(problem)
    if plan.data.classes is None and (curvature.alpha or 0.0) <= FLAT * curvature.beta:
        yield "the squared error of this peer's rows is not strongly convex; set model.l2 > 0"
    if method.lr >= 2 / curvature.beta:
        yield (
            f"lr = {method.lr:g} is not below 2/β = {2 / curvature.beta:.4g}, where β is the largest "
            "curvature of this peer's loss; use a smaller lr"
        )


def is_linear(plan: Plan) -> bool:
    """Return whether the model of a plan is linear."""
    return is_linear_network(plan.build_architecture().build((plan.data.inputs,), plan.data.outputs))
