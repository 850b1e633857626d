"""`fedlap graph make|describe|learn|draw`: files, numbers and figures, and mistakes in one line."""

import json

import numpy as np
import pytest
from scipy.spatial.distance import pdist

import fedlap as fl
from fedlap.experiments.run_folder import RunFolder
from fedlap.graph.io import from_file
from fedlap.graph.learning import learn_graph

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs: two finished ones, one that has just begun, one of real targets; and files."""
    from fedlap.cli.run import run_experiment
    from fedlap.experiments.experiment import Experiment

    folder = tmp_path_factory.mktemp("graphs")
    options = {
        "again": False,
        "track": None,
        "save_rounds": None,
        "save_seconds": 30.0,
        "metric": None,
        "json": True,
        "out": folder,
        "workers": None,
        "address": None,
    }
    small = {"name": "synthetic", "clients": 12, "rows": 60}
    asked = {
        "true": {"data": small, "graph": {"name": "known"}, "algorithm": {"name": "fedu", "strength": 0.3}},
        "local": {"data": {"name": "digits"}, "algorithm": {"name": "local", "lr": 0.1, "local_epochs": 2}},
        "real": {"data": {**small, "task": "regression"}, "algorithm": {"name": "local"}},
        "learned": {"data": small, "algorithm": {"name": "fedu-learned", "warmup": 5, "nearest": 2}},
    }
    for name, described in asked.items():
        run_experiment(Experiment.of({**described, "rounds": 40, "evaluate_every": 0}), options)
        (run,) = folder.glob("*-*-*")
        run.rename(folder / name)
    (folder / "begun").mkdir()
    (folder / "begun" / "experiment.toml").write_bytes((folder / "true" / "experiment.toml").read_bytes())
    (folder / "empty").mkdir()
    (folder / "parts.csv").write_text("a,b,0.5\nb,c,2\nd,e,1\nf,a,0\n")
    (folder / "text.csv").write_text("a,b,heavy\n")
    return folder


@pytest.fixture
def graph(call, folder, monkeypatch, capsys):
    """Run `fedlap graph …` in that folder; what it prints, or the object of --json."""
    capsys.readouterr()  # what the runs have printed
    monkeypatch.chdir(folder)

    def run(*words):
        code, out, err = call("graph", *" ".join(words).split(), out=False)
        assert (code, err) == (0, "")
        return json.loads(out) if "--json" in " ".join(words) else out

    return run


@pytest.mark.parametrize("ending", ["csv", "npz", "mtx"])
def test_a_graph_is_made_as_a_run_would_use_it(graph, folder, ending):
    out = graph(
        f"make ring.{ending} --data synthetic --graph ring --set data.clients=9 --set graph.weight=0.5"
    )
    assert f"written    ring.{ending}" in out
    clients = [str(k) for k in range(9)]
    matrix = from_file(clients, str(folder / f"ring.{ending}")).weights.matrix().toarray()
    assert np.array_equal(matrix, fl.Graph.ring(clients, 0.5).weights.matrix().toarray())
    answer = graph(f"describe ring.{ending} --json")
    assert (answer["clients"], answer["edges"], answer["weights"]) == (9, 9, [0.5, 0.5])


def test_a_seed_and_the_data_make_the_graph(graph, folder):
    for seed in (0, 1):
        graph(f"make near-{seed}.csv --data digits --graph nearest --set graph.neighbours=3 --seed {seed}")
    one, other = ((folder / f"near-{seed}.csv").read_text() for seed in (0, 1))
    assert one != other
    about = graph("describe --data digits --graph nearest --set graph.neighbours=3 --seed 1 --json")
    same = graph("describe near-1.csv --json")
    for fact in ("clients", "edges", "components", "neighbours", "weights", "lambda2", "rho"):
        assert about[fact] == pytest.approx(same[fact])


def test_describe_gives_strengths_without_training(graph):
    answer = graph("describe --data digits --graph ring --lr 0.1 --local-epochs 4 --strength 0.7 --json")[
        "mixing"
    ]
    assert (answer["lr"], answer["repeats"]) == (0.1, 4)
    assert answer["largest_stable_strength"] == pytest.approx(2 / (0.1 * 4 * 4))
    assert answer["default_strength"] == 0.15  # 40 / (67.25 rows · 4)
    largest = answer["largest_stable_strength"]
    strengths = [entry["strength"] for entry in answer["strengths"]]
    wanted = sorted([0.7, 0.15, *(share * largest for share in (0.01, 0.03, 0.1, 0.3, 1))])
    assert strengths == pytest.approx(wanted)
    assert answer["strengths"][-1]["explicit_rounds_to_halve"] is None
    rounds = [entry["implicit_rounds_to_halve"] for entry in answer["strengths"]]
    assert rounds == sorted(rounds, reverse=True)  # the stronger, the faster


def test_describe_in_words(graph):
    out = graph("describe --data digits --strength 0.3")
    for words in (
        "clients    20",
        "190, 100 % of all pairs",
        "ρ          20",
        "stable up to 0.6667",
        "as given",
    ):
        assert words in out
    assert "R = 5 local steps" in out
    parts = graph("describe parts.csv")
    assert "no: 3 components with 3, 2, 1 clients" in parts
    assert "1 without neighbours: f" in parts
    assert "0.5 to 2" in parts
    assert "strength" not in graph("describe --data digits --graph empty")


def test_a_run_says_its_graph_its_settings_and_its_models(graph, folder):
    answer = graph("describe true --json")
    assert answer["edges"] == 12
    assert 0.3 in [entry["strength"] for entry in answer["mixing"]["strengths"]]
    personals = fl.personal.Personals.load(folder / "true" / "models")
    known = fl.Graph.ring(personals.clients)
    assert answer["models"]["smoothness"] == pytest.approx(float(known.smoothness(personals.models)))
    assert answer["models"]["smoothness"] < 0.5 * answer["models"]["by_chance"]
    assert answer["models"]["all_apart"] == pytest.approx(
        np.sqrt(np.mean(pdist(personals.models) ** 2)), rel=1e-5
    )
    assert "random permutations" in graph("describe true")
    assert "models" not in graph("describe begun --json")


def test_another_graph_for_the_clients_of_a_run(graph):
    answer = graph("describe local --graph ring --set graph.weight=3 --json")
    assert (answer["edges"], answer["weights"]) == (20, [3, 3])
    assert (answer["mixing"]["lr"], answer["mixing"]["repeats"]) == (0.1, 2)  # as that run had them
    graph("make of-local.csv --data digits --graph ring --set graph.weight=3")
    description = graph("describe of-local.csv --models local --json")
    assert description["models"] == pytest.approx(answer["models"])
    assert graph("describe --data digits --graph ring --models local --json")["models"]["smoothness"] > 0


@pytest.mark.parametrize("method", ["kernel", "smooth", "cosine"])
def test_learn_finds_the_ring_that_models_are_smooth_on(graph, folder, method):
    answer = graph(f"learn true {method}.npz --method {method} --neighbours 2 --json")
    assert answer["by_chance"] == pytest.approx(12 / 66)
    assert answer["average_precision"] > 0.6
    personals = fl.personal.Personals.load(folder / "true" / "models")
    start = personals.network.start(0).to(personals.models)
    wanted = learn_graph(personals.models, personals.clients, method, 2, start).weights.matrix().toarray()
    assert np.array_equal(from_file(None, str(folder / f"{method}.npz")).weights.matrix().toarray(), wanted)
    out = graph(f"learn true {method}.csv --method {method} --neighbours 2")
    assert f"average precision {answer['average_precision']:.3f}" in out
    assert f"written    {method}.csv" in out


def test_learn_finds_the_ring_from_models_that_have_never_seen_it(graph):
    assert graph("learn real ring-again.csv --neighbours 2 --json")["average_precision"] > 0.8


def test_learn_where_no_graph_is_known(graph):
    assert "average_precision" not in graph("learn local of-digits.csv --json")
    fit = graph("describe of-digits.csv --models local --json")["models"]
    assert fit["smoothness"] < 0.7 * fit["by_chance"]


def test_draw_is_a_figure_and_the_same_every_time(graph, folder):
    assert graph("draw true one.png") == "figure     one.png\n"
    graph("draw true two.png")
    one, two = ((folder / name).read_bytes() for name in ("one.png", "two.png"))
    assert one[:8] == PNG
    assert one == two
    for words in (
        "parts.csv", "local --graph ring", "of.csv --models local", "--data digits --colour label",
        "--data synthetic --graph known --colour rows", "true --colour component",
    ):  # fmt: skip
        if words.startswith("of.csv"):
            graph("make of.csv --data digits --graph path")
        graph(f"draw {words} other.png")
        other = (folder / "other.png").read_bytes()
        assert other[:8] == PNG
        assert other != one


def test_a_drawn_run_is_coloured_by_the_accuracy_that_it_states(graph, folder, monkeypatch):
    seen = []
    monkeypatch.setattr("fedlap.cli.graph.draw_graph", lambda *args: seen.append(args) or PNG)
    graph("draw local --graph ring a.png")
    graph("draw real --graph ring a.png")
    (_, _, shown, rows), (_, _, other, _) = seen
    federation, score = (
        RunFolder(folder / "local").experiment.load()[0],
        RunFolder(folder / "local").read_scores()[-1],
    )
    assert shown.label == "test accuracy %"
    assert shown.values.mean() / 100 == pytest.approx(score.accuracy_mean)
    count = federation.test.count.numpy()
    assert (shown.values * count).sum() / count.sum() / 100 == pytest.approx(score.accuracy)
    assert np.array_equal(rows, federation.train.count.numpy())
    assert other.label == "test RMSE (lower is better)"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("describe", "no graph; pass a graph file, the folder of a run, or --data with --graph"),
        ("describe absent", "no file or run 'absent'"),
        ("describe absent.csv", "no file 'absent.csv'; set path to an existing file"),
        ("describe text.csv", "text.csv"),
        ("describe empty", "'empty' is not the folder of a run"),
        ("describe local", "'local' trained local, which uses no graph; choose one with --graph"),
        ("describe parts.csv --data digits",
         "pass only one; for a graph file on the clients of the data, use"),
        ("describe parts.csv --graph ring", "is a graph file; remove --graph and --set"),
        ("describe parts.csv --models begun", "the run 'begun' has no models yet"),
        ("describe parts.csv --models absent", "no file or run 'absent'"),
        ("describe parts.csv --models local", "(in parts.csv)"),
        ("describe parts.csv --lr 0", "lr = 0.0; expected a finite number above zero"),
        ("describe parts.csv --strength -1", "strength = -1.0; expected a finite number of at least zero"),
        ("describe parts.csv --local-steps 2 --local-epochs 2", "are both set"),
        ("describe --data digits --graph rong", "unknown graph 'rong'; did you mean"),
        ("describe --data digits --graph known", "'digits' has no known graph"),
        ("describe --data digits --set rounds=3",
         "--set rounds=3: a graph only depends on graph, data, partition, scarce"),
        ("describe true --set data.rows=3", "--set data.rows=3: only fields of the graph can differ"),
        ("describe --data digits --graph star --set graph.server=true --models local",
         "server vertex, whose model is not stored"),
        ("learn absent a.csv", "no file or run 'absent'"),
        ("learn begun a.csv", "the run 'begun' has no models yet; finish it"),
        ("learn true a.csv --method kernal", "unknown learning method 'kernal'; did you mean 'kernel'?"),
        ("learn true a.txt", "a.txt"),
        ("learn true a.csv --neighbours 0", "neighbours"),
        ("make ring.txt --graph ring", "ring.txt"),
        ("make parts.csv/ring.csv --graph ring", "cannot be written"),
        ("make", "out"),
        ("draw", "FIGURE"),
        ("draw true", "draw true: expected a graph file or a run (unless there is --data), then the .png"),
        ("draw true parts.csv a.png", "draw true parts.csv a.png: expected a graph file or a run"),
        ("draw true a.png --colour size", "unknown colour 'size'; known: accuracy, component, label, loss,"),
        ("draw parts.csv a.png --colour accuracy",
         "--colour accuracy: a graph file has no accuracy; pass a run"),
        ("draw begun a.png --colour accuracy", "--colour accuracy: there are no models; pass a finished run"),
        ("draw --data digits a.png --colour accuracy", "--colour accuracy: there are no models"),
        ("draw real a.png --graph ring --colour label", "--colour label: a regression has no labels; use"),
        ("draw --data synthetic --set data.clients=3000 a.png",
         "3,000 clients in a complete graph; draw a graph with fewer edges"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(call, folder, monkeypatch, capsys, words, message):
    capsys.readouterr()
    monkeypatch.chdir(folder)
    code, out, err = call("graph", *words.split(), out=False)
    assert (code, out) == (2, "")
    assert message.lower() in err.lower()  # typer 0.20 writes OUT
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_the_graph_of_a_run_that_learns_one_is_the_one_that_it_came_to(graph, folder):
    run = RunFolder.open(folder / "learned")
    weights = run.load_progress(run.read_checkpoints()[0][0]).server[1].numpy()
    found = graph("describe learned --json")
    assert found["edges"] == np.count_nonzero(weights) // 2 < 12 * 11 // 2
    assert "learned in 40 rounds on synthetic" in graph("describe learned")
    assert "complete on synthetic" in graph("describe learned --graph complete")


def test_a_graph_that_leaves_most_clients_alone_is_noted_before_training(call, tmp_path):
    file = tmp_path / "few.csv"
    file.write_text("from,to\n0,1\n2,3\n", encoding="utf-8")
    note = "note: 16 of 20 clients have no neighbour in graph 'few.csv', so no other client helps them"
    shared = ["--data", "digits", "--graph", str(file), "--rounds", "1"]
    for words in (
        ["run"],
        ["compare", "--algorithms", "fedu,dfedu", "--seeds", "0-1"],
        ["sweep", "--vary", "lr=0.1,0.2", "--seeds", "0-1"],
        ["tune", "--vary", "lr=0.1,0.2", "--folds", "2"],
    ):
        code, _, err = call(*words, *shared)
        assert code == 0, err
        assert " ".join(err.split()).count(note) == 1
    half = tmp_path / "half.csv"
    half.write_text("".join(f"{k},{k + 1}\n" for k in range(0, 10, 2)), encoding="utf-8")
    assert "no neighbour" not in call("run", "--data", "digits", "--graph", str(half), "--rounds", "1")[2]
