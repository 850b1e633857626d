"""Maps, coefficients and predictions of a page: their numbers are those of the tables and of the models."""

import numpy as np
import pandas
import pytest

import fedlap as fl
from pages import page

WORDS = ("--data", "radon", "--graph", "known", "--strength", "1", "--rounds", "4", "--threads", "1")


@pytest.fixture
def tables(call, no_figures, tmp_path):
    code, out, err = call("compare", *WORDS, "--algorithms", "fedu,local", "--seeds", "0-1")
    assert code == 0, err
    (folder,) = (tmp_path / "runs").glob("radon-compare-*")
    code, out, err = call("report", str(folder), out=False)
    assert code == 0, err
    address = page(out)
    return {path.stem: pandas.read_csv(path) for path in (address.parent / "tables").glob("*.csv")}, address


def test_numbers_of_figures_are_those_of_the_tables(tables):
    found, address = tables
    text = address.read_text("utf-8")
    bars = found["gains"].set_index("client")["gain_rmse"]
    drawn = found["map-gains"].set_index("client")
    np.testing.assert_array_equal(drawn["gain_rmse"], bars[drawn.index])
    assert {"longitude", "latitude"} <= set(drawn.columns)
    assert 'class="graph map"' in text
    for name in ("map-coefficient-1", "map-coefficient-2", "coefficients", "predictions"):
        assert (
            found[name]
            .drop(columns=["client", "coefficient"], errors="ignore")
            .dtypes.map(pandas.api.types.is_numeric_dtype)
            .all()
        ), name


def test_scores_of_all_clients_are_tidy_and_those_of_the_tables(tables):
    found, address = tables
    tidy = found["client-scores"]
    assert list(tidy.columns) == ["method", "seed", "client", "metric", "value"]
    assert set(tidy["metric"]) == {"rmse"}
    means = tidy.groupby(["client", "method"])["value"].mean().unstack()
    bars = found["gains"].set_index("client")["gain_rmse"]
    np.testing.assert_allclose((means["local"] - means["fedu"])[bars.index], bars, atol=1e-12)
    scores = found["scores"].set_index("algorithm")["client_mean_rmse_mean"]
    by_seed = tidy.groupby(["method", "seed"])["value"].mean()
    np.testing.assert_allclose(by_seed.groupby("method").mean()[scores.index], scores, rtol=1e-6)
    assert "Every client by fedu" in address.read_text("utf-8")


def test_coefficients_and_predictions_are_those_of_the_models(tables):
    found, _ = tables
    federation, graph = fl.data.load_with_graph("radon", seed=0)
    result = fl.fit(fl.FedU(graph, strength=1.0), federation, fl.models.linear(), rounds=4)
    frame = result.clients.set_index("client")
    for name, values in found["coefficients"].groupby("coefficient"):
        values = values.set_index("client")
        np.testing.assert_allclose(values["value"], frame[name][values.index], rtol=1e-6)
        np.testing.assert_allclose(values["standard_error"], frame[f"{name}_error"][values.index], rtol=1e-4)
    predictions = found["predictions"]
    rmse = np.sqrt(((predictions["true"] - predictions["predicted"]) ** 2).mean())
    assert rmse == pytest.approx(result.scores[-1].rmse, rel=1e-6)


def test_data_without_places_has_no_map(call, no_figures, tmp_path):
    code, _, err = call("compare", "--data", "synthetic", "--graph", "known", "--rounds", "2", "--seeds", "0")
    assert code == 0, err
    (folder,) = (tmp_path / "runs").glob("synthetic-compare-*")
    code, out, err = call("report", str(folder), out=False)
    assert code == 0, err
    text = page(out).read_text("utf-8")
    assert 'class="graph map"' not in text
    assert "Predicted against true" not in text  # classes
