"""TensorBoard."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlap.tracking.values import package, values
from fedlap.training.scores import Score


class TensorBoard:
    """Event files in the run's folder, under tensorboard/; `tensorboard --logdir runs` shows them all.

    A run that goes on from an earlier round says so in its events: TensorBoard hides what it had from that
    round on, and shows each round once, as it was scored last. A run that begins again hides all before.
    TensorBoard keeps seven digits of a number; rounds.jsonl has them all.
    """

    def __init__(self, folder: Path) -> None:
        self._make = package("tensorboard", "tensorboard", "torch.utils.tensorboard").SummaryWriter
        self._folder = folder / "tensorboard"
        self._writer: Any = None
        self._about = ""
        self._round = 0

    def begin(self, name: str, settings: Mapping[str, Any], resumed: bool) -> None:
        """Write the settings; where a run goes on, with its first score, which says from which round."""
        lines = json.dumps({"name": name, **settings}, indent=2, default=str).splitlines()
        self._about = "\n".join(f"    {line}" for line in lines)  # four blanks are code in Markdown
        if not resumed:
            self._open(0)

    def score(self, score: Score) -> None:
        """One scalar for each measure, on disk at once: a run that is killed has lost none."""
        if self._writer is None:
            self._open(score.round)
        self._round = score.round
        for name, value in values(score).items():
            self._writer.add_scalar(name, value, score.round)
        self._writer.flush()

    def end(self, outcome: str) -> None:
        """Write how it ended."""
        if self._writer is not None:
            self._writer.add_text("outcome", outcome, self._round)
            self._writer.close()

    def _open(self, first: int) -> None:
        self._writer = self._make(str(self._folder), purge_step=first)
        self._writer.add_text("settings", self._about, 0)
        self._writer.flush()
