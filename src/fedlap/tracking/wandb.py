"""Tracking with Weights & Biases."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlap.tracking.metrics import import_package, list_metrics
from fedlap.training.scores import Score

LONGEST_RUN_ID = 64  # characters


class WeightsAndBiases:
    """A run of W&B whose id is the name of the run's folder; its files are under wandb/ in that folder.

    W&B's environment variables apply: WANDB_MODE=offline sends nothing, WANDB_PROJECT names the project
    (default fedlap). A resumed run is the same run in W&B. W&B accepts no step twice, so rounds that it
    already has are not sent again: it shows the first score, which differs from the second in the seconds
    only. Offline, each session is a separate folder with the same id and holds all rounds that it scored.
    Scores that W&B has not yet received when a run is killed are missing in W&B; rounds.jsonl has them.
    """

    def __init__(self, folder: Path) -> None:
        self._wandb = import_package("wandb", "wandb")
        self._folder = folder.absolute()
        self._run: Any = None
        self._next = 0  # the first round to send

    def start_run(self, name: str, settings: Mapping[str, Any], resumed: bool) -> None:
        """Start a run, or resume the one of this folder."""
        self._folder.mkdir(parents=True, exist_ok=True)  # else W&B would write to another folder
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedlap"),
            id=re.sub(r"[^A-Za-z0-9._-]", "-", self._folder.name)[-LONGEST_RUN_ID:],  # its end is a digest
            name=name,
            dir=str(self._folder),
            config=dict(settings),
            resume="allow" if resumed else None,
            reinit="create_new",  # several runs may train at once
            settings=self._wandb.Settings(console="off"),  # progress bars need not be stored
        )
        self._next = self._run.step if resumed else 0

    def log_score(self, score: Score) -> None:
        """Log one row of the history."""
        if score.round >= self._next:
            self._run.log(list_metrics(score), step=score.round, commit=True)

    def end_run(self, outcome: str) -> None:
        """Log the outcome and wait until everything is sent."""
        self._run.summary["outcome"] = outcome
        self._run.finish(exit_code=1 if outcome.startswith("diverged") else 0)
