"""The command that compares a run with the paper's theorems: theory."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedlap.algorithms import ALGORITHMS, Analysed
from fedlap.cli import console
from fedlap.cli.output_files import check_output, list_input_files, list_run_files
from fedlap.cli.threads import use_threads
from fedlap.errors import InputError
from fedlap.experiments.find_folder import find_run
from fedlap.experiments.prepare import prepare
from fedlap.experiments.run_folder import RunFolder
from fedlap.report.theory_figure import BoundFigure, choose_rounds, draw_bound
from fedlap.report.theory_text import describe_analysis, format_number
from fedlap.storage.files import write_file
from fedlap.theory import (
    LaplacianProblem,
    RunAnalysis,
    Theorem1,
    Theorem2,
    WeightedIterate,
    analyze_run,
    average_iterates,
    compute_gradient_excess,
    estimate_rate,
    replay_iterates,
    summarize_analysis,
)
from fedlap.theory.problem import DoubleStack
from fedlap.training.jobs import Job
from fedlap.training.schedule import Schedule
from fedlap.training.state import match_devices

FIGURE = "bound.png"
ACCURACY_SHARE = 0.01  # of J(W⁰) − J*: the default accuracy

Gaps = list[tuple[int, float]]


@dataclass(frozen=True)
class PathMeasurements:
    """Measurements in every round of a repeated run."""

    gaps: Gaps  # J(W) − J* at the scored rounds
    weighted_gaps: Gaps  # J(W̃) − J* at the scored rounds
    mean_square: float  # the mean of ‖∇J‖² over its rounds
    excess: float  # the largest ‖∇F‖² − ‖∇J‖²


def compare_with_theorems(
    run: Path, out: Path, accuracy: float | None, repeat: bool, threads: int | None, json_: bool
) -> None:
    """Compare a run of fedu or dfedu with the theorems."""
    use_threads(threads)
    stored = find_run(run, out)
    stored.experiment.check_named("compared with the theorems")
    if accuracy is not None and not 0 < accuracy < math.inf:
        raise InputError(f"--accuracy {accuracy:g}: expected a finite number above zero")
    check_output(
        stored.folder / FIGURE, [*list_run_files(stored.folder), *list_input_files(stored.experiment)]
    )
    problem, job, schedule, last = load_problem(stored)
    result = analyze_run(problem, problem.initial_models(job.seed), {"last": last})
    replay = (
        replay_run(result, job, schedule, [score.round for score in stored.read_scores()]) if repeat else None
    )
    if replay is not None:
        wider = max(result.constants.sigma2**2, replay.excess)
        result = replace(result, theorem2=Theorem2(replace(result.constants, sigma2=math.sqrt(wider))))
    facts = {
        "run": stored.name,
        **summarize_analysis(result),
        **measure_gaps(result, stored, replay, accuracy),
    }
    if result.optimum is not None:
        write_file(stored.folder / FIGURE, draw_bound(build_bound_figure(result, facts)))
        facts["picture"] = str(stored.folder / FIGURE)
    if json_:
        print(json.dumps(remove_infinities(facts)))
        return
    for line in describe_analysis(result, facts):
        console.print_result(line)


def load_problem(stored: RunFolder) -> tuple[LaplacianProblem, Job, Schedule, DoubleStack]:
    """Return a run's problem, its job and schedule, and the models of its last checkpoint."""
    experiment = stored.experiment
    name = experiment.algorithm["name"]
    covered = [known for known, method in ALGORITHMS.items() if issubclass(method, Analysed)]
    if name not in covered:
        raise InputError(f"theory: {stored.name} is a run of {name}; use a run of {' or '.join(covered)}")
    if stored.get_status() == "diverged":
        raise InputError(
            f"theory: {stored.name} has diverged; use a run that converged ({stored.read_failure()})"
        )
    found, remarks = stored.read_checkpoints()
    for remark in remarks:
        console.print_remark(f"note: {remark}")
    if not found or not stored.read_scores():
        raise InputError(
            f"theory: {stored.name} has no checkpoint yet; train it with `fedlap resume {stored.folder}`"
        )
    job = next(iter(prepare([experiment]))).job
    problem = LaplacianProblem.of(
        job.algorithm, job.federation, job.model, batch=experiment.batch, sample=experiment.sample
    )
    at = stored.load_progress(found[0])
    start, counts = problem.initial_models(job.seed), problem.clients.train.count
    like = problem.algorithm.init_server(start), problem.algorithm.init_clients(start, counts)
    server, private = match_devices((at.server, at.private), like)  # checkpoints have plain tuples
    last = problem.algorithm.personal_models(server, private, problem.size).double().cpu()
    return problem, job, replace(experiment.schedule, rounds=at.round), last


