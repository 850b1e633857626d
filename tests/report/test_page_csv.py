"""CSV files of pages: plain ASCII names, numbers to the last digit, and figures that agree with them."""

import re
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from example_scores import make_tuning, run
from fedlap.errors import DivergedError
from fedlap.experiments.stored_run import load_experiment_data, load_trained_models
from fedlap.personal import Personals
from fedlap.report.page import TableSection, render_csv
from fedlap.report.page.client_gains import score_clients
from fedlap.report.page.result_folders import load_results
from fedlap.report.page.result_sections import build_score_records
from fedlap.report.sweep_table import Sweep
from fedlap.reproduce import page as reproduced
from fedlap.reproduce.cell_results import ResultFolder
from fedlap.reproduce.recipe import find_recipe as read_recipe
from pages import page

NAMES = {"algorithm", "method", "client", "data_and_model", "reading", "against", "verdict", "setting"}
NAMES |= {"coefficient", "metric"}


def read(text):
    """A CSV file whose columns are numbers, but for names."""
    frame = pd.read_csv(StringIO(text))
    for column in frame.columns:
        assert re.fullmatch(r"[a-z0-9_.]+", column), column
        assert column in NAMES or pd.api.types.is_numeric_dtype(frame[column]), column
    return frame


@pytest.fixture(scope="module")
def comparison_folder(tmp_path_factory):
    """Clients of a file, the same ones at every seed, of which one has no test rows."""
    from fedlap import cli

    folder = tmp_path_factory.mktemp("compared")
    rng = np.random.default_rng(3)
    x = rng.normal(size=(121, 3))
    y = (x @ [1, -1, 0.5] + rng.normal(size=121) > 0).astype(int)
    who = np.append(np.repeat(list("abcdefgh"), 15), "i")
    pd.DataFrame({"who": who, "u": x[:, 0], "v": x[:, 1], "w": x[:, 2], "y": y}).to_csv(
        folder / "my.csv", index=False
    )
    words = f"compare --data {folder}/my.csv --client who --label y --algorithms fedu,local,fedavg"
    words += f" --graph ring --seeds 0-2 --rounds 4 --out {folder}/runs"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fedlap", *words.split()])
        with pytest.raises(SystemExit):
            cli.main()
    return next((folder / "runs").glob("*-compare-*"))


@pytest.mark.usefixtures("no_figures")
def test_csv_files_hold_the_values_that_the_page_is_made_from(call, comparison_folder):
    code, out, err = call("report", str(comparison_folder), out=False)
    assert (code, err) == (0, "")
    files = {file.stem: read(file.read_text("utf-8")) for file in (page(out).parent / "tables").glob("*.csv")}
    assert set(files) == {
        "scores", "scores-by-seed", "curves", "clients", "gains", "coefficients", "client-scores"
    }  # fmt: skip
    found, scores = load_results([comparison_folder]), files["scores"].set_index("algorithm")
    for row, runs in found.comparison.runs.items():
        last = [scores[-1] for scores in runs]
        for column, field in {
            "pooled_accuracy_percent": "accuracy",
            "client_mean_accuracy_percent": "accuracy_mean",
            "worst_tenth_accuracy_percent": "accuracy_worst",
            "client_std_accuracy_percent": "accuracy_std",
        }.items():
            values = 100 * np.array([getattr(score, field) for score in last])
            assert scores.loc[row, f"{column}_mean"] == pytest.approx(values.mean(), rel=1e-15)
            assert scores.loc[row, f"{column}_std"] == pytest.approx(values.std(ddof=1), rel=1e-12)
        assert scores.loc[row, "upload_bytes_per_round"] == round(np.mean([s.bytes_up / 4 for s in last]))
        assert scores.loc[row, "milliseconds_per_round"] == pytest.approx(
            np.mean([250 * s.seconds for s in last]), rel=1e-14
        )
        assert (scores.loc[row, "seeds"], scores.loc[row, "diverged"]) == (3, 0)
    assert pd.api.types.is_integer_dtype(scores["download_bytes_per_round"])
    gains = files["gains"].pivot(index="client", columns="method", values="gain_points")
    accuracies = {
        row: np.mean(
            [
                score_clients(load_experiment_data(run.experiment)[0], load_trained_models(run.folder))
                for run in runs
            ],
            0,
        )
        for row, runs in found.runs.items()
    }
    for row in ("fedu", "fedavg"):
        np.testing.assert_allclose(gains[row], accuracies[row] - accuracies["local"], atol=1e-12)
        counts = files["clients"].set_index("method").loc[row]
        assert counts["clients_gain"] == (gains[row] > 0).sum()
        assert counts["clients_same"] == (gains[row] == 0).sum()
        assert counts["clients_lose"] == (gains[row] < 0).sum()
        assert counts["clients_without_test_rows"] == 1
        assert counts["mean_points"] == pytest.approx(gains[row].mean(), rel=1e-12)


