"""A folder of `fl.fit`: an interrupted run resumes exactly, a finished one is loaded, others are refused."""

import json
import logging
import shutil
import subprocess
import sys

import pytest
import torch

import fedlap as fl
from fedlap.personal import Personals
from fit_results import same
from laws import METHODS


class StopAfter(fl.Callback):
    """Stops after a round."""

    def __init__(self, last):
        self.last = last

    def on_round(self, end):
        return end.round == self.last


@pytest.mark.parametrize("name", METHODS)
def test_the_same_call_resumes_every_method_exactly(name, federation, graph, tmp_path):
    method = METHODS[name]
    words = (method.make(graph), federation, method.model)
    how = {"rounds": 7, "batch": 4, "sample": 0.5 if method.sampled else 1.0, "evaluate_every": 2}
    unbroken = fl.fit(*words, **how)
    for last in (1, 3, 4):
        broken = fl.fit(*words, **how, folder=tmp_path / "run", callbacks=[StopAfter(last)])
        assert broken.progress.round == last
        assert not broken.is_complete
    complete = fl.fit(*words, **how, folder=tmp_path / "run")
    same(complete, unbroken)
    assert complete.is_complete


def train(federation, folder=None, **changes):
    settings = {"rounds": 5, "evaluate_every": 2} | changes
    model = settings.pop("model", fl.models.linear())
    method = settings.pop("method", fl.Local(lr=0.1))
    return fl.fit(method, federation, model, folder=folder, **settings)


