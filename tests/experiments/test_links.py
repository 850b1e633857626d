"""A run folder that came from somebody else: links in it are refused before anything is read or written."""

import os
import shutil

import pytest

from disk import tree
from run_folders import RUN, read_error, running  # noqa: F401 — a fixture

ENTRIES = (
    "experiment.toml", "rounds.jsonl", "environment.json", ".lock", "checkpoint", "models", "report",
    "tensorboard", "checkpoint/round-00000002", "checkpoint/round-00000002/state.safetensors",
    "models/about.json", "models/models.safetensors", "report/tables", "report/page.html", ".fedlap-planted",
)  # fmt: skip


def plant_link(folder, name, outside):
    """Replace an entry by a link to a copy of it elsewhere."""
    entry, target = folder / name, outside / name.replace("/", "-")
    if entry.is_dir():
        shutil.move(entry, target)
    elif entry.exists():
        shutil.copy(entry, target)
        entry.unlink()
    elif name == "report" or "/" in name:
        target.mkdir()
    else:
        target.write_bytes(b"precious")
    entry.parent.mkdir(exist_ok=True)
    entry.symlink_to(target)


@pytest.mark.parametrize("name", ENTRIES)
def test_no_command_follows_a_link(name, run, call, tmp_path):
    folder, _ = run("--rounds", "2")
    outside = tmp_path / "outside"
    outside.mkdir()
    plant_link(folder, name, outside)
    before = tree(outside), tree(folder)
    for words in (
        ("resume", str(folder), "--rounds", "3"),
        ("show", str(folder)),
        (*RUN, "--rounds", "2", "--again"),
        (*RUN, "--rounds", "3"),
    ):
        why = read_error(call(*words))
        assert "is a link; remove it" in why
        assert str(folder) in why
    why = read_error(call("report", str(folder), out=False))
    assert "is a link; remove it" in why
    assert (tree(outside), tree(folder)) == before


def test_runs_lists_the_others(run, call, tmp_path):
    run("--rounds", "2")
    bad, _ = run("--rounds", "2", "--seed", "1")
    plant_link(bad, "rounds.jsonl", tmp_path)
    code, out, err = call("runs")
    assert code == 0
    assert "damaged" in out
    assert "is a link" in err


def test_a_run_folder_may_itself_be_a_link(run, call, tmp_path):
    folder, _ = run("--rounds", "2")
    moved = tmp_path / "elsewhere"
    shutil.move(folder, moved)
    folder.symlink_to(moved)
    assert call("resume", str(folder), "--rounds", "3")[0] == 0
    assert call("show", str(folder))[0] == 0
    assert call("report", str(folder), out=False)[0] == 0
    assert (moved / "checkpoint" / "round-00000003").is_dir()
    assert (moved / "report" / "page.html").is_file()


def test_a_comparison_reaches_no_run_outside(run, call, tmp_path):
    folder, _ = run("--rounds", "2", out="other")
    words = ("compare", *RUN[1:], "--algorithms", "local", "--seeds", "0", "--rounds", "2", "--json")
    assert call(*words)[0] == 0
    (comparison,) = (path.parent for path in (tmp_path / "runs").glob("*/comparison.json"))
    text = (comparison / "comparison.json").read_text()
    (run_name,) = (path.parent.name for path in (tmp_path / "runs").glob("*/experiment.toml"))
    (comparison / "comparison.json").write_text(
        text.replace(run_name, os.path.relpath(folder, tmp_path / "runs"))
    )
    assert "is damaged" in read_error(call("report", str(comparison), out=False))
