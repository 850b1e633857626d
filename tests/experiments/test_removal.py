"""Removal of runs: known files only, nothing through links, nothing outside, nothing in training."""

import json
import os
import shutil
from pathlib import Path

import pytest

from fedlap.errors import InputError
from fedlap.experiments.removal import KNOWN_FILES, RemovalPlan, is_known_file, remove_known_files
from fedlap.storage.locks import lock_folders

RUN, OTHER, THIRD = (f"my-fedu-{digit * 16}" for digit in "abc")


def write_run(out, name):
    """Write the files of a run."""
    for file in (
        "experiment.toml", "environment.json", "rounds.jsonl", "checkpoint/round-00000002/state.safetensors",
        "checkpoint/round-00000002/manifest.json", "models/models.safetensors", "models/about.json",
        "report/page.html", "report/tables/scores.csv", "report/figures/curves.png", ".lock",
        ".fedlap-01234567-1-0123456789abcdef-x",
    ):  # fmt: skip
        (out / name / file).parent.mkdir(parents=True, exist_ok=True)
        (out / name / file).write_text("seven b")
    return out / name


def write_group(out, name, *runs):
    (out / name).mkdir(parents=True)
    (out / name / "table.md").touch()
    (out / name / "comparison.json").write_text(json.dumps({"kept": {"fedu": list(runs)}}))
    return out / name


@pytest.fixture
def out(tmp_path):
    for name in (RUN, OTHER, THIRD):
        write_run(tmp_path / "runs", name)
    return tmp_path / "runs"


def list_tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_run_is_removed_with_all_its_files_and_no_other(out):
    before = [list_tree(out / name) for name in (OTHER, THIRD)]
    plan = RemovalPlan.of([Path(RUN)], out)
    assert (plan.runs, plan.groups, plan.size) == ((out / RUN,), (), 12 * len("seven b"))
    assert plan.remove() == []
    assert not (out / RUN).exists()
    assert [list_tree(out / name) for name in (OTHER, THIRD)] == before


@pytest.mark.parametrize("text", [RUN, "aaaa", "{out}/" + RUN, "{out}/../runs/" + RUN, "{out}/" + RUN + "/"])
def test_names_of_a_run(out, text):
    assert RemovalPlan.of([Path(text.format(out=out))], out).runs == (out / RUN,)


def test_files_of_others_stay_and_are_named(out):
    files = "notes.txt", "models/mine.safetensors", "report/tables/mine.xlsx", "deep/er/experiment.toml"
    for file in files:
        (out / RUN / file).parent.mkdir(parents=True, exist_ok=True)
        (out / RUN / file).touch()
    stay = {str(out / RUN / file) for file in files}
    assert set(RemovalPlan.of([Path(RUN)], out).remove()) == stay
    assert {str(path) for path in (out / RUN).rglob("*") if path.is_file()} == stay


def test_a_group_takes_its_runs_unless_another_group_uses_them(out):
    write_group(out, "my-compare-1111111111111111", RUN, OTHER)
    write_group(out, "my-compare-2222222222222222", OTHER, THIRD)
    plan = RemovalPlan.of([Path("1111")], out)
    assert (plan.runs, plan.shared, plan.users) == ((out / RUN,), (OTHER,), ())
    both = RemovalPlan.of([Path("1111"), Path("2222")], out)
    assert set(both.runs) == {out / RUN, out / OTHER, out / THIRD}
    alone = RemovalPlan.of([Path(OTHER)], out)
    assert alone.users == ("my-compare-1111111111111111", "my-compare-2222222222222222")
    plan.remove()
    assert sorted(path.name for path in out.iterdir()) == [
        "my-compare-2222222222222222", OTHER, THIRD
    ]  # fmt: skip
    assert RemovalPlan.of([Path("2222")], out).remove() == []
    assert list(out.iterdir()) == []


def test_a_damaged_group_can_be_removed_and_a_damaged_other_stops_everything(out):
    group = write_group(out, "my-compare-1111111111111111", RUN)
    (group / "comparison.json").write_text("{")
    with pytest.raises(InputError, match=r"comparison\.json' is damaged"):
        RemovalPlan.of([Path(RUN)], out)
    assert RemovalPlan.of([Path("1111")], out).remove() == []
    assert (out / RUN).exists()


