"""Two processes and one folder of results: what one has trained is never discarded by the other."""

import json
import os
import signal

import pytest
from filelock import FileLock

import fedlap as fl
from fedlap.experiments import session
from fedlap.experiments.session import CheckpointInterval, ProgressCallbacks, ResumePlan
from fedlap.storage.locks import lock_folders
from run_folders import TINY, files, rounds
from tiny_plans import finish, tiny, train


def numbers(scores):
    """Scores but for times."""
    return [{**score.as_dict(), "seconds": 0} for score in scores]


def test_a_run_that_was_finished_since_the_plan_is_shown_and_not_cleared(tmp_path):
    plan = ResumePlan.of(tmp_path / "runs", tiny(2))
    train(tmp_path / "runs", tiny(6))  # as another process does meanwhile
    folder = plan.runs[0].folder
    before, remarks = files(folder), []
    results = finish(plan, ProgressCallbacks(on_remark=remarks.append))
    assert files(folder) == before
    assert numbers(results[0]) == rounds(folder)[:2]
    assert any("trained by another process in the meantime" in remark for remark in remarks)


@pytest.mark.parametrize(("first", "since", "more"), [(0, 3, 5), (2, 3, 5), (2, 5, 5), (2, 7, 5)])
def test_a_run_that_was_trained_since_the_plan_goes_on_from_there(first, since, more, tmp_path):
    unbroken = train(tmp_path / "other", tiny(max(since, more)))
    if first:
        train(tmp_path / "runs", tiny(first))
    plan, played = ResumePlan.of(tmp_path / "runs", tiny(more)), []
    train(tmp_path / "runs", tiny(since))
    interval = CheckpointInterval(rounds=1)
    finish(plan, ProgressCallbacks(interval, on_round=lambda _, done: played.append(done)))
    assert played == list(range(since + 1, more + 1))
    folder = plan.runs[0].folder
    assert rounds(folder) == rounds(unbroken.runs[0].folder)
    assert plan.runs[0].saved_rounds == unbroken.runs[0].saved_rounds


def test_the_others_of_a_stack_are_trained_and_the_finished_one_is_shown(tmp_path):
    plan = ResumePlan.of(tmp_path / "runs", tiny(3, seeds=(0, 1, 2)))
    assert plan.pack() == [[0, 1, 2]]
    train(tmp_path / "runs", tiny(6, seeds=(1,)))
    before = files(plan.runs[1].folder)
    results = finish(plan)
    assert files(plan.runs[1].folder) == before
    assert {place: len(scores) for place, scores in results.items()} == {0: 3, 1: 3, 2: 3}
    assert [run.saved_rounds[0] for run in plan.runs] == [3, 6, 3]


def test_a_run_that_diverged_since_the_plan_is_shown(tmp_path):
    plan = ResumePlan.of(tmp_path / "runs", tiny(3))
    train(tmp_path / "runs", tiny(3))
    plan.runs[0].save_failure(fl.DivergedError("by round 2 the loss is nan"))
    before = files(plan.runs[0].folder)
    assert str(finish(plan)[0]) == "by round 2 the loss is nan"
    assert files(plan.runs[0].folder) == before


def test_again_discards_what_was_finished_since(tmp_path):
    plan = ResumePlan.of(tmp_path / "runs", tiny(2), again=True)
    train(tmp_path / "runs", tiny(4))
    finish(plan)
    assert plan.runs[0].saved_rounds[0] == 2


def test_a_comparison_uses_a_run_that_another_process_finished(call, tmp_path, monkeypatch):
    """While the first stack was trained, the second run was, too, for more rounds."""
    words = ("--algorithms", "fedu,local", "--seeds", "0", "--rounds", "2", "--json")
    words += ("--score-training", "always")
    alone = json.loads(call("compare", *TINY, *words, "--out", str(tmp_path / "other"), out=False)[1])
    (folder,) = (tmp_path / "other").glob("*-local-*")
    train_stack, folders = session.train_stack, []

    def train_and_intervene(ready, *callbacks):
        results = train_stack(ready, *callbacks)
        if not folders:
            folders.append(tmp_path / "runs" / folder.name)
            local = fl.experiments.experiment.Experiment.of(
                fl.experiments.run_folder.read_experiment(folder / "experiment.toml").describe()
                | {"rounds": 6}
            )
            train(tmp_path / "runs", list(fl.experiments.prepare.prepare([local])))
        return results

    monkeypatch.setattr(session, "train_stack", train_and_intervene)
    code, out, err = call("compare", *TINY, *words)
    assert code == 0
    assert "note: this run was trained by another process in the meantime" in err
    assert "Traceback" not in err
    answer = json.loads(out)
    last = [document["algorithms"]["local"][0] | {"seconds": 0} for document in (answer, alone)]
    assert last[0] == last[1]
    assert len(rounds(folders[0])) == 6


