"""A user's own rows: the same from every kind of file, names and numbers kept, mistakes said in one line."""

import hashlib
import io
import json
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open

import fedlap as fl
from fedlap.data import npz as reading
from fedlap.data.fast import mapped
from fedlap.experiment import Experiment

FILES = ("csv", "parquet", "npz")
FEATURES = ["age", "dose"]
OWN = ("--client", "hospital", "--label", "outcome")
QUICK = ("--rounds", "1")
PNG = b"\x89PNG\r\n\x1a\n"

# Four clients with eight rows each, in turns; a client's labels alternate.
_rng = np.random.default_rng(0)
ROWS = pd.DataFrame(
    {
        "hospital": np.tile(["north", "south", "east", "west"], 8),
        "age": _rng.normal(size=32),
        "dose": _rng.integers(0, 9, 32),
        "outcome": np.tile(np.repeat(["well", "ill"], 4), 4),
    }
)
REAL = ROWS.assign(outcome=_rng.normal(size=32))


def arrays(frame):
    """A frame as the arrays of an NPZ file."""
    names = {name: frame[name].to_numpy() for name in ("hospital", "outcome") if name in frame}
    kept = {name: array.astype(str) if array.dtype == object else array for name, array in names.items()}
    return {"x": frame[[c for c in frame if c not in names]].to_numpy(float), **kept}


def zipped(save=np.savez, **given):
    buffer = io.BytesIO()
    save(buffer, **given)
    return buffer.getvalue()


def write(path, content):
    """A frame in the path's format, arrays, text, bytes, or a folder."""
    if content is None:
        path.mkdir()
    elif isinstance(content, str | bytes):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    elif path.suffix == ".npz":
        np.savez(path, **arrays(content))
    elif path.suffix == ".parquet":
        content.to_parquet(path, index=False)
    else:
        content.to_csv(path, index=False, float_format="%.17g")
    return str(path)


def loaded(form, frame, folder, held=None, test_share=0.25, seed=3, **settings):
    """A federation, unscaled, from this form of the same rows."""
    if form == "frame":
        return fl.Federation.from_dataframe(
            frame, "hospital", "outcome", test=held, test_share=test_share, seed=seed, **settings
        )
    if form == "arrays":
        names = None if frame.outcome.dtype == float else sorted(set(frame.outcome))

        def own(rows):
            y = rows.outcome if names is None else rows.outcome.map(names.index)
            x, y, whose = rows[FEATURES].to_numpy(float), y.to_numpy(), rows.hospital.to_numpy()
            return {name: (x[whose == name], y[whose == name]) for name in dict.fromkeys(whose)}

        test = None if held is None else own(held)
        return fl.Federation.from_arrays(own(frame), test_share, seed, test=test, labels=names)
    settings |= {"path": write(folder / f"my.{form}", frame), "client": "hospital", "label": "outcome"}
    if held is not None:
        settings["test"] = write(folder / f"held.{form}", held)
    return fl.data.load("file", seed, scale="none", test_share=test_share, **settings)


def but(row, **cells):
    """The rows with other values in one of them."""
    frame = ROWS.astype(object)
    for column, value in cells.items():
        frame.loc[row, column] = value
    return frame.infer_objects()


def metadata(folder):
    return json.loads((Path(folder) / "models" / "about.json").read_text())


def models(folder):
    with safe_open(Path(folder) / "models" / "models.safetensors", "np") as file:
        return file.get_tensor("models")


def named(federation):
    """The label of every training row, by name."""
    return [federation.labels[y] for y in federation.train.y.tolist()]


# The same rows are the same rows.


@pytest.mark.parametrize("rows", [ROWS, REAL], ids=["classes", "targets"])
@pytest.mark.parametrize("held", [False, True], ids=["drawn", "given"])
@pytest.mark.parametrize("form", [*FILES, "arrays"])
def test_every_form_of_the_same_rows_trains_the_same_models(form, held, rows, tmp_path):
    given = (rows[:21], tmp_path, rows[21:]) if held else (rows[:29], tmp_path)  # clients of unequal sizes
    one, other = loaded(form, *given), loaded("frame", *given)
    assert (one.clients, one.labels, one.inputs) == (other.clients, other.labels, other.inputs)
    for mine, theirs in ((one.train, other.train), (one.test, other.test)):
        for field in ("x", "y", "count"):
            assert torch.equal(getattr(mine, field), getattr(theirs, field))

    def trained(federation):
        method = fl.FedU(fl.Graph.ring(federation.clients), strength=0.1, lr=0.1, local_steps=3)
        return fl.fit(method, federation.scaled("pooled"), fl.models.linear(), rounds=2, batch=4, seed=1)

    assert torch.equal(trained(one).models, trained(other).models)


def test_the_command_line_trains_the_same_models_from_every_kind_of_file(call, tmp_path):
    kept = []
    for form in FILES:
        path = write(tmp_path / f"my.{form}", ROWS)
        code, out, _ = call("run", "--data", path, *OWN, "--rounds", "3", "--json")
        folder = Path(json.loads(out)["folder"])
        assert code == 0
        assert folder.name.startswith("my-fedu-")
        about = metadata(folder)
        assert about["labels"] == ["ill", "well"]
        assert about["clients"] == ["north", "south", "east", "west"]
        kept.append(models(folder))
    assert np.array_equal(kept[0], kept[1])
    assert np.array_equal(kept[0], kept[2])


