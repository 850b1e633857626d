"""`fit` lists its arguments one by one; they are those of a job and of a schedule."""

import inspect
from dataclasses import fields
from inspect import Parameter

import pytest

import fedlap as fl
from fedlap.training.jobs import Job
from fedlap.training.schedule import Schedule

FIT = inspect.signature(fl.fit).parameters
RESUMING = {"resume", "allow_changes"}  # `resume` is a Result, of which a job has the progress
CLUSTER = {"workers", "address"}  # settings of the engine "ray" that change no numbers
CALLBACKS = {"on_score", "on_round"}
EXTRAS = {"folder": None, "progress": False, "callbacks": ()}  # of `fit` alone, with their defaults


@pytest.mark.parametrize("field", fields(Schedule), ids=lambda field: field.name)
def test_every_field_of_a_schedule_is_an_argument(field):
    argument = FIT[field.name]
    assert argument.kind is Parameter.KEYWORD_ONLY
    assert argument.default == field.default
    assert argument.annotation == field.type


@pytest.mark.parametrize(
    "field", [field for field in fields(Job) if field.name != "progress"], ids=lambda field: field.name
)
def test_every_field_of_a_job_is_an_argument(field):
    argument = FIT[field.name]
    expected = inspect.signature(Job).parameters[field.name]
    assert argument.annotation == field.type
    assert argument.default == expected.default


def test_there_are_no_other_arguments():
    known = {field.name for field in fields(Schedule)} | {field.name for field in fields(Job)}
    assert set(FIT) == (known - {"progress"}) | RESUMING | CLUSTER | CALLBACKS | set(EXTRAS)


def test_the_callbacks_and_the_earlier_result_are_optional():
    assert all(FIT[name].default is None for name in CLUSTER | CALLBACKS | {"resume"})


def test_a_run_is_neither_stored_nor_shown_by_default():
    assert {name: FIT[name].default for name in EXTRAS} == EXTRAS


def test_every_argument_is_explained():
    explained = inspect.getdoc(fl.fit)
    assert [name for name in FIT if f"{name}:" not in explained and f"{name}, " not in explained] == [
        "federation",
        "model",
    ]
