"""The sources keep their shape: few entries at the top, modules in layers, one subject per file."""

import ast
import inspect
from pathlib import Path

import pytest

import fedlap as fl

SRC = Path(__file__).parent.parent / "src" / "fedlap"
FILES = sorted(SRC.rglob("*.py"))
# From the bottom to the top: a module imports from its own entry and from those before it. An entry is a
# module, or a package without the modules that have an entry of their own.
LAYERS = [
    "errors", "randomness", "summaries", "storage",
    "kernels.nvrtc", "kernels.cpp_compiler",
    "models.losses", "models.model", "models.parameters", "models.autograd", "models.dense",
    "models.torch_module", "models.convolution", "models.cnn_layers", "kernels.cnn",
    "models.convolutional", "models",
    "data.roster",
    "data.places", "data.client_rows", "data.standardize", "data.target_scale", "data.partition",
    "data.validate", "data.columns", "data.row_weights", "data.encoding", "data.labels", "data.splits",
    "data.table",
    "data.frame_places", "data.frames", "data.remarks", "data.federation_summary", "data.stored_rows",
    "data.federation",
    "algorithms.local_work",
    "graph",
    "algorithms.server_state", "algorithms.task", "algorithms.conjugates", "algorithms.held_out_rows",
    "algorithms.local_updates",
    "algorithms.interface", "algorithms.coupling", "algorithms",
    "data",
    "training.scores", "training.batches",
    "kernels.cpp_library", "kernels.dense",
    "training.stored_scores", "training.placement", "training.branches", "training.state",
    "training.state_bytes", "training.buffers", "training.client_sampling",
    "training.run_tables", "training.plain_task", "training.batched_updates", "training.task",
    "training.cohorts", "training.stacking", "training.engines", "training.one_by_one",
    "personal",
    "training",
    "costs",
    "theory",
    "tracking",
    "experiments",
    "estimators",
    "report",
    "comparisons",
    "reproduce",
    "deploy",
    "cli",
]  # fmt: skip
MOST_LINES = 400  # of a file; more is nearly always two subjects
MOST_TOP_MODULES = 5


def module_name(file):
    """Return a file's dotted name below fedlap; a package's is that of its folder."""
    names = file.relative_to(SRC).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


MODULES = {module_name(file) for file in FILES}


def layer(module):
    """Return the number of the entry that a module belongs to."""
    names = module.split(".")
    found = [".".join(names[:end]) for end in range(len(names), 0, -1)]
    return next(LAYERS.index(name) for name in found if name in LAYERS)


def imports(file):
    """Yield the modules of fedlap that a file imports, wherever in it, except for types alone."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "fedlap")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: a relative import"
            if (node.module or "").split(".")[0] == "fedlap":
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    yield inner if inner.removeprefix("fedlap.") in MODULES else node.module


def test_the_top_is_a_few_modules_and_packages():
    assert len(list(SRC.glob("*.py"))) <= MOST_TOP_MODULES


def test_every_entry_of_the_layers_exists():
    assert len(set(LAYERS)) == len(LAYERS)
    assert set(LAYERS) <= MODULES
    assert {module.split(".")[0] for module in MODULES - {""}} == {entry.split(".")[0] for entry in LAYERS}


def find_upper_imports(file):
    """Return the modules that a file imports from a layer above its own."""
    here = module_name(file)
    if here == "":
        return []
    return [
        name
        for name in imports(file)
        if (name == "fedlap" and not here.startswith("cli"))
        or (name != "fedlap" and layer(name.removeprefix("fedlap.")) > layer(here))
    ]


def find_methods(file):
    """Return the methods that a file names, unless it is in the package of methods."""
    here = module_name(file)
    if here == "" or here.split(".")[0] == "algorithms":
        return []
    classes = {method.__name__ for method in fl.ALGORITHMS.values()}
    modules = {method.__module__ for method in fl.ALGORITHMS.values()}
    wrong = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedlap"):
            names = {alias.name for alias in node.names}
            wrong += sorted(names & classes) + sorted({node.module} & modules)
            wrong += sorted({f"{node.module}.{name}" for name in names} & modules)
        elif isinstance(node, ast.Import):
            wrong += sorted({alias.name for alias in node.names} & modules)
    return wrong


def find_in_files(find):
    """Return what is found in each file, without the files in which nothing is found."""
    found = {str(file.relative_to(SRC)): find(file) for file in FILES}
    return {name: wrong for name, wrong in found.items() if wrong}


# One test for all files: a thousand tests of a millisecond take longer to collect and to report than to run.


def test_imports_come_from_lower_layers():
    assert find_in_files(find_upper_imports) == {}


def test_only_the_package_of_methods_names_a_method():
    """Other modules use the registry, and ask for abilities (`algorithms/interface.py`)."""
    assert find_in_files(find_methods) == {}


def test_files_have_one_subject():
    lines = {str(file.relative_to(SRC)): len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_the_search_finds_what_is_wrong(monkeypatch):
    file = SRC / "data" / "table.py"
    text = "from fedlap.cli import console\nfrom fedlap.algorithms.fedavg import FedAvg\n"
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: text)
    assert find_upper_imports(file) == ["fedlap.cli.console", "fedlap.algorithms.fedavg"]
    assert find_methods(file) == ["FedAvg", "fedlap.algorithms.fedavg"]


@pytest.mark.parametrize("name", fl.__all__)
def test_public_names_are_documented(name):
    thing = getattr(fl, name)
    if isinstance(thing, dict):
        return
    text = inspect.getdoc(thing)
    # A dataclass without a docstring gets its signature for one.
    assert text
    assert not text.startswith(f"{name}(")