@pytest.mark.parametrize("form", FILES)
def test_numbers_survive_to_the_last_bit(form, tmp_path):
    values = np.random.default_rng(7).integers(0, 0x7FF << 52, 600).view(np.float64)  # of every magnitude
    frame = pd.DataFrame({"hospital": "a", "v": values, "outcome": values[::-1]})
    made = loaded(form, frame, tmp_path, test_share=0.0)
    assert np.array_equal(made.train.x[:, 0].numpy(), values)
    assert np.array_equal(made.train.y[:, 0].numpy(), values[::-1])


@pytest.mark.parametrize("form", [*FILES, "frame"])
def test_huge_targets_stay_what_they_are(form, tmp_path):
    made = loaded(form, ROWS.assign(outcome=np.tile([1e20, -3e30], 16)), tmp_path, task="regression")
    assert sorted(set(made.train.y.flatten().tolist())) == [-3e30, 1e20]


# Names.

LABELS = {
    "text": (["well", "ill", "ill", "ok"], ["ill", "ok", "well"]),
    "text, capitals and accents": (["b", "É", "B", "é"], ["B", "b", "É", "é"]),
    "true or false": ([True, False, False, True], ["False", "True"]),
    "from one": ([6, 4, 2, 5, 1, 3, 1, 1], ["1", "2", "3", "4", "5", "6"]),
    "signs": ([1, -1, -1, 1], ["-1", "1"]),
    "by size, not as text": ([10, 9, 9, 100], ["9", "10", "100"]),
    "whole though real": ([2.0, 1.0, 2.0, 2.0], ["1", "2"]),
    "words for nothing": (["None", "NA", "ill", "nan"], ["NA", "None", "ill", "nan"]),
    "words beside numbers": (["1", "2", "x", "NA"], ["1", "2", "NA", "x"]),
}


