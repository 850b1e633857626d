"""`fedlap export` and `fedlap predict`: the accuracy that a run states, and mistakes in one line."""

import csv
import io
import json

import numpy as np
import pandas as pd
import pytest
import torch

import fedlap as fl
from fedlap.experiments.experiment import Experiment
from fedlap.personal import Personals

SITES = ("north", "south", "7")


def rows(seed, count, real=False):
    """Three sites whose models differ; features of unlike sizes, and a useless column among them."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "note": rng.choice(["good", "bad"], count),
            "salt": rng.normal(3e5, 1e4, count),
            "site": np.resize(SITES, count),
            "age": rng.normal(50, 12, count),
            "dose": rng.integers(0, 9, count),
        }
    )
    z = (frame.age - 50) / 12 * np.where(frame.site == "south", -1, 1) + (frame.dose - 4) / 3
    z = z + (frame.salt - 3e5) / 3e4 + rng.normal(size=count) / 2
    return frame.assign(outcome=z if real else np.select([z > 0.7, z > -0.7], ["ill", "so-so"], "well"))


def train_run(folder, scale="pooled", real=False, model=None, numbered=False):
    """Train on a user's file of training rows and another of test rows; return the result and its folder."""
    for name, seed, count in (("my", 1, 150), ("held", 2, 93)):
        frame = rows(seed, count, real)
        if numbered:
            frame["outcome"] = frame.outcome.map({"ill": 3, "so-so": 5, "well": 9})
        frame.to_csv(folder / f"{name}.csv", index=False)
    files = {"path": str(folder / "my.csv"), "test": str(folder / "held.csv")}
    columns = {"client": "site", "label": "outcome", "drop": ["note"], "scale": scale}
    experiment = Experiment.of(
        {
            "data": {"name": "file", **files, **columns}, "model": {"name": model or "linear"},
            "algorithm": {"name": "fedu", "lr": 0.05}, "rounds": 30, "evaluate_every": 0,
        }
    )  # fmt: skip
    result = experiment.run()
    return result, save_run(result, folder / "run")


def save_run(result, folder):
    result.personals.save(folder / "models")
    (folder / "experiment.toml").touch()
    return str(folder)


def column(text, place=2):
    return [line[place] for line in csv.reader(io.StringIO(text))]


def list_predictions(answer, name="outcome"):
    return [row[name] for row in answer["predictions"]]


@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("scale", ["pooled", "client"])
def test_exported_models_reach_the_accuracy_of_the_run(call, tmp_path, scale, model):
    result, run = train_run(tmp_path, scale, model=model)
    accuracy, held = result.scores[-1].accuracy, pd.read_csv(tmp_path / "held.csv", dtype={"site": str})
    assert 0.5 < accuracy < 0.95
    code, out, _ = call("predict", run, str(tmp_path / "held.csv"), "--by", "site", "--json", out=False)
    all_at_once = json.loads(out)
    assert (code, all_at_once["known"]) == (0, 93)
    assert all_at_once["accuracy"] == accuracy
    assert all_at_once["loss"] == pytest.approx(result.scores[-1].loss, rel=1e-6)
    right = 0
    for site in SITES:
        file, rows_file = str(tmp_path / f"{site}.safetensors"), tmp_path / f"only-{site}.csv"
        assert call("export", run, "--client", site, "--to", file, out=False)[0] == 0
        mine = held[held.site == site]
        mine.to_csv(rows_file, index=False)
        code, out, _ = call("predict", file, str(rows_file), "--json", out=False)
        answer = json.loads(out)
        assert list_predictions(answer) == [
            a for a, s in zip(list_predictions(all_at_once), held.site, strict=True) if s == site
        ]
        assert answer["right"] == sum(
            a == b for a, b in zip(list_predictions(answer), mine.outcome, strict=True)
        )
        right += answer["right"]
    assert right / len(held) == accuracy


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "npz", "parquet"])
def test_digits_by_the_places_of_their_columns(call, tmp_path, form):
    digits = fl.data.load("digits", seed=1)
    method = fl.FedU(fl.Graph.complete(digits.clients), lr=0.02)
    result = fl.fit(method, digits, fl.models.linear(), rounds=6, evaluate_every=0)
    run, right = save_run(result, tmp_path / "run"), 0
    for k, name in enumerate(digits.clients):
        x, y = (values.numpy() for values in digits.test.client(k))
        file = tmp_path / f"{name}.{form}"
        if form == "npz":
            np.savez(file, x=x, y=y)
        else:
            frame = pd.DataFrame(x.reshape(len(x), 64), columns=[f"pixel {n}" for n in range(64)])
            frame.insert(20, "digit", y)
            frame.to_csv(file, index=False) if form == "csv" else frame.to_parquet(file)
        truth = () if form == "npz" else ("--label", "digit")
        code, out, _ = call("predict", run, "--client", name, str(file), *truth, "--json", out=False)
        assert code == 0
        assert json.loads(out)["accuracy"] == float(
            (result.predict(name, x) == torch.from_numpy(y)).double().mean()
        )
        right += json.loads(out)["right"]
    assert right / len(digits.test.y) == result.scores[-1].accuracy


