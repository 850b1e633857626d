"""Tracking with MLflow."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlap.storage.files import read_text, write_file
from fedlap.tracking.metrics import flatten_settings, import_package, list_metrics
from fedlap.training.scores import Score

PARAMS_PER_REQUEST = 100  # the limit of MLflow
MLFLOW_STATUS = {"done": "FINISHED", "stopped": "KILLED"}


class Mlflow:
    """A run of MLflow, in the experiment fedlap or MLFLOW_EXPERIMENT_NAME.

    It is stored at MLFLOW_TRACKING_URI, else in the database mlflow.db in the run's folder, since MLflow no
    longer accepts plain folders. A resumed run is the same run in MLflow: its id is in the file mlflow-run in
    the folder. MLflow would show a round twice that is scored again, so rounds that it already has are not
    sent: it shows the first score, which differs from the second in the seconds only. MLflow parameters
    cannot change: a run that is resumed for more rounds shows its first number of rounds.
    """

    def __init__(self, folder: Path) -> None:
        self._mlflow = import_package("mlflow", "mlflow")
        self._uri = None
        if not self._mlflow.is_tracking_uri_set():
            for name in ("sqlalchemy", "alembic"):
                import_package("mlflow", name)
            self._uri = f"sqlite:///{folder.absolute() / 'mlflow.db'}"
        self._id_file = folder / "mlflow-run"
        self._client: Any = None
        self._id = ""
        self._next = 0  # the first round to send

    def start_run(self, name: str, settings: Mapping[str, Any], resumed: bool) -> None:
        """Start a run, or resume the one whose id is stored."""
        self._id_file.parent.mkdir(parents=True, exist_ok=True)
        self._client = self._mlflow.MlflowClient(self._uri)
        wanted, known = flatten_settings(settings), {}
        if resumed and self._id_file.exists():
            self._id = read_text(self._id_file).strip()
            known = self._client.get_run(self._id).data.params
            history = self._client.get_metric_history(self._id, "seconds")  # every score has it
            self._next = max((metric.step for metric in history), default=-1) + 1
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._client.create_run(self._experiment(), run_name=name).info.run_id
            write_file(self._id_file, f"{self._id}\n".encode())
        params = [self._mlflow.entities.Param(key, wanted[key]) for key in wanted if key not in known]
        for start in range(0, len(params), PARAMS_PER_REQUEST):
            self._client.log_batch(self._id, params=params[start : start + PARAMS_PER_REQUEST])

    def log_score(self, score: Score) -> None:
        """Log one value per metric."""
        if score.round < self._next:
            return
        now, metric = time.time_ns() // 1_000_000, self._mlflow.entities.Metric
        metrics = [metric(name, value, now, score.round) for name, value in list_metrics(score).items()]
        self._client.log_batch(self._id, metrics=metrics)

    def end_run(self, outcome: str) -> None:
        """Log the outcome and end the run."""
        self._client.set_tag(self._id, "outcome", outcome)
        self._client.set_terminated(self._id, MLFLOW_STATUS.get(outcome, "FAILED"))

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedlap")
        found = self._client.get_experiment_by_name(name)
        return str(self._client.create_experiment(name) if found is None else found.experiment_id)