def test_a_run_that_was_trained_alone_does_not_take_the_others_back(tmp_path):
    """Three runs were trained together; one run resumed alone, and then all get more rounds."""
    train(tmp_path / "runs", tiny(3, seeds=(0, 1, 2)))
    train(tmp_path / "runs", tiny(6, seeds=(1,)))
    plan = ResumePlan.of(tmp_path / "runs", tiny(8, seeds=(0, 1, 2)))
    assert [ready.job.rounds_done for ready in plan.prepared] == [3, 6, 3]
    assert any("2 of 3 runs that were trained together resume" in remark for remark in plan.remarks)


def test_a_run_that_lost_its_checkpoints_does_not_take_the_others_back(tmp_path):
    train(tmp_path / "runs", tiny(3, seeds=(0, 1)))
    train(tmp_path / "runs", tiny(1, seeds=(1,)), again=True)
    plan = ResumePlan.of(tmp_path / "runs", tiny(5, seeds=(0, 1)))
    assert [ready.job.rounds_done for ready in plan.prepared] == [3, 1]
    for path in (plan.runs[1].folder / "checkpoint").rglob("*.*"):
        path.unlink()
    for path in (plan.runs[1].folder / "checkpoint").iterdir():
        path.rmdir()
    plan = ResumePlan.of(tmp_path / "runs", tiny(5, seeds=(0, 1)))
    assert [ready.job.rounds_done for ready in plan.prepared] == [3, 0]


def busy(folders):
    """The folder that another process trains according to the error, if any."""
    try:
        with lock_folders(folders):
            return None
    except fl.InputError as error:
        return str(error).split("'")[1].rpartition("/")[2]


def test_folders_that_are_locked_together_are_locked_one_by_one(tmp_path):
    a, b, c, d = (tmp_path / name for name in ("a b", "b", "c", "d"))
    with lock_folders([a, b, c]):
        assert [busy([folder]) for folder in (a, b, c, d)] == ["a b", "b", "c", None]
        assert [busy([d, folder]) for folder in (a, b, c)] == ["a b", "b", "c"]
        with lock_folders([d]):
            assert busy([d]) == "d"
        assert busy([b]) == "b"
    assert [busy([folder]) for folder in (a, b, c, d)] == [None] * 4
    assert not list(tmp_path.glob("*/.claim"))
    with FileLock(c / ".lock"):
        assert busy([a, b, c]) == "c"
        assert busy([a, b]) is None


def test_a_process_that_is_killed_leaves_nothing_locked(tmp_path):
    a, b, c = (tmp_path / name for name in "abc")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with lock_folders([a, b]):
            os.write(writing, b"!")
            signal.pause()
    assert os.read(reading, 1) == b"!"
    assert (busy([a]), busy([b]), busy([c, b])) == ("a", "b", "b")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for number in (reading, writing):
        os.close(number)
    assert (b / ".claim").exists()
    with lock_folders([a, c]):  # its claim of b was by a, which another process has now
        assert (busy([a]), busy([b]), busy([c])) == ("a", None, "c")
    assert (busy([a]), busy([b])) == (None, None)


def test_files_that_change_while_they_are_read_are_not_called_damaged(tmp_path):
    """Another process has removed a checkpoint since its folder was listed."""
    train(tmp_path, tiny(2, seeds=(0, 1)))
    ready = tiny(3, seeds=(0, 1))
    folders = [run.folder for run in ResumePlan.of(tmp_path, ready).runs]
    for path in folders[1].glob("checkpoint/*/manifest.json"):
        path.unlink()
    with pytest.raises(fl.InputError, match="and no other checkpoint is valid"):
        ResumePlan.of(tmp_path, ready)
    for held in (folders, folders[1:]):
        with lock_folders(held), pytest.raises(fl.InputError, match="another process is training"):
            ResumePlan.of(tmp_path, ready)


def test_a_pipe_in_the_place_of_a_claim_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / ".claim")
    with pytest.raises(fl.InputError, match="claim cannot be written"), lock_folders([tmp_path / "a"]):
        pass


def test_a_link_in_the_place_of_a_claim_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "outside").write_text("left alone")
    (tmp_path / "a" / ".claim").symlink_to(tmp_path / "outside")
    with pytest.raises(fl.InputError, match="is a link"), lock_folders([tmp_path / "a"]):
        pass
    assert (tmp_path / "outside").read_text() == "left alone"


def test_a_claim_that_names_another_place_is_none(tmp_path):
    a, outside = tmp_path / "runs" / "a", tmp_path / "outside"
    for claim in (b"", b"x", b"../../outside x", b"/ x", b".. x", b"a x", b"gone x", b"\xff x", b"x" * 9999):
        for folder in (a, outside):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".claim").write_bytes(claim)
        assert busy([a]) is None
        assert sorted(path.name for path in outside.iterdir()) == [".claim"]
