"""`import fedlap` loads nothing else. Benchmarks and examples import, run nothing, and use names of fedlap.

`make test` does not run benchmarks, so a name of fedlap that was moved or renamed would break them unseen.
"""

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fedlap

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("benchmarks", "examples")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

# Packages of other systems, which have environments of their own (benchmarks/alternatives/environments.py).
OTHER_SYSTEMS = {"fedjax", "flwr", "jax", "pfl"}

# Top-level statements of a module that runs nothing, apart from its guard.
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)

# Imports each module in a process of its own, forked after what most of them import, which takes seconds.
IMPORTER = """
import importlib, importlib.util, json, os, pathlib, sys, traceback
import matplotlib.figure, numpy, pandas, pydantic, rich.console, rich.table, scipy.sparse.linalg, torch
import fedlap.deploy.setup, fedlap.experiments.prepare, fedlap.report.comparison, fedlap.training.fit

for line in sys.stdin:
    name, path = json.loads(line)
    read, write = os.pipe()
    if os.fork() == 0:
        os.dup2(2, 1)  # prints do not mix with answers
        answer = {}
        try:
            if name.startswith("benchmarks.alternatives."):
                sys.path.insert(0, os.path.dirname(path))  # they are run as scripts
            for folder in pathlib.Path(path).parents:  # an app of Flower has a package of its own
                if (folder / "pyproject.toml").exists() and folder != pathlib.Path.cwd():
                    sys.path.insert(0, str(folder))
            if name.startswith("examples."):
                sys.path.insert(0, os.path.dirname(path))  # they are run as scripts as well
                spec = importlib.util.spec_from_file_location(name, path)
                spec.loader.exec_module(importlib.util.module_from_spec(spec))
            else:
                importlib.import_module(name)
        except BaseException as error:
            answer = {"error": traceback.format_exc(), "absent": None}
            if isinstance(error, ModuleNotFoundError):
                answer["absent"] = error.name
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        print(json.dumps([name, json.loads(answers.read())]))
    os.wait()
"""


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


every_file = pytest.mark.parametrize("path", FILES, ids=module_name)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def import_apart(modules: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Errors of importing each module in a process of its own, by its name; empty where it was imported."""
    asked = "".join(json.dumps([name, str(path)]) + "\n" for name, path in modules.items())
    done = subprocess.run(
        [sys.executable, "-c", IMPORTER], input=asked, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, f"importing printed: {done.stderr}"
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.fixture(scope="module")
def import_errors() -> dict[str, dict[str, Any]]:
    return import_apart({module_name(path): path for path in FILES})


@pytest.fixture(scope="module")
def packages() -> dict[str, dict[str, Any]]:
    source = Path(fedlap.__file__).parent
    folders = [path.parent for path in source.rglob("__init__.py")]
    return import_apart({".".join(("fedlap", *path.relative_to(source).parts)): path for path in folders})


@every_file
def test_modules_import(path, import_errors):
    answer = import_errors[module_name(path)]
    if answer and (answer["absent"] or "").partition(".")[0] in OTHER_SYSTEMS:
        pytest.skip(f"the package {answer['absent']} is not installed")
    assert not answer, answer["error"]


@every_file
def test_modules_run_nothing_when_imported(path):
    guarded = [node for node in tree(path).body if is_guard(node)]
    rest = [node for node in tree(path).body if not is_guard(node) and not is_docstring(node)]
    assert [ast.unparse(node) for node in rest if not isinstance(node, DEFINITIONS)] == []
    starts = any(
        isinstance(node, ast.FunctionDef) and node.name == "main" and not node.decorator_list for node in rest
    )
    if starts or path.parent == ROOT / "examples":
        assert guarded, 'end with `if __name__ == "__main__":`'


def is_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@every_file
def test_names_of_fedlap_exist(path):
    """Also those that functions use or import, and those in scripts that are written as strings."""
    missing = [name for part in parts(tree(path)) for name in names(part) if not exists(name)]
    assert missing == []


def parts(module: ast.Module) -> Iterator[ast.Module]:
    """A module, and each string in it that is Python code which imports fedlap."""
    yield module
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import fedlap" in node.value:
            try:
                yield ast.parse(node.value)
            except SyntaxError:  # text about code
                continue


def names(module: ast.Module) -> set[str]:
    """Full names of everything in fedlap that a module imports or reaches through what it imports."""
    local: dict[str, str] = {}  # names in the module and what they stand for
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "fedlap":
                    local[alias.asname or "fedlap"] = alias.name if alias.asname else "fedlap"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fedlap":
            local |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    reached = {
        ".".join([local[chain[0]], *chain[1:]])
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and (chain := attributes(node)) and chain[0] in local
    }
    return reached | set(local.values())


def attributes(node: ast.expr) -> list[str]:
    """The names of `a.b.c`; none where it begins with anything but a name."""
    if isinstance(node, ast.Name):
        return [node.id]
    before = attributes(node.value) if isinstance(node, ast.Attribute) else []
    return [*before, node.attr] if before else []


def exists(name: str) -> bool:
    """Return True if a name can be reached; only attributes of modules and classes are followed."""
    words = name.split(".")
    found: Any = importlib.import_module(words[0])
    for word in words[1:]:
        if not isinstance(found, ModuleType | type):
            return True
        if not hasattr(found, word) and hasattr(found, "__path__"):  # a module of a package, not loaded yet
            inside = f"{found.__name__}.{word}"
            if importlib.util.find_spec(inside) is not None:
                importlib.import_module(inside)
        if not hasattr(found, word):
            return False
        found = getattr(found, word)
    return True


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_fedlap_loads_names_on_first_use():
    loaded = run_python("import sys, fedlap; print(*(m for m in sys.modules if m.startswith('fedlap.')))")
    assert loaded.split() == []
    assert set(fedlap.__all__) <= set(run_python("import fedlap; print(*dir(fedlap))").split())
    assert run_python("import fedlap; print(fedlap.graph.grid.__name__)") == "grid\n"
    assert run_python("from fedlap import fit; print(fit.__module__)") == "fedlap.experiments.fit\n"
    assert run_python("import fedlap; print(fedlap.partition.__name__)") == "fedlap.data.partition\n"
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        _ = fedlap.fitt


@pytest.mark.slow
def test_any_package_can_be_imported_first(packages):
    """No package relies on another one that the program happens to have imported before."""
    assert {name: answer["error"] for name, answer in packages.items() if answer} == {}


def test_type_checkers_see_the_public_names():
    """Type checkers read imports that do not run; every other program loads the same objects."""
    (block,) = (node for node in tree(Path(fedlap.__file__)).body if isinstance(node, ast.If))
    typed = {alias.name: node.module for node in block.body for alias in node.names}
    optional = {"FedUClassifier", "FedURegressor"}  # not in __all__, since they need scikit-learn
    assert typed.keys() - optional == set(fedlap.__all__)
    for name, module in typed.items():
        source = importlib.import_module(module or "")
        assert getattr(fedlap, name) is getattr(source, name)
