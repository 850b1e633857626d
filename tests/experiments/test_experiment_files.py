"""Whatever is done to an experiment's file: it is run, or refused in one line that says where."""

import copy
import datetime
import math
import random
import re

import pytest
import tomli_w

import fedlap as fl
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import prepare, train_stack
from fedlap.experiments.run_folder import read_experiment

TINY = {"name": "synthetic", "clients": 4, "features": 3, "rows": 8, "test_rows": 4}
DIGITS = {
    "data": {"name": "digits"},
    "partition": {"clients": 10, "labels_per_client": 2, "rows": 120},
    "model": {"name": "cnn"},
    "algorithm": {"name": "fedavg"},
}
BASES = [
    {"algorithm": {"name": "fedu"}},
    {"algorithm": {"name": "dfedu"}, "graph": {"name": "known"}, "dtype": "float64"},
    {"algorithm": {"name": "local", "local_epochs": 1}, "model": {"name": "mlp", "hidden": [3, 2]}},
    {"algorithm": {"name": "global"}, "scarce": {}},
    {"algorithm": {"name": "fedprox"}, "sample": 0.5, "batch": "all"},
    {"algorithm": {"name": "scaffold", "local_epochs": 1}, "batch": 3, "evaluate_every": 0},
    {"algorithm": {"name": "mocha"}, "graph": {"name": "ring", "weight": 0.5}},
    {"algorithm": {"name": "pfedme"}, "engine": "one_by_one", "data": TINY | {"task": "regression"}},
    {"algorithm": {"name": "apfl"}, "seed": 3, "batch": 2},
    {"algorithm": {"name": "fedper"}, "model": {"name": "mlp", "hidden": [3]}},
    {"algorithm": {"name": "l2gd"}},
    {"algorithm": {"name": "lasso"}, "graph": {"name": "star", "server": True}},
    DIGITS,
]
USER_ROWS = "who,a,b,kind\n" + "".join(
    f"{'pqrs'[k % 4]},{k * 37 % 11},{k * 5 % 7},{k % 3}\n" for k in range(40)
)