@pytest.mark.parametrize("name", ["../secret", "/", "..", "secret/deep", ""])
def test_a_group_that_lists_a_folder_elsewhere_is_damaged(out, name):
    secret = write_run(out.parent, "secret")
    before = list_tree(secret)
    write_group(out, "my-compare-1111111111111111", name)
    plan = RemovalPlan.of([Path("1111")], out)
    assert plan.runs == ()
    plan.remove()
    assert list_tree(secret) == before


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "/", "../secret", "{out}", "{out}/..", "{out}/../secret", "nothing", "plain", "dddd",
     "aaaa/..", RUN + "/models", RUN + "/..", "\x00", "a" * 300, "*", "my-fedu-*"],
)  # fmt: skip
def test_everything_else_is_refused(out, text, monkeypatch):
    write_run(out.parent, "secret")
    (out / "plain").mkdir()
    monkeypatch.chdir(out.parent)
    before = list_tree(out.parent)
    with pytest.raises((InputError, OSError, ValueError)):
        RemovalPlan.of([Path(text.format(out=out))], out)
    assert list_tree(out.parent) == before


@pytest.mark.parametrize("place", [".", "experiment.toml", "models", "report/tables/x.csv", "deep"])
def test_links_are_refused_and_their_targets_stay(out, place):
    """The run itself, a file or a folder in it may be a link to other files of the user."""
    secret = write_run(out.parent, "secret")
    before = list_tree(secret)
    link = out / RUN / place if place != "." else out / "my-fedu-eeeeeeeeeeeeeeee"
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.symlink_to(secret if place in (".", "models", "deep") else secret / "experiment.toml")
    with pytest.raises(InputError, match="is a link"):
        RemovalPlan.of([Path("eeee" if place == "." else RUN)], out)
    assert list_tree(secret) == before


def test_a_link_that_appears_after_the_check_leads_nowhere(out):
    secret = write_run(out.parent, "secret")
    before = list_tree(secret)
    plan = RemovalPlan.of([Path(RUN), Path(OTHER)], out)
    (out / RUN / "models").rename(out.parent / "moved")
    (out / RUN / "models").symlink_to(secret / "models")
    with pytest.raises(InputError, match="is a link"):
        plan.remove()
    assert remove_known_files(out / RUN) == []
    assert list_tree(secret) == before
    (out / OTHER).rename(out.parent / "other")
    (out / OTHER).symlink_to(secret)
    assert remove_known_files(out / OTHER) == []
    assert list_tree(secret) == before


def test_a_run_in_training_is_refused(out):
    plan = RemovalPlan.of([Path(OTHER), Path(RUN)], out)
    before = list_tree(out)
    with lock_folders([out / RUN]), pytest.raises(InputError, match=f"another process is training .*{RUN}"):
        plan.remove()
    assert [path for path in list_tree(out) if ".claim" not in path and ".lock" not in path] == [
        path for path in before if ".lock" not in path
    ]
    assert plan.remove() == []


def test_an_interrupted_removal_can_be_repeated(out, monkeypatch):
    """The description goes last: until then the folder is a run."""
    unlink, left = os.unlink, [9]

    def fail_late(*words, **how):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(5, "Input/output error")
        unlink(*words, **how)

    plan = RemovalPlan.of([Path(RUN)], out)
    monkeypatch.setattr(os, "unlink", fail_late)
    with pytest.raises(InputError, match="cannot be written"):
        remove_known_files(plan.runs[0])
    monkeypatch.undo()
    assert (out / RUN / "experiment.toml").exists()
    assert RemovalPlan.of([Path(RUN)], out).remove() == []
    assert not (out / RUN).exists()


def test_patterns_do_not_reach_into_other_folders():
    assert all(is_known_file(pattern.replace("*", "x")) for pattern in KNOWN_FILES)
    for path in ("a/experiment.toml", "report/tables/a/b.csv", "checkpoint/round-1/x", "models/x/about.json",
                 "EXPERIMENT.TOML", "wandb/run.wandb"):  # fmt: skip
        assert not is_known_file(path)
