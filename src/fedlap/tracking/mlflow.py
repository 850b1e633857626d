"""MLflow."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlap.storage.files import read_text, write_file
from fedlap.tracking.values import flat, package, values
from fedlap.training.scores import Score

MOST = 100  # parameters that MLflow takes at once
STATUS = {"done": "FINISHED", "stopped": "KILLED"}


class Mlflow:
    """A run of MLflow, in the experiment fedlap or MLFLOW_EXPERIMENT_NAME.

    It is kept where MLflow is told to (MLFLOW_TRACKING_URI), else in the run's folder, in the database
    mlflow.db, since MLflow by now refuses plain folders. A run that goes on is the same run there: its id is
    in the folder, in mlflow-run. MLflow would show a round twice that is scored again, so that rounds which
    it has already are not sent: it shows them as they were scored first, which but for the seconds is the
    same. A parameter is never changed: a run that goes on for more rounds shows the number it began with.
    """

    def __init__(self, folder: Path) -> None:
        self._mlflow = package("mlflow", "mlflow")
        self._uri = None
        if not self._mlflow.is_tracking_uri_set():
            for name in ("sqlalchemy", "alembic"):
                package("mlflow", name)
            self._uri = f"sqlite:///{folder.absolute() / 'mlflow.db'}"
        self._id_file = folder / "mlflow-run"
        self._client: Any = None
        self._id = ""
        self._next = 0  # the first round that is to be sent

    def begin(self, name: str, settings: Mapping[str, Any], resumed: bool) -> None:
        """Begin a run, or go on with the one whose id is kept."""
        self._id_file.parent.mkdir(parents=True, exist_ok=True)
        self._client = self._mlflow.MlflowClient(self._uri)
        wanted, known = flat(settings), {}
        if resumed and self._id_file.exists():
            self._id = read_text(self._id_file).strip()
            known = self._client.get_run(self._id).data.params
            history = self._client.get_metric_history(self._id, "objective")  # which every score has
            self._next = max((each.step for each in history), default=-1) + 1
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._client.create_run(self._experiment(), run_name=name).info.run_id
            write_file(self._id_file, f"{self._id}\n".encode())
        params = [self._mlflow.entities.Param(key, wanted[key]) for key in wanted if key not in known]
        for start in range(0, len(params), MOST):
            self._client.log_batch(self._id, params=params[start : start + MOST])

    def score(self, score: Score) -> None:
        """One value of each metric."""
        if score.round < self._next:
            return
        now, metric = time.time_ns() // 1_000_000, self._mlflow.entities.Metric
        metrics = [metric(name, value, now, score.round) for name, value in values(score).items()]
        self._client.log_batch(self._id, metrics=metrics)

    def end(self, outcome: str) -> None:
        """Write how it ended."""
        self._client.set_tag(self._id, "outcome", outcome)
        self._client.set_terminated(self._id, STATUS.get(outcome, "FAILED"))

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedlap")
        found = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if found is None else found.experiment_id)
