"""Every kind of file that is read, mutated at random: it loads, or is refused in one line.

Nothing else is raised, nothing waits, nothing is written outside the folder. There are 60 mutations by
default and 500 with `make test-all`; each is named by its number, which is its seed.
"""

import json
import os
import random
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from scipy.io import mmwrite
from scipy.sparse import coo_array, save_npz

import fedlap as fl
from disk import tree
from fedlap.data.prediction_rows import read_prediction_rows
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import prepare
from fedlap.experiments.run_folder import RunFolder, read_experiment
from fedlap.experiments.session import CheckpointInterval, ProgressCallbacks, ResumePlan
from fedlap.personal import Personals
from fedlap.personal.models import Personal
from fedlap.report.comparison import Comparison
from fedlap.report.page.result_folders import load_results
from fedlap.report.page.result_sections import build_result_sections, build_settings_sections
from fedlap.reproduce.cell_results import ResultFolder, iterate_cells
from fedlap.reproduce.ledger import Ledger
from fedlap.reproduce.recipe import RECIPE_FOLDER, Recipe
from fedlap.reproduce.results_pages import build_results_pages
from fedlap.storage import files
from random_inputs import random_weights
from user_tables import ROWS, arrays, write

PATIENCE = 20  # seconds
NAMES = tuple("abcdef")
EXPERIMENT = {
    "data": {"name": "synthetic", "clients": 4, "features": 3, "rows": 8, "test_rows": 4},
    "algorithm": {"name": "scaffold", "local_steps": 1},
    "rounds": 2,
    "batch": 4,
}
RESULTS = "table-scaling"


def train(out, experiments, save=1):
    plan = ResumePlan.of(out, list(prepare(experiments)))
    for _ in plan.train(plan.pack(), ProgressCallbacks(CheckpointInterval(rounds=save))):
        pass


@pytest.fixture(scope="module")
def originals(tmp_path_factory, federation, graph):
    """A folder for each kind of file, all of them good."""
    root = tmp_path_factory.mktemp("originals")
    for name in ("data", "graphs", "models", "recipes", "results"):
        (root / name).mkdir()
    train(root / "runs", [Experiment.of(EXPERIMENT)])
    shutil.copytree(root / "runs", root / "comparison")
    (run,) = (RunFolder(path) for path in (root / "comparison").iterdir())
    facts = Comparison("synthetic", [0], {"scaffold": [run.read_scores()]}).as_dict()
    facts |= {"command": "fedlap compare", "kept": {"scaffold": [run.name]}}
    files.write_file(root / "comparison" / "compare" / "comparison.json", json.dumps(facts).encode())
    result = fl.fit(fl.FedU(graph), federation.standardize("client"), fl.models.mlp(3), rounds=1)
    result.personals.save(root / "models" / "all")
    result.personals.of_client("a").save(root / "models" / "a.safetensors")
    for form in ("csv", "parquet", "npz"):
        write(root / "data" / f"my.{form}", ROWS)
    np.savez_compressed(root / "data" / "packed.npz", **arrays(ROWS))
    matrix = coo_array(random_weights(NAMES))
    fl.graph.to_file(fl.Graph.from_matrix(matrix, NAMES), root / "graphs" / "g.csv")
    fl.graph.to_file(fl.Graph.from_matrix(matrix, NAMES), root / "graphs" / "named.npz")
    save_npz(root / "graphs" / "coo.npz", matrix)
    mmwrite(root / "graphs" / "g.mtx", matrix)
    np.save(root / "graphs" / "g.npy", matrix.toarray())
    shutil.copy(RECIPE_FOLDER / f"{RESULTS}.toml", root / "recipes")
    stored = Path(__file__).parent.parent / "results" / RESULTS
    shutil.copytree(stored, root / "results" / RESULTS)
    (root / "results" / "ledger.jsonl").write_text('{"run": "a-1", "accuracy": 0.5}\n{"run": "b-1"}\n')
    return root


def read_runs(folder):
    (run,) = (RunFolder(path) for path in (folder / "runs").iterdir())
    RunFolder.open(run.folder)
    run.get_status()
    run.read_scores()
    found, _ = run.read_checkpoints()
    for checkpoint in found:
        run.load_progress(checkpoint)
    run.find_environment_changes(run.experiment)
    if run.get_status() == "diverged":
        run.read_failure()
    load_results([run.folder])
    Personals.load(run.folder / "models")