def test_predictions_are_a_table_and_columns_go_by_name(call, tmp_path):
    result, run = train_run(tmp_path)
    frame = rows(5, 9)
    frame[["dose", "age", "salt"]].to_csv(tmp_path / "new.csv", index=False)
    code, out, err = call("predict", run, "--client", "north", str(tmp_path / "new.csv"), out=False)
    assert (code, err) == (0, "")
    wanted = result.personal("north").predict_labels(frame[["salt", "age", "dose"]])
    assert column(out) == ["outcome", *wanted]
    frame.to_parquet(tmp_path / "new.parquet")
    words = ("predict", run, "--client", "north", str(tmp_path / "new.parquet"))
    code, out, err = call(*words, out=False)
    right = sum(a == b for a, b in zip(wanted, frame.outcome, strict=True))
    assert column(out) == ["outcome", *wanted]
    assert err == f"accuracy {right / 9:.4%}, {right} of 9 rows\n"
    code, out, err = call(*words, "--to", str(tmp_path / "deep" / "a.csv"), out=False)
    assert column((tmp_path / "deep" / "a.csv").read_text()) == ["outcome", *wanted]
    assert f"{right} of 9 rows" in out
    assert "9 predictions written to" in out


def test_columns_of_the_output(call, tmp_path):
    """Row or identifier, client, prediction, its probability and, if asked, the probability of each class."""
    result, run = train_run(tmp_path, scale="client")
    frame = rows(5, 12).assign(house=[f"{number:03}" for number in range(12)])
    frame.to_csv(tmp_path / "new.csv", index=False)
    features = frame[["salt", "age", "dose"]].to_numpy()
    scores = torch.stack(
        [result.personal(s).scores(x[None])[0] for s, x in zip(frame.site, features, strict=True)]
    )
    shares = torch.softmax(scores.double(), -1)
    words = ("predict", run, str(tmp_path / "new.csv"), "--by", "site")
    code, out, _ = call(*words, out=False)
    read = pd.read_csv(io.StringIO(out), dtype={"client": str})
    assert (code, list(read)) == (0, ["row", "client", "outcome", "probability"])
    assert read.row.tolist() == list(range(1, 13))
    assert read.client.tolist() == frame.site.tolist()
    assert read.outcome.tolist() == [("ill", "so-so", "well")[k] for k in shares.argmax(-1)]
    np.testing.assert_allclose(read.probability, shares.max(-1).values, rtol=0, atol=0.5e-6)
    assert all(len(text) <= len("0.123456") for text in column(out, 3)[1:])
    code, out, _ = call(*words, "--id", "house", "--probabilities", "--json", out=False)
    records = json.loads(out)["predictions"]
    names = [f"probability_{label}" for label in ("ill", "so-so", "well")]
    assert list(records[0]) == ["house", "client", "outcome", "probability", *names]
    assert [record["house"] for record in records] == frame.house.tolist()  # "007" is no number
    np.testing.assert_allclose([[r[name] for name in names] for r in records], shares, rtol=0, atol=0.5e-6)
    in_python = result.personals.predict(frame.site.tolist(), features)
    assert in_python.labels == read.outcome.tolist()
    assert torch.equal(in_python.probabilities, shares)
    assert list(in_python.to_frame(every_class=True)) == list(records[0])[1:]