# Of a kind that no field with a name or a number has.
STRANGE = [
    {}, {"a": 1}, {"name": "fedu"}, [[]], ["a"], [{"lr": 1}], datetime.date(2024, 2, 29),
    datetime.datetime(2024, 2, 29, 1, 2), datetime.time(1, 2),
]  # fmt: skip
ODD = [
    "", "x", "ünï ☃", "\x00", "\n", "/", "none", "all", "1", "0.5", "x" * 3000, "9" * 4000, True, False,
    0, -1, 1, 2, 0.5, -0.5, 1e308, 1e-320, math.nan, math.inf, -math.inf, 10**9, 10**12, 2**62, 10**30,
    -(10**30), 10**400, [], [0], [1, 2], [10**9], [10**30],
]  # fmt: skip
NAMES = [
    "fedu", "mocha", "local", "ditto", "perfedavg", "afl", "mlp", "cnn", "linear", "ring", "star", "path",
    "empty", "file", "known", "digits", "synthetic", "har", "labels", "natural", "dirichlet", "iid", "Fedu",
]  # fmt: skip
FIELD = re.compile(
    rf"({'|'.join(Experiment.model_fields)})\b|unknown setting of an experiment|"
    r"training diverged: by round 1"
)
KEYS = [
    "graph",
    "seed",
    "clients",
    "name",
    "path",
    "x",
    "self",
    "strength",
    "server",
    "rounds",
    "model_config",
]
BYTES = [
    b"\xff",
    b"\x00",
    b"\xef\xbb\xbf",
    "ü☃".encode(),
    b"'",
    b'"',
    b"[[",
    b"}",
    b"\r",
    b"= =",
    b"1e999999",
]


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Contents of experiment.toml as runs of many kinds write them."""
    user_file = tmp_path_factory.mktemp("own") / "own.csv"
    user_file.write_text(USER_ROWS)
    by_file = {"data": {"name": "file", "path": str(user_file), "client": "who", "label": "kind"}}
    asked = [Experiment.of({"rounds": 1, "data": TINY} | base) for base in [*BASES, by_file]]
    return [ready.experiment.describe() for ready in prepare(asked)]


def mutant(number, documents):
    """A file that was changed, and the path of its field where a value of no possible kind is there."""
    rng = random.Random(number)
    document = copy.deepcopy(rng.choice(documents))
    if rng.random() < 0.8:
        del document["content"]  # or hardly another change of the data would be let through
    if rng.random() < 0.2:
        return spoilt(rng, tomli_w.dumps(document).encode()), None
    path = change_field(rng, document)
    if rng.random() < 0.2:
        change_field(rng, document)
        path = None
    return tomli_w.dumps(document).encode(), path


def change_field(rng, document):
    """Change a field of a document; return its path if its type is certainly wrong."""
    paths = [(key,) for key in document]
    paths += [(key, inner) for key, value in document.items() if isinstance(value, dict) for inner in value]
    *outer, key = rng.choice(paths)
    section = document[outer[0]] if outer else document
    old = section[key]
    match rng.choice(
        ["strange", "odd", "odd", "near", "near", "near", "name", "gone", "key", "new", "swap", "deep"]
    ):
        case "strange" if not isinstance(old, dict | list):
            section[key] = rng.choice(STRANGE)
            return ".".join([*outer, key])
        case "odd":
            section[key] = rng.choice(ODD)
        case "near" if isinstance(old, int | float) and not isinstance(old, bool):
            section[key] = rng.choice(
                [old + 1, old - 1, 2 * old, old / 2, 10 * old, -old, float(old), str(old)]
            )
        case "near" | "name":
            sections = [value for value in document.values() if isinstance(value, dict)]
            rng.choice(sections)["name"] = rng.choice(NAMES)
        case "gone":
            del section[key]
        case "key":
            section[rng.choice([key[:-1], f"{key}s", key.upper(), "ü", "", "a.b", key[::-1]])] = section.pop(
                key
            )
        case "new":
            section[rng.choice(KEYS)] = rng.choice([*STRANGE, *ODD])
        case "swap":
            *other, place = rng.choice(paths)
            there = document[other[0]] if other else document
            if not isinstance(old, dict) and not isinstance(there[place], dict):
                section[key], there[place] = there[place], old
        case "deep":
            for _ in range(rng.choice([1, 3, 50])):
                old = {key: old} if rng.random() < 0.5 else [old]
            section[key] = old
    return None


def spoilt(rng, text):
    """Change the text of a file, whatever it means."""
    lines, place = text.split(b"\n"), rng.randrange(len(text))
    match rng.choice(["flip", "cut", "twice", "put", "lose", "shuffle"]):
        case "flip":
            return text[:place] + bytes([text[place] ^ 1 << rng.randrange(8)]) + text[place + 1 :]
        case "cut":
            return text[:place]
        case "twice":
            lines.insert(rng.randrange(len(lines)), rng.choice(lines))
        case "put":
            return text[:place] + rng.choice(BYTES) + text[place:]
        case "lose":
            lines.pop(rng.randrange(len(lines)))
        case "shuffle":
            rng.shuffle(lines)
    return b"\n".join(lines)


def read_error(answer):
    """Return the one error line, or None if the command succeeded."""
    code, out, err = answer
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in err
    if code == 0:
        assert not errors
        return None
    assert (code, out, len(errors)) == (2, "", 1), err
    assert err.splitlines()[-1] == errors[0]
    assert len(errors[0]) < 700, errors[0]
    return errors[0].removeprefix("error: ")


BLOCKS = [block if block < 1 else pytest.param(block, marks=pytest.mark.slow) for block in range(8)]


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS)
def test_a_thousand_changed_files_are_run_or_refused_in_one_line(block, documents, call, tmp_path):
    file, run = tmp_path / "experiment.toml", 0
    for number in range(125 * block, 125 * (block + 1)):
        text, path = mutant(number, documents)
        file.write_bytes(text)
        why = read_error(call("run", str(file), "--rounds", "1"))
        run += why is None
        assert why is None or why.startswith((path or "", str(file))), f"{number}: {path} is wrong, but {why}"
        assert why is None or FIELD.match(why) or "is not a TOML file" in why, f"{number}: {why}"
    assert 10 <= run <= 90  # both happen


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("data.rows", 10**9, "data: 4 clients with 1000000004 rows"),
        ("data.test_rows", 10**12, "data: 4 clients with 1000000000008 rows"),
        ("data.clients", 2 * 10**9, "data: 2000000000 clients"),
        ("data.features", 10**10, "of 10000000000 features"),
        ("data.labels", 10**10, "10000000000 labels"),
        ("model.hidden", [10**10], "model: 4 models of 70000000003 parameters"),
        ("model.hidden", [10**6, 10**6], "model: 4 models of"),
        ("batch", 10**11, "batch = 100000000000; mini-batches"),
        ("algorithm.local_epochs", 10**7, "algorithm: 10000000 steps of 400 rows"),
        ("algorithm.local_epochs", 10**12, "algorithm.local_epochs = 1000000000000; expected at most 1"),
        (
            "algorithm.local_epochs",
            10**30,
            "algorithm.local_epochs = 1000000000000000000000000000000; expected",
        ),
        ("seed", 10**30, "seed = 1000000000000000000000000000000; expected an integer below 2⁶³"),
        ("rounds", 10**30, "rounds = 1000000000000000000000000000000; expected an integer below 2⁶³"),
        ("data.rows", "9" * 400, "data.rows = 9999"),
    ],
)
def test_what_no_memory_holds_is_refused(field, value, wanted, call, tmp_path):
    asked = {
        "rounds": 1,
        "batch": 100,
        "data": {**TINY},
        "model": {"name": "mlp"},
        "algorithm": {"name": "local", "local_epochs": 1},
    }
    section, _, key = field.rpartition(".")
    (asked[section] if section else asked)[key] = value
    file = tmp_path / "experiment.toml"
    file.write_text(tomli_w.dumps(asked))
    why = read_error(call("run", str(file)))
    assert wanted in why
    assert "memory" in why or wanted.startswith(field)
    assert not list((tmp_path / "runs").glob("*"))


@pytest.mark.parametrize("rounds", [10**12, 2**63 - 1])
def test_no_number_of_rounds_is_too_large_to_begin(rounds):
    """Rounds are computed one after another and can be stopped."""
    asked = [Experiment.of({"rounds": rounds, "data": TINY, "evaluate_every": 2**62})]
    (result,) = train_stack(list(prepare(asked)), None, lambda moment: moment.stop())
    assert result.progress.round == 1


def test_a_file_that_is_none_is_named(call, tmp_path):
    file = tmp_path / "experiment.toml"
    for content, wanted in {
        b"": "", b"seed = = 1": "line 1, column", b"seed = 1\nseed = 2": "Cannot overwrite", b"\xff": "utf-8",
        b"seed = " + b"9" * 5000: "4300 digits", b"batch = " + b"[" * 100_000: "recursion",
        b"[data]\nname = 'synthetic'\n[data]\n": "line 3",
    }.items():  # fmt: skip
        file.write_bytes(content)
        why = read_error(call("run", str(file), "--rounds", "1"))
        if wanted:
            assert str(file) in why
            assert "is not a TOML file" in why
            assert wanted in why
        else:
            assert why is None  # everything has a default


def test_a_value_is_shown_as_far_as_a_line_has_room(tmp_path):
    file = tmp_path / "experiment.toml"
    for value in ("x" * 5000, [[[1] * 50] * 50] * 50, {"a" * 3000: 1}):
        file.write_text(tomli_w.dumps({"algorithm": {"name": "fedu", "lr": value}}))
        with pytest.raises(fl.InputError, match=r"algorithm\.lr = ") as error:
            read_experiment(file)
        assert len(str(error.value)) < 250
