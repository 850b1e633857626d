"""The report of a sweep: its table, a best value at the edge, its figures; values are written short."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from example_scores import BLANK, UNTESTED, WRONG, run
from fedlap.experiments.settings import format_value
from fedlap.report import Sweep, draw_sweep


def swept(fields, accuracies):
    """A sweep of fields, one run a combination; None diverged."""
    values = {
        ", ".join(
            f"{name} = {format_value(value)}" for name, value in zip(fields, combination, strict=True)
        ): combination
        for combination in itertools.product(*fields.values())
    }
    outcomes = [[WRONG if accuracy is None else run(accuracy)] for accuracy in accuracies]
    runs = dict(zip(values, outcomes, strict=True))
    return Sweep("made up", [0], runs, "", tuple(fields), values, ("fedu",))


def test_a_sweep_has_a_column_a_field():
    sweep = swept({"lr": [0.01, 0.1], "model.hidden": [[5], [5, 7]]}, [0.5, 0.6, 0.9, 0.7])
    assert sweep.headers()[:3] == ["lr", "model.hidden", "pooled accuracy %"]
    assert [row[:3] for row in sweep.table_rows()][1] == ["0.01", "[5, 7]", "60.00"]
    assert sweep.describe_table().startswith("fedu on made up")
    claim, first = sweep.describe_verdict()[:2]
    assert claim.startswith("lr = 0.1, model.hidden = [5] has the highest pooled test accuracy at one seed;")
    assert first == "  against lr = 0.01, model.hidden = [5]: +40.00 points"
    assert sweep.as_dict()["best"] == {"lr": 0.1, "model.hidden": [5]}
    assert sweep.as_dict()["runs"][1]["values"] == {"lr": 0.01, "model.hidden": [5, 7]}


LARGEST = "the best {} is the largest value tried; try larger values"
SMALLEST = "the best {} is the smallest value tried; try smaller values"


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
    lines = [
        line for line in swept({name: values}, accuracies).describe_verdict() if line.startswith("the best")
    ]
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
    runs = {name: [[replace(BLANK, round=1, **UNTESTED)]] for name in sweep.runs}
    assert draw_sweep(replace(sweep, runs=runs))[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (20.0, "20"), (20, "20"), (1e-5, "1e-05"), (0.12345678, "0.12345678"),
     ([5, 7], "[5, 7]"), ("all", "all"), ({"name": "iid", "clients": 5.0}, "name = iid, clients = 5")],
)  # fmt: skip
def test_values_are_written_short(value, text):
    assert format_value(value) == text
