"""Sweeps: what they train is what separate runs train, and what they say of it."""

import json
import tomllib

import numpy as np
import pytest
import torch
from safetensors import safe_open

from fedlap.cli.vary import list_combinations, split_values
from fedlap.errors import InputError
from fedlap.experiments.experiment import Experiment

SMALL = ("--data", "synthetic", "--set", "data.clients=5", "--set", "data.rows=16", "--set", "dtype=float64")
UNEQUAL = ("--set", "partition.clients=10", "--set", "dtype=float64")
CASES = {
    "fedu, strength and lr": (
        *SMALL, "--algorithm", "fedu", "--graph", "known", "--vary", "strength=0,0.3", "--vary",
        "lr=0.01,0.05"),
    "fedu, some clients": (
        *SMALL, "--algorithm", "fedu", "--vary", "algorithm.strength=0.01,0.1", "--sample", "0.4"),
    "fedu, epochs of unequal clients": (
        *UNEQUAL, "--algorithm", "fedu", "--vary", "strength=0.01,0.1", "--local-epochs", "2"),
    "fedu, epochs": (*UNEQUAL, "--algorithm", "fedu", "--vary", "local_epochs=1,2"),
    "dfedu": (*SMALL, "--algorithm", "dfedu", "--graph", "ring", "--vary", "strength=0.1,0.2"),
    "lasso": (*SMALL, "--algorithm", "lasso", "--vary", "strength=0.001,0.01", "--vary", "smoothing=2"),
    "global": (*UNEQUAL, "--algorithm", "global", "--vary", "lr=0.01,0.1", "--local-epochs", "1"),
    "global, sampled": (*SMALL, "--algorithm", "global", "--vary", "lr=0.01,0.1", "--sample", "0.4"),
    "fedprox": (
        *UNEQUAL, "--algorithm", "fedprox", "--vary", "proximal=0,1", "--vary", "lr=0.02,0.05",
        "--sample", "0.5"),
    "perfedavg": (
        *SMALL, "--algorithm", "perfedavg", "--vary", "lr=0.02,0.05", "--vary", "adapt_lr=0.1"),
    "scaffold": (*SMALL, "--algorithm", "scaffold", "--vary", "lr=0.02,0.05", "--sample", "0.4"),
    "ditto, mlp": (*SMALL, "--algorithm", "ditto", "--model", "mlp", "--vary", "lr=0.02,0.05"),
    "l2gd": (*SMALL, "--algorithm", "l2gd", "--vary", "strength=0.01,0.1", "--vary", "probability=0.5"),
    "mocha": (*SMALL, "--algorithm", "mocha", "--vary", "strength=0.1,1"),
    "not one stack": (*SMALL, "--vary", "batch=5,all", "--vary", "rounds=2,3"),
    "graphs": (*SMALL, "--vary", "graph=ring,complete,known", "--strength", "0.05"),
    "partitions": ("--vary", "partition=iid,labels", "--set", "partition.clients=10"),
    "scarce": (*UNEQUAL, "--vary", "scarce=false,true"),
    "models": (*SMALL, "--vary", "model=linear,mlp"),
    "algorithms": (*SMALL, "--vary", "algorithm=local,fedavg", "--vary", "lr=0.02,0.05"),
}  # fmt: skip


def read_run(folder):
    """Return the experiment, the scores without times and the models of a run folder."""
    experiment = Experiment.of(tomllib.loads((folder / "experiment.toml").read_text()))
    scores = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    with safe_open(folder / "models" / "models.safetensors", "np") as file:
        return experiment, scores, file.get_tensor("models")


LATER = ("global, sampled", "perfedavg", "scaffold", "l2gd", "lasso", "models", "partitions")


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case in LATER else ()) for case in CASES]
)
def test_a_sweep_is_separate_runs(case, call, tmp_path):
    words = CASES[case]
    code, out, err = call("sweep", *words, *(() if "rounds" in str(words) else ("--rounds", "2")),
                          "--seeds", "0,2", "--json")  # fmt: skip
    assert code == 0, err
    answer = json.loads(out)
    folders = [folder for folder in (tmp_path / "runs").iterdir() if (folder / "experiment.toml").exists()]
    rounds = {
        run["scores"][0]["round"] for run in answer["runs"]
    }  # runs that differ in rounds alone are one run
    assert len(folders) == 2 * len(answer["runs"]) / len(rounds)
    for folder in folders:
        experiment, scores, models = read_run(folder)
        alone = experiment.run()
        close = 1e-9 if experiment.dtype == "float64" else 1e-5
        np.testing.assert_allclose(models, alone.models.numpy(), rtol=close, atol=close)
        for score, wanted in zip(scores, alone.scores, strict=True):
            for key, value in wanted.as_dict().items():
                if value is None:
                    assert score.get(key) is None  # absent stands for None
                elif key != "seconds":
                    assert score[key] == pytest.approx(value, rel=10 * close, abs=10 * close), key


