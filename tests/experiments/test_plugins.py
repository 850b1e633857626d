"""Plugins: users' methods, networks and data sets from a file or from an installed package."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import fedlap as fl
from fedlap.experiments import plugins
from fedlap.experiments.experiment import Experiment
from plugin_files import PLUGIN, snapshot_registries, write_package
from run_folders import files, read_error, rounds

WORDS = ("--data", "coins", "--model", "narrow", "--rounds", "3", "--save-rounds", "1")
ALONE = ("--algorithm", "shrunk", *WORDS)


@pytest.fixture(autouse=True)
def forget():
    """A function that unloads all plugins, as in a new process; it is called at the end as well."""
    restore = snapshot_registries()
    yield restore
    restore()


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "coins.py"
    path.write_text(PLUGIN)
    return str(path)


@pytest.fixture
def use(call, plugin, forget):
    """Run a command with the plugin in a process that has not loaded it yet."""

    def run(*words, out=True, code=0):
        forget()
        found, printed, err = call(*words, "--plugin", plugin, out=out)
        assert found == code, err
        return printed

    return run


@pytest.mark.slow
def test_all_commands_use_a_plugin(use, call, forget, tmp_path, no_figures):
    """Its method, network and data set are trained, compared, tuned, listed, shown, reported and applied."""
    folder = json.loads(use("run", *ALONE, "--json"))["folder"]
    compared = json.loads(use("compare", "--algorithms", "shrunk,local", "--seeds", "0-1", *WORDS, "--json"))
    assert set(compared["algorithms"]) == {"shrunk", "local"}
    use("sweep", *ALONE, "--vary", "algorithm.shrinkage=0,0.5", "--seeds", "0")
    tuned = json.loads(use("tune", *ALONE, "--vary", "algorithm.shrinkage=0,0.5", "--folds", "2", "--json"))
    assert all(" --plugin " in command for command in tuned["commands"][1:])
    assert use("runs", "--algorithm", "shrunk").count("coins") >= 3
    assert json.loads(use("show", folder, "--json"))["experiment"]["model"]["width"] == 3
    for results in (folder, compared["folder"]):
        use("report", results, out=False)
    assert "shrunk" in (tmp_path / "runs" / folder / "report" / "page.html").read_text()
    np.savez(tmp_path / "rows.npz", x=np.array([[2.0, 2.0], [-2.0, -2.0]]))
    predicted = use("predict", folder, str(tmp_path / "rows.npz"), "--client", "a", out=False)
    model = tmp_path / "model.safetensors"
    use("export", folder, "--client", "a", "--to", str(model), out=False)
    assert use("predict", str(model), str(tmp_path / "rows.npz"), out=False) == predicted
    assert "pulled to zero" in use("algorithms", "shrunk", out=False)
    assert "coins of three clients" in " ".join(use("data", "list", out=False).split())


def test_the_method_of_a_plugin_is_the_one_that_trains(use):
    """Without shrinkage it is Local, to the last digit."""
    words = ("--seeds", "0", *WORDS, "--set", "algorithm.shrinkage=0", "--json")
    found = json.loads(use("compare", "--algorithms", "shrunk,local", *words))["algorithms"]
    assert found["shrunk"][0]["train_loss"] == found["local"][0]["train_loss"]


def test_a_run_records_its_plugin(use, plugin, tmp_path):
    described = json.loads(use("run", *ALONE, "--json"))["experiment"]
    digest = hashlib.sha256(PLUGIN.encode()).hexdigest()[:16]
    assert described["plugins"] == {"coins.py": digest}
    builtin = json.loads(use("run", "--data", "digits", "--rounds", "1", "--json"))["experiment"]
    assert "plugins" not in builtin  # only plugins that an experiment uses


def test_a_stored_run_without_its_plugin_names_it(use, call, forget, tmp_path, no_figures):
    folder = json.loads(use("run", *ALONE, "--json"))["folder"]
    before = files(tmp_path / "runs")
    forget()
    advice = "pass --plugin with the path of 'coins.py'"
    code, out, err = call("runs", "--json")
    assert (code, json.loads(out)["state"]) == (0, "done")
    for kind in ("method 'shrunk'", "model 'narrow'", "data set 'coins'"):
        assert f"unknown {kind}; {advice}" in err
    code, out, err = call("show", folder, "--json")
    assert (code, json.loads(out)["last"]["round"]) == (0, 3)
    why = read_error(call("resume", folder, "--rounds", "5", out=False))
    assert f"data set 'coins' is not registered in this process; {advice}" in why
    code, _, err = call("report", folder, "--out", str(tmp_path / "page"), out=False)
    assert code == 0, err
    assert f"data set 'coins' is not registered in this process; {advice}" in err
    np.savez(tmp_path / "rows.npz", x=np.zeros((1, 2)))
    why = read_error(call("predict", folder, str(tmp_path / "rows.npz"), "--client", "a", out=False))
    assert "unknown model 'narrow'; pass --plugin" in why
    assert files(tmp_path / "runs") == before


def test_a_changed_plugin_starts_a_new_run_and_resumes_no_old_one(use, call, forget, plugin, tmp_path):
    first = json.loads(use("run", *ALONE, "--json"))["folder"]
    (tmp_path / "coins.py").write_text(
        PLUGIN.replace("shrinkage: float = 0.1", "shrinkage: float = 0.1  # !")
    )
    assert json.loads(use("run", *ALONE, "--json"))["folder"] != first
    forget()
    why = read_error(call("resume", first, "--rounds", "5", "--plugin", plugin))
    assert "plugin 'coins.py' has changed since this run began" in why
    code, _, err = call("show", first, "--plugin", plugin)
    assert code == 0, err


@pytest.mark.slow
def test_a_killed_run_resumes_with_its_plugin(plugin, tmp_path):
    """The numbers are those of a run that was never interrupted."""
    script = [sys.executable, "-m", "fedlap.cli"]
    environment = {**os.environ, plugins.PLUGINS_VARIABLE: plugin, "OMP_NUM_THREADS": "1"}
    words = ["run", *ALONE, "--out"]
    long = [*script, *(w if w != "3" else "100000" for w in words), str(tmp_path / "killed")]
    process = subprocess.Popen(long, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "killed").glob("*/checkpoint/round-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (killed,) = (tmp_path / "killed").iterdir()
    done = len(rounds(killed))
    resume = [*script, "resume", str(killed), "--rounds", str(done + 3)]
    whole = [*script, *(w if w != "3" else str(done + 3) for w in words), str(tmp_path / "whole")]
    for line in (resume, whole):
        subprocess.run(line, env=environment, check=True, capture_output=True)
    (unbroken,) = (tmp_path / "whole").iterdir()
    assert rounds(killed) == rounds(unbroken)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import math\nmath.sqroot(2)\n", "line 2: AttributeError: "),
        ("x = 1\ny = (\n", "line 2: SyntaxError: "),
        ("raise SystemExit(3)\n", "line 1: SystemExit: 3"),
        ("import nothing_of_this_name\n", "line 1: ModuleNotFoundError: "),
        ("import fedlap as fl\nfl.ALGORITHMS['fedu'] = fl.Local\n", "method 'fedu' exists already"),
        ("import fedlap as fl\ndel fl.models.MODELS['mlp']\n", "model 'mlp' exists already"),
    ],
)
def test_an_error_of_a_plugin_is_one_line(call, tmp_path, text, expected):
    path = tmp_path / "wrong.py"
    path.write_text(f"{text}")
    before = {section: dict(registry) for section, registry in plugins.REGISTRIES.items()}
    why = read_error(call("runs", "--plugin", str(path)))
    assert f"plugin {path}" in why
    assert expected in why
    assert before == plugins.REGISTRIES


@pytest.mark.parametrize("name", ["missing.py", "", "folder.py"])
def test_a_plugin_is_a_python_file(call, tmp_path, name):
    (tmp_path / "folder.py").mkdir()
    assert "expected a Python file (.py)" in read_error(call("runs", "--plugin", str(tmp_path / name)))


def test_nothing_is_loaded_unless_it_is_asked_for(call, plugin, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # the plugin lies in the current folder
    assert "unknown data set 'coins'" in read_error(call("run", *ALONE))
    monkeypatch.setenv(plugins.PLUGINS_VARIABLE, plugin)
    assert call("run", *ALONE)[0] == 0


def test_an_installed_package_is_loaded_and_a_broken_one_warns(call, monkeypatch, tmp_path):
    write_package(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("run", "--data", "packed", "--model", "packed", "--algorithm", "packed", "--rounds", "2")
    code, out, err = call(*words, "--json")
    assert code == 0, err
    assert json.loads(out)["experiment"]["plugins"] == {"coin-methods": "1.2"}
    (warning,) = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert warning.startswith("warning: coin-methods 1.2: 'broken' of fedlap.algorithms is not loaded (")
    assert call("run", "--rounds", "1")[0] == 0


def test_an_experiment_names_its_plugins_exactly(plugin):
    plugins.load_plugin(plugin)
    described = {"data": {"name": "coins"}, "algorithm": {"name": "local"}}
    experiment = Experiment.of(described)
    assert Experiment.of(experiment.describe()) == experiment
    assert experiment.digest != Experiment.of({**described, "data": {"name": "digits"}}).digest
    wrong = {**experiment.describe(), "plugins": {"coins.py": "0" * 16}}
    with pytest.raises(fl.InputError, match=r"plugin 'coins.py' has changed"):
        Experiment.of(wrong)


def test_the_settings_of_a_registered_network_are_stored_with_its_models(plugin, tmp_path):
    plugins.load_plugin(plugin)
    federation = fl.data.load("coins")
    network = fl.models.MODELS["narrow"](width=5)
    trained = fl.fit(fl.Local(), federation, network, rounds=2).personals
    assert trained.metadata.architecture == {"name": "narrow", "width": 5, "l2": 0.0}
    trained.save(tmp_path / "models")
    loaded = type(trained).load(tmp_path / "models")
    x = np.array([[0.3, -1.0], [2.0, 0.5]])
    assert (loaded.of_client("a").scores(x) == trained.of_client("a").scores(x)).all()
