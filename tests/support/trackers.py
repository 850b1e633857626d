"""Scores and settings written by hand, and a helper that logs them to a tracker as one run."""

from dataclasses import fields

import fedlap as fl
from fedlap.experiments.experiment import Experiment

NAMES = [field.name for field in fields(fl.Score) if field.name != "round"]
SETTINGS = Experiment.of({"model": {"name": "mlp", "hidden": [7]}, "rounds": 6}).describe()


def make_score(round, **changes):
    """Return a score whose numbers all differ and need all digits of a float."""
    numbers = {name: 1 / (3 + place + 20 * round) for place, name in enumerate(NAMES)}
    whole = {"bytes_up": 2**40 + round, "bytes_down": 2**53 - round}
    return fl.Score(round, **{**numbers, "gap": None, **whole, **changes})


SCORES = [make_score(round) for round in range(1, 7)]


def log_run(tracker, scores, resumed=False, outcome="done", settings=SETTINGS):
    tracker.start_run("fedu, seed 0", settings, resumed)
    for score in scores:
        tracker.log_score(score)
    tracker.end_run(outcome)
