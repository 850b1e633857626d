"""Work that does not grow with columns or clients one by one: counted, not timed."""

import numpy as np
import pandas
import pytest
import torch

import fedlap as fl
from fedlap.data.frames import FRAME_LOCATION, convert_features, find_repeated
from fedlap.data.user_files import load_file
from fedlap.report import DataSummary, data_summary, draw_clients
from random_inputs import random_arrays

CLIENTS = 60


def count_calls(monkeypatch, owner, name):
    """Return a list that grows by one for every call of a method."""
    calls, method = [], getattr(owner, name)

    def count_call(*args, **named):
        calls.append(name)
        return method(*args, **named)

    monkeypatch.setattr(owner, name, count_call)
    return calls


def test_no_column_of_numbers_is_looked_at_by_itself(monkeypatch):
    frame = pandas.DataFrame(np.random.default_rng(0).normal(size=(4, 300))).rename(columns=str)
    calls = count_calls(monkeypatch, pandas.DataFrame, "__getitem__")
    assert (convert_features(frame, FRAME_LOCATION) == frame.to_numpy()).all()
    assert len(calls) < 5


@pytest.mark.parametrize("kind", ["Int64", "Float32", "bool", "float32", "int8"])
def test_numbers_of_every_kind_are_those_of_each_column(kind):
    frame = pandas.DataFrame({"a": [1, 0, 1], "b": [0, 0, 1]}).astype({"a": kind})
    features = convert_features(frame, FRAME_LOCATION)
    assert features.dtype == np.float64
    assert features.tolist() == [[1, 0], [0, 0], [1, 1]]
    assert convert_features(frame.astype("float32"), FRAME_LOCATION).dtype == np.float32


@pytest.mark.parametrize("value", ["NA", "nan", "None", ""])
def test_words_for_nothing_are_clients_and_labels_but_no_numbers(tmp_path, value):
    path = tmp_path / "rows.csv"
    path.write_text("client,label,x\nNA,None,1\nNA,well,2\nnull,None,3\n")
    features = load_file(str(path), "client", "label")
    assert (features.clients, features.labels) == (("NA", "null"), ("None", "well"))
    path.write_text(f"client,label,x\na,p,1\na,q,{value}\n")
    with pytest.raises(fl.InputError, match="row 2, column 'x': a value is missing"):
        load_file(str(path), "client", "label")


def test_repeated_names():
    assert find_repeated(["a", "b", "a", "c", "b"]) == ["a", "b"]


def train_personals(scale, model):
    arrays = random_arrays([3 + place % 4 for place in range(CLIENTS)], 5, 3)
    federation = fl.Federation.from_arrays(arrays, test_share=0, labels=3).standardize(scale)
    result = fl.fit(fl.Local(lr=0.1), federation, model, rounds=2)
    return federation, result.personals


@pytest.mark.parametrize("scale", ["none", "pooled", "client"])
@pytest.mark.parametrize("model", [fl.models.linear(), fl.models.mlp(4)], ids=["linear", "mlp"])
def test_rows_of_many_clients_are_scored_as_those_of_each(monkeypatch, scale, model):
    federation, personals = train_personals(scale, model)
    random = np.random.default_rng(1)
    owner = random.integers(len(federation.clients), size=400)
    names = [federation.clients[place] for place in owner]
    x = torch.from_numpy(random.normal(size=(400, 5)))
    expected = torch.stack(
        [personals.of_client(name).scores(row[None])[0] for name, row in zip(names, x, strict=True)]
    )
    calls = count_calls(monkeypatch, type(personals.network), "scores")
    assert torch.allclose(personals.scores(names, x), expected, rtol=1e-5, atol=1e-6)
    assert len(calls) == len(set(np.bincount(owner)) - {0}) < CLIENTS / 2


def test_blocks_of_clients_do_not_change_scores(monkeypatch):
    federation, personals = train_personals("client", fl.models.linear())
    names = list(federation.clients) * 2
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(len(names), 5)))
    expected = personals.scores(names, x)
    monkeypatch.setattr("fedlap.personal.models.PREDICTION_BLOCK_VALUES", 50)
    assert torch.allclose(personals.scores(names, x), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(fl.InputError, match="unknown client 'nobody'"):
        personals.scores([*names[:-1], "nobody"], x)
    assert personals.scores([], x[:0]).shape == (0, 3)


def test_pictures_are_bytes_or_not_by_client():
    random = np.random.default_rng(3)
    pictures = {name: (random.integers(0, 256, (6, 4, 4), np.uint8), np.array([0, 1] * 3)) for name in "ab"}
    federation = fl.Federation.from_arrays(pictures, test_share=0, labels=2).standardize("pooled")
    personals = fl.fit(fl.Local(lr=0.1), federation, fl.models.linear(), rounds=2).personals
    x = torch.from_numpy(random.integers(0, 256, (4, 4, 4)).astype(float))
    x[3] += 0.5  # of the second client, whose rows are then no bytes
    both = personals.scores(["a", "a", "b", "b"], x)
    assert torch.equal(both[:2], personals.of_client("a").scores(x[:2]))
    assert torch.equal(both[2:], personals.of_client("b").scores(x[2:]))


@pytest.mark.parametrize(("number", "together"), [(7, 1), (2_000, 1), (4_500, 3)])
def test_a_picture_of_many_clients_shows_means_and_says_so(monkeypatch, number, together):
    figures = []
    monkeypatch.setattr(data_summary, "render_png", lambda figure: figures.append(figure) or b"")
    random = torch.Generator().manual_seed(0)
    train, test = torch.randint(1, 9, (2, number), generator=random)
    held = torch.stack([train, test], 1)
    names = tuple(str(place) for place in range(number))
    draw_clients(DataSummary("some", names, (3,), ("p", "q"), train, test, held, []))
    top, below = figures[0].axes[:2]
    values = top.patches[0].get_data().values
    assert len(values) == -(-number // together)
    assert values[0] == train[:together].double().mean()
    assert below.get_xlabel() == ("client" if together == 1 else "client (columns are means over 3 clients)")
