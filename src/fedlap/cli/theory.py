"""The command that holds a run against the paper's theorems."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fedlap.cli import console
from fedlap.cli.output_files import check_output, files_of_experiment, files_of_run
from fedlap.cli.runs import OUT, RUN, named
from fedlap.cli.threads import use_threads
from fedlap.errors import InputError
from fedlap.experiments.prepare import prepared
from fedlap.experiments.run_folder import RunFolder
from fedlap.report.theory_figure import BoundPicture, draw_bound, rounds_on_axis
from fedlap.report.theory_text import in_words, number
from fedlap.storage.files import write_file
from fedlap.theory import (
    Problem,
    Study,
    Theorem1,
    Theorem2,
    Weighted,
    described,
    excess,
    rate,
    study,
    walk,
    weighted,
)
from fedlap.theory.problem import Stack
from fedlap.training.jobs import Job
from fedlap.training.schedule import Schedule

PICTURE = "bound.png"
SHARE = 0.01  # of J(W⁰) − J*: the accuracy that is asked for by default

Gaps = list[tuple[int, float]]


@dataclass(frozen=True)
class Seen:
    """What a run that was made again went through."""

    weighted: Gaps  # J(W̃) − J* at the rounds that were scored
    slopes: float  # the mean of ‖∇J‖² over its rounds
    excess: float  # the largest ‖∇F‖² − ‖∇J‖²


def theory(
    run: RUN,
    out: OUT = Path("runs"),
    accuracy: Annotated[
        float | None,
        typer.Option(help="J(W) − J* that rounds are predicted for (default: a hundredth of the first)."),
    ] = None,
    repeat: Annotated[
        bool, typer.Option("--repeat", help="Make the run again to follow W̃ and ∇J through all its rounds.")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads, as for run.", min=1)] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Hold a run of fedu or dfedu against both theorems: constants, step sizes, bounds, what was measured."""
    use_threads(threads)
    kept = named(run, out)
    if accuracy is not None and not 0 < accuracy < math.inf:
        raise InputError(f"--accuracy {accuracy:g}: it must be a number above zero")
    check_output(kept.folder / PICTURE, [*files_of_run(kept.folder), *files_of_experiment(kept.experiment)])
    problem, trial, schedule, last = opened(kept)
    made = study(problem, problem.start(trial.seed), {"last": last})
    seen = followed(made, trial, schedule, [score.round for score in kept.scores()]) if repeat else None
    if seen is not None:
        wider = max(made.constants.sigma2**2, seen.excess)
        made = replace(made, theorem2=Theorem2(replace(made.constants, sigma2=math.sqrt(wider))))
    said = {"run": kept.name, **described(made), **measured(made, kept, seen, accuracy)}
    if made.optimum is not None:
        write_file(kept.folder / PICTURE, draw_bound(pictured(made, said)))
        said["picture"] = str(kept.folder / PICTURE)
    if json_:
        print(json.dumps(finite(said)))
        return
    for line in in_words(made, said):
        console.result(line)


def opened(kept: RunFolder) -> tuple[Problem, Job, Schedule, Stack]:
    """A run's problem, the run itself, and the last models that were saved."""
    experiment = kept.experiment
    name = experiment.algorithm["name"]
    if name not in ("fedu", "dfedu"):
        raise InputError(
            f"theory: both theorems are about fedu and dfedu, and {kept.name} is a run of {name}"
        )
    if kept.state() == "diverged":
        raise InputError(
            f"theory: {kept.name} has diverged, so there is nothing to measure: {kept.failure()}"
        )
    found, remarks = kept.checkpoints()
    for remark in remarks:
        console.remark(f"note: {remark}")
    if not found or not kept.scores():
        raise InputError(f"theory: {kept.name} has nothing saved yet; `fedlap resume {kept.folder}` goes on")
    trial = next(iter(prepared([experiment]))).trial
    problem = Problem.of(
        trial.algorithm, trial.federation, trial.model, batch=experiment.batch, sample=experiment.sample
    )
    at = kept.progress(found[0])
    last = problem.algorithm.personal(at.server, at.private, problem.size).double().cpu()
    return problem, trial, replace(experiment.schedule, rounds=at.round), last


