"""Scores and settings made by hand, and a run of them as a tracker is told of it."""

from dataclasses import fields

import fedlap as fl
from fedlap.experiments.experiment import Experiment

NAMES = [field.name for field in fields(fl.Score) if field.name != "round"]
SETTINGS = Experiment.of({"model": {"name": "mlp", "hidden": [7]}, "rounds": 6}).describe()


def made(round, **changes):
    """A score whose every number is its own and needs all digits of a float."""
    numbers = {name: 1 / (3 + place + 20 * round) for place, name in enumerate(NAMES)}
    whole = {"bytes_up": 2**40 + round, "bytes_down": 2**53 - round}
    return fl.Score(round, **{**numbers, "gap": None, **whole, **changes})


SCORES = [made(round) for round in range(1, 7)]


def told(tracker, scores, resumed=False, outcome="done", settings=SETTINGS):
    tracker.start_run("fedu, seed 0", settings, resumed)
    for score in scores:
        tracker.log_score(score)
    tracker.end_run(outcome)
