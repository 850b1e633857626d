"""The command line as a user meets it."""

import json
import signal
import subprocess
import sys
import tempfile
import time
import tomllib

import numpy as np
import pytest
from safetensors import safe_open

from fedlap import cli
from fedlap.experiment import Experiment


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run `fedlap …` in this process: exit code, standard output, standard error."""

    def run(*words, out=True):
        given = [*words, "--out", str(tmp_path / "runs")] if out else list(words)
        monkeypatch.setattr(sys, "argv", ["fedlap", *given])
        # Consoles take hold of a stream when made; capsys has replaced it since.
        monkeypatch.setattr(cli, "out", cli.Console(width=100))
        monkeypatch.setattr(cli, "err", cli.Console(stderr=True, width=100))
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        return exit_.value.code or 0, captured.out, captured.err

    return run


SHORT = ("--rounds", "3")


def test_run_prints_a_table_and_keeps_the_run(call, tmp_path):
    code, out, err = call("run", "--data", "digits", "--algorithm", "fedu", "--rounds", "10", "--seed", "0")
    assert code == 0
    assert "accuracy" in out
    assert "strength = 0.01" in err  # the default is printed
    assert "round 10/10" in err
    (folder,) = (tmp_path / "runs").iterdir()
    assert str(folder) in out
    again = Experiment.of(tomllib.loads((folder / "experiment.toml").read_text()))
    assert folder.name.endswith(again.digest)
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [r["round"] for r in rounds] == list(range(1, 11))
    with safe_open(folder / "models.safetensors", "np") as file:
        assert json.loads(file.metadata()["clients"]) == [str(k) for k in range(20)]
        kept = file.get_tensor("models")
    assert np.array_equal(kept, again.run().models.numpy())  # the description makes the same models again


def test_run_json_is_one_object(call):
    code, out, _ = call("run", *SHORT, "--json", "--set", "algorithm.strength=0.02", "--set", "model.l2=0.5")
    answer = json.loads(out)
    assert code == 0
    assert answer["experiment"]["algorithm"]["strength"] == 0.02
    assert answer["experiment"]["model"]["l2"] == 0.5
    assert answer["last"]["round"] == 3


def test_every_field_can_be_set(call):
    values = {
        "data.clients": "10", "data.scale": "client", "model.hidden": "[7, 5]", "graph.weight": "0.5",
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
    assert "leads in test accuracy" in out
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
    assert described["algorithm"]["strength"] == 0.01
    assert described["algorithm"]["local_steps"] == 5
    assert json.loads((folder / "environment.json").read_text())["torch"]
    with safe_open(folder / "models.safetensors", "np") as file:
        assert file.get_tensor("shift").shape == (1, 1, 1, 1)
        assert json.loads(file.metadata()["labels"]) == [str(n) for n in range(10)]


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
    table = 'data={name="digits", clients=10}'
    assert json.loads(call("run", *SHORT, "--set", table, "--json")[1])["experiment"]["data"]["clients"] == 10


@pytest.mark.parametrize(
    "words", [("--algorithms", "local,fedu", "--strength", "5"), ("--algorithms", "all", "--sample", "0.5")]
)
def test_nothing_is_trained_before_all_is_checked(words, call):
    code, _, err = call("compare", *words, *SHORT)
    assert code == 2
    assert "round" not in err


def test_regression_is_ranked_by_loss(call):
    code, out, _ = call(
        "compare", "--data", "synthetic", "--set", "data.task=regression", "--graph", "known",
        "--algorithms", "fedu,local", "--seeds", "0-1", *SHORT,
    )  # fmt: skip
    assert code == 0
    assert "lower is better" in out
    assert "accuracy" not in out


def test_one_algorithm_is_explained(call):
    code, out, _ = call("algorithms", "fedu", out=False)
    assert code == 0
    assert "Algorithm 1" in out
    assert "neighbours: " in out
    assert call("algorithms", "fedx", out=False)[0] == 2


def test_lists(call):
    code, out, _ = call("algorithms", out=False)
    assert code == 0
    assert all(name in out for name in ("fedu", "dfedu", "local", "global", "local_epochs"))
    code, out, _ = call("data", "list", out=False)
    assert code == 0
    assert "digits" in out
    assert "synthetic" in out


@pytest.mark.parametrize("words", [[], ["data"], ["--help"], ["run", "--help"], ["compare", "--help"]])
def test_help(call, words):
    code, out, err = call(*words, out=False)
    assert (code, err) == (0, "")
    assert "Usage:" in out


@pytest.fixture
def files(tmp_path):
    names = [str(k) for k in range(20)]
    asymmetric = np.zeros((20, 20))
    asymmetric[0, 1] = 1
    np.save(tmp_path / "asymmetric.npy", asymmetric)
    np.save(tmp_path / "negative.npy", -np.ones((20, 20)) + np.eye(20))
    np.save(tmp_path / "small.npy", np.zeros((3, 3)))
    (tmp_path / "stranger.csv").write_text("0,1\n1,99\n")
    (tmp_path / "word.csv").write_text("0,1,heavy\n")
    (tmp_path / "zip.npy").write_bytes(b"PK\x03\x04nothing")
    (tmp_path / "file").write_text(",".join(names))
    return tmp_path


BAD = {
    "unknown data": (["run", "--data", "digit"], ["'digit'", "did you mean 'digits'"]),
    "unknown algorithm": (["run", "--algorithm", "fedx"], ["'fedx'", "'fedu'"]),
    "unknown algorithm to compare": (["compare", "--algorithms", "fedu,locl"], ["'locl'", "'local'"]),
    "unknown model": (["run", "--model", "liner"], ["'liner'", "'linear'"]),
    "unknown graph": (["run", "--graph", "rings"], ["'rings'", "'ring'"]),
    "unknown option": (["run", "--round", "3"], ["--round", "--rounds"]),
    "unknown command": (["runn"], ["runn"]),
    "unknown field": (["run", "--set", "algoritm.lr=1"], ["'algoritm'", "'algorithm'"]),
    "unknown setting": (["run", "--set", "algorithm.strenght=1"], ["'strenght'", "'strength'"]),
    "setting of another": (["run", "--algorithm", "local", "--strength", "0.1"], ["'strength'", "'local'"]),
    "setting of none": (["compare", "--algorithms", "local", "--strength", "0.1"], ["'strength'", "local"]),
    "no assignment": (["run", "--set", "rounds"], ["rounds", "field=value"]),
    "field of a number": (["run", "--set", "rounds.x=1"], ["rounds.x"]),
    "unknown dtype": (["run", "--set", "dtype=float16"], ["dtype", "float16", "float32"]),
    "unknown engine": (["run", "--set", "engine=fast"], ["engine", "fast", "stacked"]),
    "unknown device": (["run", "--device", "abacus"], ["'abacus'", "use cpu"]),
    "strength too large": (["run", "--strength", "5"], ["= 5 ", "0.03·5·5·20 = 15 > 2", "at most 0.6667"]),
    "strength negative": (["run", "--strength", "-1"], ["strength = -1"]),
    "strength no number": (["run", "--set", "algorithm.strength=big"], ["algorithm.strength", "'big'"]),
    "lr zero": (["run", "--lr", "0"], ["lr = 0"]),
    "lr infinite": (["run", "--lr", "inf"], ["lr = inf"]),
    "steps and epochs": (["run", "--local-steps", "5", "--local-epochs", "1"], ["both given"]),
    "no steps": (["run", "--local-steps", "0"], ["local_steps = 0"]),
    "batch 0": (["run", "--batch", "0"], ["batch = 0", "at least 1"]),
    "batch a word": (["run", "--batch", "some"], ["batch", "some"]),
    "no rounds": (["run", "--rounds", "0"], ["rounds = 0"]),
    "rounds a word": (["run", "--rounds", "ten"], ["--rounds", "valid integer"]),
    "sample 0": (["run", "--sample", "0"], ["sample = 0"]),
    "sample 2": (["run", "--sample", "2"], ["sample = 2"]),
    "peers sampled": (["run", "--algorithm", "dfedu", "--sample", "0.5"], ["peers are not sampled"]),
    "peers with a server": (
        ["run", "--algorithm", "dfedu", "--graph", "star", "--set", "graph.server=true"], ["use fedu"]),
    "seeds a word": (["compare", "--seeds", "few"], ["--seeds few"]),
    "seeds backwards": (["compare", "--seeds", "4-0"], ["--seeds 4-0"]),
    "seed set in compare": (["compare", "--set", "seed=3"], ["--seeds"]),
    "no known graph": (["run", "--graph", "known"], ["no graph comes with 'digits'"]),
    "asymmetric weights": (["run", "--graph", "{}/asymmetric.npy"], ["('0', '1')", "symmetric"]),
    "negative weights": (["run", "--graph", "{}/negative.npy"], ["is -1", "must not be negative"]),
    "matrix of another size": (["run", "--graph", "{}/small.npy"], ["3×3", "20 clients"]),
    "edge to a stranger": (["run", "--graph", "{}/stranger.csv"], ["'99'", "stranger.csv"]),
    "weight a word": (["run", "--graph", "{}/word.csv"], ["line 1", "'heavy'"]),
    "no such graph file": (["run", "--graph", "{}/none.csv"], ["none.csv"]),
    "cnn on plain features": (["run", "--data", "synthetic", "--model", "cnn"], ["cnn", "images"]),
    "too many labels": (["run", "--set", "data.labels_per_client=11"], ["labels_per_client = 11"]),
    "too many clients": (["run", "--set", "data.clients=9999"], ["clients"]),
    "negative l2": (["run", "--set", "model.l2=-1"], ["l2 = -1"]),
    "rounds true": (["run", "--set", "rounds=true"], ["rounds = True"]),
    "lr true": (["run", "--set", "algorithm.lr=true"], ["algorithm.lr = True"]),
    "seed half": (["run", "--set", "seed=1.5"], ["seed", "1.5"]),
    "batch odd": (["run", "--batch", "²"], ["batch", "²"]),
    "batch minus": (["run", "--batch=--5"], ["batch", "--5"]),
    "device meta": (["run", "--device", "meta"], ["'meta'", "use cpu"]),
    "size infinite": (["run", "--data", "synthetic", "--set", "data.size=inf"], ["size = inf"]),
    "task misspelt": (["run", "--data", "synthetic", "--set", "data.task=regresion"], ["data.task"]),
    "zip as matrix": (["run", "--graph", "{}/zip.npy"], ["zip.npy", "cannot be read"]),
    "diverging by mixing": (
        ["run", "--rounds", "300", "--strength", "30", "--set", "algorithm.allow_unstable=true"],
        ["lower strength", "= 90"]),
    "diverging": (
        ["run", "--data", "synthetic", "--set", "data.task=regression", "--lr", "9"], ["diverged", "lr"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_clear_line_and_exit_code_2(case, call, files):
    words, wanted = BAD[case]
    short = (
        []
        if case in ("no rounds", "rounds a word", "unknown command", "diverging", "diverging by mixing")
        else ["--rounds", "2"]
    )
    code, out, err = call(*[word.format(files) for word in words], *short)
    lines = [line for line in err.splitlines() if "strength = 0.01, by default" not in line]
    errors = [line for line in lines if line.startswith("error: ")]
    assert code == 2
    assert out == ""
    assert len(errors) == 1
    assert lines[-1] == errors[0]
    assert "Traceback" not in err
    for piece in wanted:
        assert piece in errors[0], errors[0]


def test_an_out_folder_that_cannot_be_written(call, files):
    code, _, err = call("run", *SHORT, "--out", str(files / "file"), out=False)
    assert code == 2
    assert err.count("\n") == 1  # before anything is trained
    assert "cannot be written" in err


def test_an_out_folder_with_odd_characters(call, tmp_path):
    odd = tmp_path / "a[/red]b"
    code, out, _ = call("run", *SHORT, "--out", str(odd), out=False)
    assert code == 0
    assert str(odd) in out.replace("\n", "")


def test_ctrl_c_says_so():
    command = [sys.executable, "-m", "fedlap.cli", "run", "--rounds", "1000000", "--out"]
    with tempfile.TemporaryDirectory() as out:
        running = subprocess.Popen([*command, out], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert "strength" in running.stderr.readline()  # it has begun
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert err.splitlines()[-1] == "error: interrupted"


def test_the_installed_command():
    done = subprocess.run(
        [sys.executable, "-m", "fedlap.cli", "run", "--batch", "0"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: batch = 0")
    assert done.stderr.count("\n") == 1
