"""The numbers in the table of a comparison and what it claims, from scores written by hand."""

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from example_scores import BLANK, UNTESTED, WRONG, run
from fedlap.report import Comparison, draw_curves

REAL = {name: None for name in UNTESTED if name.startswith("accuracy")}


@pytest.fixture
def comparison():
    """The best round of `one` is not its last."""
    runs = {"one": [run(0.99, 0.80), run(0.99, 0.84)], "two": [run(0.5, 0.70), run(0.5, 0.76)]}
    return Comparison("made up", [0, 1], runs)


def test_cells_are_mean_and_sample_std_of_the_last_round(comparison):
    one, two = comparison.table_rows()
    assert one == ["one", "82.00 ± 2.83", "72.00 ± 2.83", "62.00 ± 2.83", "8.20 ± 0.28",
                   "1.5 kB", "3 kB", "2.0"]  # fmt: skip
    assert two[:2] == ["two", "73.00 ± 4.24"]
    assert "after round 2, mean ± std over 2 seeds" in comparison.describe_table()


def test_headers_name_what_is_shown(comparison):
    """A score of its own in each column is found below its header."""
    marked = {"accuracy": 0.11, "accuracy_mean": 0.22, "accuracy_worst": 0.33, "accuracy_std": 0.44,
              "loss": 0.5, "loss_mean": 0.6, "loss_worst": 0.7, "loss_std": 0.8,
              "round": 2, "bytes_up": 10, "bytes_down": 20, "seconds": 0.006}  # fmt: skip
    costs = {"upload/round": "5 B", "download/round": "10 B", "ms/round": "3.0"}
    for changed, wanted in [
        ({}, {"pooled accuracy %": "11.00", "client mean %": "22.00", "worst tenth %": "33.00",
              "client std %": "44.00"}),
        (REAL, {"pooled loss": "0.500", "client mean": "0.600", "worst tenth": "0.700",
                "client std": "0.800"}),
    ]:  # fmt: skip
        table = Comparison("made up", [0], {"one": [[replace(BLANK, **{**marked, **changed})]]})
        shown = dict(zip(table.headers(), table.table_rows()[0], strict=True))
        assert shown == {"algorithm": "one", **wanted, **costs}
        assert "test rows after round 2, seed 0" in table.describe_table()
        assert all(
            word in table.render_markdown()
            for word in ("Pooled: over", "worst tenth: mean", "upload, download: bytes sent")
        )


def test_the_verdict_is_paired(comparison):
    # One degree of freedom: Cauchy's distribution.
    p, reach = 1 - 2 / math.pi * math.atan(9), math.tan(0.475 * math.pi)
    assert comparison.describe_verdict() == [
        "one has the highest pooled test accuracy; the difference is not significant.",
        "With two seeds, only differences of 12.7 standard errors or more can be significant.",
        "Paired over 2 seeds: mean difference [95 % interval], two-sided t-test p-value:",
        f"  one − two = +9.00 [{9 - reach:+.2f}, {9 + reach:+.2f}] points, p = {p:.2g} — not significant",
    ]


def three(*rows):
    """Rows of accuracies at three seeds or more, called a, b, …"""
    runs = {name: [run(value) for value in row] for name, row in zip("abcdef", rows, strict=False)}
    return Comparison("made up", list(range(len(rows[0]))), runs)


def test_a_lead_that_is_shown_is_said_to_be():
    wanted = stats.ttest_rel([0.80, 0.84, 0.83], [0.70, 0.73, 0.735])
    low, high = (100 * end for end in wanted.confidence_interval(0.95))
    assert three([0.70, 0.73, 0.735], [0.80, 0.84, 0.83]).describe_verdict() == [
        "b has the highest pooled test accuracy; the difference is significant.",
        "Paired over 3 seeds: mean difference [95 % interval], two-sided t-test p-value:",
        f"  b − a = +10.17 [{low:+.2f}, {high:+.2f}] points, p = {wanted.pvalue:.2g} — better",
    ]


def test_each_other_row_has_its_own_word():
    base = np.array([0.80, 0.84, 0.83, 0.81, 0.86])
    far = base - 0.3 - np.array([0, 0.001, 0.002, 0.001, 0])
    near = base + np.array([0.01, -0.02, 0.01, -0.02, 0.01])
    claim, how, pairs, *lines = three(base, far, near, base, base - 0.05).describe_verdict()
    assert (
        claim
        == "a has the highest pooled test accuracy; the difference is significant against 1 of 4 others."
    )
    assert how == "Paired over 5 seeds: mean difference [95 % interval], two-sided t-test p-value"
    assert pairs == "(Holm-corrected for all 10 pairs, since the same scores selected the leader):"
    assert [line[: line.index("=")].strip() for line in lines] == ["a − b", "a − c", "a − d", "a − e"]
    assert lines[0].endswith("points, p < 0.0001 — better")
    assert lines[1].endswith(" — not significant")
    assert lines[2] == "  a − d = +0.00 points — identical"
    assert lines[3] == "  a − e = +5.00 points — equal at every seed, so no test"


@pytest.mark.parametrize(
    ("shift", "support"), [(0.3, "significant against 2 of 2 others"),
                           (0.001, "significant against none of 2 others")],
)  # fmt: skip
def test_against_how_many_a_lead_is_shown(shift, support):
    noise = np.random.default_rng(0).normal(size=(3, 6)) / 100
    table = three(*(0.5 + noise + np.array([[shift], [0.0], [-shift]])))
    assert (
        f"has the highest pooled test accuracy; the difference is {support}." in table.describe_verdict()[0]
    )


