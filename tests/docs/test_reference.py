"""The reference has every public name, command, option, setting and exit code, which tests read from code."""

import importlib
import inspect
import json
import re
import tomllib
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

import command_reference
import fedlap as fl
import generated_pages
import settings_reference
from fedlap.algorithms import ALGORITHMS
from fedlap.cli import build_commands
from fedlap.cli.exit_codes import EXIT_CODES
from fedlap.data import SOURCES
from fedlap.data.federation import Federation
from fedlap.data.partition import PARTITIONS
from fedlap.deploy.data_plan import DataPlan
from fedlap.deploy.peers.settings import PeerSettings
from fedlap.deploy.plan import Limits, Plan
from fedlap.deploy.transport import ExitCode
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.group_folder import RESULT_FILES
from fedlap.graph import GRAPHS
from fedlap.models import MODELS
from run_folders import COMPARE, RUN, TINY, running  # noqa: F401 — a fixture

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
MODULES = ("algorithms", "data", "estimators", "graph", "models", "personal", "theory")
DEFINING = ("data.partition", "errors")  # modules whose public names are the classes that they define
BUILDER_INPUTS = {"clients", "federation", "seed"}


def list_public():
    """Yield the full name and the value of every public name."""
    for name in fl.__all__:
        if not inspect.ismodule(getattr(fl, name)):
            yield f"fedlap.{name}", getattr(fl, name)
    for module in MODULES:
        loaded = importlib.import_module(f"fedlap.{module}")
        for name in loaded.__all__:
            yield f"fedlap.{module}.{name}", getattr(loaded, name)
    for module in DEFINING:
        loaded = importlib.import_module(f"fedlap.{module}")
        for name, value in vars(loaded).items():
            if inspect.isclass(value) and value.__module__ == loaded.__name__ and not name.startswith("_"):
                yield f"fedlap.{module}.{name}", value


def find_object(name):
    """Return the object that a full name leads to, through modules and attributes."""
    parts = name.split(".")[1:]
    value = fl
    for part in parts:
        if not hasattr(value, part):
            importlib.import_module(f"{value.__name__}.{part}")
        value = getattr(value, part)
    return value


def list_documented():
    pages = "\n".join(page.read_text("utf-8") for page in (REFERENCE / "api").glob("*.md"))
    return re.findall(r"^\.\. auto(?:class|function|data):: (\S+)$", pages, re.M)


def test_every_public_name_is_documented_once():
    names = list_documented()
    assert len(names) == len(set(names))
    documented = [find_object(name) for name in names]
    missing = [name for name, value in list_public() if not any(value is known for known in documented)]
    assert missing == []
    types = (REFERENCE / "api" / "types.md").read_text("utf-8")
    listed = re.findall(r"^   (fedlap\.\S+)$", (REFERENCE / "api.md").read_text("utf-8"), re.M)
    assert set(listed) == {name for name in names if f"{name}\n" not in types}


def test_every_public_name_has_a_docstring():
    for name, value in list_public():
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name


@pytest.fixture(scope="module")
def commands():
    """The page of commands by section, from the mark in the page to the text of each command."""
    assert "<!-- generated: commands -->" in (REFERENCE / "commands.md").read_text("utf-8")
    sections = re.split(r"^## fedlap ?", generated_pages.BUILDERS["commands"](), flags=re.M)[1:]
    return dict(section.split("\n", 1) for section in sections)


def walk_commands(command, path=()):
    """Yield every command with its words."""
    yield " ".join(path), command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk_commands(child, (*path, name))


def test_every_command_and_option_is_documented_with_its_default(commands):
    tree = dict(walk_commands(build_commands()))
    assert commands.keys() == tree.keys()
    for path, command in tree.items():
        rows = [line.split(" | ") for line in commands[path].splitlines() if line.startswith("| `")]
        cells = {row[0].strip("|` "): row for row in rows}
        options = {word: row for cell, row in cells.items() for word in re.findall(r"(?<!\w)-[\w-]+", cell)}
        for parameter in command.params:
            if parameter.param_type_name == "option":
                if parameter.name == "help" or getattr(parameter, "hidden", False):
                    continue
                for option in (*parameter.opts, *parameter.secondary_opts):
                    assert option in options, (path, option)
                row = options[parameter.opts[0]]
            else:
                row = cells[parameter.metavar or parameter.name.upper()]
            default = row[1]
            if "Default: " in (parameter.help or ""):
                assert default not in ("–", ""), (path, parameter.name)
            elif isinstance(parameter.default, str | float) and parameter.default is not False:
                assert default == f"`{parameter.default}`", (path, parameter.name)
            if parameter.required:
                assert default == "required", (path, parameter.name)
            assert row[2].strip(" |"), (path, parameter.name)  # a meaning


def test_commands_that_train_have_an_example(commands):
    trained = ("run", "compare", "sweep", "tune", "resume")
    assert all("Example:\n\n```\nfedlap " in commands[name] for name in trained)


def parse_settings(text):
    """Return the rows of every section: {"algorithm fedu": {"algorithm.lr": (type, default, meaning)}}."""
    sections = {}
    for section in re.split(r"^##+ ", text, flags=re.M)[1:]:
        title, body = section.split("\n", 1)
        rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \| (.*?) \| (.*?) \|$", body, re.M)
        sections[title] = {name: cells for name, *cells in rows}
    return sections


def check_defaults(rows, expected, prefix=""):
    """Check that the rows have these settings and defaults."""
    assert {name.removeprefix(prefix) for name in rows} >= expected.keys()
    for name, default in expected.items():
        _, shown, meaning = rows[f"{prefix}{name}"]
        assert len(meaning) > 5, name
        if default is inspect.Parameter.empty or default is MISSING:
            assert shown == "required", name
        elif isinstance(default, bool | int | float | str) and default != "":
            assert tomllib.loads(f"x = {shown.strip('`')}")["x"] == default, name


