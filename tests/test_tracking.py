"""Trackers write what they are told, to the last digit that their systems keep, and never end training."""

import importlib
import json
import re
import struct
import subprocess
import sys
import time
import warnings
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas
import pytest

import fedlap as fl
from fedlap.experiment import Experiment
from fedlap.report.score_file import write_scores
from fedlap.tracking import TRACKERS, Tracker, guarded, tracker_for
from fedlap.tracking.told import flat, values

NAMES = [field.name for field in fields(fl.Score) if field.name != "round"]
SETTINGS = Experiment.of({"model": {"name": "mlp", "hidden": [7]}, "rounds": 6}).described()


def made(round, **changes):
    """A score whose every number is its own and needs all digits of a float."""
    numbers = {name: 1 / (3 + place + 20 * round) for place, name in enumerate(NAMES)}
    whole = {"bytes_up": 2**40 + round, "bytes_down": 2**53 - round}
    return fl.Score(round, **{**numbers, "gap": None, **whole, **changes})


SCORES = [made(round) for round in range(1, 7)]


def told(tracker, scores, resumed=False, outcome="done", settings=SETTINGS):
    tracker.begin("fedu, seed 0", settings, resumed)
    for score in scores:
        tracker.score(score)
    tracker.end(outcome)


class Broken:
    """A tracker whose every method fails from some call on."""

    def __init__(self, after):
        self.calls, self.after = [], after

    def begin(self, name, settings, resumed):
        self._called("begin")

    def score(self, score):
        self._called(score.round)

    def end(self, outcome):
        self._called(outcome)

    def _called(self, what):
        self.calls.append(what)
        if len(self.calls) > self.after:
            raise OSError(28, "No space left\non device")


# What all have in common


def test_every_field_but_the_round_is_a_value_where_there_is_one():
    assert list(values(made(1, gap=0.25))) == NAMES
    assert set(NAMES) - set(values(SCORES[0])) == {"gap"}
    assert values(SCORES[2])["bytes_up"] == 2**40 + 3


def test_settings_become_flat_text_and_none_is_lost():
    assert flat({"a": {"b": {"c": 0.1}, "d": "x"}, "e": [1, 2], "f": True, "g": {}}) == {
        "a.b.c": "0.1", "a.d": "x", "e": "[1, 2]", "f": "true",
    }  # fmt: skip
    assert flat(SETTINGS)["model.hidden"] == "[7]"
    assert flat(SETTINGS)["algorithm.name"] == "fedu"


@pytest.mark.parametrize("after", range(9))
def test_a_tracker_that_fails_is_said_once_and_told_no_more(after):
    tracker, said = Broken(after), []
    told(guarded(tracker, said.append), SCORES)
    assert tracker.calls == ["begin", 1, 2, 3, 4, 5, 6, "done"][: after + 1]
    line = "note: Broken failed and is told no more, training goes on ([Errno 28] No space left on device)"
    assert said == [line] * (after < 8)


def test_a_long_reason_is_cut():
    class Wordy(Broken):
        def _called(self, what):
            raise RuntimeError("word " * 1000)

    said = []
    guarded(Wordy(0), said.append).end("done")
    assert len(said) == 1
    assert len(said[0]) < 300


def test_a_stop_by_hand_is_no_failure_of_a_tracker():
    class Stopped(Broken):
        def _called(self, what):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded(Stopped(0), pytest.fail).end("done")


def test_training_goes_on_without_a_tracker_that_fails(federation):
    tracker, said = Broken(2), []
    watched = guarded(tracker, said.append)
    result = fl.fit(fl.Local(), federation, fl.models.linear(), rounds=5, on_score=watched.score)
    assert tracker.calls == [1, 2, 3]
    assert [score.round for score in result.scores] == [1, 2, 3, 4, 5]
    assert len(said) == 1


def test_one_that_fails_does_not_silence_the_others(monkeypatch, tmp_path):
    trackers = {"tensorboard": Broken(1), "wandb": Broken(99)}
    for name, tracker in trackers.items():
        monkeypatch.setitem(TRACKERS, name, lambda folder, tracker=tracker: tracker)
    said = []
    told(tracker_for(["tensorboard", "wandb", "wandb"], tmp_path, said.append), SCORES)
    assert trackers["tensorboard"].calls == ["begin", 1]
    assert trackers["wandb"].calls == ["begin", 1, 2, 3, 4, 5, 6, "done"]
    assert len(said) == 1


