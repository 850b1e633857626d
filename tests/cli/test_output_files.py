"""No command writes over what it reads, by whatever name, and none needs a home or a user's name."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from user_tables import ROWS, TABLE

EDGES = "north,south,1.0\nsouth,east,1.0\neast,west,2.0\n"


@pytest.fixture
def place(call, tmp_path, monkeypatch):
    """A file of rows, one of edges, names that lead to them, and a run on both."""
    monkeypatch.chdir(tmp_path)
    ROWS.to_csv("rows.csv", index=False)
    Path("edges.csv").write_text(EDGES)
    Path("soft.csv").symlink_to("rows.csv")
    Path("hard.csv").hardlink_to("rows.csv")
    Path("hard.png").hardlink_to("edges.csv")
    words = ["run", "--data", "rows.csv", *TABLE, "--graph", "edges.csv", "--rounds", "1", "--json"]
    code, out, err = call(*words)
    assert code == 0, err
    Path(json.loads(out)["folder"]).rename("run")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "input_"),
    [
        ("predict run rows.csv --client north --to rows.csv", "rows.csv"),
        ("predict run rows.csv --client north --to soft.csv", "rows.csv"),
        ("predict run rows.csv --client north --to hard.csv", "rows.csv"),
        ("predict run rows.csv --client north --to run/rounds.jsonl", "run/rounds.jsonl"),
        ("graph make rows.csv --data rows.csv --client hospital --label outcome", "rows.csv"),
        ("graph make edges.csv --data digits --graph edges.csv", "edges.csv"),
        ("graph learn run rows.csv", "rows.csv"),
        ("graph draw edges.csv hard.png", "edges.csv"),
        ("export run --client north --to run/models/models.safetensors", "run/models/models.safetensors"),
        ("show run --to run/link.csv", "run/rounds.jsonl"),
    ],
)
def test_no_command_writes_over_what_it_reads(place, call, line, input_):
    Path("run/link.csv").hardlink_to("run/rounds.jsonl")
    before = Path(input_).read_bytes()
    code, _, err = call(*line.split(), out=False)
    assert code == 2
    assert err.endswith(" is an input of this command; choose another output file\n")
    assert Path(input_).read_bytes() == before


def test_results_are_pages_in_a_folder_and_never_over_what_is_read(place, call):
    Path("results/table").mkdir(parents=True)
    Path("results/table/cell.json").write_text("{}")
    code, _, err = call("results", "results", "--to", "results/table/cell.json", out=False)
    assert code == 2
    wanted = "--to 'results/table/cell.json': expected a folder for pages; pass one, such as docs/results"
    assert err == f"error: {wanted}\n"
    assert Path("results/table/cell.json").read_text() == "{}"


def test_results_replace_no_readme_but_their_page(place, call):
    Path("results").mkdir()
    Path("README.md").write_text("# My study\n")
    for folder in (".", ""):
        code, _, err = call("results", "results", "--to", folder, out=False)
        assert code == 2
        assert err == "error: --to '.': expected a folder for pages; pass one, such as docs/results\n"
    code, _, err = call("results", "results", "--to", str(Path.cwd()), out=False)
    assert code == 2
    assert err.endswith("README.md' is not a page of results and would be replaced; pass another --to\n")
    assert Path("README.md").read_text() == "# My study\n"
    for _ in range(2):  # the second time over the pages of the first
        assert call("results", "results", "--to", "pages", out=False)[0] == 0


def test_what_a_command_wrote_before_is_written_again(place, call):
    for _ in range(2):
        assert call("show", "run", "--to", "run/scores.csv", out=False)[0] == 0
        assert call("graph", "learn", "run", "new.csv", out=False)[0] == 0


@pytest.mark.parametrize("to", [".", "fifo"])
def test_only_plain_files_are_written(place, call, to):
    os.mkfifo("fifo")
    code, _, err = call("predict", "run", "rows.csv", "--client", "north", "--to", to, out=False)
    assert code == 2
    assert err == f"error: {to!r} is not a regular file; choose another output file\n"


NAMELESS = """
import os, pwd
def getpwuid(number):
    raise KeyError(f"getpwuid(): uid not found: {number}")
pwd.getpwuid = getpwuid
from fedlap.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["data", "list"], pytest.param(["run", "--rounds", "1"], marks=pytest.mark.slow)]
)
def test_a_user_without_name_and_home(tmp_path, words):
    """As in a container that runs under a number of its own."""
    unset = ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "XDG_CACHE_HOME", "FEDLAP_DATA")
    env = {name: value for name, value in os.environ.items() if name not in unset}
    program = [sys.executable, "-c", NAMELESS, *words]
    done = subprocess.run(program, env=env, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.endswith("error: no home directory for the cache; set XDG_CACHE_HOME to a folder\n")
    env["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    done = subprocess.run(program, env=env, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"runs", "cache"}
