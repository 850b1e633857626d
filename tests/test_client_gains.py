"""What clients gain against local on a page: exact answers, of the same clients and of others."""

import math

import numpy as np

from fedlap.report.page.clients import Served, sections


def served(same):
    alone = [np.array([50.0, 60.0, np.nan]), np.array([40.0, 80.0, np.nan])]
    mine = [np.array([60.0, 60.0, np.nan]), np.array([40.0, 70.0, np.nan])]
    return Served([("a", "b", "c")] * 2, {"fedu": mine, "local": alone}, [3, 5], same, True)


def test_gains_are_means_over_seeds_of_the_same_clients():
    table, bars = sections(served(True), "local")
    assert [cell.text for cell in table.rows[0]] == [
        "fedu", "1", "2", "1", "+0.00", "−10.00", "−10.00", "+10.00",
    ]  # fmt: skip
    assert bars.labels == ["a", "b", "c"]
    ((name, values),) = bars.series
    assert name == "fedu"
    assert values[:2] == [5.0, -5.0]
    assert math.isnan(values[2])
    assert "mean over 2 seeds" in bars.about


def test_gains_of_clients_that_are_dealt_anew_stand_apart():
    _, bars = sections(served(False), "local")
    assert bars.labels == ["a, seed 3", "b, seed 3", "c, seed 3", "a, seed 5", "b, seed 5", "c, seed 5"]
    assert bars.series[0][1][:2] == [10.0, 0.0]
    assert bars.series[0][1][3:5] == [0.0, -10.0]