def test_no_tracker_is_one_that_is_deaf(tmp_path):
    told(tracker_for([], tmp_path, pytest.fail), SCORES)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tracker_is_named(tmp_path):
    with pytest.raises(fl.InputError, match=r"^unknown tracker 'tensorbord'; did you mean 'tensorboard'\?$"):
        tracker_for(["tensorbord"], tmp_path, pytest.fail)


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_one_line(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, {"tensorboard": "torch.utils.tensorboard"}.get(name, name), None)
    line = f"--track {name} needs the package {name}; pip install 'fedlap[{name}]'"
    with pytest.raises(fl.InputError, match=f"^{re.escape(line)}$"):
        tracker_for([name], tmp_path, pytest.fail)


def test_nothing_of_theirs_is_loaded_before_it_is_asked_for():
    code = "import sys, fedlap.tracking; print({'tensorboard', 'wandb', 'mlflow'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


# TensorBoard


def events(folder):
    """What TensorBoard shows: (step, value) of each scalar, and the texts."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = EventAccumulator(str(folder / "tensorboard"))
    shown.Reload()
    scalars = {tag: [(e.step, e.value) for e in shown.Scalars(tag)] for tag in shown.Tags()["scalars"]}
    texts = {
        tag.removesuffix("/text_summary"): [
            (e.step, e.tensor_proto.string_val[0].decode()) for e in shown.Tensors(tag)
        ]
        for tag in shown.Tags()["tensors"]
    }
    return scalars, texts


def as_float32(scores):
    """The same numbers with the digits that TensorBoard keeps."""
    return {
        name: [(score.round, float(np.float32(values(score)[name]))) for score in scores]
        for name in values(scores[0])
    }


def test_tensorboard_shows_every_score(tmp_path):
    tracker = TRACKERS["tensorboard"](tmp_path)
    assert isinstance(tracker, Tracker)
    assert list(tmp_path.iterdir()) == []
    told(tracker, SCORES, outcome="diverged: in round 6")
    scalars, texts = events(tmp_path)
    assert scalars == as_float32(SCORES)
    assert json.loads(texts["settings"][0][1]) == {"name": "fedu, seed 0", **SETTINGS}
    assert texts["outcome"] == [(6, "diverged: in round 6")]


def test_tensorboard_has_a_score_as_soon_as_it_is_told(tmp_path):
    tracker = TRACKERS["tensorboard"](tmp_path)
    tracker.begin("x", SETTINGS, False)
    tracker.score(SCORES[0])
    assert events(tmp_path)[0] == as_float32(SCORES[:1])
    tracker.end("done")


def test_tensorboard_shows_a_round_that_is_scored_again_as_it_was_last(tmp_path):
    told(TRACKERS["tensorboard"](tmp_path), SCORES[:4], outcome="stopped")
    again = [replace(score, seconds=9.0 + score.round) for score in SCORES[2:]]
    told(TRACKERS["tensorboard"](tmp_path), again, resumed=True)
    scalars, texts = events(tmp_path)
    assert scalars == as_float32(SCORES[:2] + again)
    assert texts["outcome"][-1] == (6, "done")


def test_tensorboard_hides_a_run_that_is_repeated(tmp_path):
    told(TRACKERS["tensorboard"](tmp_path), SCORES)
    told(TRACKERS["tensorboard"](tmp_path), SCORES[:2])
    assert events(tmp_path)[0] == as_float32(SCORES[:2])


# Weights & Biases


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    package = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    yield package
    package.teardown()


def records(file):
    """What is in a file of an offline run: a log in blocks of 32 KiB, its records in one piece or several."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, piece = file.read_bytes(), 7, b""
    assert content[:4] == b":W&B"
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        piece += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            yield Record.FromString(piece)
            piece = b""


