"""`fedlap runs` and `fedlap rm`: groups with their runs, settings that differ, filters, and questions."""

import json
import os
import re
import shutil
import sys
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fedlap.cli.run_list import build_shortener, build_table, parse_since
from fedlap.errors import InputError
from fedlap.experiments.run_summary import RunSummary, find_differences, list_summaries

SMALL = ("--set", "data.clients=3", "--set", "data.features=2", "--set", "data.rows=6")
WORDS = ("--data", "synthetic", "--rounds", "2", *SMALL)


@pytest.fixture(scope="module")
def stored_runs(tmp_path_factory):
    """Train a comparison, a sweep, a tuning and two single runs."""
    out = tmp_path_factory.mktemp("trained") / "runs"
    from fedlap import cli

    for words in (
        ("compare", *WORDS, "--seeds", "0-1", "--algorithms", "fedu,local"),
        ("sweep", *WORDS, "--seeds", "0", "--vary", "lr=0.01,0.02"),
        ("tune", *WORDS, "--folds", "2", "--vary", "lr=0.01,0.02"),
        ("run", *WORDS, "--lr", "0.3", "--seed", "7"),
        ("run", *WORDS, "--lr", "0.4", "--seed", "7", "--set", "data.task=regression"),
    ):
        assert cli.run_command_line([*words, "--out", str(out)]) == 0
    return out


@pytest.fixture
def runs(stored_runs, tmp_path):
    shutil.copytree(stored_runs, tmp_path / "runs")
    return tmp_path / "runs"


def read_json(text):
    lines = [json.loads(line) for line in text.splitlines()]
    return [line for line in lines if "run" in line], [line for line in lines if "group" in line]


def test_groups_stand_for_their_runs(call, runs):
    code, out, err = call("runs")
    assert code == 0
    assert err == "10 runs of comparisons, sweeps and tunings are folded; --all lists them\n"
    lines = [line for line in out.splitlines() if "2" in line]
    assert max(map(len, out.splitlines())) <= 100
    assert len(lines) == 5
    for text in ("compare (4)", "sweep (2)", "tune (4)", "lr=0.3", "lr=0.4", "task=regression", "RMSE", " %"):
        assert text in out
    code, out, err = call("runs", "--all")
    assert (code, err) == (0, "")
    assert out.count("└") == 10
    assert "0.01" in out


def test_json_has_one_object_per_run_and_per_group(call, runs):
    found, groups = read_json(call("runs", "--json")[1])
    assert len(found) == 12
    assert sorted(group["command"] for group in groups) == ["compare", "sweep", "tune"]
    for group in groups:
        inside = {run["run"] for run in found if group["group"] in run["groups"]}
        assert inside == set(group["runs"])
        assert group["missing"] == []
    compare = next(group for group in groups if group["command"] == "compare")
    facts = json.loads((runs / compare["group"] / "comparison.json").read_text())
    means = {
        name: sum(score["accuracy"] for score in scores) / 2 for name, scores in facts["algorithms"].items()
    }
    assert compare["best"] == max(means, key=means.get)
    assert compare["score"] == max(means.values())
    for run in found:
        shown = json.loads(call("show", run["run"], "--json")[1])
        assert run["seed"] == shown["experiment"]["seed"]
        assert run["settings"]["algorithm.lr"] == shown["experiment"]["algorithm"]["lr"]
        assert run["loss"] == shown["last"]["loss"]
        assert run["score"] == shown["last"][run["metric"]]
        assert (run["state"], run["round"], run["rounds"]) == ("done", 2, 2)
        assert datetime.fromisoformat(run["date"]).tzinfo is not None


@pytest.mark.parametrize(
    ("words", "runs_found", "groups_found"),
    [
        (("--data", "synthetic"), 12, 3),
        (("--data", "digits"), 0, 0),
        (("--algorithm", "local"), 2, 1),
        (("--state", "done"), 12, 3),
        (("--state", "diverged"), 0, 0),
        (("--since", "2h"), 12, 3),
        (("--since", "2999-01-01"), 0, 0),
        (("--algorithm", "fedu", "--state", "done", "--data", "synthetic"), 10, 3),
    ],
)
def test_filters(call, runs, words, runs_found, groups_found):
    code, out, _ = call("runs", *words, "--json")
    found, groups = read_json(out)
    assert (code, len(found), len(groups)) == (0, runs_found, groups_found)
    code, out, err = call("runs", *words)
    assert code == 0
    assert bool(out) == bool(runs_found)
    assert bool(out) or err == f"none of 12 runs in {str(runs)!r} matches\n"


