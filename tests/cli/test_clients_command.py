"""`fedlap clients`: answers per client of a stored run; and standard errors of `fedlap predict`."""

import json
from io import StringIO

import numpy as np
import pandas
import pytest

import fedlap as fl

RADON = ("run", "--data", "radon", "--graph", "known", "--strength", "1", "--rounds", "5", "--threads", "1")


@pytest.fixture
def run(call, tmp_path):
    code, _, err = call(*RADON)
    assert code == 0, err
    return next((tmp_path / "runs").glob("radon-fedu-*")).name


@pytest.fixture(scope="module")
def result():
    federation, graph = fl.data.load_with_graph("radon", seed=0)
    return fl.fit(fl.FedU(graph, strength=1.0), federation, fl.models.linear(), rounds=5)


def test_the_table_is_that_of_the_result(call, run, result, tmp_path):
    code, out, err = call("clients", run, "--to", str(tmp_path / "clients.csv"))
    assert code == 0, err
    assert "85 clients at round 5" in out
    assert "Aitkin" in out
    written, wanted = pandas.read_csv(tmp_path / "clients.csv"), result.clients
    assert list(written.columns) == list(wanted.columns)
    for column in wanted.columns:
        if column in ("client", "neighbours"):
            assert written[column].tolist() == wanted[column].tolist()
        else:
            np.testing.assert_allclose(written[column], wanted[column], rtol=1e-6)


def test_models_that_clients_train_alone_are_stored_once(call, run, tmp_path):
    call("clients", run)
    (stored,) = (tmp_path / "runs").glob("radon-local-*")
    written = (stored / "rounds.jsonl").stat().st_mtime_ns
    code, _, err = call("clients", run, "--metric", "mae")
    assert (code, err) == (0, "")
    assert (stored / "rounds.jsonl").stat().st_mtime_ns == written


def test_json_and_sorting(call, run):
    code, out, _ = call("clients", run, "--sort", "gain", "--json")
    facts = json.loads(out)
    gains = [line["gain"] for line in facts["clients"]]
    known = [gain for gain in gains if gain is not None]
    assert (code, facts["metric"]) == (0, "rmse")
    assert known == sorted(known, reverse=True)
    assert gains[: len(known)] == known  # clients without test rows come last
    assert "clients" in facts["remarks"][0] or "client" in facts["remarks"][0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sort", "gaim"), "did you mean 'gain'"),
        (("--metric", "accurcy"), "did you mean 'accuracy'"),
        (("--metric", "accuracy"), "rmse"),
        (("--to", "table.xlsx"), "use .csv"),
    ],
)
def test_mistakes_are_one_line(call, run, words, message):
    code, _, err = call("clients", run, *words)
    line = err.strip().splitlines()[-1]
    assert code == 2
    assert line.startswith("error: ")
    assert message in line


def test_local_runs_have_no_gain(call, tmp_path):
    call("run", "--data", "radon", "--algorithm", "local", "--rounds", "2", "--threads", "1")
    (stored,) = (tmp_path / "runs").glob("radon-local-*")
    code, out, err = call("clients", stored.name, "--json")
    assert code == 0, err
    assert "gain" not in json.loads(out)["clients"][0]


def test_predictions_have_the_errors_of_the_coefficients(call, run, result, tmp_path):
    file = tmp_path / "new.csv"
    file.write_text("county,floor\nAitkin,0\nAitkin,1\nCook,0\n")
    code, out, err = call("predict", run, str(file), "--by", "county")
    assert code == 0, err
    frame = pandas.read_csv(StringIO(out))
    coefficients = result.answers.coefficients
    for line in frame.itertuples():
        place = result.federation.clients.index(line.client)
        x = np.array([[0.0, 1.0, 0.0][line.row - 1], 1.0])
        variance = x @ coefficients.covariance[place].numpy() @ x + coefficients.noise**2
        assert line.standard_error == pytest.approx(variance**0.5, rel=1e-5)
        assert line.log_radon == pytest.approx(coefficients.values[place].numpy() @ x, rel=1e-5)


def test_predictions_without_errors_say_why(call, tmp_path):
    call("run", "--data", "radon", "--algorithm", "fedavg", "--rounds", "2", "--threads", "1")
    (stored,) = (tmp_path / "runs").glob("radon-fedavg-*")
    file = tmp_path / "new.csv"
    file.write_text("county,floor\nAitkin,0\n")
    code, out, err = call("predict", stored.name, str(file), "--by", "county")
    assert code == 0, err
    assert "standard_error" not in out
    assert "note: no standard errors; standard errors of FedAvg are not known" in err
