"""Pinned draws, digests and signatures: a change of any of them makes committed results invalid.

A draw decides which rows and clients a run uses. A digest names a run's folder, and a checkpoint is found by
it. A signature says which row of a recipe the numbers in `results/` and `recipes/tuned/` belong to. If a test
here fails, numbers that were published, stored or cached no longer belong to the code. Correct the code. Only
if the change is intended, reproduce `results/` again and write new pins:

    python tests/test_pins.py --write

The command computes every value from the code that is installed, and replaces `tests/pins.json`. Values that
have no pin yet, for example the settings of a new method, do not fail; the same command adds them.

Purposes of draws, names of settings and names of fields are part of the pinned values. Names of modules,
classes and functions are not: all names that this file imports from fedlap stand at its top.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import tomli_w
import torch
from safetensors import safe_open

import fedlap as fl
from fedlap.data import SOURCES
from fedlap.data.partition import PARTITIONS
from fedlap.experiments.experiment import Experiment
from fedlap.graph import GRAPHS
from fedlap.models import MODELS
from fedlap.randomness import Purpose, digest_names, draws
from fedlap.reproduce.recipe import find_recipe, list_recipes

ROOT = Path(__file__).resolve().parents[1]
PINS = Path(__file__).with_name("pins.json")

Values = dict[str, Any]  # JSON values by name

# Rows of recipes that nobody has trained yet, since they need hours: on CIFAR-10 and MNIST on a GPU, and
# GTVMin on a CPU, since a peer of the complete graph has a dual vector per other peer. The pages of results
# list them.
NOT_RUN = {
    *(
        f"{recipe}/cifar10-nonconvex-{reading}/fedu-passing"
        for recipe in ("table-down-sampled", "table-full-sampled")
        for reading in ("steps", "epochs")
    ),
    *(
        f"figure-dirichlet/alpha-{alpha}-{model}-{reading}/fedu-passing"
        for alpha in ("001", "01", "10")
        for model in ("convex", "nonconvex")
        for reading in ("steps", "epochs")
    ),
    *(f"table-peers/har-convex-{reading}/gtvmin" for reading in ("steps", "epochs")),
}

# Runs on the two embedded data sets; the second one uses draws to partition, to thin out and to fold.
EXPERIMENTS: dict[str, Values] = {
    "digits with fedu": {"rounds": 1, "data": {"name": "digits"}, "algorithm": {"name": "fedu"}},
    "a fold of digits with local": {
        "rounds": 1,
        "seed": 3,
        "data": {"name": "digits", "scale": "none"},
        "partition": {"name": "dirichlet"},
        "scarce": {"share_of_clients": 0.5, "keep": 0.2},
        "fold": {"number": 5, "held_out": 1},
        "algorithm": {"name": "local"},
    },
}
SYNTHETIC: dict[str, Values] = {
    "synthetic with fedavg": {"rounds": 1, "data": {"name": "synthetic"}, "algorithm": {"name": "fedavg"}}
}


def draw_words() -> Values:
    """Words for two clients, by purpose, each purpose with another seed, round and step."""
    clients = digest_names(["7", "Zürich"])
    return {
        purpose: draws(10 + place, purpose, place).words(clients, place, 3).tolist()
        for place, purpose in enumerate(sorted(get_args(Purpose)))
    }


def draw_cohorts() -> Values:
    """Clients that are sampled in the first round, by seed: those whose models have left zero."""
    names = [f"client-{k}" for k in range(12)]
    federation = fl.Federation.from_arrays(dict.fromkeys(names, one_hot_rows(4)), test_share=0, scale="none")
    cohorts = {}
    for seed in range(3):
        weights = train(federation, seed, sample=0.25, local_steps=1)
        cohorts[f"seed {seed}"] = [name for name, w in zip(names, weights, strict=True) if w.any()]
    return cohorts


def draw_batches() -> Values:
    """Rows of the first batches of one client, by the kind of local work.

    Row i has feature i alone, so weight i changes in exactly the steps that use row i. All rows have one
    label, so the bias grows and every step is shorter than the one before: lengths give the order of steps.
    """
    federation = fl.Federation.from_arrays({"a": one_hot_rows(12)}, test_share=0, scale="none")
    step = train(federation, 5, batch=4, local_steps=1)[0]
    epoch = train(federation, 5, batch=4, local_epochs=1)[0]
    order = np.argsort(-epoch, kind="stable").reshape(-1, 4)
    return {"one step": np.flatnonzero(step).tolist(), "one epoch": np.sort(order, axis=1).tolist()}


def one_hot_rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.eye(count), np.zeros(count, dtype=int)


def train(
    federation: fl.Federation, seed: int, batch: int = 2, sample: float = 1.0, **work: int
) -> np.ndarray:
    """Weights of label 0, a row per client, after one round of independent training from zero."""
    features = federation.inputs[0]
    result = fl.fit(
        fl.Local(lr=0.5, **work),
        federation,
        fl.models.linear(),
        rounds=1,
        batch=batch,
        sample=sample,
        seed=seed,
        start=np.zeros(federation.outputs * (features + 1)),
        dtype="float64",
    )
    return result.models[:, :features].numpy()


def digest_settings() -> Values:
    """Digests of experiments that name one part and take every default: names and defaults of settings.

    The interval between scores is a number in the description of a run, as chosen for its data.
    """
    parts = {
        "algorithm": fl.ALGORITHMS,
        "model": MODELS,
        "graph": GRAPHS,
        "partition": PARTITIONS,
        "data": SOURCES,
    }
    return {
        f"{part} {name}": Experiment.of({part: {"name": name}, "evaluate_every": 1}).digest
        for part, known in parts.items()
        for name in known
        if name not in ("file", "folder")  # which have no default path
    }


def name_runs(experiments: dict[str, Values]) -> Values:
    """Names of run folders, which end in the experiment's digest, and the digests of the data."""
    return {
        name: {"folder": folder["folder"], "content": folder["content"]}
        for name, folder in ((name, run(json.dumps(fields))) for name, fields in experiments.items())
    }


