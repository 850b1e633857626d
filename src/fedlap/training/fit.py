"""Training of one run, or of several as one stack."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from fedlap.errors import DivergedError, report_out_of_memory
from fedlap.training.assemble import open_training
from fedlap.training.jobs import Job
from fedlap.training.loop import train
from fedlap.training.recorder import Recorder, RoundEnd
from fedlap.training.result import Result
from fedlap.training.schedule import Schedule, use_precision
from fedlap.training.scores import Score
from fedlap.training.scoring_interval import choose_interval


@torch.no_grad()
def fit_all(
    jobs: Sequence[Job],
    schedule: Schedule,
    on_score: Callable[[int, Score], None] | None = None,
    on_round: Callable[[RoundEnd], None] | None = None,
) -> list[Result | DivergedError]:
    """Train several runs as one stack: one method and model, any seeds and real-valued settings.

    A diverged run returns its error; the other runs continue. `on_score` also receives the index of the run,
    `on_round` may read the progress of all runs or stop them. The seconds of a score are the run's share of
    the stack's time. An interval "auto" is chosen for the first run and used for all.
    """
    advice = "use a smaller batch or model, fewer clients per round (sample), or fewer runs at once"
    with (
        report_out_of_memory("fit", advice),
        use_precision(schedule.precision),
        _select_device(schedule.resolve_device()),
    ):
        schedule = replace(schedule, evaluate_every=choose_interval(jobs[0], schedule))
        with open_training(jobs, schedule) as training:
            recorder = Recorder(training.jobs, training.origins, schedule, on_score, on_round)
            server = train(training.method, training.engine, training.server, schedule, recorder)
            return training.collect_results(server, recorder)


def _select_device(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which CUDA streams and graphs are created on this device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
