"""The documents show what works: every code block is run, every command is parsed by the command line."""

import ast
import inspect
import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import TensorDataset

import fedlap as fl
from fedlap.algorithms import Traits
from fedlap.algorithms.fedavg import CountedModels
from fedlap.algorithms.local_updates import sgd
from fedlap.algorithms.server_state import SharedModel
from fedlap.training import batched_updates
from plugin_files import snapshot_registries

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if RESULTS not in page.parents),
]
RUN_BELOW = {
    "README.md": 1,
    "comparisons.md": 1,
    "data.md": 1,
    "data-sets.md": 1,
    "extending.md": 3,
    "gpu.md": 1,
    "index.md": 1,
    "own-network.md": 4,
    "personal-models.md": 1,
    "python.md": 1,
    "scikit-learn.md": 1,
    "strength.md": 1,
    "tuning.md": 1,
}
RUN_ELSEWHERE = {"tracking.md": 1}  # by tests/tracking/test_trackers.py


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(example):
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


@pytest.fixture
def own_method():
    """The method of examples/own_method.py, registered during the test alone."""
    before = dict(fl.ALGORITHMS)
    names = runpy.run_path(str(ROOT / "examples" / "own_method.py"))
    yield names
    fl.ALGORITHMS.clear()
    fl.ALGORITHMS.update(before)


def test_the_example_s_method_is_registered_and_uses_the_kernel(own_method, monkeypatch):
    method = fl.ALGORITHMS["fedavgm"]
    assert method is own_method["MomentumFedAvg"]
    used, run_kernel = [], batched_updates.run_kernel
    monkeypatch.setattr(
        batched_updates, "run_kernel", lambda *words: used.append(run_kernel(*words)) or used[-1]
    )
    federation = fl.data.load("digits")
    moved = fl.fit(method(), federation, fl.models.linear(), rounds=5, evaluate_every=0)
    assert used == [True] * 5
    plain = fl.fit(method(momentum=0.0), federation, fl.models.linear(), rounds=5)
    average = fl.fit(fl.FedAvg(), federation, fl.models.linear(), rounds=5)
    assert (plain.models - average.models).abs().max() < 1e-6  # in single precision
    assert moved.scores[-1].train_loss < plain.scores[-1].train_loss


