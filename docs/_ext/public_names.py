"""Public names of fedlap in the reference: their docstrings, and links to them from signatures."""

import inspect
import re
from functools import cache
from importlib import import_module
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.autosummary import Autosummary
from sphinx.util.inspect import signature_from_str, stringify_signature

import fedlap
from docstrings import to_restructured_text

EXTRA_NAMES = ("FedUClassifier", "FedURegressor")  # not in __all__, since they need scikit-learn
MODULES = (
    "algorithms",
    "data",
    "data.partition",
    "errors",
    "estimators",
    "graph",
    "models",
    "personal",
    "theory",
)
CONSTANTS = {  # They have no docstrings.
    "fedlap.ALGORITHMS": "Methods by their names on the command line; add your own to register it.",
    "fedlap.algorithms.BASELINES": "Names of the methods that others are compared with.",
    "fedlap.algorithms.DEFAULT_METHOD": "The name of the method that is used if none is given.",
    "fedlap.algorithms.FEDU_CITATION": "The citation of the paper.",
    "fedlap.algorithms.State": "State of a server or client: a tensor, a tuple of states, or None.",
    "fedlap.data.SOURCES": "Data sets by name; add your own to register it.",
    "fedlap.data.TEST_SHARE": "The default share of test rows.",
    "fedlap.graph.BUILDER_INPUTS": "Parameters of a graph builder that `fedlap.graph.build_graph` fills in.",
    "fedlap.graph.GRAPHS": "Builders of graphs by name; add your own to register it.",
    "fedlap.graph.SERVER": "The name of the server vertex.",
    "fedlap.models.BufferFactory": "A function that returns a buffer of a shape, or None.",
    "fedlap.models.WeightedTargets": "Targets of a loss times −weight for many steps, and the weights.",
    "fedlap.models.MODELS": "Models by name; add your own to register it.",
}


def list_names(module: Any) -> list[str]:
    """Return the public names of a module: those of `__all__`, or else the classes that it defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]  # fmt: skip


@cache
def find_public() -> dict[str, Any]:
    """Return every public object by its shortest full name, such as "fedlap.FedU" or "fedlap.graph.grid"."""
    found = {f"fedlap.{name}": getattr(fedlap, name) for name in (*fedlap.__all__, *EXTRA_NAMES)}
    found = {name: value for name, value in found.items() if not inspect.ismodule(value)}
    for module in MODULES:
        for name in list_names(import_module(f"fedlap.{module}")):
            value = getattr(import_module(f"fedlap.{module}"), name)
            is_listed = any(known is value for known in found.values()) and not isinstance(value, float | str)
            if not is_listed:
                found[f"fedlap.{module}.{name}"] = value
    return found


@cache
def find_aliases() -> dict[str, str]:
    """Return the public name of each object by the name of its module and class, as signatures have it."""
    return {
        f"{value.__module__}.{value.__qualname__}": name
        for name, value in find_public().items()
        if inspect.isclass(value) or inspect.isfunction(value)
    }


def find_target(text: str) -> str | None:
    """Return the public name that a name in backticks stands for, such as `fedlap.Callback` or `FedU`."""
    name = re.sub(r"^fl\.", "fedlap.", text.partition("(")[0])
    return next((known for known in (name, f"fedlap.{name}") if known in find_public()), None)


def convert_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Replace the lines of a docstring by reStructuredText."""
    text = CONSTANTS[name] if what == "data" else "\n".join(lines)
    lines[:] = to_restructured_text(text, find_target)


class Summary(Autosummary):
    """A table of names with the first line of each docstring, which may have full stops inside."""

    def get_items(self, names: list[str]) -> list[tuple[str, str | None, str, str]]:
        """Return name, signature, summary and full name of each object."""
        return [
            (name, signature, next(to_restructured_text(summarise(real), find_target)), real)
            for name, signature, _, real in super().get_items(names)
        ]


def summarise(name: str) -> str:
    """Return the first paragraph of an object's docstring as one line."""
    text = CONSTANTS[name] if name in CONSTANTS else inspect.getdoc(find_public()[name]) or ""
    return " ".join(text.split("\n\n")[0].split())


def hide_private(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str, str | None] | None:
    """Return a signature without parameters that only fedlap sets, such as `_blocks`."""
    if not signature or " _" not in signature:
        return None
    parsed = signature_from_str(signature)
    shown = [parameter for key, parameter in parsed.parameters.items() if not key.startswith("_")]
    return stringify_signature(parsed.replace(parameters=shown)), returned


def resolve_alias(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.Node
) -> nodes.Node | None:
    """Link a name of a module to the public name of the same object."""
    name = find_aliases().get(node["reftarget"])
    if node.get("refdomain") != "py" or name is None or name == node["reftarget"]:
        return None
    domain = env.domains.python_domain
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", name, node, content)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions above."""
    app.add_directive("autosummary", Summary, override=True)
    app.connect("autodoc-process-docstring", convert_docstring)
    app.connect("autodoc-process-signature", hide_private)
    app.connect("missing-reference", resolve_alias)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