def resume_runs(folder):
    (run,) = (folder / "runs").iterdir()
    experiment = read_experiment(run / "experiment.toml")
    if experiment.digest == run.name[-16:]:  # another one would be trained elsewhere
        train(folder / "runs", [experiment.model_copy(update={"rounds": 3})])


def read_comparison(folder):
    found = load_results([folder / "comparison" / "compare"])
    found.comparison.render_markdown()
    for section in (*build_settings_sections(found), *build_result_sections(found)):
        assert section


def read_models(folder):
    for load in (
        lambda: Personals.load(folder / "models" / "all").of_client("a"),
        lambda: Personal.load(folder / "models" / "a.safetensors"),
    ):
        load().predict(np.zeros((2, 4)))


def read_data(folder):
    for path in sorted((folder / "data").iterdir()):
        fl.data.load("file", path=str(path), client="hospital", label="outcome")
        read_prediction_rows(str(path), (2,), None, client=["hospital"], label="outcome")


def read_graphs(folder):
    for path in sorted((folder / "graphs").iterdir()):
        assert fl.graph.from_file(None, str(path)).rho >= 0


def read_recipes(folder):
    for path in (folder / "recipes").iterdir():
        recipe = Recipe.read(path)
        for unit in recipe.units():
            unit.build_experiment({})


def read_results(folder):
    findings, recipe = ResultFolder(folder / "results"), Recipe.read(RECIPE_FOLDER / f"{RESULTS}.toml")
    list(iterate_cells(recipe, findings))
    findings.list_tuned_values(recipe)
    build_results_pages([recipe], findings)
    Ledger(folder / "results" / "ledger.jsonl")


KINDS = {
    "runs": (read_runs, resume_runs),
    "comparison": (read_comparison,),
    "models": (read_models,),
    "data": (read_data,),
    "graphs": (read_graphs,),
    "recipes": (read_recipes,),
    "results": (read_results,),
}


# Mutations: of a file, all of its folder's files, by a generator of random numbers.

VALUES = (
    None,
    True,
    0,
    -1,
    7,
    1.5,
    1e308,
    10**30,
    float("nan"),
    "",
    "x",
    "../../x",
    [],
    {},
    [[]],
    {"a": [1]},
)


def flip(path, others, draw):
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 3, 30))):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def truncate(path, others, draw):
    content = path.read_bytes()
    path.write_bytes(content[: draw.randrange(len(content))])


def insert(path, others, draw):
    content = path.read_bytes()
    at = draw.randrange(len(content))
    piece = draw.choice(
        (bytes(64), b"\xff" * 9, b"\n", b'"', b"9" * 40, b"-", b"nan,1e999", b"," * 50, b"[" * 5000)
    )
    path.write_bytes(content[:at] + piece + content[at:])


def swap(path, others, draw):
    shutil.copy(draw.choice(others), path.with_name("swapped"))
    path.with_name("swapped").replace(path)


def link(path, others, draw):
    path.unlink()
    path.symlink_to(draw.choice((*others, "/dev/zero", path, path.parent, path.with_name("none"))))


def fifo(path, others, draw):
    path.unlink()
    os.mkfifo(path)


def fold(path, others, draw):
    path.unlink()
    path.mkdir()


def nest(path, others, draw):
    path.write_bytes(draw.choice((b"[", b'{"a":', b"a = [")) * draw.choice((900, 100_000)))


def replace_value(path, others, draw):
    """Replace a value of a JSON or TOML file, under a checksum that is right."""
    text = path.read_text("utf-8", "surrogateescape")
    if path.suffix == ".toml":
        lines = text.splitlines()
        at = draw.randrange(len(lines))
        name, found, _ = lines[at].partition(" = ")
        value = draw.choice((*VALUES, "=", "2020-01-01"))
        lines[at] = (
            f"{name} = {json.dumps(value)}" if found else draw.choice((f"{name}x", "[data", "", "[[x]]"))
        )
        path.write_text("\n".join(lines) + "\n", "utf-8", "surrogateescape")
        return
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    at = draw.randrange(len(lines))
    facts = json.loads(lines[at])
    signed = facts.pop("signature", None)
    _replace(facts, draw)
    lines[at] = files.encode_with_checksum(facts).decode() if signed else json.dumps(facts)
    path.write_text("\n".join(lines) + ("\n" if path.suffix == ".jsonl" else ""))


