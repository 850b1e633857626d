"""Tuning before a comparison: the choice of `fl.tune` for each seed, from training rows alone."""

import json
from dataclasses import replace

import pytest

import fedlap as fl
from fedlap.experiments.group_folder import list_member_names
from fedlap.experiments.run_folder import list_run_folders
from fedlap.report.page.reported_runs import ReportedResults
from fedlap.report.page.result_sections import build_settings_sections

DATA = {"name": "synthetic", "clients": 4, "features": 3, "rows": 15, "test_rows": 6}


def load(seed):
    clients = fl.data.synthetic(clients=4, features=3, rows=15, test_rows=6, seed=seed)
    return clients.federation, clients.graph


@pytest.fixture(scope="module", name="tuned")
def tune_on_synthetic():
    return fl.compare(["fedu", "local"], DATA, graph="known", seeds=[0, 5], rounds=3, tune=True, folds=3)


@pytest.mark.slow
def test_the_choice_is_that_of_tune(tuned):
    for place, seed in enumerate((0, 5)):
        federation, graph = load(seed)
        for name, method in (("fedu", fl.FedU(graph)), ("local", fl.Local())):
            alone = fl.tune(method, federation, fl.models.linear(), folds=3, rounds=3, seed=seed)
            assert tuned.tuned[name][place] == alone.best.values
            trained = tuned.results[name][seed].algorithm
            assert {key: getattr(trained, key) for key in alone.best.values} == alone.best.values


def test_test_rows_do_not_change_the_choice(tuned):
    """Targets of test rows are replaced: scores change, chosen settings do not."""

    def poison(seed):
        federation, graph = load(seed)
        test = replace(federation.test, y=(federation.test.y + 1) % 3)
        return replace(federation, test=test), graph

    poisoned = fl.compare(
        {"fedu": lambda federation, graph: fl.FedU(graph), "local": fl.Local()},
        poison, graph="known", seeds=[0, 5], rounds=3, tune=True, folds=3,
    )  # fmt: skip
    assert poisoned.tuned == tuned.tuned
    assert not poisoned.scores.equals(tuned.scores)


def test_settings_that_were_set_stay(tuned):
    fixed = {"fedu": {"name": "fedu", "lr": 0.05}, "plain": {"name": "local", "lr": 0.07}}
    result = fl.compare(fixed, DATA, graph="known", seeds=[0], rounds=2, tune=True, folds=2)
    assert set(result.tuned["fedu"][0]) == {"strength"}
    assert result.tuned["plain"] == [{}]
    assert result.results["plain"][0].algorithm.lr == 0.07


def test_rejected_candidates_are_counted_and_folds_without_rows_are_an_error(caplog):
    with caplog.at_level("INFO", logger="fedlap"):
        fl.compare(["fedu"], DATA, graph="known", seeds=[0], rounds=1, tune=True, folds=2)
    (remark,) = (record.message for record in caplog.records if "candidates are invalid" in record.message)
    assert "fedu, seed 0: " in remark
    assert "strength" in remark
    with pytest.raises(fl.InputError, match="fold"):
        fl.compare(["local"], DATA, seeds=[0], rounds=1, tune=True, folds=500)


@pytest.mark.slow
def test_the_command_tunes_prints_and_stores(call, tmp_path, tuned):
    words = (
        "compare", "--data", "synthetic", "--set", "data.clients=4", "--set", "data.features=3", "--set",
        "data.rows=15", "--set", "data.test_rows=6", "--graph", "known", "--algorithms", "fedu,local",
        "--seeds", "0,5", "--rounds", "3", "--tune",
    )  # fmt: skip
    code, out, err = call(*words, "--json")
    assert code == 0
    facts = json.loads(out)
    python = fl.compare(["fedu", "local"], DATA, graph="known", seeds=[0, 5], rounds=3, tune=True)
    assert facts["tuning"]["values"] == python.tuned
    assert facts["tuning"]["folds"] == 5
    assert "chosen for each method and seed by 5-fold cross-validation on training rows" in " ".join(
        err.split()
    )
    assert "local: lr = " in err
    runs = {run.name for run in list_run_folders(tmp_path / "runs")}
    assert {name for names in facts["tuning"]["runs"].values() for name in names} < runs
    assert set(list_member_names(facts)) == runs  # so that `fedlap runs` folds all of them
    trained = len(runs)
    code, out, err = call(*words)
    assert code == 0
    assert len(list_run_folders(tmp_path / "runs")) == trained  # everything is loaded
    assert (
        "cross-validation on training rows"
        in (tmp_path / "runs" / facts["folder"].split("/")[-1] / "table.md").read_text()
    )
    assert call("report", facts["folder"], out=False)[0] == 0


def test_a_page_says_which_settings_differ_between_seeds():
    methods = {
        "steady": fl.Local(lr=0.02),
        "tuned": lambda federation: fl.Local(lr=float(federation.train.count[0]) / 1000),
    }
    result = fl.compare(methods, load, seeds=[0, 5], rounds=1)
    section = next(build_settings_sections(ReportedResults(result.comparison, result.runs, "")))
    assert "lr = 0.02" in dict(section.facts)["steady"]
    assert "lr = varies by seed" in dict(section.facts)["tuned"]
