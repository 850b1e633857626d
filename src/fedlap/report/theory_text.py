"""What the theorems say of a run, in words."""

from typing import Any

from fedlap.theory import Study

ABOUT = {
    "exact": "exact: the loss is quadratic",
    "bound": "bounds over all W: α is l2, β half of the largest eigenvalue of a client's rows, and l2",
    "at a point": "eigenvalues of the Hessians there, but for directions that change no answer",
    "estimate": "by power iteration at a few points: no bound",
}


def in_words(made: Study, said: dict[str, Any]) -> list[str]:
    """Constants, both theorems, and what was measured, line by line."""
    problem, c = made.problem, made.constants
    rows = "all rows" if problem.full else f"{problem.clients.batch} rows"
    work = f"R = {problem.work.repeats} {'passes' if problem.work.epochs else 'steps'} on {rows}"
    names = {"optimum": "W*", "start": "W⁰", "last": "the last W"}
    sigma1 = ", ".join(f"{number(value)} at {names[at]}" for at, value in made.sigma1.items())
    sigma2 = "" if made.theorem1 is None else f"{number(made.theorem1.constants.sigma2)} = ‖∇F(W*)‖, "
    lemma = "none, since ηρ ≤ 2β" if made.lemma is None else number(made.lemma)
    bent, local = made.curvature, made.local
    shown = [
        f"{said['run']}: N = {problem.size}, S = {problem.sampled}, {work}, μ = {problem.algorithm.lr:g}, "
        f"μ̃ = μR = {problem.step:g}, η = {problem.strength:g}",
        f"  α {number(bent.alpha)}, β {number(bent.beta)} ({ABOUT[bent.origin]})",
    ]
    if local is not None and bent.origin != "exact":
        shown.append(f"  at W*: {number(local.alpha)} to {number(local.beta)} ({ABOUT[local.origin]})")
    shown += [
        f"  ρ {number(problem.graph.rho)}, λ₂ {number(problem.graph.lambda2)}, ηρ {number(c.coupling)}, "
        f"β_J = β + ηρ {number(c.beta_j)}, κ = β_J/α {number(c.condition)}",
        f"  σ₁ {sigma1}; the largest is used",
        f"  σ₂ {sigma2}{number(c.sigma2)} along the run (of Lemma 1, which is false: {lemma})",
        *_first(made, said),
        *_second(made, said),
    ]
    reasons = made.outside()
    return [*shown, *(["Outside both theorems in any case: " + "; ".join(reasons) + "."] if reasons else [])]


def _first(made: Study, said: dict[str, Any]) -> list[str]:
    theorem, best, problem = made.theorem1, made.optimum, made.problem
    if theorem is None or best is None:
        why = "the losses are not convex" if not problem.linear else "α = 0; give the model an l2 above zero"
        return [f"Theorem 1 does not hold here: {why}."]
    (_, begun), (_, ended) = said["gaps"][0], said["gaps"][-1]
    largest = theorem.largest_step
    parts = {"p": theorem.p, "q": theorem.q, "C₁": theorem.c1, "C₂": theorem.c2}
    return [
        f"Theorem 1: μ̃ ≤ μ̃₁ = {number(largest)} ({_listed(parts)}); {_place(problem.step, largest)}",
        f"  stated from T = {number(theorem.least_rounds)} rounds on; J(W̃) − J* ≤ {number(said['accuracy'])} "
        f"after {number(said['rounds_for_accuracy'])} rounds of step {number(said['step_for_accuracy'])}",
        f"  bound on J(W̃) − J* after {said['rounds']} rounds of step {number(min(problem.step, largest))}: "
        f"{number(said['bound'])}",
        f"  measured: J* = {best.value:.8g} (‖∇J‖ there {best.residual:.1e} of that at zero), J(W) − J* from "
        f"{number(begun)} to {number(ended)}",
        f"  rate a round: {number(said['rate'])} measured, {number(said['rate_of_theorem1'])} = μ̃τα/4 in the "
        "theorem's weights",
        *([f"  picture: {said['picture']}"] if "picture" in said else []),
    ]


def _second(made: Study, said: dict[str, Any]) -> list[str]:
    theorem = made.theorem2
    largest = theorem.largest_step
    parts = {"u": theorem.u, "v": theorem.v, "C₃": theorem.c3, "C₄": theorem.c4}
    seen = "" if said["mean_slope"] is None else f"; that of this run {number(said['mean_slope'])}"
    place = _place(made.problem.step, largest)
    return [
        f"Theorem 2, given σ₂ along the run: μ̃ ≤ μ̃₂ = {number(largest)} ({_listed(parts)}); {place}",
        f"  bound on the mean of ‖∇J‖² over {said['rounds']} rounds of step "
        f"{number(min(made.problem.step, largest))}: {number(said['mean_slope_bound'])}{seen}",
    ]


def _place(step: float, largest: float) -> str:
    if largest == 0:
        return "no step is small enough"
    if step <= largest:
        return f"this run's is within it, {number(largest / step)} times smaller"
    return f"this run's is {number(step / largest)} times too large"


def _listed(parts: dict[str, float]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in parts.items())


def number(value: float | None) -> str:
    """Four digits, or a dash."""
    return "–" if value is None else f"{value:.4g}"
