"""Weights & Biases has every score of a run, to the last digit; skipped where it is not installed."""

import json
import struct

import pytest

from fedlap.tracking import TRACKERS
from fedlap.tracking.metrics import list_metrics
from trackers import SCORES, SETTINGS, log_run


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    package = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    yield package
    package.teardown()


def records(file):
    """Read the file of an offline run: a log in blocks of 32 KiB, its records in one piece or several."""
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
                values = {key: value for key, value in row.items() if not key.startswith("_")}
                history.setdefault(record.history.step.num, []).append(values)
            elif kind == "summary":
                summary |= {item.key: json.loads(item.value_json) for item in record.summary.update}
            elif kind == "exit":
                code = record.exit.exit_code
        sessions.append((run, config, history, summary.get("outcome"), code))
    return sessions


def rows(scores):
    return {score.round: [list_metrics(score)] for score in scores}


def test_wandb_has_every_score(wandb, tmp_path):
    folder = tmp_path / "digits's #1-fedu-0123456789abcdef"
    log_run(TRACKERS["wandb"](folder), SCORES, outcome="diverged: in round 6")
    ((run, config, history, outcome, code),) = offline(folder)
    assert (run.run_id, run.project) == ("digits-s--1-fedu-0123456789abcdef", "fedlap")
    assert run.display_name == "fedu, seed 0"
    assert {key: config[key] for key in SETTINGS} == SETTINGS
    assert history == rows(SCORES)
    assert (outcome, code) == ("diverged: in round 6", 1)


def test_wandb_has_runs_that_are_trained_together_apart(wandb, tmp_path):
    trackers = [TRACKERS["wandb"](tmp_path / name) for name in ("one", "two")]
    for tracker in trackers:
        tracker.start_run("x", SETTINGS, False)
    for score in SCORES:
        trackers[score.round % 2].log_score(score)
    for tracker in trackers:
        tracker.end_run("done")
    histories = [offline(tmp_path / name)[0][2] for name in ("one", "two")]
    assert histories == [rows(SCORES[1::2]), rows(SCORES[::2])]


def test_wandb_goes_on_under_the_same_id(wandb, tmp_path):
    log_run(TRACKERS["wandb"](tmp_path / "run"), SCORES[:4], outcome="stopped")
    log_run(TRACKERS["wandb"](tmp_path / "run"), SCORES[2:], resumed=True)
    # Offline it cannot know what it has; each session is written in full.
    sessions = offline(tmp_path / "run")
    assert sorted(len(history) for _, _, history, _, _ in sessions) == [4, 4]
    assert {run.run_id for run, _, _, _, _ in sessions} == {"run"}
    assert {(outcome, code) for _, _, _, outcome, code in sessions} == {("stopped", 0), ("done", 0)}


def test_wandb_is_not_sent_a_round_that_it_has(wandb, tmp_path, monkeypatch):
    monkeypatch.setattr(wandb.Run, "step", 5)  # as a run that its server knows says
    log_run(TRACKERS["wandb"](tmp_path / "run"), SCORES, resumed=True)
    ((_, _, history, _, _),) = offline(tmp_path / "run")
    assert history == rows(SCORES[4:])
