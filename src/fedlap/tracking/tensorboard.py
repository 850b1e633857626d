"""Tracking with TensorBoard."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlap.tracking.metrics import import_package, list_metrics
from fedlap.training.scores import Score


class TensorBoard:
    """Event files under tensorboard/ in the run's folder; `tensorboard --logdir runs` shows all runs.

    A resumed run writes its first round into its events: TensorBoard hides earlier events from that round on
    and shows each round once, with its last score. A restarted run hides all earlier events. TensorBoard
    stores seven digits of a number; rounds.jsonl has all of them.
    """

    def __init__(self, folder: Path) -> None:
        self._create_writer = import_package(
            "tensorboard", "tensorboard", "torch.utils.tensorboard"
        ).SummaryWriter
        self._folder = folder / "tensorboard"
        self._writer: Any = None
        self._settings = ""
        self._round = 0

    def start_run(self, name: str, settings: Mapping[str, Any], resumed: bool) -> None:
        """Write the settings; a resumed run writes them with its first score, whose round is known then."""
        lines = json.dumps({"name": name, **settings}, indent=2, default=str).splitlines()
        self._settings = "\n".join(f"    {line}" for line in lines)  # four spaces mark code in Markdown
        if not resumed:
            self._open(0)

    def log_score(self, score: Score) -> None:
        """Write one scalar per metric and flush, so that a killed run loses none."""
        if self._writer is None:
            self._open(score.round)
        self._round = score.round
        for name, value in list_metrics(score).items():
            self._writer.add_scalar(name, value, score.round)
        self._writer.flush()

    def end_run(self, outcome: str) -> None:
        """Write the outcome and close the file."""
        if self._writer is not None:
            self._writer.add_text("outcome", outcome, self._round)
            self._writer.close()

    def _open(self, first: int) -> None:
        self._writer = self._create_writer(str(self._folder), purge_step=first)
        self._writer.add_text("settings", self._settings, 0)
        self._writer.flush()
