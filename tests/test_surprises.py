"""Small ways in which data once came out wrong without a word."""

import json

import numpy as np
import pandas
import pytest
import torch

import fedlap as fl
from fedlap.data import cache
from fedlap.experiments.experiment import Experiment


def describe_digits(call, *words):
    code, out, err = call("data", "describe", "digits", "--json", *words)
    return json.loads(out)["train_rows"] if code == 0 else err


def test_scarce_is_on_or_off(call):
    everything = describe_digits(call)
    assert describe_digits(call, "--scarce") < everything
    assert describe_digits(call, "--set", "scarce=true") == describe_digits(call, "--scarce")
    assert describe_digits(call, "--set", "scarce=false") == everything
    assert describe_digits(call, "--scarce", "--set", "scarce=false") == everything
    assert "scarce=true or scarce=false" in describe_digits(call, "--set", "scarce=maybe")


def test_an_index_is_no_feature(call, tmp_path):
    frame = pandas.DataFrame({"site": ["a", "a", "b", "b"], "age": [1.0, 2, 3, 4], "ill": [0, 1, 0, 1]})
    frame.to_csv(tmp_path / "my.csv")
    code, _, err = call("run", "--data", str(tmp_path / "my.csv"), "--client", "site", "--label", "ill")
    assert code == 2
    assert "column 1 has no name" in err


def test_test_rows_are_given_or_drawn():
    with pytest.raises(fl.InputError, match="remove test_share"):
        Experiment.of({"data": {"name": "file", "path": "a.npz", "test": "b.npz", "test_share": 0.5}})


def test_bytes_spell_names(tmp_path):
    x, names = np.arange(8.0).reshape(4, 2), np.array([b"north", b"south"] * 2)
    np.savez(tmp_path / "my.npz", x=x, y=np.array([b"ill", b"ill", b"well", b"well"]), client=names)
    federation = fl.data.load("file", path=str(tmp_path / "my.npz"))
    assert (federation.clients, federation.labels) == (("north", "south"), ("ill", "well"))
    np.savez(tmp_path / "my.npz", x=x, y=np.arange(4) % 2, client=np.array([b"\xff", b"a"] * 2))
    with pytest.raises(fl.InputError, match="not UTF-8"):
        fl.data.load("file", path=str(tmp_path / "my.npz"))


@pytest.mark.parametrize("labels", [[1j, 2j, 1j, 2j], [[1], [2], [1], [2]]], ids=["complex", "lists"])
def test_labels_that_are_none(labels):
    frame = pandas.DataFrame({"site": list("aabb"), "age": [1.0, 2, 3, 4], "ill": labels})
    with pytest.raises(fl.InputError, match="label"):
        fl.Federation.from_dataframe(frame, "site", "ill")


def test_a_missing_client_is_no_client():
    dataset = torch.utils.data.TensorDataset(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(fl.InputError, match="row 1: the client is missing"):
        fl.Federation.from_dataset(dataset, [1.0, float("nan"), 2.0, 2.0])
    assert fl.Federation.from_dataset(dataset, [1.0, 1.0, 2.0, 2.0]).clients == ("1", "2")
    by_tensor = fl.Federation.from_dataset(dataset, {"a": torch.arange(2), "b": np.array([2, 3])})
    assert by_tensor.clients == ("a", "b")


def test_a_partition_is_an_object():
    with pytest.raises(fl.InputError, match=r"expected a partition such as fedlap\.partition\.Iid"):
        fl.data.load("digits", partition=fl.partition.Iid)


def test_columns_may_be_numbers():
    frame = pandas.DataFrame({0: np.arange(16.0), 3: list("ab") * 8, 7: np.arange(16) // 2 % 2})
    assert fl.Federation.from_dataframe(frame, 3, 7).clients == ("a", "b")


@pytest.mark.parametrize("byte", [300, 2_000, 30_000])
def test_a_cached_array_file_with_a_wrong_byte_is_made_again(byte, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    arrays = {"x": np.random.default_rng(0).normal(size=(500, 10))}
    cache.load_cached_arrays("some", lambda: arrays)
    path = cache.locate_cached_arrays("some")
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    path.write_bytes(content)
    assert np.array_equal(cache.load_cached_arrays("some", lambda: arrays)["x"], arrays["x"])
    assert "is rebuilt" in capsys.readouterr().err


def test_an_array_is_as_long_as_it_says(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(4.0), y=np.arange(4.0))
    content = (tmp_path / "a.npz").read_bytes().replace(b"'shape': (4,)", b"'shape': (9,)")
    (tmp_path / "b.npz").write_bytes(content)
    with pytest.raises((ValueError, OSError, fl.InputError)):
        cache.map_npz(tmp_path / "b.npz")