def offline(folder):
    """For each session: its id, settings, history as {step: values}, outcome and exit code."""
    sessions = []
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        history, summary, config, run, code = {}, {}, {}, None, None
        for record in records(file):
            kind = record.WhichOneof("record_type")
            if kind == "run" and run is None:
                run = record.run
                config = {item.key: json.loads(item.value_json) for item in run.config.update}
            elif kind == "history":
                row = {
                    item.key or ".".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
                own = {key: value for key, value in row.items() if not key.startswith("_")}
                history.setdefault(record.history.step.num, []).append(own)
            elif kind == "summary":
                summary |= {item.key: json.loads(item.value_json) for item in record.summary.update}
            elif kind == "exit":
                code = record.exit.exit_code
        sessions.append((run, config, history, summary.get("outcome"), code))
    return sessions


def rows(scores):
    return {score.round: [values(score)] for score in scores}


def test_wandb_has_every_score(wandb, tmp_path):
    folder = tmp_path / "digits's #1-fedu-0123456789abcdef"
    told(TRACKERS["wandb"](folder), SCORES, outcome="diverged: in round 6")
    ((run, config, history, outcome, code),) = offline(folder)
    assert (run.run_id, run.project) == ("digits-s--1-fedu-0123456789abcdef", "fedlap")
    assert run.display_name == "fedu, seed 0"
    assert {key: config[key] for key in SETTINGS} == SETTINGS
    assert history == rows(SCORES)
    assert (outcome, code) == ("diverged: in round 6", 1)


def test_wandb_has_runs_that_are_trained_together_apart(wandb, tmp_path):
    trackers = [TRACKERS["wandb"](tmp_path / name) for name in ("one", "two")]
    for tracker in trackers:
        tracker.begin("x", SETTINGS, False)
    for score in SCORES:
        trackers[score.round % 2].score(score)
    for tracker in trackers:
        tracker.end("done")
    histories = [offline(tmp_path / name)[0][2] for name in ("one", "two")]
    assert histories == [rows(SCORES[1::2]), rows(SCORES[::2])]


def test_wandb_goes_on_under_the_same_id(wandb, tmp_path):
    told(TRACKERS["wandb"](tmp_path / "run"), SCORES[:4], outcome="stopped")
    told(TRACKERS["wandb"](tmp_path / "run"), SCORES[2:], resumed=True)
    # Offline it cannot know what it has; each session is written in full.
    sessions = offline(tmp_path / "run")
    assert sorted(len(history) for _, _, history, _, _ in sessions) == [4, 4]
    assert {run.run_id for run, _, _, _, _ in sessions} == {"run"}
    assert {(outcome, code) for _, _, _, outcome, code in sessions} == {("stopped", 0), ("done", 0)}


def test_wandb_is_not_sent_a_round_that_it_has(wandb, tmp_path, monkeypatch):
    monkeypatch.setattr(wandb.Run, "step", 5)  # as a run that its server knows says
    told(TRACKERS["wandb"](tmp_path / "run"), SCORES, resumed=True)
    ((_, _, history, _, _),) = offline(tmp_path / "run")
    assert history == rows(SCORES[4:])


# MLflow


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


def kept(mlflow, folder, uri=None):
    """The runs of the experiment fedlap, each with its metrics as (step, value)."""
    client = mlflow.MlflowClient(uri or f"sqlite:///{folder / 'mlflow.db'}")
    runs = client.search_runs([client.get_experiment_by_name("fedlap").experiment_id])
    return [
        (
            run,
            {
                name: [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, name)]
                for name in run.data.metrics
            },
        )
        for run in runs
    ]


def metrics(scores):
    return {name: [(score.round, values(score)[name]) for score in scores] for name in values(scores[0])}


@pytest.mark.parametrize(
    ("outcome", "status"), [("done", "FINISHED"), ("stopped", "KILLED"), ("diverged: x", "FAILED")]
)
def test_mlflow_has_every_score(mlflow, tmp_path, outcome, status):
    told(TRACKERS["mlflow"](tmp_path), SCORES, outcome=outcome)
    ((run, found),) = kept(mlflow, tmp_path)
    assert found == metrics(SCORES)
    assert run.data.params == flat(SETTINGS)
    assert (run.info.run_name, run.info.status) == ("fedu, seed 0", status)
    assert run.data.tags["outcome"] == outcome
    assert (tmp_path / "mlflow-run").read_text().strip() == run.info.run_id


def test_mlflow_goes_on_with_the_same_run(mlflow, tmp_path):
    told(TRACKERS["mlflow"](tmp_path), SCORES[:4], outcome="stopped")
    again = [replace(score, seconds=9.0) for score in SCORES[2:]]
    told(TRACKERS["mlflow"](tmp_path), again, resumed=True, settings={**SETTINGS, "rounds": 9, "new": 1})
    ((run, found),) = kept(mlflow, tmp_path)
    assert found == metrics(SCORES[:4] + again[2:])
    assert run.data.params == flat(SETTINGS) | {"new": "1"}
    assert (run.info.status, run.data.tags["outcome"]) == ("FINISHED", "done")


def test_mlflow_begins_anew_when_a_run_is_repeated(mlflow, tmp_path):
    told(TRACKERS["mlflow"](tmp_path), SCORES)
    told(TRACKERS["mlflow"](tmp_path), SCORES[:1])
    assert sorted(len(found["loss"]) for _, found in kept(mlflow, tmp_path)) == [1, 6]


def test_mlflow_goes_where_it_is_told_to(mlflow, tmp_path, monkeypatch):
    uri = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    told(TRACKERS["mlflow"](tmp_path / "run"), SCORES)
    ((_, found),) = kept(mlflow, tmp_path, uri)
    assert found == metrics(SCORES)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mlflow-run"]


def test_mlflow_takes_many_settings(mlflow, tmp_path):
    many = {f"setting {number}": number for number in range(250)}
    told(TRACKERS["mlflow"](tmp_path), SCORES[:1], settings=many)
    ((run, _),) = kept(mlflow, tmp_path)
    assert run.data.params == flat(many)