def test_newest_first(call, runs):
    names = sorted(path.name for path in runs.iterdir() if (path / "experiment.toml").exists())
    for number, name in enumerate(names):
        os.utime(runs / name / "rounds.jsonl", (10**9, 10**9 + 3600 * number))
    found, _ = read_json(call("runs", "--json")[1])
    assert [run["run"] for run in found] == names[::-1]
    assert found[-1]["date"] == "2001-09-09T01:46:40Z"


@pytest.mark.parametrize(("metric", "sign"), [("accuracy", 1), ("loss", -1), ("rmse", -1)])
def test_a_metric_is_shown_and_sorts_best_first(call, runs, metric, sign):
    found, groups = read_json(call("runs", "--json", "--metric", metric)[1])
    last = {
        run["run"]: json.loads(call("show", run["run"], "--json")[1])["last"].get(metric) for run in found
    }
    assert {run["run"]: run["score"] for run in found} == last
    values = [run["score"] for run in found if run["score"] is not None]
    assert 0 < len(values) <= len(found)
    assert values == sorted(values, key=lambda value: -sign * value)
    assert [run["score"] for run in found[len(values) :]] == [None] * (len(found) - len(values))
    compare = next(group for group in groups if group["command"] == "compare")
    facts = json.loads((runs / compare["group"] / "comparison.json").read_text())
    if metric in facts["algorithms"]["fedu"][0]:
        means = [sum(row[metric] for row in rows) / 2 for rows in facts["algorithms"].values()]
        assert compare["score"] == sign * max(sign * mean for mean in means)
    code, out, _ = call("runs", "--metric", metric)
    shown = [float(text) for text in re.findall(r"(?:loss|RMSE) (\S+)|(\S+) %", out) for text in text if text]
    assert code == 0
    assert shown
    assert shown == sorted(shown, key=lambda value: -sign * value)


def test_a_metric_that_no_run_has(call, runs):
    assert call("runs", "--metric", "rsme")[::2] == (
        2, "error: unknown metric 'rsme'; did you mean 'rmse'?\n"
    )  # fmt: skip
    code, out, err = call("runs", "--metric", "mae", "--algorithm", "local")
    assert (code, out) == (2, "")
    assert err == "error: metric = mae: the listed runs do not have it; use accuracy, loss\n"


def test_states(call, runs):
    """Unfinished, diverged and damaged runs are listed, and one that is gone is missing in its group."""
    first, second, third, fourth = sorted(runs.glob("synthetic-fedu-*"))[:4]
    shutil.rmtree(first / "checkpoint")
    (second / "diverged.json").write_text('{"reason": "too large"}')
    (third / "experiment.toml").write_text("[")
    shutil.rmtree(fourth)
    code, out, err = call("runs", "--json")
    states = {run["run"]: run["state"] for run in read_json(out)[0]}
    assert code == 0
    assert (states[first.name], states[second.name], states[third.name]) == (
        "unfinished", "diverged", "damaged"
    )  # fmt: skip
    assert f"note: {third.name} is damaged: " in err
    assert sum(fourth.name in group["missing"] for group in read_json(out)[1]) <= 1
    (second / "models").rename(runs.parent / "models")
    (second / "models").symlink_to(runs.parent / "models")
    assert "'models' is a link" in call("runs")[2]


def test_the_digits_of_a_row_name_it_in_other_commands(call, runs, monkeypatch, no_figures):
    digits = re.findall(r"^\W*([0-9a-f]{8}) ", call("runs", "--all")[1], re.MULTILINE)
    assert len(digits) == 3 + 12
    for text in digits:
        code, _, err = call("show", text)
        assert code == 0 or "pass one of them, e.g. synthetic-" in err
    (group,) = runs.glob("*-compare-*")
    monkeypatch.chdir(runs.parent)
    code, out, _ = call("report", group.name[-16:][:8], out=False)
    assert (code, (group / "report" / "page.html").exists()) == (0, True)
    assert out.startswith("file://")
    code, _, err = call("show", "0" * 4)
    assert (code, err.count("\n")) == (2, 1)


def test_digits_are_as_many_as_needed():
    names = [f"a-fedu-{digest}" for digest in ("0123456789abcdef", "0123456789abffff", "f" * 16)]
    shorten = build_shortener(names)
    assert [shorten(name) for name in names] == ["0123456789abc", "0123456789abf", "f" * 13]
    assert build_shortener(["renamed", "a-fedu-" + "b" * 16])("renamed") == "renamed"


