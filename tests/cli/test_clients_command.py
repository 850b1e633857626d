"""`fedlap clients`: answers per client of a stored run; and standard errors of `fedlap predict`."""

import json
from io import StringIO

import numpy as np
import pandas
import pytest
from rich.console import Console

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
        variance = x @ coefficients.of_forms[place].numpy() @ x + coefficients.noise**2
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


def test_errors_that_may_be_too_large_are_reported(call, tmp_path):
    """Five clients with equal true models and a strong pull: the rows do not show that models differ."""
    rng = np.random.default_rng(0)
    x, clients = rng.normal(size=60), np.repeat(list("abcde"), 12)
    frame = pandas.DataFrame({"client": clients, "x": x, "y": 1.0 + x + rng.normal(size=60)})
    frame.to_csv(tmp_path / "five.csv", index=False)
    words = ("--data", str(tmp_path / "five.csv"), "--client", "client", "--label", "y", "--graph", "ring")
    code, _, err = call("run", *words, "--strength", "3", "--rounds", "100", "--threads", "1")
    assert code == 0, err
    (stored,) = (tmp_path / "runs").glob("five-fedu-*")
    code, out, err = call("clients", stored.name, "--json")
    assert code == 0, err
    sentence = "the rows of 5 clients do not show that every coefficient truly differs between clients"
    assert any(sentence in line for line in json.loads(out)["remarks"])


def test_tables_with_texts_have_errors_and_repeated_columns_a_reason(call, tmp_path):
    draws = np.random.default_rng(0)
    frame = pandas.DataFrame({"hospital": np.repeat(["north", "south", "east"], 20)})
    frame["age"] = draws.normal(50, 9, 60).round(1)
    frame["months"] = 12 * frame.age
    frame["ward"] = draws.choice(["a", "b", "c"], 60)
    frame["cost"] = (frame.age / 10 + draws.normal(size=60)).round(3)
    file = tmp_path / "table.csv"
    frame.to_csv(file, index=False)
    words = ("--data", str(file), "--client", "hospital", "--label", "cost", "--rounds", "3", "--json")
    code, out, err = call("run", *words)
    assert code == 0, err
    run = json.loads(out)["folder"].rpartition("-")[2][:6]
    facts = json.loads(call("clients", run, "--json")[1])
    for line in facts["clients"]:
        errors = {name: value for name, value in line.items() if name.endswith("_error")}
        assert {name for name, value in errors.items() if value is None} == {"age_error", "months_error"}
        assert sum(line[f"ward={level}"] for level in "abc") == pytest.approx(0, abs=1e-9)
    assert [text for text in facts["remarks"] if text.startswith("No standard error of age, months: ")]
    known, changed = frame.head(3), frame.head(3).assign(ward=["a", "unknown", "b"], months=[1.0, 2.0, 3.0])
    changed.loc[0, "months"] = 12 * changed.loc[0, "age"]
    for rows, missing in ((known, [False] * 3), (changed, [False, True, True])):
        rows.to_csv(file.with_name("rows.csv"), index=False)
        code, out, err = call("predict", run, str(file.with_name("rows.csv")), "--by", "hospital", "--json")
        assert code == 0, err
        found = [line["standard_error"] is None for line in json.loads(out)["predictions"]]
        assert found == missing
        assert ("2 of 3 rows have no standard error" in err) == any(missing)


def test_a_narrow_terminal_shows_fewer_coefficients_and_whole_numbers(call, tmp_path, monkeypatch):
    """Columns that are left out are named; no number and no name is cut."""
    draws = np.random.default_rng(0)
    names = ["Carlton County North", "Aitkin", "Lac qui Parle"]
    frame = pandas.DataFrame({f"feature{n}": draws.normal(size=60) for n in range(8)})
    frame = frame.assign(county=np.repeat(names, 20), y=frame.feature0 + draws.normal(size=60))
    frame.to_csv(tmp_path / "wide.csv", index=False)
    words = ("--data", str(tmp_path / "wide.csv"), "--client", "county", "--label", "y", "--rounds", "20")
    code, out, err = call("run", *words, "--graph", "ring", "--json")
    assert code == 0, err
    run = json.loads(out)["folder"]
    lines = json.loads(call("clients", run, "--json")[1])["clients"]
    for width, coefficients in ((80, 2), (200, 4)):
        monkeypatch.setattr(
            "fedlap.cli.console.Console",
            lambda characters=width, **named: Console(**{**named, "width": characters}),
        )
        text = call("clients", run)[1]
        table = [line for line in text.splitlines() if line.strip().startswith(tuple(names))]
        assert all("…" not in line and line.count("±") == coefficients for line in table)
        for line, wanted in zip(table, lines, strict=True):
            assert f"{wanted['rmse']:.4f} {wanted['gain']:+.4f}" in line
            assert wanted["client"] in line
        assert f"Not shown: {9 - coefficients} of 9 coefficients" in text or coefficients == 4
        assert ("neighbours" in text.split("Alone")[0]) == (width == 200)
        assert ("and neighbours. `--to FILE.csv`" in text) == (width == 80)