def _replace(facts, draw):
    """A value, or one inside it, of a list or a dictionary; or leave it out."""
    keys = list(facts) if isinstance(facts, dict) else list(range(len(facts)))
    key = draw.choice(keys)
    if isinstance(facts[key], list | dict) and facts[key] and draw.random() < 0.7:
        _replace(facts[key], draw)
    elif draw.random() < 0.2:
        del facts[key]
    else:
        facts[key] = draw.choice(VALUES)


def resign_tensors(path, others, draw):
    """Damage tensors, under a checksum that is right."""
    about = path.with_name(
        {"state.safetensors": "manifest.json", "a.safetensors": "a.json"}.get(path.name, "about.json")
    )
    content = bytearray(path.read_bytes())
    content[draw.randrange(min(400, len(content)))] ^= 1 << draw.randrange(8)
    path.write_bytes(content[: draw.choice((len(content), len(content), len(content) - 4))])
    facts = json.loads(about.read_bytes())
    facts.pop("signature")
    facts |= {"sha256": files.hash_file(path), "bytes": path.stat().st_size}
    about.write_bytes(files.encode_with_checksum(facts))


def enlarge(path, others, draw):
    """Write a larger number in the place of one of the header's."""
    content = path.read_bytes()
    digits = [at for at, byte in enumerate(content[:400]) if chr(byte).isdecimal() and byte < 128]
    if digits:
        at = draw.choice(digits)
        content = content[:at] + b"9" * draw.choice((3, 9, 18)) + content[at + 1 :]
    path.write_bytes(content)


ANY = (flip, truncate, insert, swap, link, fifo, fold, nest, enlarge)


def mutate(folder, draw):
    """Mutate one file of a folder; return its name and what was done."""
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    path = draw.choice([path for path in found if path.name == "comparison.json"] or found)
    ways = list(ANY)
    if path.suffix in (".json", ".jsonl", ".toml"):
        ways += [replace_value] * len(ANY)
    if path.suffix == ".safetensors":
        ways += [resign_tensors] * 4
    way = draw.choice(ways)
    way(path, found, draw)
    return path, way.__name__


def late(*_):
    raise AssertionError("it waits for ever")


def try_mutation(number, originals, tmp_path):
    """Mutate a copy and read it; every refusal is one line, and no reader hangs or crashes."""
    draw = random.Random(number)
    kind = list(KINDS)[number % len(KINDS)]
    folder = tmp_path / str(number)
    shutil.copytree(originals / kind, folder / kind)
    path, way = mutate(folder / kind, draw)
    mutation = f"mutation {number}: {way} of {path.relative_to(folder)}"
    refusals = []
    signal.alarm(PATIENCE)
    try:
        for read in KINDS[kind]:
            try:
                read(folder)
            except fl.InputError as error:
                refusals.append(str(error))
            except Exception as error:
                raise AssertionError(f"{mutation}: {type(error).__name__}: {str(error)[:200]}") from error
    finally:
        signal.alarm(0)
    assert not [refusal for refusal in refusals if "\n" in refusal], mutation
    shutil.rmtree(folder)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "numbers",
    [pytest.param(range(60), id="60"), pytest.param(range(60, 500), id="440", marks=pytest.mark.slow)],
)
def test_mutated_files_load_or_are_refused(numbers, originals, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = tree(originals)
    handler = signal.signal(signal.SIGALRM, late)
    try:
        for number in numbers:
            try_mutation(number, originals, tmp_path)
            assert list(tmp_path.iterdir()) == [], f"mutation {number} wrote outside its folder"
    finally:
        signal.signal(signal.SIGALRM, handler)
    assert tree(originals) == before


def test_the_originals_load(originals, tmp_path):
    for kind, readers in KINDS.items():
        shutil.copytree(originals / kind, tmp_path / kind)
        for read in readers:
            read(tmp_path)
