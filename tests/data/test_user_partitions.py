"""A user's own rows, cut as asked, described in words and a picture; what may surprise is remarked on."""

import json
from pathlib import Path

import numpy as np
import pytest

import fedlap as fl
from fedlap.experiments.experiment import Experiment
from user_tables import QUICK, REAL, ROWS, TABLE, metadata, models, write

PNG = b"\x89PNG\r\n\x1a\n"


# What may surprise.

ALONE = ROWS.assign(outcome=np.where(ROWS.hospital == "south", "ill", ROWS.outcome))


def test_clients_with_one_label_are_remarked_on(call, tmp_path):
    with pytest.warns(fl.DataWarning, match="1 of 4 clients have training rows of one label only.*: south"):
        fl.Federation.from_dataframe(ALONE, "hospital", "outcome")
    path = write(tmp_path / "my.csv", ALONE)
    code, out, err = call("data", "describe", path, *TABLE)
    assert (code, err) == (0, "")
    assert "1 of 4 clients have training rows of one label only" in out
    code, out, err = call("run", "--data", path, *TABLE, *QUICK)
    assert code == 0
    assert "note: 1 of 4 clients have training rows of one label only" in err
    assert "note" not in out
    _, _, err = call(
        "compare", "--data", path, *TABLE, *QUICK, "--algorithms", "local,global", "--seeds", "0-1"
    )
    assert err.count("one label only") == 1  # reported once, not for every algorithm


def test_clients_without_test_rows_are_remarked_on(call, tmp_path):
    held = ROWS[:8][ROWS[:8].hospital != "east"]
    with pytest.warns(fl.DataWarning, match="1 of 4 clients have no test rows.*: east"):
        federation = fl.Federation.from_dataframe(ROWS, "hospital", "outcome", test=held)
    assert federation.test.count.tolist() == [2, 2, 0, 2]
    words = (
        write(tmp_path / "my.csv", ROWS),
        *TABLE,
        "--test",
        write(tmp_path / "held.csv", held),
        "--json",
    )
    code, out, _ = call("data", "describe", *words)
    answer = json.loads(out)
    assert code == 0
    assert (answer["train_rows"], answer["test_rows"]) == (32, 6)
    assert any("no test rows" in remark for remark in answer["remarks"])
    assert call("run", "--data", *words, *QUICK)[0] == 0


# Partitions of a user's rows.


@pytest.mark.parametrize(
    ("words", "clients", "train"),
    [
        ([*TABLE], 4, 24),
        ([*TABLE, "--partition", "natural"], 4, 24),
        ([*TABLE, "--scarce"], 4, 14),  # two of four keep ⌊0.2·6 + ½⌋ of their six
        ([*TABLE, "--set", "scarce.keep=0.1"], 4, 14),  # and ⌊0.1·6 + ½⌋ is one as well
        ([*TABLE, "--set", "scarce.keep=0.5", "--set", "scarce.share_of_clients=1"], 4, 12),
        ([*TABLE, "--set", "data.test_share=0.5"], 4, 16),
        ([*TABLE, "--partition", "iid", "--set", "partition.clients=8"], 8, 24),
        ([*TABLE, "--partition", "labels", "--set", "partition.clients=5", "--set", "data.test_share=0"],
         5, 32),
        (["--label", "outcome", "--set", 'data.drop=["hospital"]', "--partition", "iid",
          "--set", "partition.clients=4"], 4, 24),
    ],
)  # fmt: skip
def test_rows_are_cut_as_asked(words, clients, train, call, tmp_path):
    code, out, _ = call("run", "--data", write(tmp_path / "my.csv", ROWS), *words, *QUICK, "--json")
    answer = json.loads(out)
    assert code == 0
    assert len(metadata(answer["folder"])["clients"]) == clients
    federation, _ = Experiment.of(answer["experiment"]).load()
    assert (int(federation.train.count.sum()), federation.inputs) == (train, (2,))


@pytest.mark.parametrize(
    ("words", "features"),
    [
        (["--set", 'data.drop=["city", "day"]'], 2),
        (["--drop", "city", "--drop", "day"], 2),
        (["--set", 'data.features=["dose"]'], 1),
    ],
)
def test_columns_are_left_out_as_asked(words, features, call, tmp_path):
    path = write(tmp_path / "my.csv", ROWS.assign(city="Rome", day="2020-01-01"))
    code, out, _ = call("run", "--data", path, *TABLE, *words, *QUICK, "--json")
    assert code == 0
    assert models(json.loads(out)["folder"]).shape == (4, 2 * (features + 1))


def test_algorithms_are_compared_on_one_s_own_rows(call, tmp_path):
    words = ("--algorithms", "fedu,local", "--seeds", "0-1", "--rounds", "2")
    code, out, _ = call("compare", "--data", write(tmp_path / "my.csv", ROWS), *TABLE, *words)
    assert code == 0
    assert "my: test rows after round 2" in out
    (folder,) = (tmp_path / "runs").glob("my-compare-*")
    assert "| fedu |" in (folder / "table.md").read_text()


# Descriptions.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "words", "wanted"),
    [
        (ROWS, [], {"clients": 4, "rows": 32, "train_rows": 24, "test_rows": 8, "features": [2],
                    "rows_mean": 8.0, "rows_std": 0.0, "labels": {"ill": 16, "well": 16}, "remarks": []}),
        (REAL, [], {"clients": 4, "rows": 32, "labels": None}),
        (ROWS, ["--partition", "dirichlet", "--set", "partition.alpha=0.1", "--set", "partition.clients=4",
                "--scarce"], {"clients": 4, "rows": 22, "test_rows": 8}),
        ("digits", [], {"clients": 20, "rows": 1797, "features": [1, 8, 8]}),
        ("digits", ["--partition", "iid", "--set", "partition.clients=3"],
         {"rows_min": 599, "rows_max": 599}),
        ("synthetic", [], {"data": "synthetic", "remarks": []}),
    ],
    ids=["classes", "targets", "dirichlet", "digits", "digits, iid", "synthetic"],
)  # fmt: skip
def test_data_are_described_in_words_numbers_and_a_picture(rows, words, wanted, call, tmp_path):
    arguments = [rows] if isinstance(rows, str) else [write(tmp_path / "my.csv", rows), *TABLE]
    code, out, err = call("data", "describe", *arguments, *words, "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert {key: answer[key] for key in wanted} == wanted
    assert answer["train_rows"] + answer["test_rows"] == answer["rows"]
    picture = Path(answer["picture"]).read_bytes()
    assert picture[:8] == PNG
    assert len(picture) > 1000
    Path(answer["picture"]).unlink()
    code, out, err = call("data", "describe", *arguments, *words)
    assert (code, err) == (0, "")
    assert f"clients     {answer['clients']:,}\n" in out
    assert f"{answer['rows']:,}: {answer['train_rows']:,} for training" in out
    names = (
        ["real numbers"] if answer["labels"] is None else [f"{k}: {v:,}" for k, v in answer["labels"].items()]
    )
    assert all(name in out for name in names)
    assert Path(answer["picture"]).read_bytes() == picture
    assert answer["picture"] in out
