"""Models in use: saved models equal trained models, take raw values, and damage is noticed."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedlap as fl
from fedlap.personal import Personal, Personals
from fedlap.personal.model_files import MODEL_FILE_FORMAT
from random_inputs import random_arrays

SCALES = ("none", "pooled", "client")


def train(federation, model=None, method=None, **how):
    method = method or fl.FedU(fl.Graph.complete(federation.clients), strength=0.01, lr=0.1)
    return fl.fit(method, federation, model or fl.models.linear(), **{"rounds": 3, "seed": 1, **how})


def make_federation(scale="pooled", real=False, seed=0):
    """Return clients with columns of very different size, whose labels have names."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "site": np.repeat(["north", "south", "east"], [30, 25, 41]),
            "age": rng.normal(50, 12, 96),
            "dose": rng.integers(0, 9, 96),
            "salt": rng.normal(3e5, 1e4, 96),
        }
    )
    rest = (frame.age - 50) / 12 + frame.dose / 4 + rng.normal(size=96)
    frame["outcome"] = rest if real else np.where(rest > 1, "ill", "well")
    return fl.Federation.from_dataframe(frame, "site", "outcome").standardize(scale)


def right(result, ask):
    """The share of right answers over all clients' test rows, as each client's model is asked."""
    test = result.federation.test
    hits = [
        (ask(name, test.client(k)[0]) == test.client(k)[1])
        for k, name in enumerate(result.federation.clients)
    ]
    return float(torch.cat(hits).double().sum() / test.count.sum())


def same(one, other):
    assert (one.client, one.metadata) == (other.client, other.metadata)
    assert one.parameters.dtype == other.parameters.dtype
    for a, b in ((one.parameters, other.parameters), (one.scale.shift, other.scale.shift)):
        assert torch.equal(a, b)
    assert torch.equal(one.scale.factor, other.scale.factor)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", [fl.models.linear(l2=0.1), fl.models.mlp((7, 5))], ids=["linear", "mlp"])
def test_what_was_saved_is_what_was_trained(model, dtype, scale, tmp_path):
    result = train(make_federation(scale), model, dtype=dtype)
    result.personals.save(tmp_path / "models")
    stack = Personals.load(tmp_path / "models")
    assert torch.equal(stack.models, result.models)
    assert stack.models.dtype == result.models.dtype
    assert stack.clients == ("north", "south", "east")
    for name in stack.clients:
        result.personal(name).save(tmp_path / f"{name}.safetensors")
        alone = Personal.load(tmp_path / f"{name}.safetensors")
        same(alone, result.personal(name))
        same(stack.of_client(name), alone)
        x = result.federation.test.x
        assert torch.equal(alone.scores(x), result.personal(name).scores(x))
    assert right(result, lambda name, x: stack.of_client(name).predict(x)) == result.scores[-1].accuracy
    assert right(result, result.predict) == result.scores[-1].accuracy


@pytest.mark.parametrize("scale", SCALES)
def test_pictures_give_the_accuracy_of_the_run(scale, tmp_path):
    result = train(fl.data.load("digits", scale=scale), rounds=5)
    result.personals.save(tmp_path)
    stack = Personals.load(tmp_path)
    assert 0.5 < result.scores[-1].accuracy < 1
    for kind in (torch.uint8, torch.float64, torch.int16):  # bytes by any name
        assert right(result, lambda n, x, kind=kind: stack.of_client(n).predict(x.to(kind))) == (
            result.scores[-1].accuracy
        )


def test_a_cnn_is_made_again(tmp_path):
    result = train(fl.data.load("digits"), fl.models.cnn(l2=0.01), rounds=1)
    result.personal("3").save(tmp_path / "m.safetensors")
    again = Personal.load(tmp_path / "m.safetensors")
    assert again.metadata.architecture == {"name": "cnn", "l2": 0.01}
    x = result.federation.test.client(3)[0]
    assert torch.equal(again.predict(x), result.predict("3", x))


def test_the_module_is_the_model_in_scaled_units(tmp_path):
    result = train(make_federation("client"), fl.models.mlp(6), dtype="float64")
    personal = result.personal("south")
    personal.save(tmp_path / "m.safetensors")
    x = result.federation.test.client(1)[0]
    seen = (x - personal.scale.shift) * personal.scale.factor
    for module in (
        personal.module(),
        result.model("south"),
        Personal.load(tmp_path / "m.safetensors").module(),
    ):
        assert isinstance(module, nn.Module)
        torch.testing.assert_close(module(seen), personal.scores(x), atol=1e-12, rtol=0)


