"""Fields of errors: each error names its setting, and an experiment its path, whatever the message says."""

import copy
import inspect
import math
import pickle
from functools import cache
from typing import get_args

import pytest

import fedlap as fl
from fedlap.data import SOURCES, load, load_with_graph
from fedlap.data.partition import PARTITIONS
from fedlap.errors import (
    DivergedError,
    InputError,
    UnsuitedError,
    check_integer,
    check_number,
    unknown_name_error,
)
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import Loader
from fedlap.experiments.settings import locate_errors
from fedlap.graph import BUILDER_INPUTS, GRAPHS, build_graph
from fedlap.models import MODELS

WRONG = {float: (math.inf,), int: (-1, True)}  # every such setting refuses at least one value
FOLD = {"number": 2, "held_out": 0}
OTHER = "all words are others"
USED = {("graph", "nearest", "bandwidth"): {"weights": "gaussian"}}  # settings without which one is ignored


@cache
def digits():
    return load_with_graph("digits")


def make_algorithm(name, settings):
    make, graph = fl.ALGORITHMS[name], fl.Graph.complete(digits()[0].clients)
    return make(**({"graph": graph} if "graph" in inspect.signature(make).parameters else {}), **settings)


MAKERS = {  # sections, their registries, and how an object is built from a name and settings
    "algorithm": (fl.ALGORITHMS, make_algorithm),
    "graph": (GRAPHS, lambda name, settings: build_graph(name, digits()[0], **settings)),
    "model": (MODELS, lambda name, settings: MODELS[name](**settings)),
    "partition": (PARTITIONS, lambda name, settings: PARTITIONS[name](**settings)),
    "data": (
        {name: source.make for name, source in SOURCES.items()},
        lambda name, settings: load(name, **settings),
    ),
    "scarce": ({"": fl.Federation.scarce}, lambda _, settings: digits()[0].scarce(**settings)),
    "fold": ({"": fl.Federation.fold}, lambda _, settings: digits()[0].fold(**FOLD | settings)),
}


def numeric_settings():
    """Every setting of a maker that takes a number: section, name, setting and wrong values."""
    for section, (names, _) in MAKERS.items():
        for name, make in names.items():
            for setting, parameter in inspect.signature(make).parameters.items():
                kinds = {parameter.annotation, *get_args(parameter.annotation)}
                wrong = [value for kind, values in WRONG.items() if kind in kinds for value in values]
                if wrong and setting not in BUILDER_INPUTS[1:] and not setting.startswith("_"):
                    yield pytest.param(section, name, setting, wrong, id=f"{section}-{name}-{setting}")
    yield pytest.param("data", "digits", "test_share", [math.inf], id="data-digits-test_share")


def refuse(make, values):
    """Return the error for the first value that is refused."""
    for value in values:
        try:
            make(value)
        except InputError as error:
            return error
    raise AssertionError(f"all of {values} are accepted")


def make_directly(section, name, setting, values):
    make, others = MAKERS[section][1], USED.get((section, name, setting), {})
    return refuse(lambda value: make(name, {**others, setting: value}), values)


def make_in_experiment(section, name, setting, values):
    """Check an experiment as every command does before it trains."""

    def make(value):
        named = {"name": name} if name else FOLD if section == "fold" else {}
        others = USED.get((section, name, setting), {})
        experiment = Experiment.of({section: {**named, **others, setting: value}})
        loader = Loader()
        if section in ("algorithm", "graph", "model"):
            loader.load = lambda experiment: digits()
        loader.build_job(experiment)

    return refuse(make, values)


def test_settings_of_every_section_are_tested():
    tested = [param.values[:2] for param in numeric_settings()]
    assert {section for section, _ in tested} == set(MAKERS)
    assert {name for section, name in tested if section == "algorithm"} == set(fl.ALGORITHMS)
    assert {name for section, name in tested if section == "partition"} == set(PARTITIONS)
    assert {name for section, name in tested if section == "model"} == set(MODELS)


@pytest.mark.parametrize(("section", "name", "setting", "wrong"), list(numeric_settings()))
def test_a_wrong_number_names_its_setting(section, name, setting, wrong):
    assert make_directly(section, name, setting, wrong).field == setting
    error = make_in_experiment(section, name, setting, wrong)
    assert error.field == f"{section}.{setting}"
    assert str(error).startswith((f"{section}.{setting} ", f"{section}.{setting}: "))


@pytest.mark.parametrize(("section", "name", "setting", "wrong"), list(numeric_settings()))
def test_a_reworded_error_keeps_its_path(section, name, setting, wrong, monkeypatch):
    init = InputError.__init__

    def init_reworded(self, message, *, field=None, scope=None):
        init(self, OTHER if field == setting else message, field=field, scope=scope)

    with monkeypatch.context() as patch:
        patch.setattr(InputError, "__init__", init_reworded)
        directly = make_directly(section, name, setting, wrong)
        error = make_in_experiment(section, name, setting, wrong)
    assert directly.field == setting
    assert directly.message == OTHER
    assert error.field == f"{section}.{setting}"
    assert str(error).startswith(f"{section}.{setting}")
    if error.__cause__ is not None:  # it was raised by the maker, and not when types were checked
        assert str(error) == f"{section}.{setting}: {OTHER}"


