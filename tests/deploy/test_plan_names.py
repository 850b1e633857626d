"""Names in a plan: those that a folder, a certificate and the log can have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedlap as fl
from deployment_processes import describe_plan
from fedlap.deploy.event_log import EventLog
from fedlap.deploy.plan import Plan
from property_settings import short_law


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "a/b", "../x", " a", "a ", "a\n", "\u202ea", "x" * 65, 3]
)
def test_a_run_has_the_name_of_a_folder(name):
    with pytest.raises(fl.InputError, match="printable characters that can name a folder") as caught:
        Plan.of(describe_plan(name=name))
    assert caught.value.field == "name"


@pytest.mark.parametrize("name", [" a", "a ", "a\n", "\u202ea", "x" * 55, "é" * 28])
def test_a_client_has_the_name_of_a_certificate(name):
    with pytest.raises(fl.InputError, match=r"clients: name = .*; expected 1 to 54 bytes") as caught:
        Plan.of(describe_plan(clients=["north", name]))
    assert caught.value.field == "clients"


@short_law
@given(st.text(max_size=70), st.lists(st.text(max_size=70), min_size=1, max_size=3))
def test_the_log_takes_every_name_of_a_plan(tmp_path_factory, name, clients):
    try:
        plan = Plan.of(describe_plan(name=name, clients=clients, graph={"name": "complete"}))
    except fl.InputError:
        return
    EventLog(tmp_path_factory.mktemp("log") / "log.jsonl", plan.name, plan.clients)


def test_long_names_are_fine():
    plan = Plan.of(describe_plan(name="x" * 64, clients=["..", "é" * 27, "a/b"], graph={"name": "complete"}))
    assert plan.clients == ("..", "é" * 27, "a/b")