@pytest.mark.usefixtures("no_figures")
def test_the_graph_is_coloured_by_the_gains_of_the_bars(call, comparison_folder):
    _, out, _ = call("report", str(comparison_folder), out=False)
    text = page(out).read_text("utf-8")
    table = read((page(out).parent / "tables" / "gains.csv").read_text("utf-8"))
    gains = table[table["method"] == "fedu"].set_index("client")["gain_points"]
    drawn = dict(reversed(pair) for pair in re.findall(r'<g class="node (\w+)"[^>]*><title>(\w): ', text))
    wanted = np.select([gains > 0, gains < 0, gains == 0], ["k0", "k1", "even"], "hollow")
    assert drawn == dict(zip(gains.index, wanted, strict=True))
    assert drawn["i"] == "hollow"
    assert "Colours, mean over 3 seeds: " in text
    assert ", hollow ones have no test rows (1)." in text
    assert "local; mean over 3 seeds." in text
    assert "Edges of seed 0." in text


def test_scores_of_all_clients_are_made_at_once(comparison_folder, monkeypatch):
    run = load_results([comparison_folder]).runs["fedu"][0]
    federation, trained = load_experiment_data(run.experiment)[0], load_trained_models(run.folder)
    one_by_one = []
    for place, name in enumerate(federation.clients):
        x, y = federation.test.client(place)
        right = (trained.of_client(name).predict(x) == y).double()
        one_by_one.append(100 * float(right.mean()))
    monkeypatch.setattr(Personals, "of_client", None)  # a call for each client takes long
    np.testing.assert_allclose(score_clients(federation, trained), one_by_one)
    order = federation.clients[::-1]
    np.testing.assert_allclose(score_clients(federation.reorder(order), trained), one_by_one[::-1])


def test_settings_missing_scores_and_diverged_runs_are_plain_too():
    tuned = make_tuning({(0.1,): [0.5, 0.6], (0.2,): [0.25, 0.75]}, names=("lr",))
    frame = read(render_csv(build_score_records(tuned)))
    assert frame["lr"].tolist() == [0.1, 0.2]
    assert frame["chosen"].tolist() == [1, 0]
    assert frame["folds"].tolist() == [2, 2]
    assert frame["pooled_accuracy_percent_mean"].tolist() == pytest.approx([55, 50])
    runs = {"a": [DivergedError("too large")], "b": [run(0.5)]}
    swept = Sweep("d", [0], runs, "", ("strength",), {"a": (9,), "b": (1e-7,)}, ("fedu",))
    frame = read(render_csv(build_score_records(swept)))
    assert frame["strength"].tolist() == [9, 1e-7]
    assert frame["diverged"].tolist() == [1, 0]
    assert np.isnan(frame["pooled_accuracy_percent_mean"]).tolist() == [True, False]
    assert frame["pooled_accuracy_percent_std"].isna().all()  # of one seed there is none


@pytest.mark.parametrize("name", ["table-full-sampled", "figure-strengths"])
def test_the_tables_of_recipes_are_plain_too(name):
    recipe, findings = read_recipe(name), ResultFolder(Path(__file__).parents[2] / "results")
    tables = [
        s for s in reproduced.build_recipe_page(recipe, findings, "").sections if isinstance(s, TableSection)
    ]
    frames = {table.name: read(render_csv(table.records)) for table in tables}
    assert len(frames) >= 3
    for reading in recipe.readings:
        scores = frames[f"{recipe.name}-{reading}"].set_index(["method", "data_and_model"])
        for cell, rows in findings.read_cells(recipe, reading).items():
            for row, found in rows.items():
                line = scores.loc[(recipe.rows[row].title, recipe.cells[cell].title)]
                mean = found.accuracy.mean() if found.finished else np.nan
                assert line["accuracy_percent_mean"] == pytest.approx(mean, rel=1e-15, nan_ok=True)
                assert line["seeds"] == len(found.seeds)
