"""Weights & Biases."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlap.tracking.values import package, values
from fedlap.training.scores import Score

LONGEST = 64  # characters of a run's id


class WeightsAndBiases:
    """A run of W&B whose id is the name of the run's folder; its files are there under wandb/.

    Its own variables hold: WANDB_MODE=offline sends nothing anywhere, WANDB_PROJECT names the project (if not
    set, fedlap). A run that goes on is the same run there. W&B takes no step twice, so that rounds which it
    has already are not sent again: it shows them as they were scored first, which but for the seconds is the
    same. Offline, each session is a folder of its own with the same id, and has all rounds that it scored.
    What W&B has not yet taken when a run is killed is missing there; rounds.jsonl has it.
    """

    def __init__(self, folder: Path) -> None:
        self._wandb = package("wandb", "wandb")
        self._folder = folder.absolute()
        self._run: Any = None
        self._next = 0  # the first round that is to be sent

    def begin(self, name: str, settings: Mapping[str, Any], resumed: bool) -> None:
        """Begin a run, or go on with that of this folder."""
        self._folder.mkdir(parents=True, exist_ok=True)  # W&B would write elsewhere
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedlap"),
            id=re.sub(r"[^A-Za-z0-9._-]", "-", self._folder.name)[-LONGEST:],  # the digest is at the end
            name=name,
            dir=str(self._folder),
            config=dict(settings),
            resume="allow" if resumed else None,
            reinit="create_new",  # several may be trained together
            settings=self._wandb.Settings(console="off"),  # progress bars are not worth keeping
        )
        self._next = self._run.step if resumed else 0

    def score(self, score: Score) -> None:
        """One row of its history."""
        if score.round >= self._next:
            self._run.log(values(score), step=score.round, commit=True)

    def end(self, outcome: str) -> None:
        """Write how it ended, and wait until everything is sent."""
        self._run.summary["outcome"] = outcome
        self._run.finish(exit_code=1 if outcome.startswith("diverged") else 0)