def test_answers_are_names_or_values():
    result = train(make_federation())
    personal, x = result.personal("north"), result.federation.test.x
    assert personal.predict_labels(x) == [("ill", "well")[k] for k in personal.predict(x)]
    result = train(make_federation(real=True))
    personal = result.personal("north")
    assert personal.labels is None
    assert torch.equal(personal.predict_labels(x), personal.scores(x))
    assert personal.predict(x).shape == (len(x), 1)


def test_rows_of_several_clients_at_once(tmp_path):
    """Each row by the model of its client: as `Personal` predicts, in any order and from files."""
    result = train(make_federation("client"))
    result.personals.save(tmp_path)
    test = result.federation.test
    names = [result.federation.clients[place] for place in test.find_owners().tolist()]
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(0))
    clients, x = [names[place] for place in order], test.x[order]
    predictions = Personals.load(tmp_path).predict(clients, x)
    alone = [result.personal(name).scores(row[None])[0] for name, row in zip(clients, x, strict=True)]
    torch.testing.assert_close(predictions.scores, torch.stack(alone), rtol=0, atol=1e-6)
    assert predictions.labels == [("ill", "well")[int(scores.argmax())] for scores in alone]
    frame = predictions.to_frame()
    assert list(frame) == ["client", "outcome", "probability"]
    assert frame.client.tolist() == clients
    assert frame.probability.tolist() == predictions.probabilities.max(-1).values.tolist()
    real = train(make_federation(real=True)).personals.predict(clients, x)
    assert (real.labels, real.probabilities) == (None, None)
    assert real.to_frame().outcome.tolist() == real.scores.flatten().tolist()
    with pytest.raises(fl.InputError, match="clients has 2 names for 3 rows; pass one name per row"):
        result.personals.predict(clients[:2], x[:3])


def test_a_frame_is_read_by_the_names_of_its_columns():
    result = train(make_federation())
    personal, x = result.personal("north"), result.federation.test.x
    assert personal.features == ("age", "dose", "salt")
    frame = pd.DataFrame(x.numpy(), columns=["age", "dose", "salt"])
    shuffled = frame.assign(note="none")[["salt", "note", "age", "dose"]]
    assert torch.equal(personal.scores(shuffled), personal.scores(x))
    with pytest.raises(fl.InputError, match=r"x has no column 'age' \(and 1 more\)"):
        personal.predict(frame[["dose"]])


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.standardize("client"), lambda f: f.scarce(0.5, 0.5), lambda f: f.reorder(f.clients[::-1]),
        lambda f: f.pool_clients(), lambda f: f.standardize("client").pool_clients(),
        lambda f: f.to_device(torch.device("cpu"), torch.float32),
    ],
    ids=["scaled", "scarce", "reordered", "pooled", "pooled from scaled", "resident"],
)  # fmt: skip
def test_names_of_columns_stay(change):
    federation = change(make_federation())
    assert federation.features == ("age", "dose", "salt")
    assert federation.target == "outcome"


def test_arrays_have_no_names(federation, tmp_path):
    assert federation.features is federation.target is None
    train(federation).personals.save(tmp_path)
    assert Personals.load(tmp_path).metadata.features is None


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 4)), r"x has shape \(2, 4\); pass rows of features of shape \(3,\)"),
        (3.0, r"x has shape \(\)"),
        ([[1.0, np.nan, 2.0]], "NaN or infinity"),
        ([["a", "b", "c"]], r"x cannot be read \(.+\); pass an array of numbers"),
        (np.zeros((1, 3), complex), "complex numbers"),
    ],
)
def test_mistakes_in_what_is_asked(x, message):
    with pytest.raises(fl.InputError, match=message):
        train(make_federation(), rounds=1).personal("north").predict(x)


def test_lists_lose_no_digits():
    """Features that are shifted by a large constant need all the digits of their input."""
    result = train(make_federation(), dtype="float64")
    x = result.federation.test.x[:5]
    assert torch.equal(result.predict("north", x.tolist()), result.predict("north", x))
    assert torch.equal(result.personal("north").scores(x.tolist()), result.personal("north").scores(x))


def own_module():
    torch.manual_seed(0)
    return fl.models.module(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))


def test_a_module_of_one_s_own_is_used_here_and_its_parameters_are_kept(federation, tmp_path):
    result = train(federation, own_module())
    x = federation.test.x
    assert torch.equal(result.personal("a").predict(x), result.predict("a", x))
    result.personals.save(tmp_path)
    again = Personals.load(tmp_path)
    assert torch.equal(again.models, result.models)
    with pytest.raises(fl.InputError, match=r"user-defined module.*result\.model\('a'\)"):
        again.of_client("a")
    with pytest.raises(fl.InputError, match=r"user-defined module.*state_dict"):
        result.personal("a").save(tmp_path / "m.safetensors")


