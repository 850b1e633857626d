"""Reproduction: a recipe's methods tuned on training rows, trained over seeds, and written down."""

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
from fedlap.errors import InputError
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.outcomes import mean_clients, mean_curves, outcome
from fedlap.experiments.prepare import Loader
from fedlap.experiments.run_folder import environment
from fedlap.experiments.session import StoppedError
from fedlap.experiments.settings import Section
from fedlap.reproduce.cell_results import stored_for
from fedlap.reproduce.ledger import Ledger
from fedlap.reproduce.recipe import Unit
from fedlap.reproduce.search import Choice, Search
from fedlap.training import packing
from fedlap.training.fit import fit_all
from fedlap.training.loop import RoundEnd
from fedlap.training.packing import Sized

ROUND = 1e6  # what a round of a run takes beside its products, in numbers multiplied
MOST_ON_CPU = 60  # runs of a stack: what is lost when it is stopped stays small


@dataclass(frozen=True)
class Told:
    """Whom to tell how far it is: runs that are to be made, rounds of those at work, and whether to stop."""

    stack: Callable[[Unit, str, int], None] = lambda unit, stage, runs: None
    round: Callable[[int, int], None] = lambda done, rounds: None
    stopping: Callable[[], bool] = lambda: False


@dataclass(eq=False)
class Reproducer:
    """Makes rows of recipes; runs that the ledger knows are not made again.

    stored: values that methods were tuned to before, by the place and row of a unit and by seed.
    """

    ledger: Ledger
    seeds: Sequence[int]
    device: str = "cpu"
    stored: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    told: Told = Told()
    loader: Loader = field(default_factory=Loader)
    _chosen: dict[tuple[str, str], dict[int, Choice | InputError]] = field(default_factory=dict)

    def row(self, unit: Unit, beside: Sequence[Unit] = ()) -> dict[str, Any]:
        """Everything that is told of a method in a cell, as plain values.

        beside: rows that will be asked for, too; those that differ in settings alone are trained with it.
        """
        choices = self.choices(unit)
        refused = {seed: each for seed, each in choices.items() if isinstance(each, InputError)}
        made: dict[str, Any] = {
            "signature": unit.signature,
            "seeds": list(self.seeds),
            "grid": unit.grid(),
            "ladders": unit.ladders(),
            "folds": unit.recipe.folds,
            "tuning_rounds": unit.tuning_rounds,
        }
        if refused:
            products = [p for seed in refused if (p := self._product(unit, seed)) is not None]
            made |= {"refused": str(next(iter(refused.values()))), "refused_seeds": list(refused)}
            return made | ({"product": max(products)} if products else {})
        final = self._final(unit)
        more = [run for other in beside if unit.alike(other) for run in self._final(other).values()]
        outcomes = self._made(unit, "training", [*final.values(), *more])[: len(final)]
        made["choices"] = {
            str(seed): {"values": c.values, "by": c.by, "validation": c.validation, "refused": c.refused}
            for seed, c in choices.items()
            if isinstance(c, Choice)
        }
        made["last"] = [each.get("last") for each in outcomes]
        made["diverged"] = {
            str(seed): each["diverged"]
            for seed, each in zip(final, outcomes, strict=True)
            if "diverged" in each
        }
        finished = [each for each in outcomes if "last" in each]
        if finished:
            made["curves"] = mean_curves(finished)
            made["clients"] = mean_clients(finished)
            made |= {key: finished[0][key] for key in ("graph", "product") if key in finished[0]}
        seconds = sum(each["seconds"] for each in outcomes if "seconds" in each)
        made["training_seconds"] = round(seconds, 1)
        made |= {key: outcomes[0][key] for key in ("environment", "made") if key in outcomes[0]}
        return made

    def federation(self, unit: Unit) -> Federation:
        """The clients of a cell at the first seed."""
        return self.loader.load(self._at(unit.experiment(_first(unit)), self.seeds[0]))[0]

    def choices(self, unit: Unit) -> dict[int, Choice | InputError]:
        """The values for each seed, chosen by cross-validation on that seed's training rows alone."""
        key = (unit.place, unit.row)
        if key not in self._chosen:
            values = stored_for(unit, self.stored)
            known: dict[int, Choice | InputError] = {
                seed: Choice(values[str(seed)], "stored") for seed in self.seeds if str(seed) in values
            }
            rest = [seed for seed in self.seeds if seed not in known]
            known |= self._tuned(unit, rest) if rest else {}
            self._chosen[key] = {seed: known[seed] for seed in self.seeds}
        return self._chosen[key]

    def _tuned(self, unit: Unit, seeds: Sequence[int]) -> dict[int, Choice | InputError]:
        """Choose by the mean accuracy over folds, seed by seed; what is to be tried next is made at once."""
        searches = {
            seed: Search(unit.candidates(self._followed(unit, seed)), unit.ladders()) for seed in seeds
        }
        chosen: dict[int, Choice | InputError] = {}
        described: dict[str, Experiment | InputError] = {}
        while rest := [seed for seed in seeds if seed not in chosen]:
            tried: list[tuple[int, Section, list[Experiment]]] = []
            for seed in rest:
                search = searches[seed]
                accepted: list[tuple[Section, Experiment]] = []
                for values in search.wanted():
                    name = json.dumps(values)
                    if name not in described:
                        described[name] = _described(unit, values)
                    whole = described[name]
                    refusal = whole if isinstance(whole, InputError) else self._refusal(self._at(whole, seed))
                    if refusal is not None:
                        search.refuse(values, refusal)
                    elif isinstance(whole, Experiment):
                        accepted.append((values, whole))
                chosen |= _settled(unit, seed, search, accepted)
                if seed not in chosen:
                    tried += [(seed, values, self._folds(unit, whole, seed)) for values, whole in accepted]
            entries = iter(self._made(unit, "tuning", [run for _, _, runs in tried for run in runs]))
            for seed, values, runs in tried:
                searches[seed].add(values, _validation([next(entries) for _ in runs]))
        return chosen

    def _followed(self, unit: Unit, seed: int) -> Section:
        """Values that another row was tuned to."""
        made: Section = {}
        for setting, other in unit.recipe.rows[unit.row].follows.items():
            choice = self.choices(Unit(unit.recipe, unit.cell, unit.reading, other))[seed]
            if isinstance(choice, InputError):
                raise choice
            made[setting] = choice.values[setting]
        return made

    def _refusal(self, experiment: Experiment) -> InputError | None:
        """Why a run cannot be made, if it cannot."""
        self.loader.load(experiment)  # data that cannot be had are nobody's setting
        try:
            self.loader.trial(experiment)
        except InputError as error:
            return error
        return None

    def _product(self, unit: Unit, seed: int) -> float | None:
        """μRηρ of what was refused, where that is why."""
        (values,) = unit.candidates(self._followed(unit, seed))[:1]
        try:
            whole = unit.experiment({**values, "allow_unstable": True})
            trial, _ = self.loader.trial(self._at(whole, seed))
        except InputError:
            return None
        return trial.algorithm.coupling.product if isinstance(trial.algorithm, Coupled) else None

    def _final(self, unit: Unit) -> dict[int, Experiment]:
        """The runs with the values that were chosen; none where there are none for a seed."""
        choices = {seed: each for seed, each in self.choices(unit).items() if isinstance(each, Choice)}
        if len(choices) < len(self.seeds):
            return {}
        return {seed: self._at(unit.experiment(each.values), seed) for seed, each in choices.items()}

    def _at(self, experiment: Experiment, seed: int, **fields: Any) -> Experiment:
        return experiment.model_copy(update={"seed": seed, "device": self.device, **fields})

    def _folds(self, unit: Unit, whole: Experiment, seed: int) -> list[Experiment]:
        number, how = unit.recipe.folds, {"evaluate_every": 0, "rounds": unit.tuning_rounds}
        return [
            self._at(whole, seed, fold={"number": number, "held_out": held_out}, **how)
            for held_out in range(number)
        ]

    def _made(self, unit: Unit, stage: str, runs: Sequence[Experiment]) -> list[dict[str, Any]]:
        """What came out of each run, those that are missing made first, as few stacks as can be."""
        missing = [run for run in runs if self.ledger.entry(run) is None]
        trials = [self.loader.trial(run) for run in missing]
        sized = [
            Sized(trial, model, run.schedule) for (trial, model), run in zip(trials, missing, strict=True)
        ]
        most = MOST_ON_CPU if self.device == "cpu" else len(missing)
        for places in packing.stacks(sized):
            number = -(-len(places) // most)
            for part in np.array_split(places, number):
                self._stack(unit, stage, [missing[place] for place in part], [sized[place] for place in part])
        return [self.ledger.entry(run) or {} for run in runs]

    def _stack(self, unit: Unit, stage: str, runs: Sequence[Experiment], sized: Sequence[Sized]) -> None:
        """Train some runs side by side and write down what came out."""
        schedule, stopped = sized[0].schedule, False

        def on_round(moment: RoundEnd) -> None:
            nonlocal stopped
            self.told.round(moment.round, schedule.rounds)
            if self.told.stopping() and moment.round < schedule.rounds:
                stopped = True
                moment.stop()

        self.told.stack(unit, stage, len(runs))
        results = fit_all([each.trial for each in sized], schedule, on_round=on_round)
        if stopped:
            raise StoppedError(f"stopped; {self.ledger.path} has what was done before")
        about = {"environment": environment(schedule.placed()), "made": datetime.now(UTC).date().isoformat()}
        self.ledger.add(
            [
                (run, outcome(run, result) | (about if run.fold is None else {}))
                for run, result in zip(runs, results, strict=True)
            ]
        )


@dataclass(frozen=True)
class Weight:
    """About how much work a row is: of one round of one run, and how many of these there are."""

    a_round: float
    rounds: int

    @property
    def all(self) -> float:
        """Of all rounds of all runs."""
        return self.a_round * self.rounds


def weight(unit: Unit, seeds: Sequence[int], loader: Loader) -> Weight:
    """What a row weighs: numbers that are multiplied, and a little for every run and round."""
    experiment = unit.experiment(_first(unit)).model_copy(update={"seed": seeds[0]})
    federation, _ = loader.load(experiment)
    trial, model = loader.trial(experiment.model_copy(update={"sample": 1.0}))
    candidates = math.prod(len(values) for values in unit.grid().values())
    tuning = unit.recipe.folds * candidates * unit.tuning_rounds if candidates > 1 else 0
    work = LocalWork.of(trial.algorithm.local_steps, trial.algorithm.local_epochs)
    rows = len(federation.train.row) if work.epochs else len(federation.clients) * 20
    a_round = work.repeats * experiment.sample * rows * model.size + ROUND
    return Weight(a_round, len(seeds) * (tuning + experiment.rounds))


def _first(unit: Unit) -> Section:
    """Some values, where it does not matter which; a mixing that is always stable."""
    return unit.candidates(dict.fromkeys(unit.recipe.rows[unit.row].follows, 1e-9))[0]


def _described(unit: Unit, values: Section) -> Experiment | InputError:
    try:
        return unit.experiment(values)
    except InputError as error:
        return error


def _settled(
    unit: Unit, seed: int, search: Search, accepted: Sequence[tuple[Section, Experiment]]
) -> dict[int, Choice | InputError]:
    """The choice at a seed, where nothing is left to try for it."""
    if not search.scores and len(accepted) == 1:
        return {seed: Choice(accepted[0][0], "fixed", refused=len(search.refusals))}
    if accepted:
        return {}
    if search.choice is not None:
        return {seed: search.choice}
    if search.scores:
        return {seed: InputError(f"{unit.place}/{unit.row}: every candidate diverged at seed {seed}")}
    return {seed: search.refusals[0][1]}


def _validation(entries: Sequence[Mapping[str, Any]]) -> float:
    """Mean accuracy over folds; one in which training diverged counts as none."""
    return float(np.mean([entry.get("accuracy", -np.inf) for entry in entries]))
