"""The numbers in the table, from scores made by hand."""

import io
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from fedlap.errors import DivergedError
from fedlap.report import Comparison, Sweep, draw_curves, draw_sweep, shown
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


def told(console, names, rounds):
    """The functions that a stack of runs of these names tells its progress to."""
    return progress(console, [[0, 1]], lambda places: names[places[0]], lambda places: rounds)


def test_a_terminal_sees_a_bar_with_pace_and_accuracy():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120, _environ={"TERM": "xterm"})
    with told(console, {0: "local", 2: "fedu[/x]"}, 2) as (on_score, on_round):
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
    with told(Console(file=file, width=120), {0: "fedu"}, rounds) as (_, on_round):
        for done in range(1, rounds + 1):
            on_round([0, 1], done)
    lines = file.getvalue().splitlines()
    assert len(lines) == min(rounds, 5)
    assert lines[-1].startswith(f"fedu  round {rounds}/{rounds}")


def test_what_has_diverged_no_longer_counts_in_progress():
    file = io.StringIO()
    with told(Console(file=file, width=120), {0: "fedu"}, 2) as (on_score, on_round):
        for score in run(0.5, 0.6):
            on_score(1, score)
            on_score(0, run(0.1)[0])  # of round 1, twice
            on_round([0, 1], score.round)
    first, second = file.getvalue().splitlines()
    assert "test accuracy 30.00 %" in first
    assert "test accuracy 60.00 %" in second


WRONG = DivergedError("training diverged: by round 2; lower lr")


@pytest.fixture
def partly():
    runs = {"one": [run(0.8), run(0.9)], "two": [run(0.5), WRONG], "three": [WRONG, WRONG],
            "four": [run(0.7), run(0.6)]}  # fmt: skip
    return Comparison("made up", [0, 3], runs)


def test_what_diverged_is_shown_and_not_ranked(partly):
    rows = {row[0]: row[1:] for row in partly.rows()}
    assert rows["two"] == ["1 of 2 diverged", "–", "–", "1.5 kB", "2.0"]
    assert rows["three"] == ["diverged", "–", "–", "–", "–"]
    first, gap, *rest = partly.verdict()
    assert first.startswith("one leads")
    assert gap.startswith("  one − four = +20.00")
    assert rest == ["two diverged in 1 of 2 seeds and is not ranked",
                    "three diverged in 2 of 2 seeds and is not ranked"]  # fmt: skip
    assert draw_curves(partly)[:4] == b"\x89PNG"


def test_what_diverged_is_null_with_its_reason(partly):
    about = partly.as_dict()
    assert about["algorithms"]["two"][0]["accuracy"] == 0.5
    assert about["algorithms"]["two"][1] is None
    assert about["algorithms"]["three"] == [None, None]
    assert about["diverged"][0] == {"algorithm": "two", "seed": 3, "reason": str(WRONG)}
    assert len(about["diverged"]) == 3


def test_where_all_diverged_there_is_still_a_table():
    comparison = Comparison("made up", [0], {"one": [WRONG]})
    assert comparison.rows() == [["one", "diverged", "–", "–", "–", "–"]]
    assert comparison.verdict() == ["one diverged and is not ranked"]
    assert "the last round" in comparison.markdown()
    assert draw_curves(comparison)[:4] == b"\x89PNG"


def swept(fields, accuracies):
    """A sweep of fields, one run a combination; None diverged."""
    values = {
        ", ".join(f"{name} = {shown(value)}" for name, value in zip(fields, each, strict=True)): each
        for each in itertools.product(*fields.values())
    }
    outcomes = [[WRONG if accuracy is None else run(accuracy)] for accuracy in accuracies]
    runs = dict(zip(values, outcomes, strict=True))
    return Sweep("made up", [0], runs, "", tuple(fields), values, ("fedu",))


