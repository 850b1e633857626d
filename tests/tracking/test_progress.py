"""Progress: a bar on a terminal, a few lines elsewhere, and what diverged counts no more."""

import io
import re

import pytest
from rich.console import Console

from example_scores import run
from fedlap.tracking.progress import show_progress


def track_progress(console, names, rounds):
    """Return the progress callbacks of a stack of runs with the given names."""
    return show_progress(console, [[0, 1]], lambda places: names[places[0]], lambda places: rounds)


def test_a_terminal_sees_a_bar_with_pace_and_accuracy():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120, _environ={"TERM": "xterm"})
    with track_progress(console, {0: "local", 2: "fedu[/x]"}, 2) as (on_score, on_round):
        on_round([0, 1], 2)
        for place, accuracy in enumerate((0.4, 0.6), 2):
            on_score(place, run(accuracy)[0])
        on_round([2, 3], 1)
        on_round([2, 3], 2)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    assert "fedu[/x]" in plain
    assert "local" in plain
    assert "rounds/s" in plain
    assert "test accuracy 50.00 %" in plain
    assert "2/2" in plain


@pytest.mark.parametrize("rounds", [3, 100])
def test_elsewhere_a_few_lines_even_without_scores(rounds):
    file = io.StringIO()
    with track_progress(Console(file=file, width=120), {0: "fedu"}, rounds) as (_, on_round):
        for done in range(1, rounds + 1):
            on_round([0, 1], done)
    lines = file.getvalue().splitlines()
    assert len(lines) == min(rounds, 5)
    assert lines[-1].startswith(f"fedu  round {rounds}/{rounds}")


def test_what_has_diverged_no_longer_counts_in_progress():
    file = io.StringIO()
    with track_progress(Console(file=file, width=120), {0: "fedu"}, 2) as (on_score, on_round):
        for score in run(0.5, 0.6):
            on_score(1, score)
            on_score(0, run(0.1)[0])  # of round 1, twice
            on_round([0, 1], score.round)
    first, second = file.getvalue().splitlines()
    assert "test accuracy 30.00 %" in first
    assert "test accuracy 60.00 %" in second


def test_held_out_training_rows_are_validation_rows():
    file = io.StringIO()
    console = Console(file=file, width=120)
    with show_progress(console, [[0]], lambda _: "fedu", lambda _: 1, "validation") as (on_score, on_round):
        on_score(0, run(0.5)[0])
        on_round([0], 1)
    assert "  validation accuracy 50.00 %" in file.getvalue()
