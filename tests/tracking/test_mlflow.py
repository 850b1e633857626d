"""MLflow has every score of a run, to the last digit; skipped where it is not installed."""

import importlib
import warnings
from dataclasses import replace

import pytest

from fedlap.tracking import TRACKERS, build_tracker
from fedlap.tracking.metrics import flatten_settings, list_metrics
from trackers import SCORES, SETTINGS, log_run


@pytest.fixture
def mlflow(monkeypatch):
    package = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    with warnings.catch_warnings():  # of what MLflow does with a newer SQLAlchemy, when it is loaded
        warnings.filterwarnings("ignore", "The ``noload`` loader strategy", DeprecationWarning)
        importlib.import_module("mlflow.store.tracking.sqlalchemy_store")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return package


def read_runs(mlflow, folder, uri=None):
    """Return the runs of the experiment fedlap, each with its metrics as (step, value)."""
    client = mlflow.MlflowClient(uri or f"sqlite:///{folder / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("fedlap").experiment_id])
    return [
        (
            run,
            {
                name: [
                    (metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)
                ]
                for name in run.data.metrics
            },
        )
        for run in runs
    ]


def metrics(scores):
    return {
        name: [(score.round, list_metrics(score)[name]) for score in scores]
        for name in list_metrics(scores[0])
    }


@pytest.mark.parametrize(
    ("outcome", "status"), [("done", "FINISHED"), ("stopped", "KILLED"), ("diverged: x", "FAILED")]
)
def test_mlflow_has_every_score(mlflow, tmp_path, outcome, status):
    log_run(TRACKERS["mlflow"](tmp_path), SCORES, outcome=outcome)
    ((run, found),) = read_runs(mlflow, tmp_path)
    assert found == metrics(SCORES)
    assert run.data.params == flatten_settings(SETTINGS)
    assert (run.info.run_name, run.info.status) == ("fedu, seed 0", status)
    assert run.data.tags["outcome"] == outcome
    assert (tmp_path / "mlflow-run").read_text().strip() == run.info.run_id


def test_mlflow_goes_on_with_the_same_run(mlflow, tmp_path):
    log_run(TRACKERS["mlflow"](tmp_path), SCORES[:4], outcome="stopped")
    again = [replace(score, seconds=9.0) for score in SCORES[2:]]
    log_run(TRACKERS["mlflow"](tmp_path), again, resumed=True, settings={**SETTINGS, "rounds": 9, "new": 1})
    ((run, found),) = read_runs(mlflow, tmp_path)
    assert found == metrics(SCORES[:4] + again[2:])
    assert run.data.params == flatten_settings(SETTINGS) | {"new": "1"}
    assert (run.info.status, run.data.tags["outcome"]) == ("FINISHED", "done")


def test_mlflow_begins_anew_when_a_run_is_repeated(mlflow, tmp_path):
    log_run(TRACKERS["mlflow"](tmp_path), SCORES)
    log_run(TRACKERS["mlflow"](tmp_path), SCORES[:1])
    assert sorted(len(found["loss"]) for _, found in read_runs(mlflow, tmp_path)) == [1, 6]


def test_mlflow_goes_where_it_is_told_to(mlflow, tmp_path, monkeypatch):
    uri = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    log_run(TRACKERS["mlflow"](tmp_path / "run"), SCORES)
    ((_, found),) = read_runs(mlflow, tmp_path, uri)
    assert found == metrics(SCORES)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mlflow-run"]


def test_mlflow_takes_many_settings(mlflow, tmp_path):
    many = {f"setting {number}": number for number in range(250)}
    log_run(TRACKERS["mlflow"](tmp_path), SCORES[:1], settings=many)
    ((run, _),) = read_runs(mlflow, tmp_path)
    assert run.data.params == flatten_settings(many)


def test_mlflow_that_cannot_be_reached_is_said(mlflow, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    remarks = []
    log_run(build_tracker(["mlflow"], tmp_path, remarks.append), SCORES)
    assert len(remarks) == 1
    assert remarks[0].startswith("note: Mlflow failed, training continues without it (")
