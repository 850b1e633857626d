"""Descriptions of runs."""

import subprocess
import sys

import pytest

import fedlap as fl
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.prepare import prepare
from fedlap.experiments.settings import complete_section
from graphs import matrix_of


def test_a_description_makes_the_same_experiment_again():
    for algorithm in ("fedu", "local"):
        experiment = Experiment.of(
            {"algorithm": {"name": algorithm}, "partition": {"clients": 12}, "scarce": {}}
        )
        again = Experiment.of(experiment.describe())
        assert experiment == again
        assert experiment.digest == again.digest


def test_a_default_that_is_written_out_changes_nothing():
    asked = [{}, {"algorithm": {"name": "fedu", "strength": 0.03, "local_steps": 5}}]
    plain, spelt = (ready.experiment for ready in prepare([Experiment.of(fields) for fields in asked]))
    assert plain.digest == spelt.digest


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"dtype": "float64"}, {"partition": {"spread": 0.5}}, {"scarce": {}},
     {"data": {"name": "digits", "test_share": 0.3}}, {"algorithm": {"name": "fedu", "local_epochs": 5}},
     {"graph": {"name": "ring"}}, {"graph": {"name": "complete", "shuffled": True}}],
)  # fmt: skip
def test_whatever_changes_the_numbers_changes_the_digest(change):
    assert Experiment.of(change).digest != Experiment.of({}).digest


def test_an_unshuffled_graph_is_described_as_ever():
    plain = Experiment.of({"graph": {"name": "ring", "shuffled": False}})
    assert plain.digest == Experiment.of({"graph": {"name": "ring"}}).digest
    assert "shuffled" not in plain.graph
    shuffled = Experiment.of({"graph": {"name": "ring", "shuffled": True}})
    assert Experiment.of(shuffled.describe()) == shuffled


def test_any_graph_can_be_shuffled():
    for name in ("known", "ring"):
        fields = {"data": {"name": "radon"}, "seed": 3, "graph": {"name": name, "shuffled": True}}
        experiment = Experiment.of(fields)
        federation, known = experiment.load()
        plain = known if name == "known" else fl.Graph.ring(federation.clients)
        built = experiment.build_graph(federation, known)
        assert (matrix_of(built) == matrix_of(plain.shuffle(3))).all()
        assert (matrix_of(built) != matrix_of(plain)).any()


def test_how_many_rounds_it_has_does_not():
    assert Experiment.of({"rounds": 99}).digest == Experiment.of({}).digest


def test_an_experiment_is_fit_with_the_same_settings():
    result = Experiment.of({"rounds": 3, "seed": 2}).run()
    federation = fl.data.load("digits", seed=2)
    method = fl.FedU(fl.Graph.complete(federation.clients))
    direct = fl.fit(method, federation, fl.models.linear(), rounds=3, seed=2)
    assert (result.models == direct.models).all()


def test_an_algorithm_over_a_graph_needs_one():
    with pytest.raises(fl.InputError, match="graph is missing"):
        Experiment.of({"graph": {}})


def test_the_library_alone_loads_no_command_line():
    """Training needs neither pydantic nor typer nor matplotlib nor pandas."""
    unwanted = {"pydantic", "typer", "rich", "matplotlib", "pandas"}
    code = f"import sys, fedlap; sys.exit(bool({unwanted} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_defaults_that_are_equal_keep_their_types():
    """Checkers of sections are cached; 1, 1.0 and True are equal."""
    for default in (1, 1.0, True, (1, 2), (1.0, 2.0), [1], [2]):

        def build(value: float | int | bool | tuple | list = default):
            return value

        found = complete_section("model", "x", build, {})["value"]
        assert (found, type(found)) == (default, type(default))
        assert repr(found) == repr(default)