def test_a_prediction_never_shares_its_name_with_another_column(call, tmp_path):
    """A target called "client" is written as "prediction"; an identifier of a used name is refused."""
    frame = rows(1, 60, real=True).drop(columns="note").rename(columns={"outcome": "client"})
    frame.to_csv(tmp_path / "new.csv", index=False)
    federation = fl.Federation.from_dataframe(frame, "site", "client")
    run = save_run(fl.fit(fl.Local(), federation, fl.models.linear(), rounds=1), tmp_path / "run")
    words = ("predict", run, str(tmp_path / "new.csv"), "--by", "site")
    assert call(*words, out=False)[1].startswith("row,client,prediction\n1,north,")
    code, _, err = call(*words, "--id", "client", out=False)
    assert (code, err.count("\n")) == (2, 1)
    assert "--id client: the predictions have a column of this name" in err
    assert "--probabilities: the model predicts real numbers" in call(*words, "--probabilities", out=False)[2]


def test_a_run_goes_by_its_name_and_a_comparison_names_its_runs(call, tmp_path):
    words = ("--data", "synthetic", "--rounds", "1", "--seeds", "0-1", "--algorithms", "fedu,local")
    assert call("compare", *words, "--set", "data.clients=3", "--set", "data.features=2")[0] == 0
    (group,) = (tmp_path / "runs").glob("*compare*")
    first = json.loads((group / "comparison.json").read_text())["kept"]["fedu"][0]
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 2)))
    for name in (first, first[-16:][:8], str(tmp_path / "runs" / first)):
        code, out, _ = call("predict", name, str(tmp_path / "new.npz"), "--client", "1")
        assert (code, column(out, 1)) == (0, ["client", "1", "1"])
    code, _, err = call("predict", group.name, str(tmp_path / "new.npz"), "--client", "1")
    assert (code, err.count("\n")) == (2, 1)
    assert f"is a comparison of 4 runs; pass one of them, e.g. {first} (the first of fedu)" in err
    assert call("show", group.name)[2] == err
    assert call("export", first, "--client", "1", "--to", str(tmp_path / "m.safetensors"))[0] == 0


def test_rows_without_a_truth_are_answered_and_not_counted(call, tmp_path):
    _, run = train_run(tmp_path)
    frame = rows(5, 9)
    frame.loc[3:, "outcome"] = ""
    for first, known in ((0, 3), (3, 0)):
        frame[first:].to_csv(tmp_path / "new.csv", index=False)
        code, out, _ = call("predict", run, "--client", "7", str(tmp_path / "new.csv"), "--json", out=False)
        answer = json.loads(out)
        assert (code, answer["rows"], answer["known"]) == (0, 9 - first, known)
        assert ("accuracy" in answer) == (known > 0)


def test_labels_that_are_numbers_keep_their_names(call, tmp_path):
    result, run = train_run(tmp_path, numbered=True)
    held = pd.read_csv(tmp_path / "held.csv")
    for kind in (int, float, str):
        held["outcome"] = held.outcome.astype(kind)
        held.to_csv(tmp_path / "again.csv", index=False)
        words = ("predict", run, "--by", "site", str(tmp_path / "again.csv"), "--json")
        answer = json.loads(call(*words, out=False)[1])
        assert answer["accuracy"] == result.scores[-1].accuracy
        assert set(list_predictions(answer)) <= {"3", "5", "9"}


def test_a_regression_gives_values_and_its_errors(call, tmp_path):
    result, run = train_run(tmp_path, real=True)
    code, out, _ = call("predict", run, "--by", "site", str(tmp_path / "held.csv"), "--json", out=False)
    answer = json.loads(out)
    assert code == 0
    last = result.scores[-1]
    expected = (last.loss, last.rmse, last.mae, last.r2)
    assert [answer[name] for name in ("loss", "rmse", "mae", "r2")] == pytest.approx(expected, rel=1e-5)
    assert "accuracy" not in answer
    code, out, err = call("predict", run, "--client", "7", str(tmp_path / "held.csv"), out=False)
    frame = pd.read_csv(tmp_path / "held.csv")
    exact = result.predict("7", frame[["salt", "age", "dose"]].to_numpy()).flatten().tolist()
    assert column(out) == ["outcome", *(str(float(f"{value:.7g}")) for value in exact)]
    assert out.startswith("row,client,outcome\n1,7,")
    assert err.startswith("note: no standard errors; ")
    assert err.splitlines()[1].startswith("RMSE ")