def damage_content(path, rng):
    """Return a file's content with one bit flipped, or cut short."""
    content = bytearray(path.read_bytes())
    if rng.uniform() < 0.3:
        return bytes(content[: rng.integers(len(content))])
    content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    return bytes(content)


def outcome(load, *args):
    """Return the loaded object, or the one line that says why loading failed."""
    try:
        return load(*args)
    except fl.InputError as error:
        return str(error)


def test_damage_is_always_noticed(tmp_path):
    result = train(make_federation(), rounds=1)
    result.personal("north").save(tmp_path / "m.safetensors")
    result.personals.save(tmp_path)
    one, every = (Personal.load, tmp_path / "m.safetensors"), (Personals.load, tmp_path)
    loads = {"m.safetensors": one, "m.json": one, "models.safetensors": every, "about.json": every}
    rng = np.random.default_rng(0)
    for name, load in loads.items():
        path = tmp_path / name
        whole = path.read_bytes()
        for _ in range(60):
            path.write_bytes(bad := damage_content(path, rng))
            answer = outcome(*load)
            if isinstance(answer, str):
                assert "damaged" in answer
                assert name in answer
                assert "\n" not in answer
            else:  # a blank of another kind: the same to JSON
                assert json.loads(bad) == json.loads(whole)
            path.write_bytes(whole)


def test_files_of_different_models_do_not_go_together(tmp_path):
    result = train(make_federation(), rounds=1)
    for name in ("north", "south"):
        result.personal(name).save(tmp_path / f"{name}.safetensors")
    (tmp_path / "north.safetensors").replace(tmp_path / "south.safetensors")
    with pytest.raises(fl.InputError, match=r"south\.safetensors is damaged or does not match south\.json"):
        Personal.load(tmp_path / "south.safetensors")
    with pytest.raises(fl.InputError, match=r"north\.safetensors cannot be read \(No such file"):
        Personal.load(tmp_path / "north.safetensors")


def test_a_newer_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("fedlap.personal.model_files.MODEL_FILE_FORMAT", MODEL_FILE_FORMAT + 1)
    train(make_federation(), rounds=1).personals.save(tmp_path)
    monkeypatch.undo()
    with pytest.raises(fl.InputError, match="written by a newer version of fedlap"):
        Personals.load(tmp_path)


def test_an_older_format_is_refused_in_one_line(tmp_path, monkeypatch):
    result = train(make_federation(), rounds=1)
    monkeypatch.setattr("fedlap.personal.model_files.MODEL_FILE_FORMAT", MODEL_FILE_FORMAT - 1)
    result.personals.save(tmp_path)
    result.personal("north").save(tmp_path / "m.safetensors")
    monkeypatch.undo()
    advice = r"older version of fedlap \(format 1, expected 2\); train and save the model again$"
    with pytest.raises(fl.InputError, match=advice):
        Personals.load(tmp_path)
    with pytest.raises(fl.InputError, match=advice):
        Personal.load(tmp_path / "m.safetensors")


def test_what_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    result = train(make_federation(), rounds=1)
    path = tmp_path / "m.safetensors"
    result.personal("north").save(path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def full(facts):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedlap.personal.model_files.encode_with_checksum", full)
    with pytest.raises(fl.InputError, match=r"m\.safetensors cannot be written \(No space left on device\)"):
        result.personal("south").save(path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    (tmp_path / "file").touch()
    with pytest.raises(fl.InputError, match="cannot be written"):
        result.personals.save(tmp_path / "file" / "models")
    with pytest.raises(fl.InputError, match=r"unsupported extension in .*m\.bin.; use \.safetensors"):
        result.personal("north").save(tmp_path / "m.bin")


def test_an_unknown_client(tmp_path):
    result = train(make_federation(), rounds=1)
    result.personals.save(tmp_path)
    for ask in (Personals.load(tmp_path).of_client, result.personal, result.model):
        with pytest.raises(fl.InputError, match="unknown client 'nort'; did you mean 'north'"):
            ask("nort")


def test_clients_by_names_of_any_kind(tmp_path):
    arrays = random_arrays([6, 6])
    federation = fl.Federation.from_arrays({"ß \udcff/": arrays["a"], 7: arrays["b"]}, labels=3, scale="none")
    train(federation, rounds=1).personals.save(tmp_path)
    assert Personals.load(tmp_path).of_client("7").client == "7"
    assert Personals.load(tmp_path).clients[0] == "ß \udcff/"
