"""The interval between scores, chosen before training so that scoring takes less time than training.

The choice counts work and never reads a clock, so equal settings have equal scored rounds on every machine.
"""

from typing import Final

from fedlap.algorithms import Algorithm, Pooling, is_adapting
from fedlap.data.federation import Federation
from fedlap.models import Architecture
from fedlap.models.dense import DenseNetwork
from fedlap.training.jobs import Job, plan_local_work
from fedlap.training.schedule import AUTO_INTERVAL, Schedule, compute_sample_size

INTERVALS: Final = (1, 2, 5, 10, 20, 50, 100)
# Lower ends of the times that benchmarks/scoring.py measured on one thread: a row of a mini-batch takes as
# long as 1.5 scored rows, and a round has 5 million multiplications more of fixed cost than a scoring.
SCORED_ROWS_PER_TRAINED_ROW: Final = 1.5
ROUND_MULTIPLICATIONS: Final = 5e6
ROW_MULTIPLICATIONS: Final = 500  # of a scored row beyond those by parameters, which decide for small models
INTERVAL_RULE: Final = "so that scoring takes less time than training"


def choose_interval(job: Job, schedule: Schedule) -> int:
    """Return the rounds between scores: the number of the schedule, or a choice in place of "auto".

    The choice is the smallest of 1, 2, 5, 10, 20, 50 and 100 rounds whose training is estimated to take as
    long as one scoring, or 100. A trained row counts as 1.5 scored rows, and the fixed cost of a round as 5
    million multiplications more than that of a scoring if the model is linear or an MLP. The rounds of the
    schedule do not matter, so a run that is extended later has the same scored rounds from the beginning.
    """
    if schedule.evaluate_every != AUTO_INTERVAL:
        return schedule.evaluate_every
    scored = count_scored_rows(job.algorithm, job.federation, schedule)
    trained = count_trained_rows(job.algorithm, job.federation, schedule)
    fixed = estimate_fixed_rows(job.federation, job.model)
    return find_interval(scored, trained, fixed)


def find_interval(scored: float, trained: float, fixed: float = 0.0) -> int:
    """Return the smallest interval whose rounds cost as much as one scoring, or the largest interval.

    scored: rows per scoring. trained: rows of all mini-batches per round. fixed: the fixed cost of a round as
    a number of scored rows.
    """
    needed = scored / (SCORED_ROWS_PER_TRAINED_ROW * trained + fixed)
    return next((interval for interval in INTERVALS if interval >= needed), INTERVALS[-1])


def count_scored_rows(algorithm: Algorithm, federation: Federation, schedule: Schedule) -> float:
    """Return the rows per scoring; a client that adapts its model first trains on all its training rows."""
    train, test = (int(rows.count.sum()) for rows in (federation.train, federation.test))
    rows = float(test + (train if schedule.score_training == "always" else 0))
    return rows + (SCORED_ROWS_PER_TRAINED_ROW * train if is_adapting(algorithm) else 0.0)


def count_trained_rows(algorithm: Algorithm, federation: Federation, schedule: Schedule) -> float:
    """Return the mean number of rows in all mini-batches of a round."""
    sampled = compute_sample_size(algorithm, schedule.sample, len(federation.clients))
    work = plan_local_work(algorithm, sampled)
    rows = federation.train.count.double()
    if isinstance(algorithm, Pooling):  # one client owns all rows
        rows, sampled = rows.sum(0, keepdim=True), 1
    if not work.epochs and schedule.batch != "all":
        rows = rows.clamp_max(schedule.batch)
    return sampled * work.repeats * float(rows.mean())


def estimate_fixed_rows(federation: Federation, model: Architecture) -> float:
    """Return the fixed cost of a round as a number of scored rows.

    It is 0 unless the network is dense, since the multiplications per row of other networks are not known.
    """
    network = model.build(federation.inputs, federation.outputs)
    if not isinstance(network, DenseNetwork):
        return 0.0
    return ROUND_MULTIPLICATIONS / (ROW_MULTIPLICATIONS + network.size)
