"""File rounds.jsonl while a run is trained: no score is lost, and no file stays open for every run."""

import os
import resource
import shutil

import pytest

from child_processes import start_child, wait_for_child
from fedlap.errors import DivergedError
from fedlap.experiments import session
from fedlap.experiments.session import CheckpointInterval, ProgressCallbacks, ResumePlan
from run_folders import rounds
from tiny_plans import finish, tiny, train


def remove(path):
    path.unlink()


def truncate(path):
    os.truncate(path, 10)


def empty(path):
    path.write_bytes(b"")


def replace(path):
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def move(path):
    path.rename(path.with_name("moved"))


def link(path):
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def append(path):
    with path.open("ab") as file:
        file.write(b"{}\n")


@pytest.mark.slow
@pytest.mark.parametrize("change", [remove, truncate, empty, replace, move, link, append])
@pytest.mark.parametrize("most", [32, 1], ids=["at once", "later"])
def test_scores_are_restored(change, most, tmp_path, monkeypatch):
    monkeypatch.setattr(session, "MAX_OPEN_LOGS", most)
    unbroken = train(tmp_path / "other", tiny(6, seeds=(0, 1)))
    plan, remarks = ResumePlan.of(tmp_path / "runs", tiny(6, seeds=(0, 1))), []
    folders = [run.folder for run in plan.runs]

    def on_round(_, done):
        if done in (2, 5):
            change(folders[0] / "rounds.jsonl")

    finish(plan, ProgressCallbacks(CheckpointInterval(rounds=3), on_round=on_round, on_remark=remarks.append))
    for folder, run in zip(folders, unbroken.runs, strict=True):
        assert rounds(folder) == rounds(run.folder)
    assert not (folders[0] / "rounds.jsonl").is_symlink()
    assert remarks
    assert all(str(folders[0] / "rounds.jsonl") in remark for remark in remarks)
    assert [
        ready.job.rounds_done for ready in ResumePlan.of(tmp_path / "runs", tiny(7, seeds=(0, 1))).prepared
    ] == [
        6,
        6,
    ]


def test_scores_of_a_run_that_diverges_are_restored(tmp_path):
    ready = tiny(60, settings=({"lr": 2},), data={"name": "synthetic", "clients": 4, "task": "regression"})
    plan, seen = ResumePlan.of(tmp_path / "runs", ready), []
    path = plan.runs[0].folder / "rounds.jsonl"

    def on_score(_, score):
        seen.append(score.round)
        path.unlink(missing_ok=True)

    results = finish(plan, ProgressCallbacks(on_score=on_score))
    assert isinstance(results[0], DivergedError)
    assert seen
    assert [score["round"] for score in rounds(plan.runs[0].folder)] == seen


def test_a_run_whose_scores_are_lost_and_cannot_be_written_fails(tmp_path):
    plan = ResumePlan.of(tmp_path / "runs", tiny(3))
    path = plan.runs[0].folder / "rounds.jsonl"

    def on_round(_, done):
        if done == 2:
            path.unlink()
            path.mkdir()

    with pytest.raises(session.InputError, match=r"rounds\.jsonl cannot be written"):
        finish(plan, ProgressCallbacks(on_round=on_round))


def test_a_stack_of_many_runs_needs_few_open_files(tmp_path):
    settings = [{"lr": 0.001 * (1 + number)} for number in range(100)]
    ready = tiny(2, settings=settings)
    plan = ResumePlan.of(tmp_path / "runs", ready)
    (stack,) = plan.pack()
    assert len(stack) == 100

    def within():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        finish(plan, ProgressCallbacks())

    assert wait_for_child(start_child(within)) == 0
    assert [(run.saved_rounds, len(run.read_scores())) for run in plan.runs] == [([2], 2)] * 100
