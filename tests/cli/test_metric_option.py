"""`--metric` in every command that shows scores; regression is shown in the unit of the user's target."""

import csv
import json

import numpy as np
import pandas as pd
import pytest

ROUNDS = ["--rounds", "3"]


@pytest.fixture
def prices(tmp_path):
    """A file of prices around 3,000, and the words that read it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    price = 3000 + 400 * x[:, 0] + 20 * rng.normal(size=60)
    place = [f"p{row % 3}" for row in range(60)]
    path = tmp_path / "prices.csv"
    pd.DataFrame({"place": place, "a": x[:, 0], "b": x[:, 1], "price": price}).to_csv(path, index=False)
    return ["--data", str(path), "--client", "place", "--label", "price"]


def ask(call, *words, out=True):
    code, out, err = call(*words, out=out)
    assert code == 0, err
    return json.loads(out)


def test_a_run_shows_the_rmse_in_the_unit_of_the_target(prices, call):
    facts = ask(call, "run", *prices, "--rounds", "60", "--set", "algorithm.lr=0.1", "--json")
    last = facts["last"]
    assert 10 < last["rmse"] < 40  # the noise is 20, the targets vary by 400
    assert last["loss"] == pytest.approx(last["rmse"] ** 2 / 2, rel=1e-9)
    assert last["r2"] > 0.98
    code, out, _ = call("show", facts["folder"])
    assert code == 0
    assert "RMSE" in out
    assert f"{last['rmse']:.2f}" in out
    assert "lower is better" in out
    code, out, _ = call("show", facts["folder"], "--metric", "r2")
    assert "R²" in out
    assert f"{last['r2']:.3f}" in out
    assert "lower" not in out


def test_a_comparison_is_ranked_and_reported_by_the_metric(prices, call, tmp_path, no_figures):
    words = ["compare", *prices, "--algorithms", "fedu,local", "--seeds", "0,1", *ROUNDS]
    by_mae = ask(call, *words, "--metric", "mae", "--json")
    assert (by_mae["metric"], by_mae["comparisons"]["score"]) == ("mae", "mae")
    means = {name: np.mean([run["mae"] for run in runs]) for name, runs in by_mae["algorithms"].items()}
    assert by_mae["comparisons"]["leader"] == min(means, key=means.get)
    assert f"{by_mae['comparisons']['leader']} has the lowest pooled test MAE" in by_mae["verdict"][0]
    code, _, err = call("report", by_mae["folder"], "--out", str(tmp_path / "page"), out=False)
    assert code == 0, err
    with (tmp_path / "page" / "tables" / "scores.csv").open(newline="") as file:
        rows = {row["algorithm"]: row for row in csv.DictReader(file)}
    assert {name: float(row["pooled_mae_mean"]) for name, row in rows.items()} == pytest.approx(means)
    text = (tmp_path / "page" / "page.html").read_text()
    assert "pooled MAE" in text
    assert "lower is better" in text
    code, _, err = call(
        "report", by_mae["folder"], "--out", str(tmp_path / "page2"), "--metric", "r2", out=False
    )
    assert code == 0, err
    assert "pooled_r2_mean" in (tmp_path / "page2" / "tables" / "scores.csv").read_text()
    by_default = ask(call, *words, "--json")
    assert "metric" not in by_default
    assert by_default["comparisons"]["score"] == "rmse"


def test_sweeps_and_tunings_choose_by_the_metric(prices, call):
    swept = ask(call, "sweep", *prices, "--vary", "lr=0.01,0.1", *ROUNDS, "--metric", "r2", "--json")
    scores = {run["values"]["lr"]: run["scores"][0]["r2"] for run in swept["runs"]}
    assert swept["best"] == {"lr": max(scores, key=scores.get)}
    tuned = ask(
        call, "tune", *prices, "--vary", "lr=0.01,0.1", "--folds", "2", *ROUNDS, "--metric", "mae", "--json"
    )
    assert tuned["score"] == "mae"
    for candidate in tuned["candidates"]:
        assert candidate["mean"] == pytest.approx(np.mean([fold["mae"] for fold in candidate["scores"]]))
    assert "lowest mean MAE" in tuned["verdict"][0]


@pytest.mark.parametrize("command", ["run", "compare", "sweep", "tune"])
def test_a_metric_of_another_task_is_one_line_before_training(command, prices, call, tmp_path):
    vary = ["--vary", "lr=0.01,0.1"] if command in ("sweep", "tune") else []
    code, out, err = call(command, *prices, *vary, *ROUNDS, "--metric", "accuracy")
    assert (code, out) == (2, "")
    expected = "error: metric = accuracy does not apply to real targets; use loss, rmse, mae, r2"
    assert err.splitlines()[-1] == expected
    assert not list((tmp_path / "runs").glob("*/rounds.jsonl"))
    code, out, err = call(command, *prices, *vary, *ROUNDS, "--metric", "rsme")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == "error: unknown metric 'rsme'; did you mean 'rmse'?"


def test_classes_can_be_ranked_by_loss(call):
    words = ["--data", "digits", "--partition", "iid", "--algorithms", "local,global", *ROUNDS]
    facts = ask(call, "compare", *words, "--seeds", "0", "--metric", "loss", "--json")
    assert facts["comparisons"]["score"] == "loss"
    code, _, err = call("compare", *words, "--metric", "rmse")
    assert code == 2
    assert err.splitlines()[-1] == "error: metric = rmse does not apply to classes; use accuracy, loss"


def test_predictions_and_drawings_of_a_regression(prices, call, tmp_path):
    folder = ask(call, "run", *prices, *ROUNDS, "--json")["folder"]
    path = prices[1]
    code, _, err = call(
        "predict", folder, path, "--by", "place", "--to", str(tmp_path / "out.csv"), out=False
    )
    assert code == 0, err
    facts = ask(
        call, "predict", folder, path, "--by", "place", "--to", str(tmp_path / "out.csv"), "--json", out=False
    )
    frame, written = pd.read_csv(path), pd.read_csv(tmp_path / "out.csv")
    column = next(name for name in written.columns if name not in ("row", "client", "place"))
    errors = written[column] - frame["price"]
    assert facts["rmse"] == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-3)
    assert facts["mae"] == pytest.approx(errors.abs().mean(), rel=1e-3)
    assert facts["r2"] == pytest.approx(1 - (errors**2).mean() / frame["price"].var(ddof=0), abs=1e-3)
    for colour in ("rmse", "r2"):
        code, _, err = call(
            "graph", "draw", folder, str(tmp_path / f"{colour}.png"), "--colour", colour, out=False
        )
        assert code == 0, err
        assert (tmp_path / f"{colour}.png").stat().st_size > 1000
    code, _, err = call("graph", "draw", folder, str(tmp_path / "no.png"), "--colour", "accuracy", out=False)
    assert (code, err.splitlines()[-1]) == (
        2, "error: --colour accuracy: a regression has no labels; use --colour rows"
    )  # fmt: skip