def test_a_sweep_has_a_column_a_field():
    sweep = swept({"lr": [0.01, 0.1], "model.hidden": [[5], [5, 7]]}, [0.5, 0.6, 0.9, 0.7])
    assert sweep.headers()[:3] == ["lr", "model.hidden", "accuracy %"]
    assert [row[:3] for row in sweep.rows()][1] == ["0.01", "[5, 7]", "60.00"]
    assert sweep.title().startswith("fedu on made up")
    assert sweep.verdict()[:2] == [
        "lr = 0.1, model.hidden = [5] leads in test accuracy; one seed:",
        "  against lr = 0.01, model.hidden = [5]: +40.00 points",
    ]
    assert sweep.as_dict()["best"] == {"lr": 0.1, "model.hidden": [5]}
    assert sweep.as_dict()["runs"][1]["values"] == {"lr": 0.01, "model.hidden": [5, 7]}


LARGEST = "the best {} is the largest tried; try larger ones"
SMALLEST = "the best {} is the smallest tried; try smaller ones"


@pytest.mark.parametrize(
    ("name", "values", "accuracies", "wanted"),
    [
        ("lr", [0.01, 0.1, 1.0], [0.5, 0.6, 0.7], LARGEST),
        ("lr", [1.0, 0.01, 0.1], [0.5, 0.8, 0.7], SMALLEST),
        ("lr", [0.01, 0.1, 1.0], [0.5, 0.9, 0.7], None),
        ("lr", [0.01, 0.1, 1.0], [0.5, 0.9, None], None),  # the largest was tried, and diverged
        ("lr", [0.01, 0.1, 1.0], [0.7, 0.7, 0.7], None),  # one in the middle is as good
        ("lr", [0.1, 1.0], [0.5, 0.6], None),  # too few
        ("strength", [0, 0.1, 1.0], [0.9, 0.6, 0.5], None),  # there is nothing below zero
        ("sample", [0.1, 0.5, 1], [0.5, 0.6, 0.7], None),  # nor more than all
        ("batch", [10, 20, "all"], [0.5, 0.6, 0.7], None),
    ],
)
def test_a_best_value_at_the_edge_is_said_to_be(name, values, accuracies, wanted):
    lines = [line for line in swept({name: values}, accuracies).verdict() if line.startswith("the best")]
    assert lines == ([] if wanted is None else [wanted.format(name)])


@pytest.mark.parametrize(
    "fields",
    [
        {"strength": [0, 0.001, 0.1]},
        {"lr": [0.001, 0.1]},
        {"lr": list(np.geomspace(1e-3, 1, 12))},
        {"rounds": [7]},
        {"graph": ["ring", "$a$"], "lr": [0.1, 0.2, 0.3]},
        {"model": ["linear", "mlp"], "partition": ["iid", "labels"]},
        {"lr": [0.1, 0.2], "batch": list(range(1, 21))},
        {"lr": list(range(1, 3)), "batch": [10, 20], "graph": [str(n) for n in range(9)]},
    ],
    ids=lambda fields: "-".join(f"{name} {len(values)}" for name, values in fields.items()),
)
@pytest.mark.parametrize("failed", [0, 1, 1000])
def test_every_sweep_has_a_picture(fields, failed):
    number = int(np.prod([len(values) for values in fields.values()]))
    accuracies = [None if place < failed else 0.5 + place / 200 for place in range(number)]
    assert draw_sweep(swept(fields, accuracies))[:4] == b"\x89PNG"


def test_a_sweep_without_test_rows_has_a_picture():
    sweep = swept({"lr": [0.1, 0.2]}, [0.1, 0.1])
    none = dict.fromkeys(("accuracy", "accuracy_mean", "accuracy_worst", "loss", "loss_mean", "loss_worst"))
    runs = {name: [[replace(BLANK, round=1, **none)]] for name in sweep.runs}
    assert draw_sweep(replace(sweep, runs=runs))[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (20.0, "20"), (20, "20"), (1e-5, "1e-05"), (0.12345678, "0.12345678"),
     ([5, 7], "[5, 7]"), ("all", "all"), ({"name": "iid", "clients": 5.0}, "name = iid, clients = 5")],
)  # fmt: skip
def test_values_are_written_short(value, text):
    assert shown(value) == text
