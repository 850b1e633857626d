"""Plugins: users' methods, networks and data sets, from a Python file or from an installed package.

A plugin adds entries to the registries `fedlap.ALGORITHMS`, `fedlap.models.MODELS` and `fedlap.data.SOURCES`.
An experiment records the plugins that it uses, each with its version: the digest of a file, or the version of
a package. Plugins are code, so that nothing is loaded because a stored run names it.
"""

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from fedlap.algorithms import ALGORITHMS
from fedlap.data import SOURCES
from fedlap.errors import InputError
from fedlap.experiments.settings import shorten_value
from fedlap.models import MODELS
from fedlap.storage.files import describe_error, read_file

PLUGINS_VARIABLE: Final = "FEDLAP_PLUGINS"  # files, separated as in $PATH
# Registries by the section of an experiment that names one of their entries.
REGISTRIES: Final[dict[str, dict[str, Any]]] = {
    "algorithm": ALGORITHMS,
    "model": MODELS,
    "data": SOURCES,
}
ENTRY_POINT_GROUPS: Final = {
    "algorithm": "fedlap.algorithms",
    "model": "fedlap.models",
    "data": "fedlap.data",
}
# Words of messages: the kind of an entry, and its registry as Python names it.
KINDS: Final = {"algorithm": "method", "model": "model", "data": "data set"}
REGISTRY_NAMES: Final = {
    "algorithm": "fedlap.ALGORITHMS",
    "model": "fedlap.models.MODELS",
    "data": "fedlap.data.SOURCES",
}
DIGEST_DIGITS = 16


@dataclass(frozen=True)
class Plugin:
    """The name and version of a plugin: a file and its digest, or a package and its version."""

    name: str
    version: str

    @property
    def advice(self) -> str:
        """The action that loads the plugin, for messages."""
        if self.name.endswith(".py"):
            return f"pass --plugin with the path of {self.name!r}"
        return f"install {self.name}=={self.version}"


_owners: dict[tuple[str, str], Plugin] = {}  # plugins by section and registered name
_files: dict[str, None] = {}  # absolute paths of the plugins that were loaded, in this order


def load_plugin(file: str | Path) -> None:
    """Run a Python file that adds entries to the registries; raise InputError if it fails.

    An entry that exists already is not replaced, unless the same file has added it.
    """
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        raise InputError(f"--plugin {str(file)!r}: expected a Python file (.py); pass its path")
    try:
        source = read_file(path)
    except OSError as error:
        raise InputError(f"--plugin {str(file)!r} cannot be read: {describe_error(error)}") from error
    plugin = Plugin(path.name, sha256(source).hexdigest()[:DIGEST_DIGITS])
    before = {section: dict(registry) for section, registry in REGISTRIES.items()}
    module = ModuleType(f"fedlap_plugin_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look up their module
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
        _check_entries(plugin, before)
    except (Exception, SystemExit) as error:
        for section, entries in before.items():
            REGISTRIES[section].clear()
            REGISTRIES[section].update(entries)
        raise _locate_plugin_error(path, error) from error
    _files[str(path.resolve())] = None
    for section, registry in REGISTRIES.items():
        for name in registry:
            if registry[name] is not before[section].get(name):
                _owners[section, name] = plugin


def _check_entries(plugin: Plugin, before: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise InputError if an entry of the library, or of another plugin, was replaced or removed."""
    for section, entries in before.items():
        for name, entry in entries.items():
            owner = _owners.get((section, name))
            is_own = owner is not None and owner.name == plugin.name
            if REGISTRIES[section].get(name) is not entry and not is_own:
                raise InputError(f"{KINDS[section]} {name!r} exists already; choose another name")


def _locate_plugin_error(path: Path, error: BaseException) -> InputError:
    """Return the error of a plugin in one line, with the line number of its file."""
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
    ]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    place = f"{path}, line {line}" if line else str(path)
    what = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return InputError(f"plugin {place}: {' '.join(what.split())}")


def load_plugins(files: list[str], warn: Callable[[str], None]) -> None:
    """Load installed plugins, then those of the environment variable, then these files.

    `warn` gets one message for an installed plugin that cannot be loaded; the others are loaded.
    """
    load_entry_points(warn)
    listed = [name for name in os.environ.get(PLUGINS_VARIABLE, "").split(os.pathsep) if name]
    for file in dict.fromkeys([*listed, *files]):
        load_plugin(file)


def list_plugin_files() -> list[str]:
    """Return the absolute paths of the loaded files, for a process that needs the same plugins."""
    return list(_files)


def load_entry_points(warn: Callable[[str], None]) -> None:
    """Add the entries of installed packages to the registries; `warn` gets one message per failure."""
    installed = entry_points()  # one search of all installed packages, for every group
    for section, group in ENTRY_POINT_GROUPS.items():
        for entry in installed.select(group=group):
            plugin = _describe_package(entry)
            if _owners.get((section, entry.name)) == plugin:
                continue
            try:
                if entry.name in REGISTRIES[section]:
                    raise InputError(f"{KINDS[section]} {entry.name!r} exists already")
                REGISTRIES[section][entry.name] = entry.load()
                _owners[section, entry.name] = plugin
            except Exception as error:  # an installed package must not break commands that do not use it
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                warn(f"{plugin.name} {plugin.version}: {entry.name!r} of {group} is not loaded ({reason})")


def _describe_package(entry: EntryPoint) -> Plugin:
    return Plugin(entry.value, "") if entry.dist is None else Plugin(entry.dist.name, entry.dist.version)


def find_plugins(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, str] | None:
    """Return names and versions of the plugins that the sections of an experiment use; None without any."""
    used = [_owners.get((section, str(sections[section].get("name")))) for section in REGISTRIES]
    return {plugin.name: plugin.version for plugin in used if plugin is not None} or None


def list_unknown_names(
    recorded: Mapping[str, str] | None, sections: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Describe the names of an experiment that are not registered in this process, and how to load them."""
    advice = "".join(f"; {Plugin(*plugin).advice}" for plugin in (recorded or {}).items())
    return [
        f"unknown {KINDS[section]} {shorten_value(sections[section]['name'])}{advice}"
        for section, registry in REGISTRIES.items()
        if section in sections and sections[section]["name"] not in registry
    ]


def check_plugins(
    recorded: Mapping[str, str] | None, sections: Mapping[str, Mapping[str, Any]], only: str | None = None
) -> None:
    """Raise InputError if an entry that an experiment names is not registered, or its plugin has changed.

    only: the one section to check.
    """
    plugins = [Plugin(name, version) for name, version in (recorded or {}).items()]
    for section in REGISTRIES if only is None else (only,):
        name = sections[section]["name"]
        if name not in REGISTRIES[section]:
            shown = shorten_value(name)
            advice = " and ".join(plugin.advice for plugin in plugins)
            raise InputError(
                f"{section}.name: {KINDS[section]} {shown} is not registered in this process; "
                + (advice or f"pass --plugin with a file that sets {REGISTRY_NAMES[section]}[{shown}]"),
                field=f"{section}.name",
            )
        owner = _owners.get((section, name))
        if owner is not None and owner.version != (recorded or {}).get(owner.name, owner.version):
            raise InputError(
                f"plugin {owner.name!r} has changed since this run began; {owner.advice} as it was then "
                f"({(recorded or {})[owner.name]}), or start a new run",
                field="plugins",
            )
