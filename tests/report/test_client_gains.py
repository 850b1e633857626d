"""Clients' gains against local on a page: exact answers, for the same clients and for others."""

import math

import numpy as np
import pytest

import fedlap as fl
from fedlap.report.page.client_figures import ClientGains, build_graph_sections
from fedlap.report.page.client_gains import PersonalScores, build_gain_sections, compute_gains, describe_seeds
from fedlap.report.page.sections import EVEN, UNKNOWN
from fedlap.training.metrics import METRICS


def make_scores(same):
    alone = [np.array([50.0, 60.0, np.nan]), np.array([40.0, 80.0, np.nan])]
    mine = [np.array([60.0, 60.0, np.nan]), np.array([40.0, 70.0, np.nan])]
    return PersonalScores(
        [("a", "b", "c")] * 2, {"fedu": mine, "local": alone}, [3, 5], same, METRICS["accuracy"]
    )


def test_gains_are_means_over_seeds_of_the_same_clients():
    table, bars = build_gain_sections(make_scores(True), "local")
    assert [cell.text for cell in table.rows[0]] == [
        "fedu", "1", "0", "1", "1", "+0.00", "−5.00", "−5.00", "+5.00",
    ]  # fmt: skip
    assert "mean over 2 seeds" in table.about
    assert bars.labels == ["a", "b", "c"]
    ((name, values),) = bars.series
    assert name == "fedu"
    assert values[:2] == [5.0, -5.0]
    assert math.isnan(values[2])
    assert "mean over 2 seeds" in bars.about


def test_gains_of_clients_that_are_dealt_anew_stand_apart():
    table, bars = build_gain_sections(make_scores(False), "local")
    assert [cell.text for cell in table.rows[0]] == [
        "fedu", "1", "2", "1", "2", "+0.00", "−10.00", "−10.00", "+10.00",
    ]  # fmt: skip
    assert "clients of seeds 3, 5" in table.about
    assert bars.labels == ["a, seed 3", "b, seed 3", "c, seed 3", "a, seed 5", "b, seed 5", "c, seed 5"]
    assert bars.series[0][1][:2] == [10.0, 0.0]
    assert bars.series[0][1][3:5] == [0.0, -10.0]


@pytest.mark.parametrize("same", [True, False])
def test_the_graph_is_coloured_by_the_gains_of_the_bars(same):
    scores = make_scores(same)
    _, bars = build_gain_sections(scores, "local")
    shown = dict(zip(bars.labels, bars.series[0][1], strict=True))
    gains = dict(zip("abc", compute_gains(scores, "fedu", "local")[0].tolist(), strict=True))
    sides = ClientGains("local", gains, describe_seeds(scores, [0]))
    (drawn,) = build_graph_sections("fedu", fl.Graph.ring("abc"), sides, "seed 3")
    group = {name: colour for name, _, _, colour in drawn.nodes}
    for name in "abc":
        bar = shown[name if same else f"{name}, seed 3"]
        assert group[name] == (UNKNOWN if math.isnan(bar) else 0 if bar > 0 else 1 if bar < 0 else EVEN)
    seeds = "mean over 2 seeds" if same else "clients of seed 3"
    assert f"Colours, {seeds}: blue clients gain against local (1), orange ones lose" in drawn.about
    assert "hollow ones have no test rows (1)" in drawn.about
    assert "Edges of seed 3." in drawn.about
    untested = "c" if same else "c, seed 3, c, seed 5"
    assert bars.about.endswith(f"Clients without test rows have no bar: {untested}.")
