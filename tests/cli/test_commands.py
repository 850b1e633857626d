"""The command line as a user meets it."""

import inspect
import json
import re
import subprocess
import sys
import tomllib
from typing import get_args

import numpy as np
import pytest
from safetensors import safe_open

import fedlap as fl
from command_lines import known_commands
from fedlap.cli import names
from fedlap.data import SOURCES
from fedlap.data.columns import MissingRule
from fedlap.data.partition import NATURAL, PARTITIONS
from fedlap.data.splits import SplitName
from fedlap.experiments.experiment import KNOWN_GRAPH, Experiment
from fedlap.graph import GRAPHS
from fedlap.graph.learning import LEARNERS
from fedlap.models import MODELS
from fedlap.reproduce.recipe import list_recipes
from fedlap.tracking import TRACKERS
from method_kinds import PEER_METHODS

SHORT = ("--rounds", "3")
# Runs command lines one after another in a process, and fails as soon as one has loaded a slow package.
LOADER = """
import contextlib, io, json, sys
from fedlap.cli import run_command_line

for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()):
        assert run_command_line(words) == 0
    found = {"matplotlib", "networkx", "numpy", "pandas", "scipy", "torch"} & set(sys.modules)
    assert not found, f"{words} loads {found}"
"""


def about(folder):
    return json.loads((folder / "models" / "about.json").read_text())


def test_run_prints_a_table_and_keeps_the_run(call, tmp_path):
    code, out, err = call("run", "--data", "digits", "--algorithm", "fedu", "--rounds", "10", "--seed", "0")
    assert code == 0
    assert "accuracy" in out
    assert "strength = 0.03 by default: min(40/(n·ρ), 1/(lr·R·ρ))" in err  # the default is printed
    assert "round 10/10" in err
    (folder,) = (tmp_path / "runs").iterdir()
    assert str(folder) in out
    again = Experiment.of(tomllib.loads((folder / "experiment.toml").read_text()))
    assert folder.name.endswith(again.digest)
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [r["round"] for r in rounds] == list(range(1, 11))
    with safe_open(folder / "models" / "models.safetensors", "np") as file:
        assert about(folder)["clients"] == [str(k) for k in range(20)]
        stored = file.get_tensor("models")
    assert np.array_equal(stored, again.run().models.numpy())  # the description makes the same models again


def test_run_json_is_one_object(call):
    code, out, _ = call("run", *SHORT, "--json", "--set", "algorithm.strength=0.02", "--set", "model.l2=0.5")
    answer = json.loads(out)
    assert code == 0
    assert answer["experiment"]["algorithm"]["strength"] == 0.02
    assert answer["experiment"]["model"]["l2"] == 0.5
    assert answer["last"]["round"] == 3


def test_every_field_can_be_set(call):
    values = {
        "partition.clients": "10", "data.scale": "client", "model.hidden": "[7, 5]", "graph.weight": "0.5",
        "algorithm.neighbours": "sampled", "rounds": "2", "batch": "all", "sample": "0.5", "seed": "4",
        "evaluate_every": "0", "dtype": "float64", "engine": "one_by_one",
    }  # fmt: skip
    words = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    code, out, _ = call("run", "--model", "mlp", "--json", *words)
    described = json.loads(out)["experiment"]
    assert code == 0
    for key, value in values.items():
        section, _, field = key.partition(".")
        found = described[section][field] if field else described[section]
        assert str(found) == value


