"""`fl.compare` and `fl.sweep`: the numbers of the command line; users' methods, models, data and graphs."""

import json
from dataclasses import replace

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import fedlap as fl
from fedlap.comparisons import training
from fedlap.experiments.run_folder import list_run_folders

METHODS = ["fedu", "local", "global"]
SMALL = {"name": "synthetic", "clients": 6, "features": 3, "rows": 12, "test_rows": 8}


def small(seed):
    """Return the federation and the graph of small synthetic clients."""
    clients = fl.data.synthetic(clients=6, features=3, rows=12, test_rows=8, seed=seed)
    return clients.federation, clients.graph


def drop_times(scores):
    return [{key: value for key, value in score.items() if key != "seconds"} for score in scores]


def numbers(facts):
    """Return all scores of the last round except times."""
    return {name: drop_times(scores) for name, scores in facts["algorithms"].items()}


@pytest.mark.parametrize(
    ("data", "graph", "words"),
    [("digits", "complete", ()), ("synthetic", "known", ("--graph", "known"))],
    ids=["digits", "synthetic"],
)
def test_the_numbers_are_those_of_the_command_line(data, graph, words, call):
    command = ("compare", "--data", data, *words, "--seeds", "0-2", "--rounds", "4", "--json")
    code, out, _ = call(*command)
    assert code == 0
    result = fl.compare(METHODS, data, graph=graph, seeds=range(3), rounds=4)
    plain = json.loads(json.dumps(result.comparison.as_dict()))
    assert numbers(plain) == numbers(json.loads(out))
    assert plain["comparisons"] == json.loads(out)["comparisons"]


def test_users_parts_give_the_numbers_of_their_names():
    """Objects, classes and functions train the same runs as names."""
    named = fl.compare(["fedu", "local"], SMALL, graph="known", seeds=[0, 3], rounds=4)
    objects = fl.compare(
        {"fedu": lambda federation, graph: fl.FedU(graph), "local": fl.Local()},
        small,
        fl.models.linear(),
        graph="known",
        seeds=[0, 3],
        rounds=4,
    )
    ring = lambda federation: fl.Graph.ring(federation.clients)  # noqa: E731
    classes = fl.compare([fl.FedU, fl.Local], small, graph=ring, seeds=[0, 3], rounds=4)
    for other in (objects, classes):
        assert numbers(other.comparison.as_dict()) == numbers(named.comparison.as_dict())
    alone = fl.fit(fl.FedU(small(3)[1]), small(3)[0], fl.models.linear(), rounds=4, seed=3)
    torch.testing.assert_close(objects.results["fedu"][3].models, alone.models)


def test_runs_of_a_method_train_as_one_stack(monkeypatch):
    sizes, train = [], training.train_stack
    monkeypatch.setattr(
        training, "train_stack", lambda runs, *callbacks: sizes.append(len(runs)) or train(runs, *callbacks)
    )
    fl.compare(
        {"one": fl.FedAvg(), "two": fl.FedAvg(lr=0.1), "three": "local"}, small, seeds=range(3), rounds=1
    )
    assert sorted(sizes) == [3, 6]


@pytest.fixture(scope="module", name="compared")
def compare_on_digits():
    return fl.compare(METHODS, "digits", seeds=range(3), rounds=3)


def test_tables_agree(compared):
    scores, table = compared.scores, compared.table
    assert list(scores.columns) == ["method", "seed", "metric", "value"]
    assert scores["value"].dtype == np.float64
    accuracy = scores[scores["metric"] == "accuracy"].groupby("method")["value"]
    for name in METHODS:
        assert table.loc[name, "pooled_accuracy_percent_mean"] == pytest.approx(100 * accuracy.mean()[name])
        assert table.loc[name, "pooled_accuracy_percent_std"] == pytest.approx(100 * accuracy.std()[name])
    clients = compared.clients
    assert list(clients.columns) == ["method", "seed", "client", "metric", "value"]
    means = 100 * clients.groupby(["method", "seed"])["value"].mean().groupby("method").mean()
    for name in METHODS:
        assert means[name] == pytest.approx(table.loc[name, "client_mean_accuracy_percent_mean"])


def test_tests_are_those_of_the_verdict(compared):
    tests = compared.tests.set_index("other")
    assert set(tests["leader"]) == {compared.comparison.best}
    for lead in compared.comparison.compare_leader():
        row = tests.loc[lead.other]
        assert (row["difference"], row["p_adjusted"]) == (lead.pair.mean, lead.p_adjusted)
        assert (row["low"], row["high"]) == lead.pair.interval
        assert row["verdict"] == ("better" if lead.significant else "not significant")


def test_the_figure_ends_at_the_numbers_of_the_table(compared):
    axis = compared.plot().axes[0]
    ends = {line.get_label(): line.get_ydata()[-1] for line in axis.get_lines()}
    assert ends == pytest.approx(compared.table["pooled_accuracy_percent_mean"].to_dict())


def test_the_page_and_its_files_have_the_numbers_of_the_table(compared, tmp_path):
    page = compared.report(tmp_path / "page")
    text = page.read_text("utf-8")
    for title in ("Scores", "Learning curves", "Gain per client over local", "Graph of fedu", "Settings"):
        assert f">{title}<" in text
    written = pandas.read_csv(page.parent / "tables" / "scores.csv", index_col="algorithm")
    for column in compared.table.columns:
        assert written[column].dtype != object, column
        assert np.allclose(written[column], compared.table[column], equal_nan=True), column
    gains = pandas.read_csv(page.parent / "tables" / "gains.csv")
    assert gains["gain_points"].dtype == np.float64
    by_client = compared.clients.pivot_table("value", ["seed", "client"], "method")
    wanted = 100 * (by_client["fedu"] - by_client["local"])
    found = (
        gains[gains["method"] == "fedu"].astype({"client": str}).set_index(["seed", "client"])["gain_points"]
    )
    assert found.sort_index().to_numpy() == pytest.approx(wanted.sort_index().to_numpy(), abs=1e-9)


