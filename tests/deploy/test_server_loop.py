"""The loop of the server on a clock of the test: a server that was away does not call its clients silent."""

import math
import threading
from types import SimpleNamespace

import pytest

from deployment_processes import build_federation, describe_plan
from deployments import LocalDeployment
from fedlap.deploy import server as server_module
from fedlap.deploy.plan import Plan
from fedlap.deploy.server import DeploymentServer
from fedlap.deploy.wire import Message, encode_message

DEADLINE = 30.0
HEARTBEAT = encode_message(Message("heartbeat"))


class ScriptedTransport:
    """A clock, and heartbeats that arrive at given times; the process is suspended at most once.

    arrivals: times and names. suspended: when, and for how many seconds. answering: seconds per answer.
    """

    def __init__(self, arrivals=(), suspended=(math.inf, 0.0), answering=0.0):
        self.now, self.end, self.stop = 0.0, math.inf, threading.Event()
        self._arrivals, self._suspended, self._answering = sorted(arrivals), suspended, answering

    def monotonic(self):
        return self.now

    def receive(self, timeout):
        moment, seconds = self._suspended
        if self.now >= moment:
            self.now, self._suspended = self.now + seconds, (math.inf, 0.0)
        arrival = self._arrivals[0][0] if self._arrivals else math.inf
        if arrival > self.now + timeout:
            self.now += timeout
            if self.now >= self.end:
                self.stop.set()
            return None
        self.now = max(self.now, arrival)
        _, name = self._arrivals.pop(0)
        return SimpleNamespace(name=name, content=HEARTBEAT, is_too_long=False, answer=self._answer)

    def _answer(self, content):
        self.now += self._answering


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Start the first round at time 0, and run the loop of a server on a transport until a time."""
    plan = Plan.of(describe_plan(limits={"deadline": DEADLINE}))
    deployment = LocalDeployment(tmp_path, plan, build_federation())
    for name in "abcd":
        deployment.step(name)

    def serve(transport, end):
        monkeypatch.setattr(server_module, "time", transport)
        transport.end = end
        transport.stop.clear()
        DeploymentServer(deployment.coordinator, transport, deployment.log, transport.stop).run()
        return sorted(facts["name"] for facts in deployment.list_events("late"))

    return serve


def test_clients_that_are_silent_until_the_deadline_are_late(serve):
    transport = ScriptedTransport([(10.0, "a"), (5.0, "b")])
    assert serve(transport, 29.0) == []
    assert serve(transport, 34.0) == ["c", "d"]
    assert serve(transport, 41.0) == ["a", "b", "c", "d"]


def test_heartbeats_that_arrived_while_the_server_was_suspended_count(serve):
    beats = [(5.0 * k, name) for k in range(1, 30) for name in "abcd"]
    assert serve(ScriptedTransport(beats, suspended=(12.0, 100.0)), 150.0) == []


def test_the_time_of_a_suspended_server_is_no_silence_of_its_clients(serve):
    """Connections broke meanwhile: nothing arrived. The last heartbeats, of time 10, count as of time 110."""
    transport = ScriptedTransport([(10.0, name) for name in "abcd"], suspended=(12.0, 100.0))
    assert serve(transport, 139.0) == []
    assert serve(transport, 142.0) == ["a", "b", "c", "d"]


def test_clients_that_were_never_seen_get_the_time_as_well(tmp_path, monkeypatch):
    deployment = LocalDeployment(tmp_path, Plan.of(describe_plan()), build_federation())
    run = deployment.coordinator
    run.excuse_silence(5.0, 1_000.0)
    assert not run._is_silent(run.sites["a"], 995.0 + run.plan.limits.deadline)
    assert run._is_silent(run.sites["a"], 996.0 + run.plan.limits.deadline)


def test_a_message_that_waits_ends_a_silence_however_long_the_queue_is(serve):
    """Each answer takes 0.9 s: the server is busy for 36 s before it reads the message of d."""
    beats = [(20.0, "a")] * 40 + [(20.0, "d")]
    assert "d" not in serve(ScriptedTransport(beats, answering=0.9), 60.0)