def list_files() -> Values:
    """Files of a run folder and the names of what they hold, which another version must find again."""
    return {
        f"{name}: {file}": names
        for name, fields in EXPERIMENTS.items()
        for file, names in run(json.dumps(fields))["files"].items()
    }


@cache
def run(experiment: str) -> Values:
    """Train an experiment by the command line and describe the folder that it leaves."""
    with tempfile.TemporaryDirectory() as place:
        file, out = Path(place, "experiment.toml"), Path(place, "runs")
        file.write_text(tomli_w.dumps(json.loads(experiment)), "utf-8")
        command = [sys.executable, "-m", "fedlap.cli", "run", str(file), "--out", str(out), "--threads", "1"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=place)
        assert done.returncode == 0, done.stderr
        (folder,) = out.iterdir()
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        content = tomllib.loads(files["experiment.toml"].read_text("utf-8"))["content"]
        held = {name: names_in(path) for name, path in files.items() if path.suffix}
        return {"folder": folder.name, "content": content, "files": held}


def names_in(path: Path) -> list[str]:
    """Keys of a file, or names of its tensors."""
    if path.suffix == ".safetensors":
        with safe_open(path, "np") as file:
            return sorted(file.keys())
    if path.suffix == ".toml":
        return sorted(tomllib.loads(path.read_text("utf-8")))
    return sorted(
        json.loads(path.read_text("utf-8").splitlines()[0] if path.suffix == ".jsonl" else path.read_bytes())
    )


@cache
def signatures(name: str) -> dict[str, str]:
    """Signatures of a recipe by recipe/cell-reading/row."""
    return {f"{unit.place}/{unit.row}": unit.signature for unit in find_recipe(name).units()}


def hash_signatures() -> Values:
    """A SHA-256 per recipe over its sorted pairs of place and signature."""
    return {
        name: hashlib.sha256(json.dumps(sorted(signatures(name).items())).encode()).hexdigest()
        for name in list_recipes()
    }


def hash_arithmetic() -> Values:
    """A SHA-256 of the functions behind normal numbers, whose last digits depend on the machine."""
    u = (torch.arange(4096, dtype=torch.float64) + 0.5) / 4096
    radius, angle = (-2 * u.log()).sqrt(), 2 * torch.pi * u
    values = torch.stack([radius * angle.cos(), radius * angle.sin(), (-u.log()).log()])
    return {"sha256": hashlib.sha256(values.numpy().tobytes()).hexdigest()}


CURRENT: dict[str, Callable[[], Values]] = {
    "draws": draw_words,
    "cohorts": draw_cohorts,
    "batches": draw_batches,
    "settings": digest_settings,
    "runs": lambda: name_runs(EXPERIMENTS),
    "synthetic runs": lambda: name_runs(SYNTHETIC),
    "files of a run": list_files,
    "signatures": hash_signatures,
    "arithmetic": hash_arithmetic,
}


def read_pin(kind: str) -> Values:
    return json.loads(PINS.read_text("utf-8"))[kind]


def check(kind: str) -> None:
    """Compare the values that have a pin."""
    wanted, found = read_pin(kind), CURRENT[kind]()
    assert {name: found.get(name) for name in wanted} == wanted


@pytest.mark.parametrize("kind", sorted(CURRENT.keys() - {"synthetic runs", "arithmetic"}))
def test_values_are_those_pinned(kind):
    check(kind)


def test_synthetic_data_are_those_pinned():
    """Real features are pinned to the last digit, so only where the machine computes as that of the pins."""
    if hash_arithmetic() != read_pin("arithmetic"):
        pytest.skip("another arithmetic: log, sqrt, cos and sin differ in last digits from those of the pins")
    check("synthetic runs")


def test_every_purpose_of_draws_is_pinned():
    assert set(read_pin("draws")) == set(get_args(Purpose))


def test_every_recipe_is_pinned():
    assert set(read_pin("signatures")) == set(list_recipes())


@pytest.mark.parametrize("name", list_recipes())
def test_committed_results_have_the_signatures_of_their_recipes(name):
    """`fedlap results` leaves out every row whose signature is not the recipe's, without a word."""
    stored = {
        f"{name}/{path.stem}/{row}": values["signature"]
        for path in (ROOT / "results" / name).glob("*.json")
        for row, values in json.loads(path.read_text("utf-8"))["rows"].items()
    }
    wanted = signatures(name)
    assert stored == {place: wanted[place] for place in wanted.keys() - NOT_RUN}


def test_rows_that_are_not_run_are_rows_of_recipes():
    assert all(place in signatures(place.split("/")[0]) for place in NOT_RUN)


@pytest.mark.parametrize("name", list_recipes())
def test_tuned_values_have_the_signatures_of_their_recipes(name):
    """`fedlap reproduce` tunes every row again whose signature is not the recipe's."""
    tuned = json.loads((ROOT / "recipes" / "tuned" / f"{name}.json").read_text("utf-8"))
    assert tuned
    assert {place: entry["signature"] for place, entry in tuned.items()}.items() <= signatures(name).items()


def write() -> None:
    """Replace the pins by the values of the code that is installed."""
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    values = {"written at": commit.stdout.strip()} | {kind: make() for kind, make in CURRENT.items()}
    PINS.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(f"Wrote {PINS} from {fl.__file__}")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/test_pins.py --write")
    write()