def find_defaults(build, skip=()):
    parameters = inspect.signature(build).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in skip and not p.name.startswith("_")}


@pytest.fixture(scope="module")
def settings():
    assert "<!-- generated: settings -->" in (REFERENCE / "settings.md").read_text("utf-8")
    return parse_settings(generated_pages.BUILDERS["settings"]())


@pytest.mark.parametrize(
    ("section", "registry", "skip"),
    [
        ("partition", PARTITIONS, set()),
        ("graph", GRAPHS, BUILDER_INPUTS),
        ("model", MODELS, set()),
        ("algorithm", ALGORITHMS, {"graph"}),
    ],
)
def test_every_setting_is_documented_with_its_default(section, registry, skip, settings):
    for name, build in registry.items():
        check_defaults(settings[f"{section} {name}"], find_defaults(build, skip), f"{section}.")


def test_every_setting_of_data_and_experiments_is_documented(settings):
    for name, source in SOURCES.items():
        rows = settings[f"data {name}"]
        check_defaults(rows, find_defaults(source.make, {"seed"}) | {"scale": source.scale}, "data.")
        assert ("data.test_share" in rows) == source.is_tabular
    check_defaults(settings["Scarce clients"], find_defaults(Federation.scarce, {"self", "seed"}), "scarce.")
    check_defaults(settings["Folds"], find_defaults(Federation.fold, {"self", "seed"}), "fold.")
    known = {name: field.default for name, field in Experiment.model_fields.items()}
    check_defaults(settings["The experiment"], known)


def test_the_default_experiment_has_documented_settings_only(settings):
    described = Experiment.of({}).describe()
    for section in ("data", "partition", "model", "algorithm"):
        name = described[section].pop("name")
        rows = settings[f"{section} {name}"]
        assert {f"{section}.{setting}" for setting in described[section]} <= rows.keys()


def test_every_setting_of_a_plan_is_documented():
    text = generated_pages.BUILDERS["plan"]()
    assert "<!-- generated: plan -->" in (REFERENCE / "formats.md").read_text("utf-8")
    tables = re.split(r"^`\[(\w+)\]`$", text, flags=re.M)
    kinds = {"": Plan, "data": DataPlan, "limits": Limits, "peers": PeerSettings}
    for name, body in zip(["", *tables[1::2]], tables[::2], strict=True):
        rows = parse_settings(f"## {name}\n{body}")[name]
        known = {field.name: field for field in fields(kinds.pop(name))}
        assert rows.keys() == known.keys()
        check_defaults(
            rows, {key: field.default for key, field in known.items() if field.default_factory is MISSING}
        )
    assert not kinds


def test_every_exit_code_is_documented():
    table = generated_pages.BUILDERS["exit-codes"]()
    documented = [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.M)]
    assert documented == sorted(EXIT_CODES)
    assert {*map(int, ExitCode), 0, 1, 2} <= set(documented)
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "src" / "fedlap").rglob("*.py"))
    numbers = {int(code) for code in re.findall(r"\bEXIT_\w+ = (\d+)", sources)}
    assert numbers <= set(documented)
    assert re.findall(r"(?:typer\.Exit|sys\.exit|SystemExit)\(\d+\)", sources) == []


def list_codes():
    """Return all words that the page of formats has as code."""
    text = re.sub(r"^```.*?^```$", "", (REFERENCE / "formats.md").read_text("utf-8"), flags=re.S | re.M)
    return set(re.findall(r"`([^`\n]+)`", text))


def test_files_and_keys_of_a_run_are_documented(run):
    documented = list_codes()
    folder, _ = run("--rounds", "2")
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and path.name != ".lock":
            assert {name, path.name} & documented, name
    manifest = json.loads(next(folder.glob("checkpoint/*/manifest.json")).read_text())
    about = json.loads((folder / "models" / "about.json").read_text())
    assert (manifest.keys() | about.keys()) <= documented
    score = json.loads((folder / "rounds.jsonl").read_text().splitlines()[0])
    names = ", ".join(re.findall(r"^\| `([\w, ]+)` \|", generated_pages.BUILDERS["score-fields"](), re.M))
    assert set(score) <= set(names.split(", "))


@pytest.mark.docs
def test_json_output_is_documented(call, tmp_path):
    documented = list_codes()
    code, out, _ = call(*COMPARE[:-1], "--rounds", "2", "--json", "--out", str(tmp_path), out=False)
    assert code == 0
    assert json.loads(out).keys() <= documented
    code, out, _ = call(*RUN, "--rounds", "2", "--json", "--out", str(tmp_path), out=False)
    assert json.loads(out).keys() <= documented
    code, out, _ = call(
        "tune", *TINY, "--folds", "2", "--rounds", "1", "--json", "--out", str(tmp_path), out=False
    )
    assert code == 0
    assert json.loads(out).keys() <= documented
    for command in ("compare", "tune"):
        assert f"`{RESULT_FILES[command]}`" in (REFERENCE / "formats.md").read_text("utf-8")


def test_generators_fail_on_a_setting_without_a_meaning():
    def build(width: int = 3):
        """Build something.

        depth: another setting.
        """

    with pytest.raises(KeyError, match="width"):
        settings_reference.list_settings(build)


def test_help_texts_become_markdown():
    assert command_reference.escape_help("--set a_b, $HOME or *") == r"`--set` a\_b, `$HOME` or \*"
