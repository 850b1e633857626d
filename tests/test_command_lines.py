"""Mutated command lines: one line for every mistake, no traceback, no hang, nothing written elsewhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import command_lines

PROGRAM = Path(command_lines.__file__)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the files that lines name, and the environment to run them in."""
    folder = tmp_path_factory.mktemp("lines")
    folders = {"HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "cache"), "BROWSER": "true"}
    env = {name: value for name, value in os.environ.items() if name not in ("FEDLAP_DATA", "FEDLAP_DEBUG")}
    return folder, env | folders | {"OMP_NUM_THREADS": "1"}


def run_lines(place, first, count):
    """Return the results of `count` command lines; a crash or a hang shows the line that caused it."""
    folder, env = place
    words = [sys.executable, str(PROGRAM), str(folder), str(first), str(count)]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{lines[-1:]}\n{done.stderr[-3000:]}"
    assert len(lines) == count
    return [
        {**json.loads(asked), **json.loads(got)} for asked, _, got in (line.partition("\t") for line in lines)
    ]


def check(results):
    wrong = [
        f"{result['words']}: {result['wrong']}\n  {result['err']}" for result in results if result["wrong"]
    ]
    assert not wrong, "\n".join(wrong)
    codes = [result["code"] for result in results]
    assert codes.count(0) > len(codes) / 8  # enough of them are valid, and enough are not
    assert codes.count(2) > len(codes) / 8


def test_mutated_command_lines(place):
    check(run_lines(place, 0, 40))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(40, 2000, 140))
def test_more_mutated_command_lines(place, first):
    check(run_lines(place, first, 140))


def test_every_command_and_option_is_tried():
    known = command_lines.known_commands()
    tried = [command_lines.line(number, known) for number in range(20_000)]
    for path, options in known.items():
        uses = [words for words in tried if tuple(words[: len(path)]) == path]
        assert uses, path
        assert not options or any(word.split("=")[0] in options for words in uses for word in words), path
    every = {name for options in known.values() for name in options}
    assert every - {"--all"} <= {word.split("=")[0] for words in tried for word in words}


def test_what_lasts_for_ever_is_not_asked_for():
    known = command_lines.known_commands()
    for number in range(2000):
        words = command_lines.line(number, known)
        for at, word in enumerate(words):
            if word in ("--rounds", "--local-steps", "--local-epochs") and words[at + 1 :][:1]:
                value = words[at + 1]
                assert len(value) < 3 or not value.isdecimal() or len(value) > 19 or int(value) >= 2**63


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ((70, "", "error: internal error: KeyError\n"), "exit code 70"),
        ((1, "", "Traceback (most recent call last)\n"), "a traceback"),
        ((2, "", ""), "no error is told"),
        ((2, "", "error: a\nerror: b\n"), "several errors are told"),
        ((0, "\x1b[31m", ""), "a control character"),
        ((2, "", f"error: {'x' * 999}\n"), "a line of 1006 characters"),
    ],
)
def test_the_check_finds_what_is_wrong(tmp_path, answer, complaint):
    assert list(command_lines.complaints(tmp_path, [], command_lines.snapshot(tmp_path, []), answer)) == [
        complaint
    ]


def test_the_check_finds_what_was_written_elsewhere(tmp_path):
    (tmp_path / "place" / "out").mkdir(parents=True)
    before = command_lines.snapshot(tmp_path, ["--to", "in/named.csv"])
    (tmp_path / "place" / "out" / "free").touch()
    assert not list(command_lines.complaints(tmp_path, [], before, (0, "", "")))
    (tmp_path / "home.txt").touch()
    assert list(command_lines.complaints(tmp_path, [], before, (0, "", "")))