def test_a_sweep_gives_each_run_its_own_values(call):
    words = (*SMALL, "--vary", "strength=0.1,0.2", "--vary", "batch=4,all", "--seeds", "0", "--rounds", "1")
    answer = json.loads(call("sweep", *words, "--json")[1])
    assert answer["fields"] == ["strength", "batch"]
    assert [run["values"] for run in answer["runs"]] == [
        {"strength": strength, "batch": batch} for strength in (0.1, 0.2) for batch in (4, "all")
    ]
    losses = [run["scores"][0]["objective"] for run in answer["runs"]]
    assert len(set(losses)) == 4


def test_data_are_loaded_once_a_seed(call, monkeypatch):
    loads = []
    load = Experiment.load
    monkeypatch.setattr(Experiment, "load", lambda self: (loads.append(self.seed), load(self))[1])
    words = (*SMALL, "--seeds", "0-2", "--rounds", "1")
    assert call("sweep", *words, "--vary", "strength=0,0.1", "--vary", "model.l2=0,0.1")[0] == 0
    assert call("compare", *words, "--algorithms", "fedu,local,mocha")[0] == 0
    assert call("run", *SMALL, "--rounds", "1")[0] == 0
    assert loads == [0, 1, 2, 0, 1, 2, 0]


def test_seeds_and_real_values_are_one_stack(call):
    _, _, err = call("sweep", *SMALL, "--vary", "strength=0,0.1,0.2", "--seeds", "0-2,5", "--rounds", "2")
    assert "3 values of strength, seeds 0-2,5  round 2/2" in err
    assert err.count("round 2/2") == 1
    _, _, err = call("compare", *SMALL, "--algorithms", "fedu,l2gd", "--seeds", "0-1", "--rounds", "2")
    assert [line.split("  ")[0] for line in err.splitlines() if "round 2/2" in line] == [
        "fedu, seeds 0,1", "l2gd, seed 0", "l2gd, seed 1"
    ]  # fmt: skip


def test_what_a_sweep_writes(call, tmp_path):
    words = (*SMALL, "--vary", "strength=0,0.001,0.2", "--seeds", "0-1", "--rounds", "3", "--graph", "known")
    code, out, _ = call("sweep", *words)
    assert code == 0
    assert "fedu on synthetic: test rows after round 3, mean ± std over 2 seeds" in out
    assert "has the highest pooled test accuracy; the difference is significant against " in out
    assert "Paired over 2 seeds: mean difference [95 % interval], two-sided t-test p-value\n" in out
    assert "(Holm-corrected for all 3 pairs" in out
    assert "  against strength = " in out
    (folder,) = (tmp_path / "runs").glob("synthetic-sweep-*")
    assert f"Table and figure are in {folder}" in out
    assert sorted(file.name for file in folder.iterdir()) == ["sweep.json", "sweep.png", "table.md"]
    assert (folder / "sweep.png").read_bytes()[:4] == b"\x89PNG"
    assert (
        "| strength | pooled accuracy % | client mean % | worst tenth % | client std % |"
        in (folder / "table.md").read_text()
    )
    assert "| 0.001 | " in (folder / "table.md").read_text()
    about = json.loads((folder / "sweep.json").read_text())
    again = json.loads(call("sweep", *words, "--json")[1])
    assert again.pop("folder") == str(folder)
    assert set(about) == set(again)
    assert [run["values"] for run in about["runs"]] == [run["values"] for run in again["runs"]]
    assert about["algorithms"] == ["fedu"]
    tested = about["comparisons"]
    assert tested["leader"] == about["best"]
    assert (tested["score"], tested["pairs"], len(tested["against"])) == ("accuracy", 3, 2)
    assert {"other", "difference", "interval", "p_value", "p_adjusted", "shown"} < set(tested["against"][0])
    assert set(tested["against"][0]["other"]) == {"strength"}
    cited = call("cite", str(folder), out=False)[1]
    assert "Laplacian" in cited


def test_the_chosen_strength_is_said_once_or_for_each(call):
    words = (*SMALL, "--rounds", "1", "--seeds", "0-1")
    lines = call("sweep", *words, "--vary", "lr=0.01,0.02")[2].splitlines()
    assert [line[:26] for line in lines if "by default" in line] == ["fedu: strength = 0.4 by de"]
    lines = call("sweep", *words, "--vary", "lr=0.01,10")[2].splitlines()
    notes = [line for line in lines if "by default" in line]
    assert [line.split(": ")[0] for line in notes] == ["lr = 0.01", "lr = 10"]
    assert not [
        line
        for line in call("sweep", *words, "--vary", "strength=0,0.1")[2].splitlines()
        if "default" in line
    ]


REGRESSION = ("--data", "synthetic", "--set", "data.task=regression", "--set", "data.clients=5")


