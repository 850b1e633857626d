"""The sources keep their shape: modules in layers, short files, documented names."""

import ast
import inspect
from pathlib import Path

import pytest

import fedlap as fl

SRC = Path(__file__).parent.parent / "src" / "fedlap"
FILES = sorted(SRC.rglob("*.py"))
ORDER = [
    "errors", "files", "array_files", "tensor_files", "randomness", "compiling", "models", "parts",
    "partition", "arrays", "tables", "frames", "federation", "work", "graph", "algorithms",
    "data", "scores", "engines", "personal", "result", "schedule", "trials", "members", "stack", "rounds",
    "training", "theory", "memory", "tuning", "sections", "experiment", "contents", "sweeps", "checkpoints",
    "runs", "tracking", "keeping", "outcomes", "ingredients", "recipe", "ledger", "findings",
    "search", "reproduction", "report", "cli",
]  # fmt: skip

every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SRC)))


def subject(file):
    """The module or package of fedlap that a file belongs to."""
    return file.relative_to(SRC).parts[0].removesuffix(".py")


def imports(file):
    """The names of fedlap's modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "fedlap")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            if node.module == "fedlap":
                yield from (f"fedlap.{alias.name}" for alias in node.names)
            elif (node.module or "").startswith("fedlap."):
                yield node.module


def test_every_module_has_its_place():
    assert {subject(file) for file in FILES} - {"__init__"} == set(ORDER)


@every_file
def test_imports_come_from_earlier_modules(file):
    here = subject(file)
    if here == "__init__":
        return
    allowed = ORDER[: ORDER.index(here) + 1] + (["__version__"] if here == "cli" else [])
    wrong = [name for name in imports(file) if name.split(".")[1] not in allowed]
    assert not wrong, f"{here} imports {', '.join(wrong)}"


@every_file
def test_files_stay_short(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("name", fl.__all__)
def test_public_names_are_documented(name):
    thing = getattr(fl, name)
    if isinstance(thing, dict):
        return
    text = inspect.getdoc(thing)
    # A dataclass without a docstring gets its signature for one.
    assert text
    assert not text.startswith(f"{name}(")
