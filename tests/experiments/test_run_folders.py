"""Stored runs are shown, listed, repeated, and resumed exactly."""

import json
import shutil

import pytest

from run_folders import RUN, checkpoint, files, read_error, rounds, running, same  # noqa: F401 — a fixture


def test_the_same_again_is_shown_and_nothing_is_trained(run, call):
    folder, notes = run("--rounds", "3")
    assert "finished and loaded from" not in notes
    before = files(folder)
    again, notes = run("--rounds", "3")
    assert again == folder
    assert "note: this run is finished and loaded from" in notes
    assert "--again" in notes
    assert f"fedlap resume {folder} --rounds" in notes
    assert "round 1/3" not in notes
    assert files(folder) == before
    one, other = (call(*RUN, "--rounds", "3") for _ in range(2))
    assert one == other  # the times are those of the training, too


def test_again_repeats_with_the_same_numbers(run, tmp_path):
    folder, _ = run("--rounds", "3")
    before = tmp_path / "before" / folder.name
    shutil.copytree(folder, before)
    again, notes = run("--rounds", "3", "--again")
    assert again == folder
    assert "round 3/3" in notes
    same(folder, before)
    assert (folder / "rounds.jsonl").stat().st_mtime_ns > (before / "rounds.jsonl").stat().st_mtime_ns


@pytest.mark.parametrize(
    "words",
    [
        (), ("--algorithm", "scaffold", "--sample", "0.5"), ("--algorithm", "mocha"),
        ("--algorithm", "apfl", "--local-epochs", "1", "--batch", "3"), ("--set", "evaluate_every=2"),
        ("--set", "evaluate_every=0"),
    ],
)  # fmt: skip
def test_more_rounds_go_on_exactly(words, run, tmp_path):
    unbroken, _ = run(*words, "--rounds", "5", out="other")
    folder, _ = run(*words, "--rounds", "3")
    again, notes = run(*words, "--rounds", "5")
    assert again == folder
    assert "resumes from round 3" in notes
    same(folder, unbroken)
    (only,) = (tmp_path / "runs").iterdir()
    assert only == folder


def test_again_with_more_rounds_begins_anew(run):
    folder, _ = run("--rounds", "2")
    unbroken, _ = run("--rounds", "4", out="other")
    _, notes = run("--rounds", "4", "--again")
    assert "resumes" not in notes
    assert "round 1/4" in notes
    same(folder, unbroken)


def test_fewer_rounds_are_shown_where_they_were_scored(call, tmp_path):
    words = (*RUN, "--evaluate-every", "2", "--score-training", "always", "--json")
    short = json.loads(call(*words, "--rounds", "2", "--out", str(tmp_path / "other"), out=False)[1])
    long = json.loads(call(*words, "--rounds", "5")[1])
    before = files(tmp_path / "runs")
    code, out, err = call(*words, "--rounds", "2")
    shown = json.loads(out)
    assert code == 0
    assert "finished and loaded from" in err
    assert shown["folder"] == long["folder"]
    assert {**shown["last"], "seconds": 0} == {**short["last"], "seconds": 0}
    why = read_error(call(*words, "--rounds", "3"))
    assert "has finished 5 rounds and has no score of round 3; set rounds to 5 or more" in why
    assert "rerun with --again" in why
    assert files(tmp_path / "runs") == before


def test_runs_lists_them(run, call, tmp_path):
    done, _ = run("--rounds", "2")
    half, _ = run("--rounds", "4", "--algorithm", "local")
    shutil.rmtree(checkpoint(half, 4))
    code, out, _ = call("runs", "--json")
    lines = {line["run"]: line for line in map(json.loads, out.splitlines())}
    assert code == 0
    assert set(lines) == {done.name, half.name}
    wanted = {
        "run": done.name, "state": "done", "round": 2, "rounds": 2, "folder": str(done),
        "accuracy": rounds(done)[-1]["accuracy"], "loss": rounds(done)[-1]["loss"],
    }  # fmt: skip
    assert {name: lines[done.name][name] for name in wanted} == wanted
    assert (lines[half.name]["state"], lines[half.name]["round"]) == ("unfinished", 3)
    code, out, _ = call("runs")
    assert code == 0
    digests = [folder.name.split("-")[-1][:8] for folder in (done, half)]
    assert [text in out for text in (*digests, "unfinished", "3/4", "done")] == [True] * 5
    assert "error: no runs in" in read_error(call("runs", "--out", str(tmp_path / "none"), out=False))


def test_show_and_resume_take_a_folder_or_a_name(run, call, tmp_path, monkeypatch):
    folder, _ = run("--rounds", "2")
    before = files(folder)
    by_run = json.loads(call(*RUN, "--rounds", "2", "--json")[1])
    for name in (str(folder), folder.name):
        assert json.loads(call("show", name, "--json")[1]) == by_run
        code, out, err = call("show", name)
        assert (code, err) == (0, "")
        assert str(folder) in out
        assert "finished and loaded from" in call("resume", name)[2]
    assert files(folder) == before
    monkeypatch.chdir(folder.parent)
    assert call("show", folder.name, out=False)[0] == 0
    assert (
        json.loads(call("resume", folder.name, "--rounds", "3", "--json", out=False)[1])["last"]["round"] == 3
    )
    for command in ("show", "resume"):
        for wrong in ("synthetic-fedu-none", str(tmp_path), str(folder / "rounds.jsonl")):
            assert "is not the folder of a run" in read_error(call(command, wrong))


def test_resume_goes_on_exactly(run, call):
    unbroken, _ = run("--rounds", "6", out="other")
    folder, _ = run("--rounds", "6")
    for round in (6, 5):
        shutil.rmtree(checkpoint(folder, round))
    (folder / "models" / "models.safetensors").unlink()
    run("--rounds", "4", "--again")
    assert call("resume", str(folder), "--rounds", "5", "--save-rounds", "1")[0] == 0
    code, _, err = call("resume", str(folder), "--rounds", "6", "--save-rounds", "2")
    assert code == 0
    assert "resumes from round 5" in err
    same(folder, unbroken)
    renamed = folder.rename(folder.with_name("mine"))
    why = read_error(call("resume", str(renamed), "--rounds", "7"))
    assert "does not have the name of its experiment" in why
    assert call("show", str(renamed))[0] == 0


def test_an_unfinished_run_is_shown_as_far_as_it_is(run, call):
    folder, _ = run("--rounds", "3")
    shutil.rmtree(checkpoint(folder, 3))
    code, out, err = call("show", str(folder), "--json")
    assert code == 0
    assert "not finished (checkpoint at round 2)" in err
    assert f"fedlap resume {folder}" in err
    assert json.loads(out)["last"]["round"] >= 2
    shutil.rmtree(folder / "checkpoint")
    (folder / "rounds.jsonl").write_text("")
    assert "has no scores yet" in read_error(call("show", str(folder)))