@pytest.mark.parametrize("form", [*FILES, "frame"])
@pytest.mark.parametrize("case", LABELS)
def test_labels_keep_their_names(case, form, tmp_path):
    values, names = LABELS[case]
    own = np.repeat(["a", "b"], 16)
    made = loaded(form, ROWS.assign(hospital=own, outcome=np.tile(values, 32 // len(values))), tmp_path)
    assert made.labels == tuple(names)
    given = [str(int(v)) if isinstance(v, float) else str(v) for v in np.tile(values, 32 // len(values))]
    rows = {tuple(x): label for x, label in zip(ROWS[FEATURES].to_numpy(float).tolist(), given, strict=True)}
    assert named(made) == [rows[tuple(x)] for x in made.train.x.tolist()]


@pytest.mark.parametrize("form", ["parquet", "frame"])
def test_categories_keep_their_own_order(form, tmp_path):
    order = ["low", "mid", "high"]
    values = pd.Categorical(np.resize(["mid", "high", "low"], 32), categories=order)
    made = loaded(form, ROWS.assign(outcome=values), tmp_path)
    assert made.labels == tuple(order)
    assert set(named(made)) == set(order)


@pytest.mark.parametrize(
    ("kind", "names"), [("Int64", ("1", "2")), ("Float64", ("1", "2")), ("string", ("1", "2"))]
)
def test_labels_of_nullable_columns(kind, names):
    frame = ROWS.assign(outcome=pd.array(np.tile(np.repeat([2, 1], 4), 4), dtype="Int64").astype(kind))
    assert fl.Federation.from_dataframe(frame, "hospital", "outcome").labels == names


@pytest.mark.parametrize("form", [*FILES, "frame"])
@pytest.mark.parametrize(
    ("own", "test", "names"),
    [
        (["1", "2", "x", "2"], ["1", "2"], ("1", "2", "x")),
        (["true", "maybe", "true", "maybe"], ["true"], ("maybe", "true")),
        (["NA", "ill", "NA", "ill"], ["NA"], ("NA", "ill")),
        ([1, 2, 1, 2], [3], ("1", "2", "3")),
    ],
    ids=["numbers", "truth", "nothing", "one class more"],
)
def test_a_label_is_the_same_in_the_test_file(own, test, names, form, tmp_path):
    frame = ROWS.assign(outcome=np.tile(np.repeat(own, 4), 2))
    made = loaded(form, frame, tmp_path, frame[:8].assign(outcome=np.resize(test, 8)))
    assert made.labels == names
    assert {names[y] for y in made.test.y.tolist()} == set(map(str, test))


CLIENTS = ("007", "NA", "1.0", "None", "São José", "a b", "東京", "nan", "true", "1")


@pytest.mark.parametrize("form", [*FILES, "frame"])
def test_names_of_clients_stay_text(form, tmp_path):
    frame = pd.DataFrame({"hospital": np.resize(CLIENTS, 80), "age": np.arange(80.0)})
    frame["outcome"] = np.where(np.arange(80) // 10 % 2, "x", "y")
    assert loaded(form, frame, tmp_path).clients == CLIENTS


def test_names_end_up_in_the_run_folder(call, tmp_path):
    path = write(tmp_path / "a b.csv", ROWS.assign(hospital=np.resize(["007", "NA", "1.0", "São José"], 32)))
    code, out, _ = call("run", "--data", path, *OWN, *QUICK, "--json")
    folder = json.loads(out)["folder"]
    assert code == 0
    assert Path(folder).name.startswith("a b-fedu-")
    assert metadata(folder)["clients"] == ["007", "NA", "1.0", "São José"]
    assert metadata(folder)["labels"] == ["ill", "well"]


@pytest.mark.parametrize("form", ["parquet", "npz", "frame"])
@pytest.mark.parametrize("kind", [int, float])
def test_clients_that_are_whole_numbers(kind, form, tmp_path):
    frame = ROWS.assign(hospital=np.resize(np.array([7, 1, 20, 3], kind), 32))
    assert loaded(form, frame, tmp_path).clients == ("7", "1", "20", "3")


def test_clients_in_an_array_of_bytes(tmp_path):
    given = {**arrays(ROWS), "hospital": ROWS.hospital.to_numpy().astype("S")}
    path = write(tmp_path / "my.npz", given)
    made = fl.data.load("file", path=path, client="hospital", label="outcome")
    assert made.clients == ("north", "south", "east", "west")


def test_columns_of_a_frame_may_be_numbered():
    frame = pd.DataFrame(ROWS[FEATURES].to_numpy(float)).assign(hospital=ROWS.hospital, outcome=ROWS.outcome)
    made = fl.Federation.from_dataframe(frame, "hospital", "outcome")
    assert made.inputs == (2,)


def test_any_frame_that_turns_into_one_of_pandas():
    class Other:
        def to_pandas(self):
            return ROWS

    made = fl.Federation.from_dataframe(Other(), "hospital", "outcome", drop=["dose"])
    assert made.inputs == (1,)
    assert made.labels == ("ill", "well")


def test_features_are_those_that_are_named():
    made = fl.Federation.from_dataframe(ROWS, "hospital", "outcome", features=["dose"], test_share=0.125)
    assert np.array_equal(made.train.x.unique().numpy(), np.unique(ROWS.dose.astype(float)))
    assert made.train.count.tolist() == [7] * 4


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    path = write(tmp_path / "my.csv", b"\xef\xbb\xbf" + ROWS.to_csv(index=False).encode())
    assert len(fl.data.load("file", path=path, client="hospital", label="outcome").clients) == 4


# Classes or targets.


@pytest.mark.parametrize("form", [*FILES, "frame"])
def test_the_task_follows_from_the_labels_and_can_be_overridden(form, tmp_path):
    whole = ROWS.assign(outcome=np.tile(np.repeat([1, 4], 4), 4))
    assert loaded(form, REAL, tmp_path).labels is None
    assert loaded(form, whole, tmp_path).labels == ("1", "4")
    forced = loaded(form, whole, tmp_path, task="regression")
    assert forced.labels is None
    assert forced.train.y.unique().tolist() == [1.0, 4.0]
    many = pd.DataFrame({"hospital": "a", "age": 0.5, "outcome": np.arange(101)})
    assert len(loaded(form, many, tmp_path, task="classification").labels) == 101
    assert len(loaded(form, many[:100], tmp_path).labels) == 100
    with pytest.raises(
        fl.InputError, match=r"101 different whole numbers.*task = classification.*regression"
    ):
        loaded(form, many, tmp_path)


@pytest.mark.parametrize("form", FILES)
def test_a_regression_is_scored_by_its_loss(form, call, tmp_path):
    code, out, _ = call("run", "--data", write(tmp_path / f"my.{form}", REAL), *OWN, *QUICK)
    assert code == 0
    assert "loss" in out
    assert "accuracy" not in out


def test_targets_of_several_columns(call, tmp_path):
    given = {**arrays(ROWS), "outcome": np.random.default_rng(1).normal(size=(32, 3))}
    path = write(tmp_path / "my.npz", given)
    assert fl.data.load("file", path=path, client="hospital", label="outcome").outputs == 3
    code, out, _ = call("run", "--data", path, *OWN, *QUICK, "--json")
    assert code == 0
    assert metadata(json.loads(out)["folder"])["labels"] is None


# NPZ files.


@pytest.mark.parametrize("model", ["cnn", "linear"])
def test_pictures_stay_bytes(model, call, tmp_path):
    pictures = np.random.default_rng(0).integers(0, 256, (32, 1, 8, 8)).astype(np.uint8)
    path = write(
        tmp_path / "my.npz",
        {"x": pictures, "y": np.arange(32) // 4 % 2, "client": ROWS.hospital.to_numpy(str)},
    )
    code, out, _ = call("run", "--data", path, "--model", model, *QUICK, "--json")
    assert code == 0
    assert json.loads(out)["experiment"]["model"]["name"] == model
    made = fl.data.load("file", path=path)
    assert made.train.store.dtype == torch.uint8
    assert (made.inputs, made.clients) == ((1, 8, 8), ("north", "south", "east", "west"))


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.uint8])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_features_stay_in_the_file_unless_compressed(save, kind, tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(reading, "mapped", lambda path: seen.setdefault("arrays", mapped(path)))
    x = np.arange(64).reshape(32, 2).astype(kind)
    path = write(tmp_path / "my.npz", zipped(save, x=x, y=np.arange(32) // 4 % 2, client=np.arange(32) % 4))
    store = fl.data.load("file", path=path).train.store
    found = seen["arrays"]["x"]
    assert store.data_ptr() == found.ctypes.data
    assert store.dtype == torch.from_numpy(x).dtype
    assert np.array_equal(store.numpy(), x)
    while found is not None and not isinstance(found, np.memmap):
        found = getattr(found, "base", None)
    assert (found is not None) == (save is np.savez)


# Files by their content.


@pytest.mark.parametrize("form", FILES)
@pytest.mark.parametrize("changed", ["my", "held"])
def test_an_experiment_refuses_a_file_that_changed(changed, form, tmp_path):
    paths = {name: tmp_path / f"{name}.{form}" for name in ("my", "held")}
    for path in paths.values():
        write(path, ROWS)
    data = {"name": "file", "path": str(paths["my"]), "client": "hospital", "label": "outcome"}
    experiment = Experiment.of({"data": {**data, "test": str(paths["held"])}})
    description = experiment.described()
    assert description["data"]["sha256"] == hashlib.sha256(paths["my"].read_bytes()).hexdigest()
    assert description["data"]["test_sha256"] == hashlib.sha256(paths["held"].read_bytes()).hexdigest()
    Experiment.of(description).build()
    write(paths[changed], ROWS[::-1])
    with pytest.raises(fl.InputError, match=rf"{changed}\.{form}.*SHA-256 differs"):
        Experiment.of(description).build()
    assert Experiment.of({"data": {**data, "test": str(paths["held"])}}).digest != experiment.digest


@pytest.mark.parametrize("form", FILES)
def test_a_file_that_changed_is_read_again(form, tmp_path):
    first = loaded(form, ROWS, tmp_path).train.x
    second = loaded(form, ROWS.assign(age=ROWS.age + 1), tmp_path).train.x
    assert torch.equal(second[:, 0], first[:, 0] + 1)
    assert torch.equal(loaded(form, ROWS, tmp_path).train.x, first)


def test_a_run_of_one_s_own_file_can_be_repeated_from_its_folder(call, tmp_path):
    _, out, _ = call(
        "run", "--data", write(tmp_path / "my.csv", ROWS), *OWN, "--rounds", "2", "--scarce", "--json"
    )
    folder = json.loads(out)["folder"]
    again = Experiment.of(tomllib.loads((Path(folder) / "experiment.toml").read_text()))
    assert np.array_equal(models(folder), again.run().models.numpy())


# What may surprise.

ALONE = ROWS.assign(outcome=np.where(ROWS.hospital == "south", "ill", ROWS.outcome))


def test_clients_with_one_label_are_remarked_on(call, tmp_path):
    with pytest.warns(fl.DataWarning, match="1 of 4 clients have training rows of one label only.*: south"):
        fl.Federation.from_dataframe(ALONE, "hospital", "outcome")
    path = write(tmp_path / "my.csv", ALONE)
    code, out, err = call("data", "describe", path, *OWN)
    assert (code, err) == (0, "")
    assert "1 of 4 clients have training rows of one label only" in out
    code, out, err = call("run", "--data", path, *OWN, *QUICK)
    assert code == 0
    assert "note: 1 of 4 clients have training rows of one label only" in err
    assert "note" not in out
    _, _, err = call(
        "compare", "--data", path, *OWN, *QUICK, "--algorithms", "local,global", "--seeds", "0-1"
    )
    assert err.count("one label only") == 1  # said once, not for every algorithm


def test_clients_without_test_rows_are_remarked_on(call, tmp_path):
    held = ROWS[:8][ROWS[:8].hospital != "east"]
    with pytest.warns(fl.DataWarning, match="1 of 4 clients have no test rows.*: east"):
        made = fl.Federation.from_dataframe(ROWS, "hospital", "outcome", test=held)
    assert made.test.count.tolist() == [2, 2, 0, 2]
    words = (write(tmp_path / "my.csv", ROWS), *OWN, "--test", write(tmp_path / "held.csv", held), "--json")
    code, out, _ = call("data", "describe", *words)
    answer = json.loads(out)
    assert code == 0
    assert (answer["train_rows"], answer["test_rows"]) == (32, 6)
    assert any("no test rows" in remark for remark in answer["remarks"])
    assert call("run", "--data", *words, *QUICK)[0] == 0


# Cuts of one's own rows.


@pytest.mark.parametrize(
    ("words", "clients", "train"),
    [
        ([*OWN], 4, 24),
        ([*OWN, "--partition", "natural"], 4, 24),
        ([*OWN, "--scarce"], 4, 14),  # two of four keep ⌊0.2·6 + ½⌋ of their six
        ([*OWN, "--set", "scarce.keep=0.1"], 4, 14),  # and ⌊0.1·6 + ½⌋ is one as well
        ([*OWN, "--set", "scarce.keep=0.5", "--set", "scarce.share_of_clients=1"], 4, 12),
        ([*OWN, "--set", "data.test_share=0.5"], 4, 16),
        ([*OWN, "--partition", "iid", "--set", "partition.clients=8"], 8, 24),
        ([*OWN, "--partition", "labels", "--set", "partition.clients=5", "--set", "data.test_share=0"],
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
    code, out, _ = call("run", "--data", path, *OWN, *words, *QUICK, "--json")
    assert code == 0
    assert models(json.loads(out)["folder"]).shape == (4, 2 * (features + 1))


def test_algorithms_are_compared_on_one_s_own_rows(call, tmp_path):
    words = ("--algorithms", "fedu,local", "--seeds", "0-1", "--rounds", "2")
    code, out, _ = call("compare", "--data", write(tmp_path / "my.csv", ROWS), *OWN, *words)
    assert code == 0
    assert "my: test rows after round 2" in out
    (folder,) = (tmp_path / "runs").glob("my-compare-*")
    assert "| fedu |" in (folder / "table.md").read_text()


# Descriptions.


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
    given = [rows] if isinstance(rows, str) else [write(tmp_path / "my.csv", rows), *OWN]
    code, out, err = call("data", "describe", *given, *words, "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert {key: answer[key] for key in wanted} == wanted
    assert answer["train_rows"] + answer["test_rows"] == answer["rows"]
    picture = Path(answer["picture"]).read_bytes()
    assert picture[:8] == PNG
    assert len(picture) > 1000
    Path(answer["picture"]).unlink()
    code, out, err = call("data", "describe", *given, *words)
    assert (code, err) == (0, "")
    assert f"clients   {answer['clients']:,}\n" in out
    assert f"{answer['rows']:,}: {answer['train_rows']:,} for training" in out
    names = (
        ["real numbers"] if answer["labels"] is None else [f"{k}: {v:,}" for k, v in answer["labels"].items()]
    )
    assert all(name in out for name in names)
    assert Path(answer["picture"]).read_bytes() == picture
    assert answer["picture"] in out


@pytest.mark.parametrize("name", ["São José", "東京", "$1%$", r"up $\q$", "[/b]"])
def test_names_of_any_kind_can_be_drawn(name, call, tmp_path):
    path = write(tmp_path / "my.csv", ROWS.replace({"north": name, "ill": name}))
    code, out, err = call("data", "describe", path, *OWN)
    assert (code, err) == (0, "")
    assert f"{name}: 16" in out


@pytest.mark.parametrize("stem", ["my[b]rows", "$1%$", "ünï.a b"])
def test_a_file_may_have_any_name(stem, call, tmp_path):
    path = write(tmp_path / f"{stem}.csv", ROWS)
    assert call("data", "describe", path, *OWN)[0] == 0
    code, out, _ = call("run", "--data", path, *OWN, *QUICK)
    assert code == 0
    assert f"{stem}: test rows" in out
    assert len(list((tmp_path / "runs").glob("*-fedu-*"))) == 1


# Mistakes.

HEAD = "hospital,age,outcome\n"
LINES = "north,1,ill\nnorth,2,well\nsouth,3,ill\nsouth,4,well\n"
X, Y, WHO = np.zeros((32, 2)), np.arange(32) // 4 % 2, np.arange(32) % 4
SAVED = zipped(np.savez_compressed, x=_rng.normal(size=(32, 2)), y=Y, client=WHO)
WIDE = [f"f{k}" for k in range(1100)]


def npz(**changes):
    return {"my.npz": {"x": X, "y": Y, "client": WHO} | changes}


def place(array, at, value):
    changed = np.array(array, float)
    changed[at] = value
    return changed


HELD = [*OWN, "--test", "{}/held.csv"]


def put(setting):
    return [*OWN, "--set", setting]


BAD = {
    # name: ({file: content}, further words, what the line says); the first file is the data
    **{
        f"{what} in a {column} of {form}": (
            {f"my.{form}": but(3, **{column: value})}, OWN,
            [f"my.{form}", "row 4", f"'{column}'", "missing", "fill in or leave out"])
        for form in ("csv", "parquet")
        for what, column, value in [
            ("a gap", "age", np.nan), ("infinity", "age", np.inf), ("minus infinity", "age", -np.inf),
            ("a gap", "outcome", None), ("a gap", "hospital", None)]
    },
    **{
        f"{text!r} among numbers like {number}": (
            {"my.csv": but(3, outcome=text).replace({"outcome": {"ill": "1", "well": number}})}, OWN,
            ["my.csv", "row 4", "'outcome'", "missing"])
        for text in ("NA", "nan", "NULL", "None", "") for number in ("2", "2.5")
    },
    **{
        f"nothing but {text!r} in {column}": (
            {"my.csv": ROWS.assign(**{column: text})}, OWN, ["my.csv", "row 1", f"'{column}'", "missing"])
        for column, text in (("outcome", ""), ("outcome", "NA"), ("hospital", ""), ("age", ""))
    },
    "a truth is missing": (
        {"my.csv": but(3, outcome="").replace({"outcome": {"ill": "true", "well": "false"}})}, OWN,
        ["row 4", "'outcome'"]),
    **{
        f"infinite targets of {form}, others {kind}": (
            {f"my.{form}": REAL.assign(outcome=place(values, 3, np.inf))}, OWN,
            [f"my.{form}", "row 4", "'outcome'", "infinite"])
        for form in ("csv", "parquet") for kind, values in (("real", REAL.outcome), ("whole", Y))
    },
    "a gap in the test file": (
        {"my.csv": ROWS, "held.csv": but(3, age=np.nan)}, HELD,
        ["held.csv", "row 4", "'age'"]),
    "a short line": ({"my.csv": HEAD + LINES + "south,5\n"}, OWN, ["row 5", "'outcome'", "missing"]),
    "a long line": ({"my.csv": HEAD + LINES + "south,5,ill,9\n"}, OWN, ["my.csv", "line 6"]),
    "lines longer than the header": (
        {"my.csv": HEAD + LINES.replace("north", "1,north").replace("south", "2,south")}, OWN, ["my.csv"]),
    "an open quotation mark": ({"my.csv": HEAD + LINES + '"south,5,ill\n'}, OWN, ["my.csv"]),
    "another encoding": (
        {"my.csv": (HEAD + LINES + "Jos\u00e9,5,ill\n").encode("latin-1")}, OWN, ["my.csv", "utf-8"]),
    "utf-16": ({"my.csv": (HEAD + LINES).encode("utf-16")}, OWN, ["my.csv", "utf-8"]),
    "binary": ({"my.csv": bytes(range(256)) * 4}, OWN, ["my.csv"]),
    "a header twice": ({"my.csv": "hospital,age,age,outcome\nnorth,1,2,ill\n"}, OWN, ["'age'", "twice"]),
    "a feature twice": ({"my.csv": ROWS}, put('data.features=["age", "age"]'), ["'age'", "twice"]),
    "no features chosen": ({"my.csv": ROWS}, put("data.features=[]"), ["feature"]),
    "one column for both": ({"my.csv": ROWS}, [
        "--client", "outcome", "--label", "outcome", "--set", 'data.drop=["hospital"]'], ["'outcome'"]),
    "the label a feature": ({"my.csv": ROWS}, put('data.features=["outcome"]'), ["'outcome'"]),
    "words": ({"my.csv": ROWS.assign(city="Rome")}, OWN, ["'city'", "'Rome'", "not numbers", "drop"]),
    "words in the test file": (
        {"my.csv": ROWS, "held.csv": ROWS.assign(age="old")}, HELD,
        ["held.csv", "'age'", "'old'"]),
    "one word among numbers": ({"my.csv": but(20, age="?")}, OWN, ["my.csv", "'age'", "'?'", "row 21"]),
    "one word in a large file": (
        {"my.csv": ",".join([*WIDE, "hospital", "outcome\n"]) + ("1," * 1100 + "a,x\n") * 999
         + "1," * 1099 + "?,a,y\n"},
        OWN, ["'f1099'", "'?'", "row 1000"]),
    "dates": ({"my.csv": ROWS.assign(day="2020-01-31")}, OWN, ["'day'", "'2020-01-31'"]),
    "dates of parquet": (
        {"my.parquet": ROWS.assign(day=pd.Timestamp("2020-01-31"))}, OWN, ["'day'", "2020-01-31", "drop"]),
    "no feature": ({"my.csv": ROWS[["hospital", "outcome"]]}, OWN, ["no column is left to be a feature"]),
    "all dropped": ({"my.csv": ROWS}, put('data.drop=["age", "dose"]'), ["no column is left"]),
    "an empty file": ({"my.csv": ""}, OWN, ["my.csv"]),
    "an empty parquet file": ({"my.parquet": b""}, OWN, ["my.parquet", "cannot be read"]),
    "an empty npz file": ({"my.npz": b""}, OWN, ["my.npz", "cannot be read"]),
    "a header only": ({"my.csv": HEAD}, OWN, ["my.csv", "no rows"]),
    "no rows in parquet": ({"my.parquet": ROWS[:0]}, OWN, ["my.parquet", "no rows"]),
    "no test rows": ({"my.csv": ROWS, "held.csv": HEAD}, HELD, ["held.csv", "no rows"]),
    "unknown client column": (
        {"my.csv": ROWS}, ["--client", "hospitl", "--label", "outcome"], ["'hospitl'", "mean 'hospital'"]),
    "unknown label": ({"my.csv": ROWS}, ["--client", "hospital", "--label", "outcom"], ["mean 'outcome'"]),
    "unknown column to drop": ({"my.csv": ROWS}, put('data.drop=["dos"]'), ["mean 'dose'"]),
    "unknown feature": ({"my.csv": ROWS}, put('data.features=["agee"]'), ["mean 'age'"]),
    "unknown column of parquet": (
        {"my.parquet": ROWS}, ["--client", "hospital", "--label", "outcom"],
        ["my.parquet", "mean 'outcome'"]),
    "unknown array": (npz(), ["--label", "yy"], ["my.npz", "mean 'y'"]),
    "drop is no list": ({"my.csv": ROWS}, put("data.drop=age"), ["data.drop", "'age'", "list"]),
    "other separators": ({"my.csv": (HEAD + LINES).replace(",", ";")}, OWN, ["my.csv", "'hospital'"]),
    "no label": ({"my.csv": ROWS}, ["--client", "hospital"], ["my.csv", "--label"]),
    "no label of parquet": ({"my.parquet": ROWS}, ["--client", "hospital"], ["my.parquet", "--label"]),
    "no client": (
        {"my.csv": ROWS}, ["--label", "outcome", "--set", 'data.drop=["hospital"]'], ["client", "partition"]),
    "natural without clients": (npz() | {"my.npz": {"x": X, "y": Y}}, ["--partition", "natural"], ["client"]),
    "no such file": ({"other.csv": ROWS}, ["--set", "data.path={}/none.csv"], ["none.csv", "No such file"]),
    "no such test file": ({"my.csv": ROWS}, [*OWN, "--test", "{}/none.csv"], ["none.csv", "No such file"]),
    "a folder": ({"my.csv": None}, OWN, ["my.csv", "directory"]),
    "a folder as parquet": ({"my.parquet": None}, OWN, ["my.parquet", "directory"]),
    "a folder as npz": ({"my.npz": None}, OWN, ["my.npz", "directory"]),
    "a spreadsheet": ({"my.xlsx": b"PK"}, OWN, ["my.xlsx", ".csv", ".parquet", ".npz"]),
    "plain text": ({"my.txt": HEAD + LINES}, OWN, ["my.txt", ".csv"]),
    "a test file of another kind": (
        {"my.csv": ROWS, "held.parquet": ROWS}, [*OWN, "--test", "{}/held.parquet"],
        ["my.csv", "held.parquet", "one kind"]),
    "a test file without a column": (
        {"my.csv": ROWS, "held.csv": ROWS.drop(columns="dose")}, HELD,
        ["held.csv", "'dose'"]),
    "a test file without the label": (
        {"my.csv": ROWS, "held.csv": ROWS.drop(columns="outcome")}, HELD,
        ["held.csv", "'outcome'"]),
    **{
        f"a client of the test file only, {form}": (
            {f"my.{form}": ROWS, f"held.{form}": but(0, hospital="moon")},
            [*OWN, "--test", f"{{}}/held.{form}"], [f"held.{form}", "'moon'", f"my.{form}", "leave it out"])
        for form in FILES
    },
    "junk as parquet": ({"my.parquet": b"PAR1 nothing"}, OWN, ["my.parquet", "cannot be read"]),
    "half a parquet file": ({"my.parquet": ROWS.to_parquet()[:900]}, OWN, ["my.parquet", "cannot be read"]),
    "csv called parquet": ({"my.parquet": HEAD + LINES}, OWN, ["my.parquet", "cannot be read"]),
    "junk as npz": ({"my.npz": b"nothing"}, OWN, ["my.npz", "cannot be read"]),
    "half an npz file": ({"my.npz": zipped(x=X, y=Y)[:600]}, OWN, ["my.npz", "cannot be read"]),
    **{
        f"npz damaged at byte {at}": (
            {"my.npz": SAVED[:at] + b"\xff" * 40 + SAVED[at + 40:]}, [], ["my.npz", "cannot be read"])
        for at in (0, 26, 55, 100, len(SAVED) - 60)
    },
    "one array as npz": ({"my.npz": zipped(np.save, arr=X)}, [], ["my.npz", "cannot be read"]),
    "objects": (npz(y=np.array(["ill", None] * 16, object)), [], ["my.npz", "y", "objects"]),
    "objects, compressed": (
        {"my.npz": zipped(np.savez_compressed, x=X, y=np.array([0, None] * 16, object))}, [],
        ["my.npz", "cannot be read"]),
    "no arrays": ({"my.npz": zipped()}, [], ["my.npz", "'x'"]),
    "no x": (npz() | {"my.npz": {"features": X, "y": Y, "client": WHO}}, [], ["my.npz", "'x'", "features"]),
    "labels too few": (npz(y=Y[:-1]), [], ["my.npz", "(32, 2)", "(31,)"]),
    "clients too few": (npz(client=WHO[:-1]), [], ["my.npz", "31", "32"]),
    "test labels too few": (
        npz(x=X[:31]) | {"held.npz": {"x": X, "y": Y[:-1], "client": WHO[:-1]}}, ["--test", "{}/held.npz"],
        ["my.npz", "(31, 2)", "(32,)"]),
    "test rows of another shape": (
        npz() | {"held.npz": {"x": X[:, :1], "y": Y, "client": WHO}}, ["--test", "{}/held.npz"],
        ["held.npz"]),
    "test rows without clients": (
        npz() | {"held.npz": {"x": X, "y": Y}}, ["--test", "{}/held.npz"], ["'client'"]),
    "one label for all": (npz(y=np.array(1)), [], ["my.npz", "labels of shape"]),
    "clients in a table": (npz(client=np.stack([WHO, WHO], 1)), [], ["my.npz", "client"]),
    "a gap in x": (npz(x=place(X, (3, 0), np.nan)), [], ["my.npz", "row 3", "feature", "NaN"]),
    "a gap in y": (npz(y=place(Y, 3, np.nan)), [], ["my.npz", "row 3", "label", "NaN"]),
    "infinity in y": (npz(y=place(Y, 3, np.inf)), [], ["my.npz", "row 3", "label", "infinite"]),
    "a gap in client": (npz(client=place(WHO, 3, np.nan)), [], ["my.npz", "row 3", "client"]),
    "text in x": (npz(x=X.astype(str)), [], ["my.npz", "numbers"]),
    "complex x": (npz(x=X + 1j), [], ["my.npz", "real numbers"]),
    "complex y": (npz(y=Y + 1j), [], ["my.npz", "real numbers"]),
    "whole numbers in columns": (npz(y=np.stack([Y, Y], 1)), [], ["my.npz", "(32, 2)"]),
    "columns as classes": (
        npz(y=np.zeros((32, 2))), ["--set", "data.task=classification"], ["my.npz", "classification"]),
    "no rows in npz": (npz(x=X[:0], y=Y[:0], client=WHO[:0]), [], ["my.npz", "no rows"]),
    "two arrays of features": (npz(), ["--set", 'data.features=["x", "y"]'], ["my.npz", "one array"]),
    "columns of npz dropped": (npz(), ["--set", 'data.drop=["x"]'], ["drop", "my.npz"]),
    "text as targets": ({"my.csv": ROWS}, put("data.task=regression"), ["'outcome'", "numbers"]),
    "reals as classes": ({"my.csv": REAL}, put("data.task=classification"), ["'outcome'", "regression"]),
    "many whole numbers": (
        {"my.csv": pd.DataFrame({"hospital": "a", "age": 0.5, "outcome": range(101)})}, OWN,
        ["my.csv", "'outcome'", "101", "task = classification", "task = regression"]),
    "no such task": ({"my.csv": ROWS}, put("data.task=regresion"), ["data.task", "'regression'"]),
    "no such setting": ({"my.csv": ROWS}, put("data.drp=1"), ["'drp'", "'drop'"]),
    "another content": ({"my.csv": ROWS}, put("data.sha256=abc"), ["my.csv", "SHA-256"]),
    "more clients than rows": (
        {"my.csv": ROWS}, [*OWN, "--partition", "iid", "--set", "partition.clients=33"],
        ["33 clients", "32 rows"]),
    "targets cut by label": ({"my.csv": REAL}, [*OWN, "--partition", "dirichlet"], ["real numbers", "iid"]),
    "no such partition": ({"my.csv": ROWS}, [*OWN, "--partition", "lables"], ["'lables'", "'labels'"]),
    "no such setting of scarce": ({"my.csv": ROWS}, put("scarce.kep=1"), ["'kep'", "'keep'"]),
    "scarce by too much": ({"my.csv": ROWS}, put("scarce.keep=2"), ["keep = 2"]),
    "test all": ({"my.csv": ROWS}, put("data.test_share=1"), ["test_share = 1"]),
    "client of a known set": ({"digits": None}, ["--client", "x"], ["--client", "'digits'"]),
    "drop of a known set": ({"digits": None}, ["--drop", "x"], ["--drop", "'digits'"]),
    "label of a known set": ({"digits": None}, ["--label", "x"], ["--label", "'digits'"]),
    "test of a known set": ({"synthetic": None}, ["--test", "x.csv"], ["--test", "'synthetic'"]),
    "natural digits": ({"digits": None}, ["--partition", "natural"], ["'digits'", "labels", "iid"]),
    "too few clients for the labels": (
        {"digits": None}, ["--partition", "labels", "--set", "partition.clients=5"],
        ["5 clients", "10 labels"]),
    "a cut of synthetic": ({"synthetic": None}, ["--partition", "iid"], ["'synthetic'", "partition"]),
    "a set misspelt": ({"digts": None}, [], ["'digts'", "did you mean 'digits'"]),
    "no path": ({"file": None}, [], ["path"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_clear_line_and_exit_code_2(case, call, tmp_path):
    contents, words, wanted = BAD[case]
    for name, content in contents.items():
        if "." in name:
            write(tmp_path / name, content)
    first = next(iter(contents))
    data = str(tmp_path / first) if "." in first else first
    given = [word.replace("{}", str(tmp_path)) for word in words]
    for command in (["run", *QUICK, "--data", data], ["data", "describe", data]):
        code, out, err = call(*command, *given)
        assert (code, out) == (2, ""), err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err
        for piece in wanted:
            assert piece in err, err


@pytest.mark.parametrize("setting", ["rounds=3", "algorithm.lr=1", "model=mlp"])
def test_a_description_takes_no_settings_of_training(setting, call):
    code, _, err = call("data", "describe", "digits", "--set", setting)
    assert code == 2
    assert err.count("\n") == 1
    assert f"--set {setting}: only data, partition, scarce and seed matter here" in err


WRONG = {
    # name: (frame, settings, what the error says)
    "no frame": (ROWS.to_dict(), {}, "type dict; give a pandas DataFrame"),
    "no rows": (ROWS[:0], {}, "the data frame has no rows"),
    "no test rows": (ROWS, {"test": ROWS[:0]}, "the test frame has no rows"),
    "a column twice": (pd.concat([ROWS, ROWS[["age"]]], axis=1), {}, "'age' appears twice"),
    "a feature twice": (ROWS, {"features": ["age", "age"]}, "'age'.*twice"),
    "a gap": (but(3, age=np.nan), {}, "the data frame, row 3, column 'age'"),
    "a gap of its own kind": (ROWS.assign(dose=pd.array([None, *[1] * 31], dtype="Int64")), {}, "row 0"),
    "a test gap": (ROWS, {"test": but(3, outcome=None)}, "the test frame, row 3, column 'outcome'"),
    "an infinite target": (REAL.assign(outcome=place(Y, 3, np.inf)), {}, "row 3, column 'outcome'"),
    "an infinite client": (ROWS.assign(hospital=place(WHO, 3, np.inf)), {}, "row 3, column 'hospital'"),
    "a stranger": (ROWS, {"test": but(0, hospital="moon")}, "'moon' has no rows"),
    "no client": (ROWS[["age", "outcome"]], {"client": None}, "client.*partition"),
    "unknown label": (ROWS, {"label": "outcom"}, "'outcom'; did you mean 'outcome'"),
    "one column for both": (ROWS, {"client": "outcome", "drop": ["hospital"]}, "'outcome'"),
    "unknown task": (ROWS, {"task": "regresion"}, "regresion"),
    "a partition's name": (ROWS, {"partition": "iid"}, "partition"),
    "one feature, no list": (ROWS, {"features": "age"}, "'age'"),
    "one column to drop, no list": (ROWS, {"drop": "age"}, "'age'"),
    "test share": (ROWS, {"test_share": 1.5}, "test_share = 1.5"),
    "text as targets": (ROWS, {"task": "regression"}, "'outcome'.*numbers"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.filterwarnings("ignore::fedlap.DataWarning")
def test_a_mistake_in_python_is_one_line_too(case):
    frame, settings, message = WRONG[case]
    with pytest.raises(fl.InputError, match=message) as error:
        fl.Federation.from_dataframe(frame, **{"client": "hospital", "label": "outcome"} | settings)
    assert "\n" not in str(error.value)


def test_a_zip_file_of_something_else(call, tmp_path):
    with zipfile.ZipFile(tmp_path / "my.npz", "w") as archive:
        archive.writestr("x.txt", "hello")
    code, _, err = call("run", "--data", str(tmp_path / "my.npz"))
    assert (code, err.count("\n")) == (2, 1)
    assert "cannot be read" in err
