"""What the documents show works."""

import re
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import TensorDataset

import fedlap as fl

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(example):
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


def python_blocks():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(blocks) == 3  # the third is run by test_tracking.py
    return blocks


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


def test_the_readme_s_ways_to_data_work():
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    names = np.repeat(["north", "south"], 10)
    given = {
        "fl": fl, "x": x, "y": y, "x2": x, "y2": y, "names": names, "partitioner": Halves(),
        "frame": pandas.DataFrame(x).assign(hospital=names, outcome=y),
        "dataset": TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
    }  # fmt: skip
    made = [eval(line, given) for line in python_blocks()[1].splitlines()]
    assert [len(federation.clients) for federation in made] == [2, 2, 2, 2, 20]


def test_the_method_in_contributing_is_fedavg():
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    names = {"dataclass": dataclass, "ClassVar": ClassVar, "Kind": str, "Steadiness": str}
    exec(block, names)
    federation = fl.data.load("digits")
    one, other = (
        fl.fit(method(lr=0.05), federation, fl.models.linear(), rounds=5, sample=0.3).models
        for method in (names["FedAvg"], fl.FedAvg)
    )
    assert torch.equal(one, other)


def test_the_readme_s_python_runs(tmp_path, capsys):
    script = tmp_path / "readme.py"
    script.write_text(python_blocks()[0])
    names = runpy.run_path(str(script))
    assert names["result"].models.shape == (20, 650)
    assert names["result"].scores[-1].accuracy > 0.95


def test_the_readme_s_commands_exist():
    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.M)) <= targets
    assert {"demo", "test"} <= set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.M))
    assert "make test" in (ROOT / ".ci" / "run").read_text()