def test_an_export_is_two_files_that_say_what_they_are(call, tmp_path):
    _, run = train_run(tmp_path, "client")
    code, out, _ = call("export", run, "--client", "7", "--to", str(tmp_path / "m.safetensors"), out=False)
    assert code == 0
    assert "client 7" in out
    about = json.loads((tmp_path / "m.json").read_text())
    assert about["client"] == "7"
    assert about["architecture"] == {"name": "linear", "l2": 0.0}
    assert about["labels"] == ["ill", "so-so", "well"]
    assert about["features"] == ["salt", "age", "dose"]
    assert (about["target"], about["scale"], about["inputs"]) == ("outcome", "client", [3])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run, an export of it, and files with mistakes."""
    folder = tmp_path_factory.mktemp("mistakes")
    result, _ = train_run(folder)
    result.personal("north").save(folder / "north.safetensors")
    (folder / "empty").mkdir()
    (folder / "early").mkdir()
    (folder / "early" / "experiment.toml").touch()
    frame = rows(5, 9)
    frame.drop(columns="age").to_csv(folder / "less.csv", index=False)
    frame[:0].to_csv(folder / "none.csv", index=False)
    frame.assign(dose="much").to_csv(folder / "text.csv", index=False)
    frame.assign(outcome="dead").to_csv(folder / "label.csv", index=False)
    frame.assign(site="west").to_csv(folder / "west.csv", index=False)
    np.savez(folder / "wide.npz", x=np.zeros((2, 4)))
    np.savez(folder / "other.npz", z=np.zeros((2, 3)))
    np.savez(folder / "short.npz", x=np.zeros((2, 3)), outcome=np.zeros(3))
    arrays = fl.Federation.from_arrays({"a": (np.eye(3), [0, 1, 1])}, test_share=0, scale="none")
    net = fl.models.module(torch.nn.Linear(3, 2))
    save_run(fl.fit(fl.Local(), arrays, net, rounds=1), folder / "own")
    save_run(fl.fit(fl.Local(), arrays, fl.models.linear(), rounds=1), folder / "plain")
    (folder / "bad" / "models").mkdir(parents=True)
    (folder / "bad" / "models" / "about.json").write_text("{")
    return folder


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("export run --client nort", "unknown client 'nort'; did you mean 'north'?"),
        ("export run", "--client"),
        ("export run --client north --to m.bin", "unsupported extension in 'm.bin'; use .safetensors"),
        ("export run --client north --to held.csv/m.safetensors", "held.csv/m.safetensors cannot be written"),
        ("export nothing --client 7", "no run 'nothing'; pass the folder of a run"),
        ("export empty --client 7", "'empty' is not a run (it has no experiment.toml)"),
        ("export early --client 7", "the run 'early' has no models yet"),
        ("export own --client a", "a user-defined module"),
        ("export bad --client a", "about.json is damaged"),
        ("predict run held.csv", "a model per client; choose one with --client (north, south, 7)"),
        ("predict run held.csv --client 7 --by site", "--client and --by: pass only one"),
        ("predict run held.csv --by siet", "unknown column of held.csv 'siet'; did you mean 'site'?"),
        ("predict run west.csv --by site", "unknown client 'west'"),
        ("predict run held.csv --client 7 --label outcom", "did you mean 'outcome'?"),
        ("predict run held.csv --client 7 --id nots", "unknown column of held.csv 'nots'; did you mean"),
        ("predict run less.csv --client 7", "less.csv has no column 'age', which the model was trained with"),
        ("predict run none.csv --client 7", "none.csv has no rows"),
        (
            "predict run text.csv --client 7",
            "column 'dose': 9 of 9 cells are no numbers (the first in row 1)",
        ),
        ("predict run label.csv --client 7", "row 1: the label is not one of ill, so-so, well"),
        ("predict run absent.csv --client 7", "'absent.csv' cannot be read"),
        ("predict run run --client 7", "'run' has unsupported extension ''; use .csv, .parquet, .npz"),
        ("predict run wide.npz --client 7", "shape (2, 4)"),
        ("predict run other.npz --client 7", "unknown array of other.npz 'x'"),
        ("predict run short.npz --client 7", "3 entries for 2 rows"),
        ("predict north.safetensors held.csv --client 7", "the model of client 'north' alone"),
        ("predict absent.safetensors held.csv",
         "a model consists of two files, absent.safetensors and absent.json"),
        ("predict plain held.csv --client a", "held.csv has 6 columns of features; the model expects 3"),
        ("predict run held.csv --client 7 --to held.csv/a.csv", "held.csv/a.csv cannot be written"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(call, folder, monkeypatch, words, message):
    monkeypatch.chdir(folder)
    code, out, err = call(*words.split(), out=False)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_run_says_whose_models_it_has(folder):
    assert Personals.load(folder / "run" / "models").clients == SITES
