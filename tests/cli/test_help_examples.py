"""The example in the help of every command is valid, and those that need no earlier run are executed."""

import os
import re
import shlex
import subprocess
import sys
from functools import cache

import pytest
import typer

from command_lines import known_commands
from fedlap.cli import app

RUN = re.compile(r"runs/\S+-[0-9a-f]{16}")
TRAINED = ("run", "compare", "sweep", "tune")  # shortened to two rounds and one seed
EXECUTED = [
    *TRAINED,
    "algorithms",
    "cite",
    "data list",
    "data describe",
    "graph make",
    "graph describe",
    "graph draw",
]


@cache
def build_separate_commands():
    """Build commands that `call` does not run, since a command caches its options for the context."""
    return typer.main.get_command(app)


def find_command(path):
    command = build_separate_commands()
    for name in path:
        command = command.commands[name]
    return command


def find_example(path):
    (line,) = re.findall(r"^Example: (fedlap .+)$", find_command(path).help, re.M)
    return shlex.split(line)[1:]


@pytest.mark.parametrize("path", list(known_commands()), ids=" ".join)
def test_every_command_has_an_example_of_itself(path, call):
    words = find_example(path)
    assert tuple(words[: len(path)]) == path
    context = find_command(path).make_context(path[-1], words[len(path) :])
    assert context.params
    _, out, _ = call(*path, "-h", out=False)
    shown = " ".join(re.sub("[│╭╮╰╯─]", " ", out).split())
    assert f"Example: fedlap {' '.join(words)}" in shown


@pytest.mark.parametrize("line", EXECUTED)
def test_examples_that_need_no_run_are_executed(line, call, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = find_example(tuple(line.split()))
    assert not RUN.search(" ".join(words))
    if line in TRAINED:
        words += ["--rounds", "2", *([] if line == "run" else ["--seeds", "0"])]
    code, out, err = call(*words, out=False)
    assert code == 0, err
    assert out


def test_examples_with_a_run_name_one():
    """Placeholders look like real names, which end in sixteen hexadecimal digits."""
    for path in known_commands():
        words = find_example(path)
        assert all(RUN.fullmatch(word) for word in words if word.startswith("runs/")), path


def test_every_option_is_in_a_panel():
    """Options of a command with more than three are grouped; the others need no groups."""
    for path in known_commands():
        options = [p for p in find_command(path).params if p.param_type_name == "option" and not p.hidden]
        loose = [p.name for p in options if p.rich_help_panel is None]
        assert len(loose) <= 3, f"{path}: {loose}"


def complete(line, folder):
    """Return the completions that bash gets at the end of a line."""
    words = line.split(" ")
    asked = {"_FEDLAP_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "fedlap.cli"],
        env=os.environ | asked,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_a_shell_completes_commands_names_and_runs(tmp_path):
    run = tmp_path / "runs" / "digits-fedu-0123456789abcdef"
    run.mkdir(parents=True)
    (run / "experiment.toml").touch()
    assert complete("fedlap re", tmp_path) == ["resume", "report", "reproduce", "results"]
    assert complete("fedlap run --algorithm pfedm", tmp_path) == ["pfedme"]
    assert complete("fedlap compare --algorithms local,pfedm", tmp_path) == ["local,pfedme"]
    assert complete("fedlap run --graph ri", tmp_path) == ["ring"]
    assert complete("fedlap run --data dig", tmp_path) == ["digits"]
    assert complete("fedlap show digits-", tmp_path) == [run.name]
