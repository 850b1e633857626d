"""Results of the theorems for a run, in words."""

from typing import Any

from fedlap.algorithms import Passing, PeerAlgorithm
from fedlap.graph.weights import DENSE_UP_TO
from fedlap.theory import RunAnalysis
from fedlap.theory.analysis import AGES, LOSSES

CURVATURE_ORIGINS = {
    "exact": "exact: the loss is quadratic",
    "bound": "bounds over all W: α is l2; β is l2 plus half of the largest eigenvalue of a client's rows",
    "at a point": "eigenvalues of the Hessians there, except directions that change no prediction",
    "estimate": "power iteration at a few points; not a bound",
}


def describe_analysis(analysis: RunAnalysis, facts: dict[str, Any]) -> list[str]:
    """Return the constants, both theorems and the measured values as lines."""
    problem, c = analysis.problem, analysis.constants
    rows = "all rows" if problem.is_full_batch else f"{problem.clients.batch} rows"
    work = f"R = {problem.local_work.repeats} {'passes' if problem.local_work.epochs else 'steps'} on {rows}"
    names = {"optimum": "W*", "start": "W⁰", "last": "the last W"}
    sigma1 = ", ".join(f"{format_number(value)} at {names[at]}" for at, value in analysis.sigma1.items())
    sigma2 = (
        ""
        if analysis.theorem1 is None
        else f"{format_number(analysis.theorem1.constants.sigma2)} = ‖∇F(W*)‖, "
    )
    lemma = "none, since ηρ ≤ 2β" if analysis.lemma1_sigma2 is None else format_number(analysis.lemma1_sigma2)
    curvature, local = analysis.curvature, analysis.curvature_at_optimum
    lines = [
        f"{facts['run']}: N = {problem.size}, S = {problem.sampled}, {work}, μ = {problem.algorithm.lr:g}, "
        f"μ̃ = μR = {problem.step:g}, η = {problem.strength:g}",
        f"  α {format_number(curvature.alpha)}, β {format_number(curvature.beta)} "
        f"({CURVATURE_ORIGINS[curvature.origin]})",
    ]
    if local is not None and curvature.origin != "exact":
        lines.append(
            f"  at W*: {format_number(local.alpha)} to {format_number(local.beta)} "
            f"({CURVATURE_ORIGINS[local.origin]})"
        )
    lines += [
        f"  ρ {format_number(problem.graph.rho)}, λ₂ {format_number(problem.graph.lambda2)}, "
        f"ηρ {format_number(c.coupling)}, β_J = β + ηρ {format_number(c.beta_j)}, "
        f"κ = β_J/α {format_number(c.condition)}",
        f"  σ₁ {sigma1}; the largest is used",
        f"  σ₂ {sigma2}{format_number(c.sigma2)} along the run (Lemma 1, which is false, gives: {lemma})",
        *_describe_theorem1(analysis, facts),
        *_describe_theorem2(analysis, facts),
        *describe_delays(analysis),
        *describe_passing(analysis),
    ]
    reasons = analysis.list_violations()
    return [*lines, *(["Neither theorem applies: " + "; ".join(reasons) + "."] if reasons else [])]


def _describe_theorem1(analysis: RunAnalysis, facts: dict[str, Any]) -> list[str]:
    theorem, best, problem = analysis.theorem1, analysis.optimum, analysis.problem
    if theorem is None or best is None:
        why = (
            "the losses are not convex"
            if not problem.is_linear
            else "α = 0; set an l2 above zero for the model"
        )
        return [f"Theorem 1 does not apply: {why}."]
    (_, first_gap), (_, last_gap) = facts["gaps"][0], facts["gaps"][-1]
    largest = theorem.largest_step
    parts = {"p": theorem.p, "q": theorem.q, "C₁": theorem.c1, "C₂": theorem.c2}
    return [
        f"Theorem 1: μ̃ ≤ μ̃₁ = {format_number(largest)} ({_format_values(parts)}); "
        f"{_compare_step(analysis, largest)}",
        f"  valid from T = {format_number(theorem.least_rounds)} rounds; "
        f"J(W̃) − J* ≤ {format_number(facts['accuracy'])} after "
        f"{format_number(facts['rounds_for_accuracy'])} rounds of step "
        f"{format_number(facts['step_for_accuracy'])}",
        f"  bound on J(W̃) − J* after {facts['rounds']} rounds of step "
        f"{format_number(min(problem.step, largest))}: {format_number(facts['bound'])}",
        f"  measured: J* = {best.value:.8g} (‖∇J‖ there {best.residual:.1e} of that at zero), J(W) − J* from "
        f"{format_number(first_gap)} to {format_number(last_gap)}",
        f"  rate per round: {format_number(facts['rate'])} measured, "
        f"{format_number(facts['rate_of_theorem1'])} = μ̃τα/4 in the theorem's weights",
        *([f"  figure: {facts['picture']}"] if "picture" in facts else []),
    ]


