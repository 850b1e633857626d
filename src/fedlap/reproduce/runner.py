"""Reproduction of a recipe: tune every method on training rows, train it over seeds, record the outcome."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from fedlap.algorithms import Coupled
from fedlap.algorithms.local_work import LocalWork
from fedlap.data.federation import Federation
from fedlap.errors import InputError, StoppedError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.outcomes import average_clients, average_curves, summarise_run
from fedlap.experiments.prepare import Loader
from fedlap.experiments.run_folder import describe_environment
from fedlap.experiments.settings import Section
from fedlap.reproduce.cell_results import select_tuned_values
from fedlap.reproduce.ledger import Ledger
from fedlap.reproduce.recipe import Unit
from fedlap.reproduce.search import Choice, Search
from fedlap.training import packing
from fedlap.training.fit import fit_all
from fedlap.training.packing import SizedJob
from fedlap.training.recorder import RoundEnd

ROUND_OVERHEAD = 1e6  # the fixed cost of a round, in multiplications
MAX_RUNS_ON_CPU = 60  # per stack, so that an interruption loses little


@dataclass(frozen=True)
class ReproductionCallbacks:
    """Callbacks for progress: a stack of runs starts, a round ends, and whether to stop."""

    on_stack: Callable[[Unit, str, int], None] = lambda unit, stage, runs: None
    on_round: Callable[[int, int], None] = lambda done, rounds: None
    should_stop: Callable[[], bool] = lambda: False


@dataclass(eq=False)
class Reproducer:
    """Trains the rows of recipes; runs in the ledger are not repeated.

    stored: values of an earlier tuning, by the place and row of a unit and by seed.
    """

    ledger: Ledger
    seeds: Sequence[int]
    device: str = "cpu"
    stored: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    callbacks: ReproductionCallbacks = ReproductionCallbacks()
    loader: Loader = field(default_factory=Loader)
    _chosen: dict[tuple[str, str], dict[int, Choice | InputError]] = field(default_factory=dict)

    def run_row(self, unit: Unit, trained_along: Sequence[Unit] = ()) -> dict[str, Any]:
        """Tune and train a method in a cell and return its results as plain values.

        trained_along: rows that are trained next; those that follow the same row join the stack.
        """
        choices = self.choose_values(unit)
        refused = {seed: choice for seed, choice in choices.items() if isinstance(choice, InputError)}
        row: dict[str, Any] = {
            "signature": unit.signature,
            "seeds": list(self.seeds),
            "grid": unit.grid(),
            "ladders": unit.ladders(),
            "folds": unit.recipe.folds,
            "tuning_rounds": unit.tuning_rounds,
        }
        if refused:
            products = [
                p for seed in refused if (p := self._compute_stability_product(unit, seed)) is not None
            ]
            row |= {"refused": str(next(iter(refused.values()))), "refused_seeds": list(refused)}
            return row | ({"product": max(products)} if products else {})
        final = self._list_final_runs(unit)
        more = [
            run
            for other in trained_along
            if unit.follows_same_row(other)
            for run in self._list_final_runs(other).values()
        ]
        outcomes = self._train_missing(unit, "training", [*final.values(), *more])[: len(final)]
        row["choices"] = {
            str(seed): {"values": c.values, "by": c.by, "validation": c.validation, "refused": c.refused}
            for seed, c in choices.items()
            if isinstance(c, Choice)
        }
        row["last"] = [result.get("last") for result in outcomes]
        row["diverged"] = {
            str(seed): result["diverged"]
            for seed, result in zip(final, outcomes, strict=True)
            if "diverged" in result
        }
        finished = [result for result in outcomes if "last" in result]
        if finished:
            row["curves"] = average_curves(finished)
            row["clients"] = average_clients(finished)
            row |= {key: finished[0][key] for key in ("graph", "product") if key in finished[0]}
        seconds = sum(result["seconds"] for result in outcomes if "seconds" in result)
        row["training_seconds"] = round(seconds, 1)
        row |= {key: outcomes[0][key] for key in ("environment", "made") if key in outcomes[0]}
        return row

    def load_federation(self, unit: Unit) -> Federation:
        """Load the data of a cell at the first seed."""
        return self.loader.load(
            self._with_seed(unit.build_experiment(_choose_stable_values(unit)), self.seeds[0])
        )[0]

    def choose_values(self, unit: Unit) -> dict[int, Choice | InputError]:
        """Choose values per seed, by cross-validation on that seed's training rows alone."""
        key = (unit.place, unit.row)
        if key not in self._chosen:
            values = select_tuned_values(unit, self.stored)
            known: dict[int, Choice | InputError] = {
                seed: Choice(values[str(seed)], "stored") for seed in self.seeds if str(seed) in values
            }
            rest = [seed for seed in self.seeds if seed not in known]
            known |= self._tune(unit, rest) if rest else {}
            self._chosen[key] = {seed: known[seed] for seed in self.seeds}
        return self._chosen[key]

    def _tune(self, unit: Unit, seeds: Sequence[int]) -> dict[int, Choice | InputError]:
        """Choose values by mean validation accuracy per seed; all seeds' candidates are trained together."""
        searches = {
            seed: Search(unit.list_candidates(self._get_followed_values(unit, seed)), unit.ladders())
            for seed in seeds
        }
        chosen: dict[int, Choice | InputError] = {}
        described: dict[str, Experiment | InputError] = {}
        while rest := [seed for seed in seeds if seed not in chosen]:
            tried: list[tuple[int, Section, list[Experiment]]] = []
            for seed in rest:
                search = searches[seed]
                accepted: list[tuple[Section, Experiment]] = []
                for values in search.next_candidates():
                    name = json.dumps(values)
                    if name not in described:
                        described[name] = _try_experiment(unit, values)
                    whole = described[name]
                    refusal = (
                        whole
                        if isinstance(whole, InputError)
                        else self._find_refusal(self._with_seed(whole, seed))
                    )
                    if refusal is not None:
                        search.refuse(values, refusal)
                    elif isinstance(whole, Experiment):
                        accepted.append((values, whole))
                chosen |= _choose_if_finished(unit, seed, search, accepted)
                if seed not in chosen:
                    tried += [
                        (seed, values, self._list_fold_runs(unit, whole, seed)) for values, whole in accepted
                    ]
            entries = iter(self._train_missing(unit, "tuning", [run for _, _, runs in tried for run in runs]))
            for seed, values, runs in tried:
                searches[seed].add(values, _average_validation([next(entries) for _ in runs]))
        return chosen

    def _get_followed_values(self, unit: Unit, seed: int) -> Section:
        """Return the values that this row takes from the tuning of another row."""
        values: Section = {}
        for setting, other in unit.recipe.rows[unit.row].follows.items():
            choice = self.choose_values(Unit(unit.recipe, unit.cell, unit.reading, other))[seed]
            if isinstance(choice, InputError):
                raise choice
            values[setting] = choice.values[setting]
        return values

    def _find_refusal(self, experiment: Experiment) -> InputError | None:
        """Return why an experiment is invalid, or None."""
        self.loader.load(experiment)  # missing data are not the fault of a setting
        try:
            self.loader.build_job(experiment)
        except InputError as error:
            return error
        return None

    def _compute_stability_product(self, unit: Unit, seed: int) -> float | None:
        """Return μRηρ if mixing was refused as unstable."""
        (values,) = unit.list_candidates(self._get_followed_values(unit, seed))[:1]
        try:
            whole = unit.build_experiment({**values, "allow_unstable": True})
            job, _ = self.loader.build_job(self._with_seed(whole, seed))
        except InputError:
            return None
        return job.algorithm.coupling.product if isinstance(job.algorithm, Coupled) else None

    def _list_final_runs(self, unit: Unit) -> dict[int, Experiment]:
        """Return the final runs by seed; empty if a seed has no valid choice."""
        choices = {
            seed: choice for seed, choice in self.choose_values(unit).items() if isinstance(choice, Choice)
        }
        if len(choices) < len(self.seeds):
            return {}
        return {
            seed: self._with_seed(unit.build_experiment(choice.values), seed, score_training="always")
            for seed, choice in choices.items()
        }

    def _with_seed(self, experiment: Experiment, seed: int, **fields: Any) -> Experiment:
        return experiment.model_copy(update={"seed": seed, "device": self.device, **fields})

    def _list_fold_runs(self, unit: Unit, whole: Experiment, seed: int) -> list[Experiment]:
        number, how = unit.recipe.folds, {"evaluate_every": 0, "rounds": unit.tuning_rounds}
        return [
            self._with_seed(whole, seed, fold={"number": number, "held_out": held_out}, **how)
            for held_out in range(number)
        ]

    def _train_missing(self, unit: Unit, stage: str, runs: Sequence[Experiment]) -> list[dict[str, Any]]:
        """Train the runs that the ledger lacks, in as few stacks as possible; return all results."""
        missing = [run for run in runs if self.ledger.find_entry(run) is None]
        jobs = [self.loader.build_job(run) for run in missing]
        sized = [SizedJob(job, model, run.schedule) for (job, model), run in zip(jobs, missing, strict=True)]
        most = MAX_RUNS_ON_CPU if self.device == "cpu" else len(missing)
        for places in packing.pack_jobs(sized):
            number = -(-len(places) // most)
            for part in np.array_split(places, number):
                self._train_stack(
                    unit, stage, [missing[place] for place in part], [sized[place] for place in part]
                )
        return [self.ledger.find_entry(run) or {} for run in runs]

    def _train_stack(
        self, unit: Unit, stage: str, runs: Sequence[Experiment], sized: Sequence[SizedJob]
    ) -> None:
        """Train runs as one stack and add their results to the ledger."""
        schedule, stopped = sized[0].schedule, False

        def on_round(round_end: RoundEnd) -> None:
            nonlocal stopped
            self.callbacks.on_round(round_end.round, schedule.rounds)
            if self.callbacks.should_stop() and round_end.round < schedule.rounds:
                stopped = True
                round_end.stop()

        self.callbacks.on_stack(unit, stage, len(runs))
        results = fit_all([run.job for run in sized], schedule, on_round=on_round)
        if stopped:
            raise StoppedError(f"stopped; finished runs are in {self.ledger.path}")
        origin = {
            "environment": describe_environment(schedule.resolve_device()),
            "made": datetime.now(UTC).date().isoformat(),
        }
        self.ledger.add(
            [
                (run, summarise_run(run, result) | (origin if run.fold is None else {}))
                for run, result in zip(runs, results, strict=True)
            ]
        )


@dataclass(frozen=True)
class WorkEstimate:
    """An estimate of the work of a row: multiplications per round, and the number of rounds of all runs."""

    per_round: float
    rounds: int

    @property
    def total(self) -> float:
        """Work of all rounds of all runs."""
        return self.per_round * self.rounds


def estimate_work(unit: Unit, seeds: Sequence[int], loader: Loader) -> WorkEstimate:
    """Estimate the work of a row: multiplications, plus a fixed cost per run and round."""
    experiment = unit.build_experiment(_choose_stable_values(unit)).model_copy(update={"seed": seeds[0]})
    federation, _ = loader.load(experiment)
    job, model = loader.build_job(experiment.model_copy(update={"sample": 1.0}))
    candidates = math.prod(len(values) for values in unit.grid().values())
    tuning = unit.recipe.folds * candidates * unit.tuning_rounds if candidates > 1 else 0
    work = LocalWork.of(job.algorithm.local_steps, job.algorithm.local_epochs)
    rows = len(federation.train.row) if work.epochs else len(federation.clients) * 20
    per_round = work.repeats * experiment.sample * rows * model.size + ROUND_OVERHEAD
    return WorkEstimate(per_round, len(seeds) * (tuning + experiment.rounds))


def _choose_stable_values(unit: Unit) -> Section:
    """Return the first candidate, with a strength at which mixing is always stable."""
    return unit.list_candidates(dict.fromkeys(unit.recipe.rows[unit.row].follows, 1e-9))[0]


def _try_experiment(unit: Unit, values: Section) -> Experiment | InputError:
    try:
        return unit.build_experiment(values)
    except InputError as error:
        return error


def _choose_if_finished(
    unit: Unit, seed: int, search: Search, accepted: Sequence[tuple[Section, Experiment]]
) -> dict[int, Choice | InputError]:
    """Return the choice for a seed once no candidate is left to try; empty before."""
    if not search.scores and len(accepted) == 1:
        return {seed: Choice(accepted[0][0], "fixed", refused=len(search.refusals))}
    if accepted:
        return {}
    if search.choice is not None:
        return {seed: search.choice}
    if search.scores:
        return {seed: InputError(f"{unit.place}/{unit.row}: every candidate diverged at seed {seed}")}
    return {seed: search.refusals[0][1]}


def _average_validation(entries: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean accuracy over folds; −∞ if training diverged in one."""
    return float(np.mean([entry.get("accuracy", -np.inf) for entry in entries]))
