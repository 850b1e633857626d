"""Trackers never end training, and TensorBoard shows the logged values, to the last digit that it stores."""

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedlap as fl
from fedlap.tracking import TRACKERS, SafeTracker, Tracker, build_tracker
from fedlap.tracking.metrics import flatten_settings, list_metrics
from trackers import NAMES, SCORES, SETTINGS, log_run, make_score


class Broken:
    """A tracker whose every method fails from some call on."""

    def __init__(self, after):
        self.calls, self.after = [], after

    def start_run(self, name, settings, resumed):
        self._record_call("start")

    def log_score(self, score):
        self._record_call(score.round)

    def end_run(self, outcome):
        self._record_call(outcome)

    def _record_call(self, what):
        self.calls.append(what)
        if len(self.calls) > self.after:
            raise OSError(28, "No space left\non device")


# What all have in common


def test_every_field_but_the_round_is_a_value_where_there_is_one():
    assert list(list_metrics(make_score(1, gap=0.25))) == NAMES
    assert set(NAMES) - set(list_metrics(SCORES[0])) == {"gap"}
    assert list_metrics(SCORES[2])["bytes_up"] == 2**40 + 3


def test_settings_become_flat_text_and_none_is_lost():
    assert flatten_settings({"a": {"b": {"c": 0.1}, "d": "x"}, "e": [1, 2], "f": True, "g": {}}) == {
        "a.b.c": "0.1", "a.d": "x", "e": "[1, 2]", "f": "true",
    }  # fmt: skip
    assert flatten_settings(SETTINGS)["model.hidden"] == "[7]"
    assert flatten_settings(SETTINGS)["algorithm.name"] == "fedu"


@pytest.mark.parametrize("after", range(9))
def test_a_tracker_that_fails_is_said_once_and_told_no_more(after):
    tracker, remarks = Broken(after), []
    log_run(SafeTracker(tracker, remarks.append), SCORES)
    assert tracker.calls == ["start", 1, 2, 3, 4, 5, 6, "done"][: after + 1]
    line = "note: Broken failed, training continues without it ([Errno 28] No space left on device)"
    assert remarks == [line] * (after < 8)


def test_a_long_reason_is_cut():
    class Wordy(Broken):
        def _record_call(self, what):
            raise RuntimeError("word " * 1000)

    remarks = []
    SafeTracker(Wordy(0), remarks.append).end_run("done")
    assert len(remarks) == 1
    assert len(remarks[0]) < 300


def test_a_stop_by_hand_is_no_failure_of_a_tracker():
    class Stopped(Broken):
        def _record_call(self, what):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SafeTracker(Stopped(0), pytest.fail).end_run("done")


def test_training_goes_on_without_a_tracker_that_fails(federation):
    tracker, remarks = Broken(2), []
    watched = SafeTracker(tracker, remarks.append)
    result = fl.fit(fl.Local(), federation, fl.models.linear(), rounds=5, on_score=watched.log_score)
    assert tracker.calls == [1, 2, 3]
    assert [score.round for score in result.scores] == [1, 2, 3, 4, 5]
    assert len(remarks) == 1


def test_one_that_fails_does_not_silence_the_others(monkeypatch, tmp_path):
    trackers = {"tensorboard": Broken(1), "wandb": Broken(99)}
    for name, tracker in trackers.items():
        monkeypatch.setitem(TRACKERS, name, lambda folder, tracker=tracker: tracker)
    remarks = []
    log_run(build_tracker(["tensorboard", "wandb", "wandb"], tmp_path, remarks.append), SCORES)
    assert trackers["tensorboard"].calls == ["start", 1]
    assert trackers["wandb"].calls == ["start", 1, 2, 3, 4, 5, 6, "done"]
    assert len(remarks) == 1


def test_no_tracker_is_one_that_is_deaf(tmp_path):
    log_run(build_tracker([], tmp_path, pytest.fail), SCORES)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tracker_is_named(tmp_path):
    with pytest.raises(fl.InputError, match=r"^unknown tracker 'tensorbord'; did you mean 'tensorboard'\?$"):
        build_tracker(["tensorbord"], tmp_path, pytest.fail)


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_one_line(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, {"tensorboard": "torch.utils.tensorboard"}.get(name, name), None)
    line = f"--track {name} needs the package {name}; run pip install 'fedlap[{name}]'"
    with pytest.raises(fl.InputError, match=f"^{re.escape(line)}$"):
        build_tracker([name], tmp_path, pytest.fail)


