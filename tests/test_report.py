"""The numbers in the table, from scores made by hand."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from fedlap.report import Comparison, draw_curves
from fedlap.report.progress import progress
from fedlap.scores import Score

BLANK = Score(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, None, 0, 0, 0.0)


def run(*accuracies, **fields):
    """Scores of a run, round after round."""
    last = len(accuracies)
    return [
        replace(BLANK, round=t, accuracy=a, accuracy_mean=a - 0.1, accuracy_worst=a - 0.2, bytes_up=1500 * t,
                seconds=0.002 * t, train_loss=1.0 / t, **(fields if t == last else {}))
        for t, a in enumerate(accuracies, 1)
    ]  # fmt: skip


@pytest.fixture
def comparison():
    """The best round of `one` is not its last."""
    runs = {"one": [run(0.99, 0.80), run(0.99, 0.84)], "two": [run(0.5, 0.70), run(0.5, 0.76)]}
    return Comparison("made up", [0, 1], runs)


def test_cells_are_mean_and_sample_std_of_the_last_round(comparison):
    one, two = comparison.rows()
    assert one == ["one", "82.00 ± 2.83", "72.00 ± 2.83", "62.00 ± 2.83", "1.5 kB", "2.0"]
    assert two[:2] == ["two", "73.00 ± 4.24"]
    assert "after round 2, mean ± std over 2 seeds" in comparison.title()


def test_the_verdict_is_paired(comparison):
    gaps = np.array([10.0, 8.0])
    error = gaps.std(ddof=1) / np.sqrt(2)
    first, second = comparison.verdict()
    assert first.startswith("one leads in test accuracy; paired over 2 seeds")
    assert second == f"  one − two = +9.00 ± {error:.2f} points"


def test_a_lead_within_two_standard_errors_is_said_to_be():
    runs = {"one": [run(0.9), run(0.8)], "two": [run(0.8), run(0.89)], "same": [run(0.9), run(0.8)]}
    lines = Comparison("made up", [0, 1], runs).verdict()
    assert "within two standard errors" in lines[1]
    assert lines[2].endswith("the same")


def test_regression_leads_with_the_lower_loss():
    none = {"accuracy": None, "accuracy_mean": None, "accuracy_worst": None}
    runs = {
        "one": [[replace(BLANK, round=1, loss=2.0, **none)]],
        "two": [[replace(BLANK, round=1, loss=1.5, **none)]],
    }
    comparison = Comparison("made up", [0], runs)
    assert comparison.verdict() == [
        "two leads in test loss (lower is better); one seed:",
        "  two − one = -0.5000",
    ]
    assert comparison.headers()[1] == "loss"


def test_without_test_rows_nobody_leads():
    none = dict.fromkeys(("accuracy", "accuracy_mean", "accuracy_worst", "loss", "loss_mean", "loss_worst"))
    runs = {name: [[replace(BLANK, round=1, **none)]] for name in ("one", "two")}
    comparison = Comparison("made up", [0], runs)
    assert comparison.verdict() == []
    assert comparison.rows()[0][1] == "–"
    assert draw_curves(comparison)[:4] == b"\x89PNG"


def test_markdown_and_json_hold_the_same(comparison):
    text = comparison.markdown()
    assert "| one | 82.00 ± 2.83 |" in text
    assert "one − two = +9.00" in text
    assert comparison.as_dict()["algorithms"]["two"][1]["accuracy"] == 0.76


@pytest.mark.parametrize(("width", "shown"), [(100, True), (80, True), (60, False)])
def test_the_table_is_whole_at_any_width(comparison, width, shown):
    file = io.StringIO()
    Console(file=file, width=width).print(comparison.table(width))
    text = file.getvalue()
    assert "…" not in text
    assert "82.00 ± 2.83" in text
    assert ("1.5 kB" in text) == shown
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (4995, "999 B"), (4998, "1 kB"), (4_998_000, "1 MB")])
def test_bytes(number, text):
    runs = {"one": [[replace(BLANK, round=5, bytes_up=number)]]}
    assert Comparison("made up", [0], runs).rows()[0][-2] == text


def test_a_terminal_sees_a_bar_with_pace_and_accuracy():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120, _environ={"TERM": "xterm"})
    with progress(console, "fedu", 2, 5) as (on_score, on_round):
        on_score(run(0.5)[0])
        on_round(1)
        on_round(2)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    assert "rounds/s" in plain
    assert "test accuracy 50.00 %" in plain
    assert "2/2" in plain


@pytest.mark.parametrize("rounds", [3, 100])
def test_elsewhere_a_few_lines_even_without_scores(rounds):
    file = io.StringIO()
    with progress(Console(file=file, width=120), "fedu", rounds, 5) as (_, on_round):
        for done in range(1, rounds + 1):
            on_round(done)
    lines = file.getvalue().splitlines()
    assert len(lines) == min(rounds, 5)
    assert f"round {rounds}/{rounds}" in lines[-1]