def test_compare_writes_one_table_and_a_picture(call, tmp_path):
    words = (
        "compare",
        "--data",
        "digits",
        "--algorithms",
        "fedu,dfedu,local,global",
        "--seeds",
        "0-1",
        *SHORT,
    )
    code, out, _ = call(*words)
    assert code == 0
    assert "mean ± std over 2 seeds" in out
    assert "has the highest pooled test accuracy" in out
    (folder,) = (tmp_path / "runs").glob("*compare*")
    assert (folder / "curves.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    table = (folder / "table.md").read_text()
    assert all(f"| {name} |" in table for name in ("fedu", "dfedu", "local", "global"))
    assert len(list((tmp_path / "runs").glob("digits-*"))) == 1 + 4 * 2


def test_compare_repeats_to_the_last_digit(call):
    words = ("compare", "--algorithms", "fedu,local", "--seeds", "0,3", *SHORT, "--json")

    def numbers():
        answer = json.loads(call(*words)[1])
        assert answer["seeds"] == [0, 3]
        return {
            name: [{k: v for k, v in s.items() if k != "seconds"} for s in seeds]
            for name, seeds in answer["algorithms"].items()
        }

    assert numbers() == numbers()


def test_compare_gives_a_setting_to_those_that_have_it(call):
    code, out, _ = call(
        "compare", "--algorithms", "fedu,local", "--seeds", "0", "--strength", "0.05", *SHORT, "--json"
    )
    assert code == 0
    assert set(json.loads(out)["algorithms"]) == {"fedu", "local"}


def test_compare_trains_all_from_the_same_starts_on_the_same_batches(call):
    """Without mixing FedU is Local, to the last digit, in every seed."""
    words = ("--seeds", "0-1", "--strength", "0", "--sample", "0.4", *SHORT, "--json")
    answer = json.loads(call("compare", "--algorithms", "fedu,local", *words)[1])["algorithms"]
    same = ("accuracy", "loss_worst", "train_loss", "objective")
    for one, other in zip(answer["fedu"], answer["local"], strict=True):
        assert [one[key] for key in same] == [other[key] for key in same]


def test_a_run_says_everything_that_was_chosen(call, tmp_path):
    call("run", "--rounds", "1", "--model", "mlp")
    (folder,) = (tmp_path / "runs").iterdir()
    described = tomllib.loads((folder / "experiment.toml").read_text())
    assert described["algorithm"]["strength"] == 0.03  # 40 / (67.25 rows · 20)
    assert described["algorithm"]["local_steps"] == 5
    assert json.loads((folder / "environment.json").read_text())["torch"]
    with safe_open(folder / "models" / "models.safetensors", "np") as file:
        assert file.get_tensor("shift").shape == (1, 1, 1, 1)
        assert about(folder)["labels"] == [str(n) for n in range(10)]


def test_another_graph_in_the_same_file_is_another_experiment(call, tmp_path):
    edges = tmp_path / "g.csv"
    folders = []
    for text in ("0,1\n", "0,1\n2,3,0.5\n"):
        edges.write_text(text)
        folders.append(json.loads(call("run", "--rounds", "1", "--graph", str(edges), "--json")[1])["folder"])
    assert folders[0] != folders[1]


def test_set_a_name_keeps_the_settings(call):
    code, out, _ = call("run", *SHORT, "--lr", "0.5", "--set", "algorithm=local", "--json")
    assert code == 0
    assert json.loads(out)["experiment"]["algorithm"] == {"name": "local", "lr": 0.5, "local_steps": 5}
    table = 'partition={name="labels", clients=10}'
    described = json.loads(call("run", *SHORT, "--set", table, "--json")[1])["experiment"]
    assert described["partition"] == {
        "name": "labels", "clients": 10, "labels_per_client": 3, "spread": 1.0, "rows": 0
    }  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "--algorithms", "local,fedu", "--strength", "5"),
        ("compare", "--algorithms", "local,dfedu", "--sample", "0.5"),
        ("sweep", "--vary", "strength=0,5"),
        ("sweep", "--vary", "sample=1,0.5", "--algorithm", "dfedu"),
    ],
)
def test_nothing_is_trained_before_all_is_checked(words, call):
    code, _, err = call(*words, *SHORT)
    assert code == 2
    assert "round" not in err


def test_regression_is_ranked_by_loss(call):
    code, out, _ = call(
        "compare", "--data", "synthetic", "--set", "data.task=regression", "--graph", "known",
        "--algorithms", "fedu,local", "--seeds", "0-1", *SHORT,
    )  # fmt: skip
    assert code == 0
    assert "has the lowest pooled test RMSE" in out
    assert "accuracy" not in out


def test_algorithms_are_explained(call):
    code, out, _ = call("algorithms", "fedu", out=False)
    assert code == 0
    assert "Algorithm 1" in out
    assert "neighbours: " in out
    assert call("algorithms", "fedx", out=False)[0] == 2
    code, both, _ = call("algorithms", "fedu,local", out=False)
    assert code == 0
    assert both.startswith(out.rstrip())
    assert both.rstrip().endswith((inspect.getdoc(fl.Local) or "").splitlines()[-1])


def test_lists(call):
    code, out, _ = call("algorithms", out=False)
    assert code == 0
    assert all(name in out for name in ("fedu", "dfedu", "local", "global", "local_epochs"))
    code, out, _ = call("data", "list", out=False)
    assert code == 0
    assert "digits" in out
    assert "synthetic" in out