def followed(made: Study, trial: Job, schedule: Schedule, scored: Sequence[int]) -> Seen:
    """The run made again, for what only its whole path tells."""
    problem, best = made.problem, made.optimum
    mean = Weighted(made.theorem1.contraction(problem.step) if made.theorem1 else 0.0)
    at, slopes, most, gaps = set(scored), 0.0, 0.0, []

    def visit(done: int, W: Stack) -> None:
        nonlocal slopes, most
        if best is not None and done in at and mean.mean is not None:
            gaps.append((done, problem.objective(mean.mean) - best.value))
        if done < schedule.rounds:
            mean.add(W)
            slopes += float(problem.gradient(W).square().sum()) / schedule.rounds
        most = max(most, excess(problem, W))

    walk(problem, trial, schedule, visit)
    return Seen(gaps, slopes, most)


def measured(made: Study, kept: RunFolder, seen: Seen | None, accuracy: float | None) -> dict[str, Any]:
    """Gaps and rates, and what the theorems promise for them."""
    scores, problem, best = kept.scores(), made.problem, made.optimum
    done = scores[-1].round
    second = made.theorem2
    said: dict[str, Any] = {
        "rounds": done,
        "mean_slope": seen.slopes if seen else None,
        "mean_slope_bound": second.bound(min(problem.step, second.largest_step), done, made.fall),
        "first_objective": made.first,
    }
    if best is None or made.theorem1 is None or made.distance is None:
        return said
    gaps = [(0, made.first - best.value)] + [(s.round, s.objective - best.value) for s in scores]
    contraction = made.theorem1.contraction(problem.step)
    every = [at for at, _ in gaps] == list(range(done + 1))
    means = enumerate(weighted(contraction, [gap for _, gap in gaps]), 1)
    wanted = SHARE * gaps[0][1] if accuracy is None else accuracy
    step, needed = made.theorem1.plan(wanted, made.distance)
    return said | {
        "gaps": gaps,
        "weighted_gaps": list(means) if every else None,
        "gaps_of_weighted_iterate": seen.weighted if seen else None,
        "distance": made.distance,
        "rate": rate(*zip(*gaps, strict=True)),
        "rate_of_theorem1": -math.log1p(-contraction) if contraction < 1 else None,
        "bound": made.theorem1.bound(bound_step(made.theorem1, problem.step), done, made.distance),
        "accuracy": wanted,
        "step_for_accuracy": step,
        "rounds_for_accuracy": needed if math.isfinite(needed) else None,
    }


def bound_step(theorem: Theorem1, step: float) -> float:
    """The run's own step where it is within the theorem, or the largest that is."""
    return min(step, theorem.largest_step)


def pictured(made: Study, said: dict[str, Any]) -> BoundPicture:
    """Curves of a run that has a theorem."""
    theorem, distance = made.theorem1, made.distance
    assert theorem is not None
    assert distance is not None
    step = bound_step(theorem, made.problem.step)
    inside = step == made.problem.step
    own = "at this run's step" if inside else f"at the largest step it allows, {number(step)}"
    reach = max(said["rounds"], min(10 * theorem.least_rounds, 1e18)) if step else 0.0
    return BoundPicture(
        title=f"{said['run']}: step μ̃ = {made.problem.step:.3g}",
        measured=said["gaps"],
        weighted=said["gaps_of_weighted_iterate"] or said["weighted_gaps"] or [],
        weighted_of="measured J(W̃) − J*" if said["gaps_of_weighted_iterate"] else "measured, θ-weighted mean",
        bound=[(at, theorem.bound(step, at, distance)) for at in rounds_on_axis(reach)] if step else [],
        bound_of=f"Theorem 1's bound {own}",
        end=said["rounds"],
    )


def finite(value: Any) -> Any:
    """The same where a number without end is nothing, since JSON has none."""
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
