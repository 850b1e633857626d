"""The report of candidates: the best, noise, the edges of a grid, and diverged candidates."""

from example_scores import make_tuning
from fedlap.errors import DivergedError


def test_the_first_among_equals_is_chosen():
    table = make_tuning({(1,): [0.5, 0.7], (2,): [0.6, 0.6], (3,): [0.1, 0.2]})
    assert table.best == "(1,)"
    assert table.runner_up == "(2,)"
    assert [cells[0] for cells in table.table_rows()] == ["best", "", ""]


def test_noise_is_said():
    sure = make_tuning({(1,): [0.5, 0.6, 0.7], (2,): [0.6, 0.7, 0.79], (3,): [0.62, 0.68, 0.8]})
    assert sure.best == "(3,)"
    assert (
        "  against the runner-up, (2,): +0.33 [-4.84, +5.50] points — not significant"
        in sure.describe_verdict()
    )
    assert any(
        line.startswith("  1 of 2 other candidates are not significantly worse than the best")
        for line in sure.describe_verdict()
    )
    same = make_tuning({(1,): [0.5, 0.6], (2,): [0.5, 0.6]})
    assert "  against the runner-up, (2,): identical" in same.describe_verdict()


def test_scores_are_said_to_be_of_held_out_training_rows():
    table = make_tuning({(1,): [0.5, 0.6], (2,): [0.6, 0.7]})
    assert "test rows" not in table.render_markdown()
    assert "Pooled: over all held-out training rows together" in table.render_markdown()


def edges(rows, **more):
    return [line for line in make_tuning(rows, **more).describe_verdict() if line.startswith("the best")]


def test_the_edge_of_the_grid_is_said():
    rising = {(0.1,): [0.1, 0.2], (0.2,): [0.2, 0.3], (0.3,): [0.3, 0.4]}
    assert edges(rising) == ["the best lr is the largest value tried; try larger values"]
    falling = {(0.1,): [0.4, 0.4], (0.2,): [0.2, 0.3], (0.3,): [0.3, 0.3]}
    assert edges(falling) == ["the best lr is the smallest value tried; try smaller values"]
    assert edges({(0.1,): [0.1, 0.2], (0.2,): [0.4, 0.5], (0.3,): [0.3, 0.4]}) == []
    assert edges({(0,): [0.4, 0.4], (0.2,): [0.2, 0.3], (0.3,): [0.3, 0.3]}) == []  # nothing is below zero
    assert edges({(0.1,): [0.1, 0.2], (0.2,): [0.4, 0.5]}) == []  # two are no range
    assert edges({("a",): [0.1, 0.2], ("b",): [0.2, 0.3], ("c",): [0.4, 0.5]}) == []
    level = {(0.1,): [0.1, 0.2], (0.2,): [0.3, 0.4], (0.3,): [0.3, 0.4]}
    assert edges(level) == []  # the first among equals lies within


def test_an_edge_that_is_the_method_s_own_is_said_to_be_so():
    rows = {(1, 0.1): [0.1, 0.2], (1, 0.2): [0.3, 0.4], (2, 0.1): [0.1, 0.1], (2, 0.2): [0.2, 0.2]}
    lines = edges(rows, refused=[(1, 0.3), (2, 0.3)], names=("lr", "strength"))
    assert lines == [
        "the best strength is the largest valid value tried; larger values may need other settings"
    ]
    rows |= {(2, 0.3): [0.1, 0.1]}  # with another lr it is not
    assert edges(rows, refused=[(1, 0.3)], names=("lr", "strength")) == lines


def test_what_diverged_is_told_and_not_ranked():
    table = make_tuning({(1,): [0.1, 0.2], (2,): DivergedError("why")})
    assert table.best == "(1,)"
    assert table.describe_verdict()[-1] == "(2,) diverged and is not selected"
    assert table.as_dict()["candidates"][1] == {"values": {"lr": 2}, "mean": None, "scores": [None, None]}
    alone = make_tuning({(1,): DivergedError("why")})
    assert alone.best is None
    assert alone.describe_verdict() == [
        "every candidate diverged, so none is selected; try smaller learning rates"
    ]
    assert "diverged" in alone.render_markdown()