def test_a_finished_run_is_loaded_and_trains_no_more(federation, tmp_path):
    first = train(federation, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    rounds = []
    second = train(federation, tmp_path, on_round=rounds.append)
    same(second, first)
    assert rounds == []
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert {path: after[path] for path in before if path.name != ".lock"} == {
        path: time for path, time in before.items() if path.name != ".lock"
    }


def test_more_rounds_continue_and_fewer_are_refused(federation, tmp_path):
    train(federation, tmp_path, rounds=3)
    same(train(federation, tmp_path, rounds=6), train(federation, rounds=6))
    with pytest.raises(fl.InputError, match="has finished 6 rounds, but rounds = 5; set rounds to 6 or more"):
        train(federation, tmp_path)


def test_the_folder_has_scores_and_models(federation, tmp_path):
    result = train(federation, tmp_path)
    lines = (tmp_path / "rounds.jsonl").read_text().splitlines()
    assert [fl.Score.from_dict(json.loads(line)) for line in lines] == result.scores
    stored = Personals.load(tmp_path / "models")
    assert torch.equal(stored.models, result.models)
    assert stored.clients == federation.clients


def test_a_result_from_a_folder_can_be_resumed_without_it(federation, tmp_path):
    train(federation, tmp_path, rounds=3)
    loaded = train(federation, tmp_path, rounds=3)
    same(train(federation, resume=loaded), train(federation))


def test_a_module_resumes_and_is_compared_by_content(federation, tmp_path):
    """The parameters that it starts with count, too."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(federation.inputs[0], 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)
    )
    model = fl.models.module(net)
    train(federation, tmp_path, model=model, callbacks=[StopAfter(2)])
    same(train(federation, tmp_path, model=model), train(federation, model=model))
    with torch.no_grad():
        net[0].weight[0, 0] += 1
    with pytest.raises(fl.InputError, match="has a run with other model; use another folder"):
        train(federation, tmp_path, model=fl.models.module(net))


def test_another_run_is_refused_with_the_difference(federation, graph, tmp_path):
    method = fl.FedU(graph, strength=0.1, lr=0.1)
    train(federation, tmp_path, method=method)
    other = federation.reorder(federation.clients[::-1])
    for changes, difference in (
        ({"seed": 1}, "seed = 0, but seed = 1 was passed; use another folder, or pass seed=0"),
        ({"batch": "all"}, "batch = 20, but batch = all was passed"),
        ({"evaluate_every": 1}, "evaluate_every = 2, but evaluate_every = 1 was passed"),
        ({"method": fl.FedU(graph, strength=0.2, lr=0.1)}, "strength = 0.1, but strength = 0.2 was passed"),
        ({"method": fl.FedAvg()}, "algorithm = FedU, but algorithm = FedAvg was passed"),
        (
            {"method": fl.FedU(fl.Graph.complete(federation.clients), strength=0.1, lr=0.1)},
            "other graph; use another folder, or pass the same graph",
        ),
        ({"model": fl.models.linear(l2=0.1)}, "model.l2 = 0.0, but model.l2 = 0.1 was passed"),
        ({"start": torch.zeros(15)}, "other start; use another folder, or pass the same start"),
    ):
        with pytest.raises(fl.InputError) as raised:
            train(federation, tmp_path, **{"method": method, **changes})
        assert difference in str(raised.value)
        assert "\n" not in str(raised.value)
    with pytest.raises(fl.InputError, match="other data; use another folder, or pass the same data"):
        train(other, tmp_path, method=method)


@pytest.mark.parametrize("name", ["notes.txt", "models", "checkpoint"])
def test_a_folder_with_other_files_is_refused_and_untouched(name, federation, tmp_path):
    file = tmp_path / name / "mine.txt" if name != "notes.txt" else tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(fl.InputError, match=f"has other files, such as '{name}'; use a new or empty folder"):
        train(federation, tmp_path)
    assert file.read_text() == "mine"


def test_a_run_of_the_command_line_is_refused(federation, call, tmp_path):
    code, out, _ = call("run", "--data", "digits", "--rounds", "1", "--json")
    assert code == 0
    with pytest.raises(fl.InputError, match="has a run of the command line; resume it by `fedlap resume`"):
        train(federation, json.loads(out)["folder"])


def test_folder_and_resume_exclude_each_other(federation, tmp_path):
    with pytest.raises(fl.InputError, match="folder and resume are both set; pass only one of them"):
        train(federation, tmp_path, resume=train(federation, rounds=1))


def test_a_diverged_run_raises_its_error_again(tmp_path):
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    federation = fl.Federation.from_arrays({"a": (x, x[:, :1] * 1e3)}, scale="none")
    messages = []
    for _ in range(2):
        with pytest.raises(fl.DivergedError) as raised:
            train(federation, tmp_path, method=fl.Local(lr=1e4), rounds=30)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def test_a_damaged_checkpoint_is_skipped_and_none_is_an_error(federation, tmp_path, caplog):
    for rounds in (2, 4):
        train(federation, tmp_path, rounds=rounds)
    (tmp_path / "checkpoint" / "round-00000004" / "state.safetensors").write_bytes(b"")
    same(train(federation, tmp_path), train(federation))
    assert "the checkpoint of round 4 is damaged" in caplog.text
    for state in tmp_path.glob("checkpoint/*/state.safetensors"):
        state.write_bytes(b"")
    with pytest.raises(fl.InputError, match=r"no other checkpoint is valid; remove '.*' to train again"):
        train(federation, tmp_path)


SCRIPT = """
import os, signal, sys
import torch
import fedlap as fl
torch.set_num_threads(1)

class Kill(fl.Callback):
    def on_round(self, end):
        if end.round == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

federation = fl.data.load("synthetic", clients=4, rows=20)
fl.fit(fl.Scaffold(), federation, fl.models.linear(), rounds=9, folder=sys.argv[1], callbacks=[Kill()])
"""


@pytest.mark.slow
def test_a_killed_process_leaves_a_folder_that_resumes(tmp_path):
    for last in ("3", "7"):
        subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path / "run"), last], capture_output=True)
    assert (tmp_path / "run" / "fit.toml").is_file()
    federation = fl.data.load("synthetic", clients=4, rows=20)
    words = (fl.Scaffold(), federation, fl.models.linear())
    same(fl.fit(*words, rounds=9, folder=tmp_path / "run"), fl.fit(*words, rounds=9))


def test_a_folder_killed_before_its_description_is_used(federation, tmp_path):
    train(federation, tmp_path)
    (tmp_path / "fit.toml").unlink()
    for name in ("checkpoint", "models"):
        shutil.rmtree(tmp_path / name)
    same(train(federation, tmp_path), train(federation))


def test_the_log_reports_start_end_resume_and_checkpoints(federation, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "fedlap")
    train(federation, tmp_path, callbacks=[StopAfter(2)])
    train(federation, tmp_path)
    messages = [(record.levelname, record.getMessage().split(": ")[-1]) for record in caplog.records]
    assert ("INFO", "rounds 1 to 5") in messages
    assert ("DEBUG", "checkpoint of round 2") in messages
    assert ("INFO", "the run continues after round 2") in messages
    assert ("INFO", "rounds 3 to 5") in messages
    assert {record.name for record in caplog.records} == {"fedlap"}
    assert any("round 5 of 5 after" in record.getMessage() for record in caplog.records)