@pytest.mark.parametrize("seeds", [1, 3])
def test_where_all_are_the_same_nobody_leads(seeds):
    row = [0.8, 0.9, 0.7][:seeds]
    (line,) = three(row, row, row).describe_verdict()
    assert line == f"all have the same pooled test accuracy at {'every' if seeds > 1 else 'this'} seed"


def test_nothing_is_claimed_of_one_seed():
    assert three([0.8], [0.7], [0.8]).describe_verdict() == [
        "a has the highest pooled test accuracy at one seed; an interval and a test need two seeds or more:",
        "  a − b = +10.00 points",
        "  a − c = +0.00 points — identical",
    ]


def test_comparisons_are_there_for_machines():
    rows = [0.80, 0.84, 0.83], [0.70, 0.73, 0.735], [0.81, 0.79, 0.85]
    table = three(*rows)
    about = json.loads(json.dumps(table.as_dict()))["comparisons"]
    assert (about["score"], about["leader"], about["pairs"]) == ("accuracy", "a", 3)
    assert (about["confidence"], about["level"]) == (0.95, 0.05)
    assert "two-sided" in about["test"]
    assert about["adjusted"] == "Holm, over all pairs"
    for row, entry in zip(rows[1:], about["against"], strict=True):
        wanted = stats.ttest_rel(rows[0], row)
        assert entry["difference"] == pytest.approx(np.mean(rows[0]) - np.mean(row))
        assert entry["interval"] == pytest.approx(list(wanted.confidence_interval(0.95)))
        assert entry["p_value"] == pytest.approx(wanted.pvalue)
        assert entry["shown"] is (entry["p_adjusted"] < 0.05)
    assert [entry["other"] for entry in about["against"]] == ["b", "c"]
    assert Comparison("made up", [0], {"one": [run(0.5)]}).as_dict()["comparisons"] is None


def test_regression_leads_with_the_lower_loss():
    runs = {
        "one": [[replace(BLANK, round=1, loss=2.0, **REAL)]],
        "two": [[replace(BLANK, round=1, loss=1.5, **REAL)]],
    }
    comparison = Comparison("made up", [0], runs)
    assert comparison.describe_verdict() == [
        "two has the lowest pooled test loss at one seed; an interval and a test need two seeds or more:",
        "  two − one = -0.5000",
    ]
    assert comparison.headers()[1] == "pooled loss"
    runs = {
        name: [[replace(BLANK, round=1, loss=loss, **REAL)] for loss in losses]
        for name, losses in {"one": [2.0, 2.2, 2.1], "two": [1.5, 1.6, 1.55]}.items()
    }
    claim, _, line = Comparison("made up", [0, 1, 2], runs).describe_verdict()
    assert claim == "two has the lowest pooled test loss; the difference is significant."
    assert line.startswith("  two − one = -0.5500 [-0.6742, -0.4258], p = 0.0027 — better")


def test_nothing_is_minus_zero():
    runs = {
        name: [[replace(BLANK, round=1, loss=loss, **REAL)]]
        for name, loss in [("one", 1.0), ("two", 1 - 1e-7)]
    }
    assert Comparison("made up", [0], runs).describe_verdict()[1] == "  two − one = +0.0000"


def test_without_test_rows_nobody_leads():
    runs = {name: [[replace(BLANK, round=1, **UNTESTED)]] for name in ("one", "two")}
    comparison = Comparison("made up", [0], runs)
    assert comparison.describe_verdict() == []
    assert comparison.table_rows()[0][1] == "–"
    assert draw_curves(comparison)[:4] == b"\x89PNG"


def test_markdown_and_json_hold_the_same(comparison):
    text = comparison.render_markdown()
    assert "| one | 82.00 ± 2.83 |" in text
    assert "one − two = +9.00" in text
    assert comparison.as_dict()["algorithms"]["two"][1]["accuracy"] == 0.76


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(100, []), (80, ["3 kB"]), (70, ["3 kB", "8.20"]), (55, ["3 kB", "8.20", "1.5 kB", "2.0"])],
)
def test_the_table_is_whole_at_any_width(comparison, width, left_out):
    file = io.StringIO()
    Console(file=file, width=width).print(comparison.build_table(width))
    text = file.getvalue()
    assert "…" not in text
    assert "82.00 ± 2.83" in text
    shown = text.split()
    for cell in ("1.5 kB", "3 kB", "8.20", "2.0"):
        assert (cell.split()[0] in shown) == (cell not in left_out), cell
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (4995, "999 B"), (4998, "1 kB"), (4_998_000, "1 MB")])
def test_bytes(number, text):
    runs = {"one": [[replace(BLANK, round=5, bytes_up=number)]]}
    assert Comparison("made up", [0], runs).table_rows()[0][-3] == text


@pytest.fixture
def partly():
    runs = {"one": [run(0.8), run(0.9)], "two": [run(0.5), WRONG], "three": [WRONG, WRONG],
            "four": [run(0.7), run(0.6)]}  # fmt: skip
    return Comparison("made up", [0, 3], runs)


def test_what_diverged_is_shown_and_not_ranked(partly):
    rows = {row[0]: row[1:] for row in partly.table_rows()}
    assert rows["two"] == ["1 of 2 diverged", "–", "–", "–", "1.5 kB", "3 kB", "2.0"]
    assert rows["three"] == ["diverged", *["–"] * 6]
    first, _, _, gap, *rest = partly.describe_verdict()
    assert first.startswith("one has the highest")
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
    assert comparison.table_rows() == [["one", "diverged", *["–"] * 6]]
    assert comparison.describe_verdict() == ["one diverged and is not ranked"]
    assert "the last round" in comparison.render_markdown()
    assert draw_curves(comparison)[:4] == b"\x89PNG"
