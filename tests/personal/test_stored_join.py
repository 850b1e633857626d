"""A client that joins stored models: bit for bit as from the live result, and one line where it cannot."""

import json

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.personal import JoinSettings, Personals
from fedlap.storage.files import decode_with_checksum, encode_with_checksum

EDGES = {"b": 2.0, "d": 0.5, "e": 1.5}


@pytest.fixture(scope="module")
def newcomer():
    rng = np.random.default_rng(9)
    return rng.normal(size=(30, 4)), rng.integers(0, 3, 30)


METHODS = {
    "fedu": lambda graph: fl.FedU(graph, strength=0.05, lr=0.1, local_steps=3),
    "default strength": lambda graph: fl.FedU(graph, lr=0.1, local_epochs=2),
    "implicit": lambda graph: fl.FedU(graph, strength=5.0, lr=0.1, mixing="implicit"),
    "lasso": lambda graph: fl.ALGORITHMS["lasso"](graph, strength=0.05, lr=0.1),
    "local": lambda graph: fl.Local(lr=0.1),
    "mocha": lambda graph: fl.Mocha(graph),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("scale", ["pooled", "client"])
def test_stored_models_are_joined_as_live_ones(federation, graph, newcomer, tmp_path, name, scale):
    dtype = "float32" if scale == "pooled" else "float64"
    model = fl.models.linear(l2=0.01) if scale == "pooled" else fl.models.mlp(5, l2=0.1)
    if name == "mocha":
        model = fl.models.linear()
    how = {"rounds": 3, "seed": 2, "dtype": dtype}
    result = fl.fit(METHODS[name](graph), federation.standardize(scale), model, **how)
    result.personals.save(tmp_path)
    settings = {"batch": 7, "seed": 4, "name": "z", "lr": 0.05 if name == "mocha" else None}
    live = result.join(*newcomer, EDGES, **settings)
    stored = Personals.load(tmp_path).join(*newcomer, EDGES, **settings)
    assert torch.equal(live.parameters, stored.parameters)
    assert torch.equal(live.scale.shift, stored.scale.shift)
    assert (live.client, live.metadata) == (stored.client, stored.metadata)
    assert not torch.equal(
        live.parameters, result.join(*newcomer, EDGES, **settings | {"rounds": 0}).parameters
    )


def test_the_l2_term_is_stored(federation, graph, newcomer, tmp_path):
    """Another L2 term gives another newcomer: the one of the run is used."""
    joined = []
    for l2 in (0.0, 0.3):
        result = fl.fit(fl.Local(lr=0.1), federation, fl.models.linear(l2=l2), rounds=1, start=np.zeros(15))
        result.personals.save(tmp_path)
        stored = Personals.load(tmp_path)
        assert stored.join_settings == JoinSettings("Local", 0.1, 5, None, l2, None, None, "explicit")
        joined.append(stored.join(*newcomer, {"a": 1}, batch="all", rounds=1).parameters)
    assert not torch.equal(*joined)


def change_metadata(folder, change):
    """Rewrite about.json, with a valid checksum."""
    values = decode_with_checksum((folder / "about.json").read_bytes())
    change(values)
    del values["signature"]
    (folder / "about.json").write_bytes(encode_with_checksum(values))


def test_models_of_an_earlier_version_predict_but_do_not_join(federation, graph, newcomer, tmp_path):
    result = fl.fit(fl.FedU(graph), federation, fl.models.linear(), rounds=1)
    result.personals.save(tmp_path)
    change_metadata(tmp_path, lambda values: values.pop("join"))
    old = Personals.load(tmp_path)
    assert torch.equal(old.of_client("a").scores(newcomer[0]), result.personal("a").scores(newcomer[0]))
    with pytest.raises(fl.InputError, match=r"saved without the settings of their method.*save them again$"):
        old.join(*newcomer, EDGES)
    old.save(tmp_path / "again")  # saved again, they still do not have them
    assert "join" not in json.loads((tmp_path / "again" / "about.json").read_text())


@pytest.mark.parametrize(
    ("field", "value"),
    [("lr", -0.1), ("lr", "0.1"), ("local_steps", 0), ("l2", None), ("mixing", "half"), ("smoothing", 0)],
)
def test_an_invalid_setting_is_named(federation, graph, tmp_path, field, value):
    fl.fit(fl.FedU(graph), federation, fl.models.linear(), rounds=1).personals.save(tmp_path)
    change_metadata(tmp_path, lambda values: values["join"].update({field: value}))
    with pytest.raises(fl.InputError, match=f"it has no valid 'join.{field}'"):
        Personals.load(tmp_path)


def test_a_stored_module_of_a_user_cannot_be_joined(federation, newcomer, tmp_path):
    result = fl.fit(fl.Local(), federation, fl.models.module(torch.nn.Linear(4, 3)), rounds=1)
    assert result.join(*newcomer, {"a": 1}).parameters.isfinite().all()
    result.personals.save(tmp_path)
    with pytest.raises(fl.InputError, match="user-defined module, of which only parameters are stored"):
        Personals.load(tmp_path).join(*newcomer, {"a": 1})