def test_nothing_of_theirs_is_loaded_before_it_is_asked_for():
    code = "import sys, fedlap.tracking; print({'tensorboard', 'wandb', 'mlflow'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


# TensorBoard


def events(folder):
    """Return TensorBoard's (step, value) of each scalar, and its texts."""
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
        name: [(score.round, float(np.float32(list_metrics(score)[name]))) for score in scores]
        for name in list_metrics(scores[0])
    }


def test_tensorboard_shows_every_score(tmp_path):
    tracker = TRACKERS["tensorboard"](tmp_path)
    assert isinstance(tracker, Tracker)
    assert list(tmp_path.iterdir()) == []
    log_run(tracker, SCORES, outcome="diverged: in round 6")
    scalars, texts = events(tmp_path)
    assert scalars == as_float32(SCORES)
    assert json.loads(texts["settings"][0][1]) == {"name": "fedu, seed 0", **SETTINGS}
    assert texts["outcome"] == [(6, "diverged: in round 6")]


def test_tensorboard_has_a_score_as_soon_as_it_is_told(tmp_path):
    tracker = TRACKERS["tensorboard"](tmp_path)
    tracker.start_run("x", SETTINGS, False)
    tracker.log_score(SCORES[0])
    assert events(tmp_path)[0] == as_float32(SCORES[:1])
    tracker.end_run("done")


def test_tensorboard_shows_a_round_that_is_scored_again_as_it_was_last(tmp_path):
    log_run(TRACKERS["tensorboard"](tmp_path), SCORES[:4], outcome="stopped")
    again = [replace(score, seconds=9.0 + score.round) for score in SCORES[2:]]
    log_run(TRACKERS["tensorboard"](tmp_path), again, resumed=True)
    scalars, texts = events(tmp_path)
    assert scalars == as_float32(SCORES[:2] + again)
    assert texts["outcome"][-1] == (6, "done")


def test_tensorboard_hides_a_run_that_is_repeated(tmp_path):
    log_run(TRACKERS["tensorboard"](tmp_path), SCORES)
    log_run(TRACKERS["tensorboard"](tmp_path), SCORES[:2])
    assert events(tmp_path)[0] == as_float32(SCORES[:2])


def test_the_documented_tracker_runs(tmp_path, monkeypatch, federation):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "howto" / "tracking.md").read_text()
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "fedlap.tracking" in b)
    exec(block, {"fl": fl, "federation": federation})
    scalars, _ = events(tmp_path / "runs" / "mine")
    assert [step for step, _ in scalars["accuracy"]] == list(range(1, 101))


@pytest.mark.slow
def test_a_run_of_the_command_line_is_tracked(call, tmp_path):
    """Every scored round of every run is logged, also of resumed runs."""
    words = ("compare", "--data", "synthetic", "--algorithms", "local,fedavg", "--seeds", "0,1", "--json")
    words += ("--score-training", "always")
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


def test_rounds_whose_training_rows_are_not_scored_log_the_rest(call, tmp_path):
    words = ("run", "--data", "synthetic", "--rounds", "3", "--track", "tensorboard")
    assert call(*words)[0] == 0
    (folder,) = (tmp_path / "runs").iterdir()
    scalars, _ = events(folder)
    steps = {name.split("/")[-1]: [step for step, _ in values] for name, values in scalars.items()}
    assert steps["objective"] == steps["train_loss"] == [3]
    assert steps["loss"] == steps["seconds"] == [1, 2, 3]


def test_a_tracker_that_there_is_not_is_said_before_training(call, tmp_path):
    code, _, err = call("run", "--data", "synthetic", "--rounds", "1", "--track", "tensorbord")
    assert code == 2
    assert err.splitlines()[-1] == "error: unknown tracker 'tensorbord'; did you mean 'tensorboard'?"
    assert not list((tmp_path / "runs").glob("*/rounds.jsonl"))
