"""Mistakes on the command line: one clear line, exit code 2, never a traceback."""

import subprocess
import sys

import numpy as np
import pytest

SHORT = ("--rounds", "3")


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
    "list without quotes": (
        ["run", "--data", "radon", "--set", "data.features=[floor, 1,south-west]"],
        ["shell removed the quotes", """use --set 'data.features=["floor",1,"south-west"]'"""]),
    "field of a number": (["run", "--set", "rounds.x=1"], ["rounds.x"]),
    "unknown dtype": (["run", "--set", "dtype=float16"], ["dtype", "float16", "float32"]),
    "unknown engine": (["run", "--set", "engine=fast"], ["engine", "fast", "stacked"]),
    "unknown device": (["run", "--device", "abacus"], ["'abacus'", "use cpu"]),
    "strength too large": (["run", "--strength", "5"], ["= 5 ", "0.03·5·5·20 = 15 > 2", "at most 0.6667"]),
    "strength negative": (["run", "--strength", "-1"], ["strength = -1"]),
    "strength no number": (["run", "--set", "algorithm.strength=big"], ["algorithm.strength", "'big'"]),
    "strength auto misspelt": (
        ["run", "--strength", "atuo"], ["strength = 'atuo'; expected a number or 'auto'"]),
    "interval auto misspelt": (
        ["run", "--evaluate-every", "atuo"], ["evaluate_every = 'atuo'; expected an integer or 'auto'"]),
    "places of known data": (
        ["run", "--data", "radon", "--graph", "nearest", "--set", "graph.places=lon,lat"],
        ["graph.places", "'radon'", "graph.by=places"]),
    "lr zero": (["run", "--lr", "0"], ["lr = 0"]),
    "lr infinite": (["run", "--lr", "inf"], ["lr = inf"]),
    "steps and epochs": (["run", "--local-steps", "5", "--local-epochs", "1"], ["both set"]),
    "no steps": (["run", "--local-steps", "0"], ["local_steps = 0"]),
    "batch 0": (["run", "--batch", "0"], ["batch = 0", "at least 1"]),
    "batch a word": (["run", "--batch", "some"], ["batch", "some"]),
    "no rounds": (["run", "--rounds", "0"], ["rounds = 0"]),
    "rounds a word": (["run", "--rounds", "ten"], ["--rounds", "expected an integer"]),
    "sample 0": (["run", "--sample", "0"], ["sample = 0"]),
    "sample 2": (["run", "--sample", "2"], ["sample = 2"]),
    "peers sampled": (["run", "--algorithm", "dfedu", "--sample", "0.5"], ["peers are not sampled"]),
    "peers with a server": (
        ["run", "--algorithm", "dfedu", "--graph", "star", "--set", "graph.server=true"], ["use fedu"]),
    "seeds a word": (["compare", "--seeds", "few"], ["--seeds few"]),
    "seeds backwards": (["compare", "--seeds", "4-0"], ["--seeds 4-0"]),
    "seed set in compare": (["compare", "--set", "seed=3"], ["--seeds"]),
    "no known graph": (["run", "--graph", "known"], ["'digits' has no known graph"]),
    "asymmetric weights": (["run", "--graph", "{}/asymmetric.npy"], ["('0', '1')", "symmetric"]),
    "negative weights": (["run", "--graph", "{}/negative.npy"], ["is -1", "expected zero or more"]),
    "matrix of another size": (["run", "--graph", "{}/small.npy"], ["3×3", "20 clients"]),
    "edge to a stranger": (["run", "--graph", "{}/stranger.csv"], ["'99'", "stranger.csv"]),
    "weight a word": (["run", "--graph", "{}/word.csv"], ["line 1", "'heavy'"]),
    "no such graph file": (["run", "--graph", "{}/none.csv"], ["none.csv"]),
    "cnn on plain features": (["run", "--data", "synthetic", "--model", "cnn"], ["cnn", "images"]),
    "too many labels": (["run", "--set", "partition.labels_per_client=11"], ["labels_per_client = 11"]),
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
    "nothing to sweep": (["sweep"], ["no --vary option", "--vary strength=0,0.01,0.1"]),
    "unknown field to sweep": (["sweep", "--vary", "strenght=0,1"], ["'strenght'", "'strength'"]),
    "unknown section to sweep": (["sweep", "--vary", "algoritm.lr=1"], ["'algoritm'", "'algorithm'"]),
    "unknown setting to sweep": (["sweep", "--vary", "algorithm.strenght=1"], ["'strenght'", "'strength'"]),
    "setting of another to sweep": (
        ["sweep", "--algorithm", "local", "--vary", "strength=0,1"], ["'strength'", "'local'"]),
    "unknown algorithm to sweep": (["sweep", "--algorithm", "fedx", "--vary", "lr=1"], ["'fedx'", "'fedu'"]),
    "no values to sweep": (["sweep", "--vary", "lr"], ["--vary lr", "field=value,value"]),
    "an empty value": (["sweep", "--vary", "lr=1,,2"], ["--vary lr=1,,2", "field=value,value"]),
    "seeds swept": (["sweep", "--vary", "seed=1,2"], ["--vary seed=1,2", "--seeds 0-4"]),
    "seed set in sweep": (["sweep", "--vary", "lr=1", "--set", "seed=3"], ["--seeds"]),
    "data swept": (["sweep", "--vary", "data=har,digits"], ["cannot be ranked", "--data"]),
    "tasks swept": (
        ["sweep", "--data", "synthetic", "--vary", "data.task=regression,classification"],
        ["classes", "real targets", "every task separately"]),
    "swept twice": (["sweep", "--vary", "lr=1", "--vary", "algorithm.lr=2"], ["lr is varied twice"]),
    "swept to no end": (
        ["sweep", "--algorithm", "local", "--vary", "graph=ring,complete"],
        ["graph = ring", "graph = complete", "the same run", "local does not use"]),
    "a value too large": (
        ["sweep", "--vary", "strength=0,0.1,5"], ["with strength = 5: ", "15 > 2", "at most 0.6667"]),
    "a value too large for one rate": (
        ["sweep", "--vary", "strength=0.1,0.5", "--vary", "lr=0.01,0.1"],
        ["with strength = 0.5, lr = 0.1: "]),
    "a value that is none": (["sweep", "--vary", "batch=10,0"], ["with batch = 0: ", "at least 1"]),
    "a value unknown": (["sweep", "--vary", "graph=ring,rings"], ["with graph = rings: ", "'ring'"]),
    "a field of a number swept": (["sweep", "--vary", "rounds.x=1"], ["--vary rounds.x=1", "no fields"]),
    "scarce a number": (["sweep", "--vary", "scarce=0.5"], ["--vary scarce=0.5", "scarce=true"]),
    "a sweep's device": (["sweep", "--vary", "lr=0.1", "--device", "abacus"], ["'abacus'", "use cpu"]),
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


def test_the_installed_command():
    done = subprocess.run(
        [sys.executable, "-m", "fedlap.cli", "run", "--batch", "0"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: batch = 0")
    assert done.stderr.count("\n") == 1