def replay_run(result: RunAnalysis, job: Job, schedule: Schedule, scored: Sequence[int]) -> PathMeasurements:
    """Repeat the run and measure its gradients and its weighted iterate in every round."""
    problem, best = result.problem, result.optimum
    mean = WeightedIterate(result.theorem1.contraction(problem.step) if result.theorem1 else 0.0)
    wanted, mean_square, largest = set(scored), 0.0, 0.0
    gaps: Gaps = []
    weighted_gaps: Gaps = []

    def visit(done: int, W: DoubleStack) -> None:
        nonlocal mean_square, largest
        if best is not None and done in wanted and mean.mean is not None:
            gaps.append((done, problem.objective(W) - best.value))
            weighted_gaps.append((done, problem.objective(mean.mean) - best.value))
        if done < schedule.rounds:
            mean.add(W)
            mean_square += float(problem.gradient(W).square().sum()) / schedule.rounds
        largest = max(largest, compute_gradient_excess(problem, W))

    replay_iterates(problem, job, schedule, visit)
    return PathMeasurements(gaps, weighted_gaps, mean_square, largest)


def measure_gaps(
    result: RunAnalysis, stored: RunFolder, replay: PathMeasurements | None, accuracy: float | None
) -> dict[str, Any]:
    """Return measured gaps and rates, with the bounds of the theorems."""
    scores, problem, best = stored.read_scores(), result.problem, result.optimum
    done = scores[-1].round
    second = result.theorem2
    facts: dict[str, Any] = {
        "rounds": done,
        "mean_slope": replay.mean_square if replay else None,
        "mean_slope_bound": second.bound(min(problem.step, second.largest_step), done, result.objective_gap),
        "first_objective": result.start_objective,
    }
    if best is None or result.theorem1 is None or result.distance is None:
        return facts
    gaps = [(0, result.start_objective - best.value)]
    gaps += [(s.round, s.objective - best.value) for s in scores if s.objective is not None]
    if len(gaps) <= len(scores):  # training rows were scored in the last round only
        if replay is None:
            raise InputError(
                f"theory: {stored.name} has J(W) of its last round only; pass --repeat to measure it in all "
                "scored rounds, or train with --score-training always"
            )
        gaps[1:] = replay.gaps
    contraction = result.theorem1.contraction(problem.step)
    every = [at for at, _ in gaps] == list(range(done + 1))
    means = enumerate(average_iterates(contraction, [gap for _, gap in gaps]), 1)
    wanted = ACCURACY_SHARE * gaps[0][1] if accuracy is None else accuracy
    step, needed = result.theorem1.plan(wanted, result.distance)
    return facts | {
        "gaps": gaps,
        "weighted_gaps": list(means) if every else None,
        "gaps_of_weighted_iterate": replay.weighted_gaps if replay else None,
        "distance": result.distance,
        "rate": estimate_rate(*zip(*gaps, strict=True)),
        "rate_of_theorem1": -math.log1p(-contraction) if contraction < 1 else None,
        "bound": result.theorem1.bound(
            choose_bound_step(result.theorem1, problem.step), done, result.distance
        ),
        "accuracy": wanted,
        "step_for_accuracy": step,
        "rounds_for_accuracy": needed if math.isfinite(needed) else None,
    }


def choose_bound_step(theorem: Theorem1, step: float) -> float:
    """Return the run's step if the theorem allows it, else the largest step that it allows."""
    return min(step, theorem.largest_step)


def build_bound_figure(result: RunAnalysis, facts: dict[str, Any]) -> BoundFigure:
    """Return the figure of a run that Theorem 1 covers."""
    theorem, distance = result.theorem1, result.distance
    assert theorem is not None
    assert distance is not None
    step = choose_bound_step(theorem, result.problem.step)
    inside = step == result.problem.step
    which = "at this run's step" if inside else f"at the largest step it allows, {format_number(step)}"
    reach = max(facts["rounds"], min(10 * theorem.least_rounds, 1e18)) if step else 0.0
    return BoundFigure(
        title=f"{facts['run']}: step μ̃ = {result.problem.step:.3g}",
        measured=facts["gaps"],
        weighted=facts["gaps_of_weighted_iterate"] or facts["weighted_gaps"] or [],
        weighted_label="measured J(W̃) − J*"
        if facts["gaps_of_weighted_iterate"]
        else "measured, θ-weighted mean",
        bound=[(at, theorem.bound(step, at, distance)) for at in choose_rounds(reach)] if step else [],
        bound_label=f"Theorem 1's bound {which}",
        end=facts["rounds"],
    )


def remove_infinities(value: Any) -> Any:
    """Replace infinities and NaN by None, since JSON has neither."""
    if isinstance(value, dict):
        return {name: remove_infinities(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [remove_infinities(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