def test_only_settings_that_differ_are_listed():
    runs = [{"seed": 0, "a.lr": 0.1, "b": [1], "content": "x"}, {"seed": 1, "a.lr": 0.2, "b": [1], "c": 0}]
    assert find_differences(runs) == ["a.lr", "c"]
    assert find_differences(runs[:1]) == []


def test_dates_and_ages():
    assert parse_since("2001-09-09 01:46:40") == 10**9
    assert parse_since("2001-09-09T03:46:40+02:00") == 10**9
    now = datetime.now(UTC).timestamp()
    for text, hours in (("12h", 12), ("7d", 168), ("2w", 336)):
        assert now - parse_since(text) == pytest.approx(3600 * hours, abs=60)
    for text in ("yesterday", "7", "-1d", "", "2026-13-01", "9999999d"):
        with pytest.raises(InputError, match=r"^--since .*expected a date or an age"):
            parse_since(text)


def test_a_list_reads_the_end_of_long_logs(runs, monkeypatch):
    (log,) = next(runs.glob("synthetic-fedu-*")).glob("rounds.jsonl")
    last = log.read_text().splitlines()[-1]
    log.write_text("not JSON\n" * 100_000 + last + '\n{"round": ')
    summary = next(run for run in list_summaries(runs)[0] if run.folder == log.parent)
    assert summary.last == json.loads(last)


def test_rm_asks_on_a_terminal(call, runs, monkeypatch):
    (group,) = runs.glob("*-sweep-*")
    before = {path.name for path in runs.iterdir()}
    code, out, err = call("rm", group.name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "pass --yes" in err
    code, out, _ = call("rm", group.name, "--dry-run")
    assert code == 0
    assert "would delete 2 runs and 1 group in" in out
    assert {path.name for path in runs.iterdir()} == before
    for answer, gone in (("n\n", 0), ("y\n", 3)):
        read, write = os.pipe()
        os.write(write, answer.encode())
        os.close(write)
        with os.fdopen(read) as typed:
            typed.isatty = lambda: True
            monkeypatch.setattr(sys, "stdin", typed)
            code, _, err = call("rm", group.name)
        assert code == 0
        assert "Delete 2 runs and 1 group in" in err
        assert len(before) - len(list(runs.iterdir())) == gone
    assert call("rm", group.name, "--yes")[0] == 2


def test_rm_names_what_stays(call, runs):
    (group,) = runs.glob("*-compare-*")
    run = json.loads((group / "comparison.json").read_text())["kept"]["fedu"][0]
    (runs / run / "notes.txt").touch()
    code, out, err = call("rm", run, "--yes")
    assert code == 0
    assert out.startswith("deleted 1 run in ")
    assert f"note: {group.name} loses runs; `fedlap report` cannot draw it any more" in err
    assert f"note: 1 file stays, not written by fedlap, e.g. {runs / run / 'notes.txt'}" in err
    assert [path.name for path in (runs / run).iterdir()] == ["notes.txt"]
    assert "1 missing" in call("runs")[1]


def test_a_narrow_list_keeps_values_in_one_piece():
    """Digests are short, lists have no brackets, and only settings of the algorithm have no section."""
    common = {"data.name": "file", "algorithm.name": "fedu"}
    listed = [
        RunSummary(
            Path(f"runs/table-fedu-{number}{0:015x}"), "done" if number else "unfinished", 10**9, "table",
            "fedu", number, 100 if number else 40, 100,
            common | {
                "algorithm.strength": 0.0891 + number, "data.features": ["age", "dose"][: number + 1],
                "data.sha256": f"{number}" * 64, "graph.weight": number + 1.0,
            },
            {"rmse": 0.5, "loss": 0.125, "round": 40},
        )
        for number in (0, 1)
    ]  # fmt: skip
    console = Console(width=80, file=StringIO())
    console.print(build_table(listed, [], {run.name for run in listed}, False, 80))
    text = console.file.getvalue()
    words = text.split()
    wanted = "strength=0.0891 strength=1.0891 data.features=age data.features=age,dose data.sha256=00000000"
    assert {*wanted.split(), "data.sha256=11111111", "graph.weight=1", "graph.weight=2"} <= {*words}
    assert {"40/100", "done"} <= {*words}
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
