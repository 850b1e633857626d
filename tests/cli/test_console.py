"""Output to the terminal has no control characters, no endless lines and no traceback."""

import io
import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from fedlap import cli
from fedlap.cli import console, streams
from fedlap.errors import InputError, unknown_name_error

FULL = Path("/dev/full")
EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e"
CLEAN = r"\x1b]0;owned\x07\x1b[31m\x9b2J\u202e"


def test_control_characters_are_shown_and_not_sent(capsys):
    from rich.table import Table
    from rich.text import Text

    terminal = console.Console(width=200)
    table = Table("name", EVIL)
    table.add_row(EVIL, Text(EVIL))
    terminal.print(table)
    terminal.print(EVIL)
    assert console.escape_control_characters(EVIL) == CLEAN
    out = capsys.readouterr().out
    assert not any(sign in out for sign in EVIL if sign < " " or sign > "~")
    assert r"\x1b]0;owned" in out
    assert r"\u202e" in out


def test_text_is_neither_markup_nor_emoji(capsys):
    console.Console(width=100).print("a[/red]b [bold]c[/bold] :bug:")
    assert capsys.readouterr().out == "a[/red]b [bold]c[/bold] :bug:\n"


def test_a_line_stays_one_line(capsys, monkeypatch):
    monkeypatch.setattr(console, "err", console.Console(stderr=True, width=20))
    console.print_remark("note: client a\nerror: b\u2028c")
    assert capsys.readouterr().err == "note: client a\\nerror: b\\nc\n"


def test_clients_of_a_file_cannot_command_the_terminal(call, tmp_path):
    """A client, a label, a column and a file with escape codes, through the commands that name them."""
    lines = [f"{who},{n % 5},{n % 3},{'no' if n % 2 else EVIL}" for who in ("a", EVIL) for n in range(12)]
    path = tmp_path / f"my{EVIL.replace('/', '')}.csv"
    path.write_text("\n".join([f"who,{EVIL},x,y", *lines]) + "\n", encoding="utf-8")
    columns = ["--data", str(path), "--client", "who", "--label", "y"]
    answers = [call("run", *columns, "--rounds", "1"), call("data", "describe", *columns[1:])]
    (run,) = (tmp_path / "runs").glob("my*-fedu-*")
    answers.append(call("runs"))
    answers.append(call("show", str(run)))
    answers.append(call("predict", str(run), str(path), out=False))
    answers.append(call("export", str(run), "--client", "nobody", out=False))
    answers.append(call("graph", "describe", str(run), out=False))
    assert [code for code, _, _ in answers] == [0, 0, 0, 0, 2, 2, 0]
    text = "".join(out + err for _, out, err in answers)
    assert not [sign for sign in text if (sign < " " and sign not in "\n\t") or sign in "\x9b\u202e"]
    assert r"\x1b" in text


def test_an_unknown_name_is_told_with_the_three_nearest():
    names = [f"client {number}" for number in range(1_000_000)]
    begun = time.process_time()
    message = str(unknown_name_error("client", "client 12345x", names))
    assert time.process_time() - begun < 5
    assert re.fullmatch(
        r"unknown client 'client 12345x'; did you mean 'client 12345', 'client \d{6}' or 'client \d{6}'\?",
        message,
    )
    other = str(unknown_name_error("client", "@", names))
    assert other.endswith(", … (1,000,000 in all)")
    assert len(other) < 200
    assert (
        str(unknown_name_error("colour", "size", ["red", "blue"]))
        == "unknown colour 'size'; known: blue, red"
    )
    assert len(str(unknown_name_error("client", "x" * 10**6, ["y" * 10**6] * 9))) < 600


def test_no_error_is_longer_than_some_hundreds_of_characters(call):
    message = str(InputError(f"value {'x' * 10**6}; use y"))
    assert len(message) <= 600
    assert message.endswith("; use y")
    code, _, err = call("run", "--set", f"{'x' * 10**5}=1")
    assert code == 2
    assert len(err) < 700
    code, _, err = call("run", f"--{'x' * 10**5}")
    assert code == 2
    assert len(err) < 700


@pytest.mark.parametrize("words", [["--help"], ["algorithms", "fedu"], ["cite", "--algorithms", "all"]])
def test_standard_output_that_is_full(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedlap", *words])
    with FULL.open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as end:
            cli.main()
    assert end.value.code == 2
    assert (
        capsys.readouterr().err
        == "error: standard output cannot be written (No space left on device); redirect it elsewhere\n"
    )


def test_a_reader_that_has_enough_ends_the_command_quietly():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        words = [sys.executable, "-m", "fedlap.cli", "cite", "--algorithms", "all"]
        done = subprocess.run(words, stdout=closed, stderr=subprocess.PIPE, timeout=120)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_failing_standard_error_does_not_end_the_work():
    with FULL.open("w") as full:
        stream = streams.Stream(full, needed=False)
        assert stream.write("abc") == 3
        stream.flush()
    with FULL.open("w") as full:
        stream = streams.Stream(full, needed=True)
        stream.write("abc")
        with pytest.raises(streams.OutputError, match="No space left"):
            stream.flush()


def test_characters_that_an_encoding_lacks_are_escaped(monkeypatch):
    content = io.BytesIO()
    with io.TextIOWrapper(content, encoding="cp1252") as narrow:
        monkeypatch.setattr(sys, "stdout", narrow)
        with streams.check_streams():
            console.Console(width=100).print("accuracy − 名 \udcff é")
            print("η")
        narrow.flush()
        text = content.getvalue().decode("cp1252")
    assert text == "accuracy \\u2212 \\u540d \\udcff é\n\\u03b7\n"


def test_threads_beyond_reason(call):
    for number in (10**5, 10**30):
        code, _, err = call("run", "--threads", str(number))
        assert code == 2
        assert err.startswith(f"error: --threads {number}: use at most ")


def test_a_device_that_is_not_there_is_one_short_line(call):
    code, _, err = call("run", "--rounds", "1", "--device", "mps")
    assert code == 2
    assert "error: device = 'mps' is not supported; use cpu or cuda" in err
    assert len(err.splitlines()[-1]) < 300


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(12, "Cannot allocate memory", "file"),
        RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000 bytes. Error code 12"
        ),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4000 bytes."),
    ],
)
def test_out_of_memory_is_one_line(call, monkeypatch, error):
    def fail(*args):
        raise error

    monkeypatch.setattr("fedlap.cli.run.run_experiment", fail)
    code, out, err = call("run", "--rounds", "1")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: out of memory (")


def test_a_bug_is_one_line_and_an_exit_code_of_its_own(call, monkeypatch):
    def fail(*args):
        raise KeyError("a\nb")

    monkeypatch.setattr("fedlap.cli.run.run_experiment", fail)
    code, out, err = call("run", "--rounds", "1")
    assert (code, out, err.count("\n")) == (70, "", 1)
    assert err.startswith("error: internal error: KeyError: ")
    assert "FEDLAP_DEBUG=1" in err
    monkeypatch.setenv("FEDLAP_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["fedlap", "run", "--rounds", "1"])
    with pytest.raises(KeyError):
        cli.main()


def test_a_warning_is_one_line(call, monkeypatch):
    def warn(*args):
        warnings.warn(f"odd\n{EVIL}", RuntimeWarning, stacklevel=1)

    monkeypatch.setattr("fedlap.cli.run.run_experiment", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, _, err = call("run", "--rounds", "1")
    assert (code, err) == (0, f"warning: odd {CLEAN}\n")