class MethodError(UnsuitedError):
    """An error of a user's own, with an attribute."""

    def __init__(self, message, **about):
        super().__init__(message, **about)
        self.clients = 3


@pytest.mark.parametrize("kind", [InputError, DivergedError, UnsuitedError, MethodError])
def test_a_located_error_keeps_its_type_and_attributes(kind):
    error = kind("lr = 0; take more", field="lr", scope="fedavg")
    error.note = "mine"
    section = {"name": "fedavg", "lr": 0}
    match = r"^algorithm\.lr = 0; take more$"
    with pytest.raises(kind, match=match) as caught, locate_errors(algorithm=section):
        raise error
    assert type(caught.value) is kind
    assert caught.value.field == "algorithm.lr"
    assert caught.value.note == "mine"
    assert caught.value.__cause__ is error
    assert (error.field, str(error)) == ("lr", "fedavg: lr = 0; take more")


@pytest.mark.parametrize("kind", [InputError, DivergedError, UnsuitedError, MethodError])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_copies_keep_the_field(kind, duplicate):
    copied = duplicate(kind("lr = 0; take more", field="lr", scope="fedavg"))
    assert type(copied) is kind
    assert (copied.field, copied.scope, str(copied)) == ("lr", "fedavg", "fedavg: lr = 0; take more")


@pytest.mark.parametrize(
    ("error", "message", "field"),
    [
        (InputError("rows = 0; no", field="rows"), "data.rows = 0; no", "data.rows"),
        (InputError("rows = 0", field="rows", scope="partition"), "partition.rows = 0", "partition.rows"),
        (InputError("rows = 0; no", field="rows", scope="iid"), "partition.rows = 0; no", "partition.rows"),
        (InputError("rows = 0; no", field="rows", scope="other"), "data: other: rows = 0; no", "rows"),
        (InputError("rowse = 0; no", field="rows"), "data.rows: rowse = 0; no", "data.rows"),
        (InputError("too few", scope="partition"), "partition: too few", None),
        (InputError("partition.rows = 0", field="partition.rows"), "partition.rows = 0", "partition.rows"),
        (InputError("data 'x' is gone", field="data"), "data 'x' is gone", "data"),
        (InputError("rows = 0; no field"), "data: rows = 0; no field", None),
    ],
)  # fmt: skip
def test_sections_are_chosen_by_field_and_scope(error, message, field):
    sections = {"data": {"name": "own", "rows": 0}, "partition": {"name": "iid", "rows": 0}, "scarce": None}
    with pytest.raises(InputError) as caught, locate_errors(**sections):
        raise error
    assert (str(caught.value), caught.value.field) == (message, field)


def test_helpers_know_their_field():
    assert refuse(lambda value: check_integer("rounds", value, 1), [0]).field == "rounds"
    assert refuse(lambda value: check_number("lr", value, zero=False, scope="local"), [0]).field == "lr"
    assert (
        refuse(lambda value: check_integer("width of a layer", value, 1, field="hidden"), [0]).field
        == "hidden"
    )
    assert unknown_name_error("engine", "x", ["y"], field="engine").field == "engine"


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("Aitken", ["Aitkin", "Lake", "Scott"], "did you mean 'Aitkin'?"),
        ("Aitken", ["Lake", "Scott"], "known: Lake, Scott"),
        ("lable", ["label", "labels", "scale"], "did you mean 'label' or 'labels'?"),
    ],
)
def test_suggestions_are_near_names(name, known, hint):
    assert str(unknown_name_error("client", name, known)) == f"unknown client {name!r}; {hint}"


@pytest.mark.parametrize(
    ("description", "field"),
    [
        ({"rounds": "ten"}, "rounds"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": True}, "rounds"),
        ({"sample": 2}, "sample"),
        ({"engine": "fast"}, "engine"),
        ({"algoritm": {}}, "algoritm"),
        ({"algorithm": {}}, "algorithm.name"),
        ({"algorithm": {"name": "fedx"}}, "algorithm.name"),
        ({"algorithm": {"name": "fedu", "lr": "big"}}, "algorithm.lr"),
        ({"algorithm": {"name": "fedu", "lr": True}}, "algorithm.lr"),
        ({"algorithm": {"name": "fedu", "strenght": 1}}, "algorithm.strenght"),
        ({"algorithm": {"name": "fedu", "local_steps": 10**8}}, "algorithm.local_steps"),
        ({"algorithm": {"name": "fedper", "_head": 3}}, "algorithm._head"),
        ({"data": {"name": "synthetic", "task": "regresion"}}, "data.task"),
        ({"seed": 2**70}, "seed"),
    ],
)
def test_types_and_names_that_are_wrong_have_paths(description, field):
    assert refuse(Experiment.of, [description]).field == field


def test_fields_that_bind_sets_are_no_settings():
    for name, description in (("fedper", {"_head": 3}), ("mocha", {"_l2": 0.1})):
        error = refuse(Experiment.of, [{"algorithm": {"name": name, **description}}])
        known = str(error).partition("; ")[2]
        assert "local_steps" in known
        assert "_head" not in known
        assert "_l2" not in known


def test_a_method_that_is_unsuited_has_a_path():
    experiment = Experiment.of({"algorithm": {"name": "fedper", "personal_layers": 9}})
    error = refuse(Loader().build_job, [experiment])
    assert type(error) is UnsuitedError
    assert error.field == "algorithm.personal_layers"