def _describe_theorem2(analysis: RunAnalysis, facts: dict[str, Any]) -> list[str]:
    theorem = analysis.theorem2
    largest = theorem.largest_step
    parts = {"u": theorem.u, "v": theorem.v, "C₃": theorem.c3, "C₄": theorem.c4}
    measured = "" if facts["mean_slope"] is None else f"; measured: {format_number(facts['mean_slope'])}"
    place = _compare_step(analysis, largest)
    return [
        f"Theorem 2, given σ₂ along the run: μ̃ ≤ μ̃₂ = {format_number(largest)} ({_format_values(parts)}); "
        f"{place}",
        f"  bound on the mean of ‖∇J‖² over {facts['rounds']} rounds of step "
        f"{format_number(min(analysis.problem.step, largest))}: "
        f"{format_number(facts['mean_slope_bound'])}{measured}",
    ]


def describe_delays(analysis: RunAnalysis) -> list[str]:
    """Describe the theorem on late models, for a method without a server."""
    problem, theorem = analysis.problem, analysis.delays
    coupling = problem.algorithm.coupling
    if not isinstance(problem.algorithm, PeerAlgorithm):
        return []
    if theorem is None:
        reason = (
            coupling.explain_delays() or f"not covered, since α is {format_number(analysis.curvature.alpha)}"
        )
        return [f"Late models: {reason}."]
    if not theorem.holds:
        reason = coupling.explain_delays() or "local steps do not contract, since μ ≥ 2/β; lower lr"
        return [f"Late models: {reason}."]
    limit = "the fixed point of rounds without delays"
    limit = limit if problem.is_full_batch else f"a neighbourhood of {limit}"
    ages = [f"{_describe_decay(theorem.compute_rate(age))} with ages up to {age}" for age in AGES if age]
    losses = [
        f"{_describe_decay(theorem.compute_rate_at_losses(share))} with {share:.0%} of messages lost"
        for share in LOSSES
    ]
    return [
        f"Late models: μRηd = {format_number(theorem.product)} with the largest degree d = "
        f"{format_number(coupling.graph.largest_degree)}, below {format_number(theorem.largest_product)} = "
        f"(1 + 1/γ)/2 with γ = {format_number(theorem.contraction)} for local steps, so models "
        f"of any age lead to {limit}",
        f"  the distance decreases per round by at least {_describe_decay(theorem.compute_rate(0))} without "
        f"delays, {', '.join([*ages, *losses])}",
    ]


def describe_passing(analysis: RunAnalysis) -> list[str]:
    """Describe the expected step of a method that moves clients which are not sampled."""
    passing, problem, beta_j = analysis.passing, analysis.problem, analysis.constants.beta_j
    if not isinstance(problem.algorithm, Passing):
        return []
    if passing is None:
        return [
            f"Passing: the expected step is not computed for {problem.size:,} clients, as M would have "
            f"{problem.size:,}² entries; it is for up to {DENSE_UP_TO:,}."
        ]
    values, alpha = passing.symmetric_eigenvalues, analysis.curvature.alpha
    how = "over all cohorts" if passing.draws is None else f"estimated from {passing.draws} drawn cohorts"
    lines = [
        f"Passing: the expected step is −μ̃M∇J(W) to first order, {how}; FedU has M = S/N = "
        f"{format_number(passing.share)}",
        f"  a common gradient moves the mean model by {format_number(passing.common)} steps per round; "
        f"eigenvalues of M's symmetric part {format_number(float(values[0]))} to "
        f"{format_number(float(values[-1]))}",
    ]
    if passing.least <= 0:
        return [
            *lines,
            "  the smallest one is not positive, so some gradients make J rise; no rate is proved",
        ]
    largest = passing.find_largest_step(beta_j)
    step = min(problem.step, largest / 2)
    decrease = ""
    if alpha:
        share = format_number(passing.compute_decrease(step, alpha, beta_j))
        decrease = f", and at {format_number(step)} by at least the share {share}"
    return [
        *lines,
        f"  with R = 1, all rows and the pull from old models E[J − J*] decreases in every round for steps "
        f"below {format_number(largest)}{decrease}; {_compare_step(analysis, largest, 'and small enough')}",
    ]


def _describe_decay(rate: float) -> str:
    return f"{1 - rate:.2%}"


def _compare_step(analysis: RunAnalysis, largest: float, outcome: str | None = None) -> str:
    """Compare the run's step with a theorem's largest one; other assumptions may be violated.

    outcome: the words for a small enough step, by default whether the theorem applies.
    """
    step = analysis.problem.step
    if largest == 0:
        return "no step is small enough"
    if step <= largest:
        applies = "and small enough" if analysis.list_violations() else "so the theorem applies"
        return f"this run's step is {format_number(largest / step)} times smaller, {outcome or applies}"
    return f"this run's step is {format_number(step / largest)} times too large"


def _format_values(parts: dict[str, float]) -> str:
    return ", ".join(f"{name} {format_number(value)}" for name, value in parts.items())


def format_number(value: float | None) -> str:
    """Format a number with four digits, or None as a dash."""
    return "–" if value is None else f"{value:.4g}"