def test_the_command_line_finds_the_example_s_method(tmp_path):
    example = ROOT / "examples" / "own_method.py"
    words = shlex.split("compare --algorithms fedavg,fedavgm --rounds 3 --seeds 0 --json --plugin")
    done = subprocess.run(
        [sys.executable, "-m", "fedlap.cli", *words, str(example), "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert "fedavgm" in json.dumps(json.loads(done.stdout))


def code_blocks(page, language):
    """Return the code blocks of a page in this language; a block without one is a shell's."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.S | re.M)
    return [text for found, text in blocks if found == language]


def python_blocks(name):
    return code_blocks(next(page for page in PAGES if page.name == name), "python")


def python_block(name):
    (block,) = python_blocks(name)
    return block


def test_every_python_block_is_run():
    counts = {page.name: len(blocks) for page in PAGES if (blocks := code_blocks(page, "python"))}
    assert counts == RUN_BELOW | RUN_ELSEWHERE


class Halves:
    """A partitioner as Flower Datasets has them, of eight small pictures."""

    num_partitions = 2
    column_names = ("image", "label")
    features: ClassVar = {"image": None, "label": None}

    def load_partition(self, k):
        return self

    def __len__(self):
        return 8

    def __getitem__(self, column):
        return [np.full((4, 4), n, np.uint8) if column == "image" else n % 2 for n in range(8)]


def test_the_ways_to_data_work():
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    names = np.repeat(["north", "south"], 10)
    variables = {
        "fl": fl, "x": x, "y": y, "x2": x, "y2": y, "w": y + 1, "w2": y + 2,
        "names": names, "partitioner": Halves(),
        "frame": pandas.DataFrame(x).assign(hospital=names, outcome=y),
        "dataset": TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
    }  # fmt: skip
    federations = [eval(line, variables) for line in python_block("data.md").splitlines()]
    assert [len(federation.clients) for federation in federations] == [2, 2, 2, 2, 2, 2, 20]


def test_a_large_federation_is_generated_and_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"fl": fl, "Path": Path}
    exec(python_block("data-sets.md").replace("1_000_000", "6_000, rows=2"), names)
    assert len(names["part"].clients) == len(names["shard"].clients) == 1_000
    assert torch.equal(names["part"].train.store, names["shard"].train.store)
    assert len(names["federation"].clients) == names["graph"].size == 6_000


def strip_class(text):
    """Parse a class; remove docstrings, annotations of functions, and checks of settings."""
    (tree,) = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    tree.body = [node for node in tree.body if getattr(node, "name", "") != "__post_init__"]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            documented = ast.get_docstring(node) is not None
            node.body = node.body[documented:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(tree)


def test_the_method_on_the_page_is_the_text_of_fedavg():
    assert strip_class(python_blocks("extending.md")[0]) == strip_class(inspect.getsource(fl.FedAvg))


def test_the_method_on_the_page_is_fedavg():
    names = {"dataclass": dataclass, "ClassVar": ClassVar, "Traits": Traits, "sgd": sgd}
    names |= {"SharedModel": SharedModel, "CountedModels": CountedModels}
    exec(python_blocks("extending.md")[0], names)
    federation = fl.data.load("digits")
    one, other = (
        fl.fit(method(lr=0.05), federation, fl.models.linear(), rounds=5, sample=0.3).models
        for method in (names["FedAvg"], fl.FedAvg)
    )
    assert torch.equal(one, other)


def test_the_local_update_on_the_page_is_sgd_with_momentum():
    names = {"torch": torch}
    exec(python_blocks("extending.md")[1], names)

    @dataclass(frozen=True)
    class Momentum(fl.FedAvg):
        momentum: float = 0.0

        def local(self, private, w, task):
            w = task.run(names["momentum_sgd"], w, lr=self.lr, momentum=self.momentum)
            return private, CountedModels(w, task.count)

    federation, model = fl.data.load("digits"), fl.models.linear()
    plain, same, other = (
        fl.fit(method, federation, model, rounds=5, sample=0.3, dtype="float64").models
        for method in (fl.FedAvg(lr=0.05), Momentum(lr=0.05), Momentum(lr=0.05, momentum=0.5))
    )
    assert (plain - same).abs().max() < 1e-12
    assert (plain - other).abs().max() > 1e-3


def test_the_plugin_on_the_page_trains_and_predicts(tmp_path, call):
    (tmp_path / "page.py").write_text(python_blocks("extending.md")[2])
    restore = snapshot_registries()
    try:
        words = ("--data", "coins", "--model", "narrow", "--set", "model.width=8", "--set", "data.rows=90")
        code, out, err = call("run", *words, "--rounds", "2", "--json", "--plugin", str(tmp_path / "page.py"))
        assert code == 0, err
        np.savez(tmp_path / "rows.npz", x=np.ones((2, 2)))
        folder, rows = json.loads(out)["folder"], str(tmp_path / "rows.npz")
        assert call("predict", folder, rows, "--client", "a", out=False)[0] == 0
    finally:
        restore()


def test_the_readme_s_python_runs(tmp_path, capsys):
    script = tmp_path / "readme.py"
    script.write_text(python_block("README.md"))
    names = runpy.run_path(str(script))
    assert names["result"].models.shape == (20, 650)
    assert names["result"].scores[-1].accuracy > 0.95


def test_a_users_method_and_network_are_compared_in_few_lines(tmp_path, monkeypatch, capsys):
    block = python_block("comparisons.md")
    assert len([line for line in block.splitlines() if line.strip()]) <= 25
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "compared.py"
    script.write_text(block.replace("rounds=20", "rounds=2"))
    result = runpy.run_path(str(script))["result"]
    assert list(result.table.index) == ["fedu", "local", "median", "tuned"]
    printed = capsys.readouterr().out
    assert result.verdict in printed
    assert "\\toprule" in printed
    text = (tmp_path / "page" / "page.html").read_text("utf-8")
    for title in ("Gain per client over local", "Graph of fedu"):
        assert f">{title}<" in text


@pytest.fixture
def two_hospitals():
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    federation = fl.Federation.from_arrays({"north": (x[:20], y[:20]), "south": (x[20:], y[20:])}, labels=2)
    return {"fl": fl, "x": x, "y": y, "x_new": x[:4], "federation": federation}


def test_a_client_joins_as_the_page_says(two_hospitals):
    federation = two_hospitals["federation"]
    method = fl.FedU(fl.Graph.complete(federation.clients))
    variables = two_hospitals | {"result": fl.fit(method, federation, fl.models.linear(), rounds=3)}
    exec(python_block("personal-models.md"), variables)
    assert len(variables["newcomer"].predict(two_hospitals["x_new"])) == 4


def test_the_landing_page_s_lines_name_the_better_method(capsys):
    (block,) = code_blocks(ROOT / "docs" / "index.md", "python")
    exec(block, {})
    assert capsys.readouterr().out.startswith("fedu has the lowest pooled test RMSE")


def test_a_strength_is_chosen_as_the_page_says(capsys):
    variables = {}
    exec(python_block("strength.md"), variables)
    assert 0 < float(capsys.readouterr().out) < variables["method"].graph.rho


def test_the_methods_of_automatic_strength_are_named():
    text = (ROOT / "docs" / "howto" / "strength.md").read_text("utf-8")
    named, without = re.search(r"^- It works for (.*?), and not for (.*?)\.$", text, re.M).groups()
    found = {"auto": set(), "none": set()}
    for name, method in fl.ALGORITHMS.items():
        setting = inspect.signature(method).parameters.get("strength")
        if setting is not None:
            found["auto" if "auto" in str(setting.annotation) else "none"].add(name)
    assert found == {
        "auto": set(re.findall(r"`([\w-]+)`", named)),
        "none": set(re.findall(r"`([\w-]+)`", without)),
    }


def test_a_round_is_timed_as_the_page_on_gpus_says(capsys):
    exec(python_block("gpu.md").replace("rounds=10", "rounds=1"), {})
    assert re.match(r"cpu: [0-9.]+ ms per round\n", capsys.readouterr().out)


def test_a_module_is_trained_as_the_page_says():
    variables = {}
    train, show, freeze, compare = python_blocks("own-network.md")
    exec(train + show, variables)
    body = variables["net"][0].weight
    assert not torch.equal(variables["net_of_3"][0].weight, body)
    exec(freeze, variables)
    assert torch.equal(variables["result"].model("3")[0].weight, body)
    exec(compare, variables)
    assert list(variables["result"].table.index) == ["fedu", "local", "fedavg"]


def test_tuning_works_as_the_page_says(two_hospitals):
    variables = two_hospitals | {"graph": fl.Graph.complete(two_hospitals["federation"].clients)}
    exec(python_block("tuning.md").replace("rounds=100", "rounds=2"), variables)
    assert variables["tuned"].algorithm.lr in (0.01, 0.1)
    assert variables["result"].scores[-1].round == 2


def test_training_works_as_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, second = {"fl": fl}, {"fl": fl}
    for variables in (first, second):
        exec(python_block("python.md"), variables)
    assert (tmp_path / "runs" / "mine" / "fit.toml").is_file()
    assert torch.equal(first["result"].models, second["result"].models)
    assert "round" in capsys.readouterr().err


def test_the_estimators_work_as_the_page_says(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).normal(size=(60, 2))
    frame = pandas.DataFrame(x, columns=["age", "dose"])
    frame = frame.assign(hospital=["north", "south"] * 30, outcome=np.where(x[:, 0] > 0, "well", "ill"))
    frame.to_csv("my.csv", index=False)
    variables = {}
    exec(python_block("scikit-learn.md").replace("rounds=50", "rounds=5"), variables)
    assert variables["search"].best_score_ > 0.7


def shell_lines():
    """Yield every line of every shell block, without its comment."""
    for page in PAGES:
        for block in [*code_blocks(page, ""), *code_blocks(page, "console")]:
            for line in block.replace("$ ", "").splitlines():
                words = shlex.split(line, comments=True) if re.match("(fedlap|make) ", line) else []
                if words:
                    yield pytest.param(words, id=f"{page.name}: {' '.join(words)}")


@pytest.mark.parametrize("words", list(shell_lines()))
def test_commands_are_parsed(words, monkeypatch, tmp_path):
    if words[0] == "make":
        assert words[1] in set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
        return
    from fedlap.cli import (
        build_commands,
    )  # here, since training alone must not need what the command line needs

    monkeypatch.chdir(tmp_path)
    command, name, arguments = build_commands(), "fedlap", words[1:]
    context = None
    while hasattr(command, "resolve_command"):  # a group
        context = command.make_context(name, list(arguments), parent=context)
        name, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
    command.make_context(name, list(arguments), parent=context)


def test_make_targets_exist():
    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.M)) <= targets
    assert {"demo", "test"} <= set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.M))
    assert "make test" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def read_comparison():
    """Return the accuracies of all methods on Human Activity by name, and the text around them."""
    text = (ROOT / "docs" / "reference" / "methods.md").read_text().split("## All methods on one data set")[1]
    text = text.split("\n## ")[0]
    return dict(re.findall(r"^ (\S+) +(\d+\.\d+ ± \d\.\d+) \d", text, re.M)), text


def test_the_comparison_of_all_methods_has_all_methods():
    scores, text = read_comparison()
    assert set(scores) == {name for name, kind in fl.ALGORITHMS.items() if hasattr(kind, "send")}
    for skipped in set(fl.ALGORITHMS) - set(scores):
        assert f"`{skipped}`" in text
    assert f"for all {len(scores) * (len(scores) - 1) // 2} pairs" in text
    assert f"of {len(scores) - 1} others" in text


def test_the_readme_has_the_scores_of_the_comparison():
    text = (ROOT / "README.md").read_text()
    names, _, cells = re.search(r"^\| \| (FedU .*)\n(.*)\n\| test accuracy % \| (.*)$", text, re.M).groups()
    of_page = {re.sub(r"\W", "", name): score for name, score in read_comparison()[0].items()}
    shown = zip(names.strip("| ").split(" | "), cells.strip("| ").split(" | "), strict=True)
    found = {re.sub(r"\W", "", name.lower()): score.strip("*") for name, score in shown}
    assert found.items() <= of_page.items()
    assert {"fedupassing", max(of_page, key=of_page.get)} <= found.keys()


def test_extras_are_installed_in_one_form():
    """In fedlap's folder; the page on installation alone shows the form where fedlap is installed already."""
    install = ROOT / "docs" / "start" / "install.md"
    named = [page.name for page in PAGES if "fedlap[" in page.read_text("utf-8")]
    assert named == [install.name]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    listed = re.findall(r"^\| (`.*?`) \|", install.read_text("utf-8"), re.M)
    assert sorted(re.findall(r"`([\w-]+)`", " ".join(listed))) == sorted(extras)


def test_documents_stay_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
    assert (ROOT / "CONTRIBUTING.md").stat().st_size <= 4_000


def test_the_architecture_names_real_places():
    """Every path on the page exists, and a name after a path is in that file."""
    src, text = ROOT / "src" / "fedlap", (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    walk = re.findall(r"^    ((?:\w+/)+\w+\.py) +(?:\w+\.)?(\w+)", text, re.M)
    table = re.findall(r"\| `((?:\w+/)+\w+\.py)`: `(?:\w+\.)?(\w+)`", text)
    assert len(walk) >= 15
    assert len(table) == 10
    for path, name in walk + table:
        assert re.search(rf"\b(def|class) {name}\b", (src / path).read_text()), f"{path}: {name}"
    for path in re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text):
        assert (src / path).exists() or (ROOT / path).exists(), path
