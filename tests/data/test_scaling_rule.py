"""Rows are scaled by one rule, whether Python or the command line reads them."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import fedlap as fl
from flower_partitions import COLUMNS, Partitioner
from table_rows import FIRST, LABELS
from user_tables import FILES, ROWS, TABLE, arrays, write

WIDE = ROWS.assign(age=1e3 * ROWS.age + 5e4)  # in these units nothing trains unless features are scaled
PAIRS = list(zip(FIRST, LABELS, strict=True))
MAKERS = {
    "from_arrays": lambda **how: fl.Federation.from_arrays(
        {"0": (FIRST[:4], LABELS[:4]), "1": (FIRST[4:7], LABELS[4:7]), "2": (FIRST[7:], LABELS[7:])}, **how
    ),
    "from_dataset": lambda **how: fl.Federation.from_dataset(PAIRS, "000011122", **how),
    "from_flower": lambda **how: fl.Federation.from_flower(Partitioner(COLUMNS), **how),
    "from_dataframe": lambda **how: fl.Federation.from_dataframe(WIDE, "hospital", "outcome", **how),
}


def scores_of_run(call, folder, path, *words):
    """Scores of `fedlap run` on this file, without times."""
    code, _, err = call("run", "--data", path, *words, "--rounds", "3")
    assert code == 0, err
    (run,) = (folder / "runs").glob("*/rounds.jsonl")
    return [{**json.loads(line), "seconds": 0} for line in run.read_text().splitlines()]


def scores_of_fit(federation, seed=0):
    method = fl.FedU(fl.Graph.complete(federation.clients))
    result = fl.fit(method, federation, fl.models.linear(), rounds=3, seed=seed)
    return [{**score.as_dict(), "seconds": 0} for score in result.scores]


def arrays_by_client(x, y, whose):
    return {name: (x[whose == name], y[whose == name]) for name in dict.fromkeys(whose)}


@pytest.mark.parametrize("scale", [None, "client", "none"])
@pytest.mark.parametrize("form", FILES)
def test_a_file_gives_equal_scores_in_python_and_by_the_command(form, scale, call, tmp_path):
    path = write(tmp_path / f"my.{form}", WIDE)
    words = [] if scale is None else ["--set", f"data.scale={scale}"]
    asked = scores_of_run(call, tmp_path, path, *TABLE, "--seed", "4", *words)
    how = {"seed": 4} if scale is None else {"seed": 4, "scale": scale}
    if form == "npz":
        columns = arrays(WIDE)
        y = np.searchsorted(["ill", "well"], columns["outcome"])
        federation = fl.Federation.from_arrays(
            arrays_by_client(columns["x"], y, columns["hospital"]), labels=["ill", "well"], **how
        )
    else:
        frame = pd.read_csv(path) if form == "csv" else pd.read_parquet(path)
        federation = fl.Federation.from_dataframe(frame, "hospital", "outcome", **how)
    assert scores_of_fit(federation, seed=4) == asked


def test_pictures_give_equal_scores_in_python_and_by_the_command(call, tmp_path):
    x, y, whose = FIRST.repeat(4, axis=0), LABELS.repeat(4), np.arange(36) % 3
    path = write(tmp_path / "my.npz", {"x": x, "y": y, "client": whose})
    federation = fl.Federation.from_arrays(arrays_by_client(x, y, whose))
    assert federation.train.store.dtype == torch.uint8  # pictures stay bytes
    assert federation.scale.shift.numel() == 3  # one constant per channel
    assert scores_of_fit(federation) == scores_of_run(call, tmp_path, path)


@pytest.mark.parametrize("name", MAKERS)
def test_every_maker_follows_the_rule(name):
    make = MAKERS[name]
    plain = make(scale="none")
    assert plain.scale.kind == "none"
    for federation, kind in (
        (make(), "pooled"),
        (make(scale="pooled"), "pooled"),
        (make(scale="client"), "client"),
    ):
        wanted = plain.standardize(kind).scale
        assert federation.scale.kind == kind
        assert torch.equal(federation.scale.shift, wanted.shift)
        assert torch.equal(federation.scale.factor, wanted.factor)


def test_test_rows_do_not_change_the_constants():
    rows = {"a": (np.eye(3), [0, 1, 1])}
    one, other = (
        fl.Federation.from_arrays(rows, test={"a": (far, [0])}) for far in ([[0.0] * 3], [[9e9] * 3])
    )
    assert one.scale.kind == "pooled"
    assert torch.equal(one.scale.shift, other.scale.shift)
    assert torch.equal(one.scale.factor, other.scale.factor)