def test_a_diverging_value_does_not_stop_the_others(call, tmp_path):
    words = ("sweep", *REGRESSION, "--vary", "lr=0.01,0.02,9", "--seeds", "0-1", "--rounds", "10")
    code, out, err = call(*words)
    assert code == 1
    assert "lr = 0.02 has the lowest pooled test RMSE" in out
    assert "lr = 9 diverged in 2 of 2 seeds and is not ranked" in out
    assert "the best" not in out  # the largest was tried
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert [line.split(": ")[1] for line in lines] == ["lr = 9, seed 0", "lr = 9, seed 1"]
    assert all("training diverged: by round" in line and "lower lr (now 9)" in line for line in lines)
    folders = list((tmp_path / "runs").glob("synthetic-fedu-*"))
    assert len(folders) == 6
    assert sum((folder / "models").exists() for folder in folders) == 4
    code, out, _ = call(*words, "--json")
    answer = json.loads(out)
    assert code == 1
    assert answer["runs"][2]["scores"] == [None, None]
    assert answer["diverged"][1]["values"] == {"lr": 9}
    assert answer["diverged"][1]["seed"] == 1
    assert "training diverged" in answer["diverged"][1]["reason"]
    assert len(list((tmp_path / "runs").glob("*sweep*/sweep.png"))) == 1


def test_a_diverging_algorithm_does_not_stop_the_others(call, tmp_path):
    unstable = ("--strength", "1e9", "--set", "algorithm.allow_unstable=true", "--rounds", "10")
    words = ("compare", *REGRESSION, "--algorithms", "fedu,local,fedavg", "--seeds", "0-1", *unstable)
    code, out, err = call(*words)
    assert code == 1
    assert "error: fedu, seed 0: training diverged" in err
    assert "lower strength" in err
    (row,) = [line for line in out.splitlines() if line.strip().startswith("fedu  ")]
    assert "diverged" in row
    assert "has the lowest pooled test RMSE" in out
    assert "fedu diverged in 2 of 2 seeds and is not ranked" in out
    assert len(list((tmp_path / "runs").glob("synthetic-*"))) == 7
    (folder,) = (tmp_path / "runs").glob("*compare*")
    about = json.loads((folder / "comparison.json").read_text())
    assert about["algorithms"]["fedu"] == [None, None]
    assert [(run["algorithm"], run["seed"]) for run in about["diverged"]] == [("fedu", 0), ("fedu", 1)]
    assert (folder / "curves.png").exists()
    assert (folder / "table.md").exists()


def test_where_all_diverge_a_table_is_written_all_the_same(call, tmp_path):
    code, out, _ = call("sweep", *REGRESSION, "--vary", "lr=9,10", "--seeds", "0", "--rounds", "10")
    assert code == 1
    assert "leads" not in out
    (folder,) = (tmp_path / "runs").glob("*sweep*")
    assert (folder / "table.md").read_text().count("diverged") == 4


def values(*texts, algorithm="fedu"):
    return [combination.values for combination in list_combinations(texts, algorithm)]


def test_values_are_read_as_those_of_set():
    assert values("strength=0, 0.5,1e-3") == [(0,), (0.5,), (0.001,)]
    assert values("model.hidden=[50,100],[20]") == [([50, 100],), ([20],)]
    assert values("batch=10,all") == [(10,), ("all",)]
    assert values('partition={name="iid", clients=5},labels') == [
        ({"name": "iid", "clients": 5},),
        ("labels",),
    ]
    assert values("scarce=true,false") == [(True,), (False,)]


def test_duplicates_are_dropped_and_one_value_is_fine():
    assert values("batch=20,20.0,10,20") == [(20.0,), (10,)]
    assert values("lr=0.1") == [(0.1,)]


def test_fields_go_by_their_options_names():
    tried = list_combinations(
        ["local-steps=1", "strength=1", "graph.weight=1", "model=mlp", "neighbours=all"], "fedu"
    )
    assert [field.path for field in tried[0].fields] == [
        "algorithm.local_steps", "algorithm.strength", "graph.weight", "model", "algorithm.neighbours"
    ]  # fmt: skip
    assert tried[0].label == "local_steps = 1, strength = 1, graph.weight = 1, model = mlp, neighbours = all"
    with pytest.raises(InputError, match="varied twice"):
        list_combinations(["lr=1", "algorithm.lr=2"], "fedu")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [("1,2", ["1", "2"]), ("[1,2],[3]", ["[1,2]", "[3]"]), ("{a=[1,2],b=3}, 4", ["{a=[1,2],b=3}", "4"]),
     ('"a,b",c', ['"a,b"', "c"]), ("", [""]), ("1,", ["1", ""]), ("],[", ["]", "["])],
)  # fmt: skip
def test_commas_within_brackets_do_not_part(text, pieces):
    assert split_values(text) == pieces


def test_the_graph_of_a_file_is_a_value(call, tmp_path):
    (tmp_path / "g.csv").write_text("0,1\n")
    words = ("--vary", f"graph=ring,{tmp_path / 'g.csv'}", "--rounds", "1", "--seeds", "0", "--json")
    code, out, err = call("sweep", "--data", "synthetic", *words)
    assert code == 0, err
    assert len(json.loads(out)["runs"]) == 2


def test_the_number_of_threads_is_kept(call, tmp_path):
    before = torch.get_num_threads()
    try:
        words = (*SMALL, "--rounds", "1", "--seeds", "0", "--threads", "2")
        assert call("compare", "--algorithms", "local", *words)[0] == 0
    finally:
        torch.set_num_threads(before)
    (file,) = (tmp_path / "runs").glob("*/environment.json")
    assert json.loads(file.read_text())["threads"] == 2
