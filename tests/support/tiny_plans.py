"""Tiny experiments that are planned and trained by the pieces that the command line uses."""

from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import prepare
from fedlap.experiments.session import CheckpointInterval, ProgressCallbacks, ResumePlan

DATA = {"name": "synthetic", "clients": 4, "features": 3, "rows": 8, "test_rows": 4}


def tiny(rounds, seeds=(0,), name="local", settings=({},), **more):
    """Experiments that are ready to be trained: one for each seed and each of the settings."""
    described = [
        {"data": DATA, "graph": {"name": "known"}, "rounds": rounds, "seed": seed, **more}
        | {"algorithm": {"name": name, **fields}}
        for seed in seeds
        for fields in settings
    ]
    return list(prepare(map(Experiment.of, described)))


def finish(plan, callbacks=None):
    """Train all that is left of a plan, saved after every round: outcomes by place."""
    return dict(plan.train(plan.pack(), callbacks or ProgressCallbacks(CheckpointInterval(rounds=1))))


def train(out, ready, **more):
    """Plan and train: the plan."""
    plan = ResumePlan.of(out, ready, **more)
    finish(plan)
    return plan