def test_mlflow_that_cannot_be_reached_is_said(mlflow, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    said = []
    told(tracker_for(["mlflow"], tmp_path, said.append), SCORES)
    assert len(said) == 1
    assert said[0].startswith("note: Mlflow failed and is told no more, training goes on (")


# Tables for other programs


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".CSV"])
def test_scores_are_written_to_the_last_digit(suffix, tmp_path):
    file = tmp_path / f"scores{suffix}"
    scores = [*SCORES, made(7, gap=1e-300, accuracy=0.1 + 0.2)]
    write_scores(scores, file)
    frame = pandas.read_parquet(file) if suffix == ".parquet" else pandas.read_csv(file)
    assert list(frame.columns) == ["round", *NAMES]
    assert {name: str(kind) for name, kind in frame.dtypes.items() if kind == "int64"} == dict.fromkeys(
        ("round", "bytes_up", "bytes_down"), "int64"
    )
    read = [
        {name: None if pandas.isna(value) else value for name, value in row.items()}
        for row in frame.to_dict("records")
    ]
    assert read == [score.as_dict() for score in scores]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_run_without_scores_is_a_table_without_rows(suffix, tmp_path):
    write_scores([], tmp_path / f"scores{suffix}")
    read = pandas.read_csv if suffix == ".csv" else pandas.read_parquet
    frame = read(tmp_path / f"scores{suffix}")
    assert (len(frame), list(frame.columns)) == (0, ["round", *NAMES])


def test_what_was_never_measured_is_empty(tmp_path):
    scores = [made(1, accuracy=None, loss=None)]
    write_scores(scores, tmp_path / "scores.parquet")
    frame = pandas.read_parquet(tmp_path / "scores.parquet")
    assert str(frame["accuracy"].dtype) == "float64"
    write_scores(scores, tmp_path / "scores.csv")
    assert (tmp_path / "scores.csv").read_text().splitlines()[1].startswith("1,,")


def test_a_table_of_another_kind_is_refused(tmp_path):
    with pytest.raises(fl.InputError, match=r"scores.xlsx': scores are written as .csv or .parquet"):
        write_scores(SCORES, tmp_path / "scores.xlsx")
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_its_package_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(fl.InputError, match=r"needs pyarrow: pip install 'fedlap\[parquet\]', or .csv$"):
        write_scores(SCORES, tmp_path / "scores.parquet")
    assert list(tmp_path.iterdir()) == []


def test_the_readme_s_tracker_runs(tmp_path, monkeypatch, federation):
    monkeypatch.chdir(tmp_path)
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", readme, re.S) if "fedlap.tracking" in b)
    exec(block, {"fl": fl, "federation": federation})
    scalars, _ = events(tmp_path / "runs" / "mine")
    assert [step for step, _ in scalars["accuracy"]] == list(range(1, 101))


def test_a_run_of_the_command_line_is_tracked(call, tmp_path):
    """Every scored round of every run, also of those that go on."""
    words = ("compare", "--data", "synthetic", "--algorithms", "local,fedavg", "--seeds", "0,1", "--json")
    assert call(*words, "--rounds", "2", "--track", "tensorboard")[0] == 0
    time.sleep(1.1)  # TensorBoard reads files in the order of the seconds that name them
    code, _, err = call(*words, "--rounds", "4", "--track", "tensorboard, tensorboard")
    assert code == 0, err
    folders = [path.parent for path in (tmp_path / "runs").glob("*/experiment.toml")]
    assert len(folders) == 4
    for folder in folders:
        lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        scalars, _ = events(folder)
        tag = next(name for name in scalars if name.endswith("objective"))
        assert [step for step, _ in scalars[tag]] == [1, 2, 3, 4]
        assert [value for _, value in scalars[tag]] == pytest.approx([line["objective"] for line in lines])


def test_a_tracker_that_there_is_not_is_said_before_training(call, tmp_path):
    code, _, err = call("run", "--data", "synthetic", "--rounds", "1", "--track", "tensorbord")
    assert code == 2
    assert err.splitlines()[-1] == "error: unknown tracker 'tensorbord'; did you mean 'tensorboard'?"
    assert not list((tmp_path / "runs").glob("*/rounds.jsonl"))


@pytest.mark.parametrize("name", ["rounds.csv", "rounds.parquet"])
def test_the_scores_of_a_run_as_a_table(name, call, tmp_path):
    answer = json.loads(call("run", "--data", "synthetic", "--rounds", "3", "--json")[1])
    code, _, err = call("show", answer["folder"], "--to", str(tmp_path / name), out=False)
    assert code == 0, err
    read = pandas.read_csv if name.endswith("csv") else pandas.read_parquet
    frame = read(tmp_path / name)
    assert list(frame["round"]) == [1, 2, 3]
    assert frame["objective"].iloc[-1] == answer["last"]["objective"]