def test_help_loads_no_slow_package():
    """Help needs the declarations of commands; a command imports its implementation when it is called."""
    pages = [[*path, option] for path in [(), ("data",), *known_commands()] for option in ("--help", "-h")]
    words = json.dumps([["--version"], [], ["data"], *pages])
    done = subprocess.run([sys.executable, "-c", LOADER, words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_lists_the_registered_names():
    """A new entry of a registry also needs its name in cli/names.py, which is loaded without the registry."""
    assert list(names.ALGORITHM_NAMES) == list(fl.ALGORITHMS)
    assert [*names.DATA_NAMES, "file", "folder"] == list(SOURCES)
    assert list(names.PARTITION_NAMES) == [NATURAL, *PARTITIONS]
    assert get_args(MissingRule) == names.MISSING_RULE_NAMES
    assert get_args(SplitName) == names.SPLIT_NAMES
    assert list(names.GRAPH_NAMES) == [name for name in GRAPHS if name != "file"] + [KNOWN_GRAPH]
    assert list(names.MODEL_NAMES) == list(MODELS)
    assert list(names.TRACKER_NAMES) == list(TRACKERS)
    assert list(names.LEARNER_NAMES) == list(LEARNERS)
    assert list(names.RECIPE_NAMES) == list_recipes()


@pytest.mark.parametrize("words", [[], ["data"], ["--help"], ["run", "--help"], ["compare", "--help"],
                                   ["sweep", "--help"]])  # fmt: skip
def test_help(call, words):
    code, out, err = call(*words, out=False)
    assert (code, err) == (0, "")
    assert "Usage:" in out


@pytest.mark.parametrize(
    "words", [["run"], ["report"], ["predict"], ["data", "get"], ["graph", "draw"], ["data"], []]
)
def test_help_names_values_without_types_and_braces(call, words):
    _, out, _ = call(*words, "--help", out=False)
    assert "--help" in out
    assert re.findall(r"<[a-z]\w*|\{[A-Z]", out) == []


def test_usage_lists_all_arguments_once(call):
    _, out, _ = call("graph", "draw", "--help", out=False)
    assert "draw [OPTIONS] [GRAPH] FIGURE " in out
    _, out, _ = call("report", "--help", out=False)
    assert "report [OPTIONS] RUN... " in out


def test_all_are_those_that_can_be_run(call):
    words = ["compare", "--algorithms", "all", "--seeds", "0", "--sample", "0.2", *SHORT]
    code, out, err = call(*words, "--json")
    assert code == 0
    assert set(json.loads(out)["algorithms"]) == set(fl.ALGORITHMS) - set(PEER_METHODS)
    assert "warning: dfedu is skipped; algorithm: DFedU: sample = 0.2; peers are not sampled" in err


def test_algorithms_say_what_they_are_and_what_they_send(call):
    code, out, _ = call("algorithms", "--data", "synthetic", out=False)
    assert code == 0
    heads = {line.split()[0]: line for line in out.splitlines() if " up " in line}
    assert set(heads) == set(fl.ALGORITHMS)
    size = 4 * (10 * 3 + 3)  # float32, ten features, three labels
    assert f"up {size} B" in heads["fedu"]
    assert f"down {2 * size} B" in heads["scaffold"]
    assert "up 0" in heads["local"]
    for name, make in fl.ALGORITHMS.items():
        assert make.traits.kind in heads[name]
        assert make.citation or name in ("local", "global")


def test_what_to_cite(call, tmp_path):
    folder = json.loads(call("run", *SHORT, "--algorithm", "fedprox", "--json")[1])["folder"]
    code, out, _ = call("cite", folder, "--data", "har", "--text", out=False)
    assert code == 0
    assert ["Li" in out, "Alpaydin" in out, "Anguita" in out, "Karimireddy" in out] == [
        True,
        True,
        True,
        False,
    ]
    assert len(out.splitlines()) == 4  # and the paper
    words = ["compare", "--algorithms", "fedu,scaffold", "--seeds", "0", *SHORT, "--json"]
    both = call("cite", json.loads(call(*words)[1])["folder"], out=False)[1]
    assert ["Laplacian" in both, "SCAFFOLD" in both, "Alpaydin" in both] == [True] * 3
    for wrong in (["fedx"], [str(tmp_path)], ["--data", "hat"], ["--algorithms", "fedx"]):
        code, _, err = call("cite", *wrong, out=False)
        assert code == 2
        assert err.startswith("error: ")
        assert len(err.splitlines()) == 1