def test_a_page_can_be_one_file(compared, tmp_path):
    page = compared.report(tmp_path / "page.html")
    assert page == tmp_path / "page.html"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_latex_has_the_numbers_of_the_table(compared):
    latex = compared.to_latex()
    for name in METHODS:
        assert f"{compared.table.loc[name, 'pooled_accuracy_percent_mean']:.2f} $\\pm$" in latex


def test_results_are_shown_without_rows(compared):
    assert repr(compared).startswith("<ComparisonResult on digits: fedu, local, global; 3 seeds, best: ")
    assert len(repr(compared)) <= 200
    html = compared._repr_html_()
    assert "pooled_accuracy_percent_mean" in html
    assert "Paired over 3 seeds" in html


def test_a_sweep_varies_settings(tmp_path):
    grid = {"strength": [0.0, 0.05], "lr": [0.01, 0.1]}
    named = fl.sweep("fedu", SMALL, graph="known", vary=grid, seeds=range(2), rounds=3)
    objects = fl.sweep(
        lambda federation, graph: fl.FedU(graph), small, graph="known", vary=grid, seeds=range(2), rounds=3
    )
    assert list(objects.scores.columns) == ["strength", "lr", "seed", "metric", "value"]
    pandas.testing.assert_frame_equal(
        objects.scores[objects.scores["metric"] != "seconds"],
        named.scores[named.scores["metric"] != "seconds"],
    )
    axis = objects.plot().axes[0]
    drawn = {
        (float(line.get_label()), x): y
        for container in axis.containers
        for line in [container]
        for x, y in zip(container.lines[0].get_xdata(), container.lines[0].get_ydata(), strict=True)
    }
    table = objects.table["pooled_accuracy_percent_mean"]
    for strength, lr in table.index:
        (value,) = {drawn.get((lr, strength)), drawn.get((strength, lr))} - {None}
        assert value == pytest.approx(table.loc[strength, lr])
    assert objects.report(tmp_path / "sweep.html").exists()


def test_named_sweeps_vary_any_field():
    result = fl.sweep("fedavg", SMALL, "mlp", vary={"model.hidden": [[2], [3]]}, seeds=[0], rounds=1)
    assert list(result.comparison.runs) == ["model.hidden = [2]", "model.hidden = [3]"]


def test_a_folder_stores_runs_and_loads_them(tmp_path, caplog):
    first = fl.compare(["fedu", "local"], SMALL, seeds=[0, 1], rounds=2, folder=tmp_path)
    assert len(list_run_folders(tmp_path)) == 4
    assert {path.name for path in first.folder.iterdir()} >= {"comparison.json", "curves.png", "table.md"}
    with caplog.at_level("INFO", logger="fedlap"):
        second = fl.compare(["fedu", "local"], SMALL, seeds=[0, 1], rounds=2, folder=tmp_path)
    assert "4 of 4 runs are finished and loaded" in caplog.text
    memory = fl.compare(["fedu", "local"], SMALL, seeds=[0, 1], rounds=2)
    for other in (first, second):
        assert numbers(other.comparison.as_dict()) == numbers(memory.comparison.as_dict())
    for name in ("fedu", "local"):
        for seed in (0, 1):
            stored, trained = second.results[name][seed], memory.results[name][seed]
            assert torch.equal(stored.models, trained.models)
            assert [replace(score, seconds=0) for score in stored.scores] == [
                replace(score, seconds=0) for score in trained.scores
            ]
    pandas.testing.assert_frame_equal(second.clients, memory.clients)


def test_a_diverged_run_has_no_result():
    data = {**SMALL, "task": "regression"}
    result = fl.compare(
        {"wild": {"name": "fedavg", "lr": 50.0}, "local": "local"}, data, seeds=[0, 1], rounds=30
    )
    assert result.results["wild"] == {}
    assert list(result.results["local"]) == [0, 1]
    assert set(result.scores["method"]) == {"local"}
    assert "wild diverged" in result.verdict


NET = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))


def test_mistakes_are_one_line():
    for message, words in {
        "pass a list of seeds, such as": {"seeds": 3},
        "the list is empty": {"seeds": []},
        "'shuffled' needs a graph before it": {"graph": ["shuffled"]},
        "two graphs have the label 'ring'": {"graph": ["ring", "ring"]},
        "is a torch module; pass fl.models.module": {"model": NET},
        "two methods are called 'local'": {"methods": ["local", fl.Local()]},
        "unknown algorithm 'fed'": {"methods": ["fed"]},
        "methods: mine returned int": {"methods": {"mine": lambda federation: 3}},
        "methods: mine is of type int": {"methods": {"mine": 3}},
        "data: got int; pass a data set's name": {"data": lambda seed: 3},
    }.items():
        arguments = {"methods": ["local", "fedu"], "data": small, "seeds": [0], "rounds": 1} | words
        with pytest.raises(fl.InputError, match=message) as caught:
            fl.compare(**arguments)
        assert "\n" not in str(caught.value)
    with pytest.raises(fl.InputError, match="unknown setting of fedavg 'speed'"):
        fl.sweep(fl.FedAvg(), small, vary={"speed": [1]}, seeds=[0], rounds=1)
