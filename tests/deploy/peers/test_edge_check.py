"""Checks of a peer: one finding per edge with the cause of each problem, and the plan by itself."""

import threading
import time
from dataclasses import replace
from itertools import islice

import pytest
import torch

from fedlap.deploy import check, wire
from fedlap.deploy.certificates import CertificateFacts
from fedlap.deploy.peers import answering, edge_check, messages
from fedlap.deploy.peers.answering import answer_question
from fedlap.deploy.peers.edge_check import EdgeChecker
from fedlap.deploy.peers.start_check import (
    check_own_host,
    count_stored_models,
    describe_plan,
)
from fedlap.deploy.transport import ExitCode, PermanentError
from fedlap.deploy.wire import Message, encode_message, refuse
from fedlap.errors import InputError
from memory_links import MemoryLinks, serve
from peer_networks import PeerNetwork
from peer_plans import build_peer_plan, build_peer_rows

ADDRESSES = {"b": "127.0.0.1:7002", "d": None}


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch):
    monkeypatch.setattr(edge_check, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(edge_check, "TICK_SECONDS", 0.01)


@pytest.fixture
def links():
    return MemoryLinks()


def run_check(links, plan, name="a", addresses=ADDRESSES, patience=60.0, count=None):
    """Return the findings of a peer's check by neighbour.

    count: findings after which the check ends, even if a neighbour has not checked its side.
    """
    findings = EdgeChecker(plan, name, links.open(name), addresses, patience).check()
    found = {finding.subject: finding for finding in islice(findings, count)}
    findings.close()
    return found


def check_together(links, plans, addresses):
    """Check several peers at the same time; return the findings of each."""
    found, start = {}, threading.Barrier(len(plans))
    transports = {name: links.open(name) for name in plans}

    def run(name):
        start.wait()
        checker = EdgeChecker(plans[name], name, transports[name], addresses[name], 60.0)
        found[name] = {finding.subject: finding for finding in checker.check()}

    threads = [threading.Thread(target=run, args=[name]) for name in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_peers_that_check_at_the_same_time_answer_one_another(links):
    plan = build_peer_plan()
    addresses = {
        name: {other: plan.peers.find_dialled(name, other, plan.clients) for other in near}
        for name, near in {"a": "bd", "b": "ac", "c": "bd", "d": "ac"}.items()
    }
    begin = time.monotonic()
    found = check_together(links, dict.fromkeys("abcd", plan), addresses)
    assert time.monotonic() - begin < 30.0  # nobody waits until the end of the time
    for name, findings in found.items():
        assert set(findings) == set(addresses[name])
        assert not any(finding.problem for finding in findings.values())
    size = len(encode_message(Message("probe", messages.describe_greeting(plan, "", 1.0, False, 0),
                                      torch.zeros(1, plan.count_parameters()))))  # fmt: skip
    assert f"127.0.0.1:7001; {size} bytes each way in" in found["b"]["a"].detail
    assert found["a"]["b"].detail.startswith("it dials this peer; ")


def test_a_neighbour_that_does_not_answer_is_named_with_the_cause(links):
    links.problems["a", "d"] = PermanentError("the certificate of d is expired", ExitCode.EXPIRED)
    found = run_check(links, build_peer_plan(), patience=0.2)
    assert found["b"].problem == (
        "b is not reachable (Connection refused); start fedlap peer or fedlap check there"
    )
    assert (found["d"].problem, found["d"].code) == ("the certificate of d is expired", ExitCode.EXPIRED)


def test_a_neighbour_that_starts_later_is_waited_for(links):
    plan, found = build_peer_plan(graph={"name": "path"}), {}
    one = threading.Thread(target=lambda: found.update(a=run_check(links, plan, "a", {"b": None})))
    one.start()
    time.sleep(0.05)
    links.problems["b", "c"] = PermanentError("no", ExitCode.REFUSED)
    found["b"] = run_check(links, plan, "b", {"a": "host:1", "c": "host:2"})
    one.join()
    assert found["a"]["b"].problem == found["b"]["a"].problem == ""


@pytest.mark.parametrize(
    ("changes", "words", "code"),
    [
        ({"rounds": 7}, "differs in the settings of the run", ExitCode.OTHER_PLAN),
        (
            {"algorithm": {"name": "dfedu", "lr": 0.5}},
            "differs in the section [algorithm]",
            ExitCode.OTHER_PLAN,
        ),
    ],
)
def test_another_plan_is_named(links, changes, words, code):
    plans = {"a": build_peer_plan(), "b": build_peer_plan(**changes)}
    links.problems = {pair: PermanentError("no", ExitCode.REFUSED) for pair in (("a", "d"), ("b", "c"))}
    found = check_together(links, plans, {"a": ADDRESSES, "b": {"a": "host:1", "c": None}})
    for name, other in ("ab", "ba"):
        assert words in found[name][other].problem
        assert found[name][other].code == code


def test_a_check_that_was_refused_still_answers_the_neighbour(links):
    """Otherwise the neighbour would hear that nobody answers, and not that the plans differ."""
    plans = {"a": build_peer_plan(), "b": build_peer_plan(rounds=7)}
    links.problems["a", "d"] = PermanentError("no", ExitCode.REFUSED)
    greeting, ended = messages.describe_greeting(plans["b"], "", 1.0, False, 0), threading.Event()
    neighbour, found = links.open("b"), {}

    def answer(request):
        question = wire.decode_message(request.content, messages.QUESTIONS)
        return encode_message(answering.answer_probe("a", greeting, question, is_check=True))

    threads = [
        threading.Thread(target=serve, args=[neighbour, answer, ended]),
        threading.Thread(target=lambda: found.update(run_check(links, plans["a"]))),
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.2)  # The check has its findings by then, and waits for b.
    try:
        content = neighbour.ask("a", encode_message(Message("probe", greeting)), 60.0)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    reply = wire.decode_message(content, messages.PEER_ANSWERS)
    assert (reply.kind, reply.facts["code"]) == ("refused", ExitCode.OTHER_PLAN)
    assert found["b"].code == ExitCode.OTHER_PLAN


def test_another_version_is_named(links, monkeypatch):
    plan = build_peer_plan()
    links.problems["a", "d"] = PermanentError("no", ExitCode.REFUSED)
    older = {**messages.describe_greeting(plan, "", 1.0, False, 0), "version": "0.0.1"}
    transport, ended = links.open("b"), threading.Event()

    def answer(request):
        question = wire.decode_message(request.content, messages.QUESTIONS)
        return encode_message(answering.answer_probe("a", older, question, is_check=False))

    helper = threading.Thread(target=serve, args=[transport, answer, ended])
    helper.start()
    found = run_check(links, plan, count=2)
    ended.set()
    helper.join()
    assert f"'a' has fedlap {wire.FEDLAP_VERSION}, and this peer 0.0.1" in found["b"].problem
    assert found["b"].code == ExitCode.OTHER_VERSION


def test_a_peer_that_runs_answers_and_notes_nothing(links, tmp_path):
    plan = build_peer_plan()
    links.problems["a", "d"] = PermanentError("no", ExitCode.REFUSED)
    network = PeerNetwork(tmp_path, plan, build_peer_rows(), names="b")
    run, transport, ended = network.runs["b"], links.open("b"), threading.Event()

    def answer(request):
        return encode_message(answer_question(run, request.name, request.content, network.now)[1])

    helper = threading.Thread(target=serve, args=[transport, answer, ended])
    helper.start()
    found = run_check(links, plan)
    ended.set()
    helper.join()
    assert found["b"].problem == ""
    assert not run.links["a"].is_greeted


def test_a_probe_with_another_state_than_a_tensor_is_refused():
    """An answer that returns a tuple can be longer than the question, and exceed the limit."""
    greeting = messages.describe_greeting(build_peer_plan(), "", 1.0, False, 0)
    for state, kind in (
        (None, "probe"),
        (torch.zeros(1, 3), "probe"),
        ((torch.zeros(1, 3),), "refused"),
        ((), "refused"),
    ):
        question = Message("probe", greeting, state)
        assert answering.answer_probe("a", greeting, question, is_check=True).kind == kind


def test_a_check_refuses_questions_of_a_run(links):
    plan = build_peer_plan(graph={"name": "path"})
    transport, ended = links.open("b"), threading.Event()
    replies = []

    def ask_and_answer():
        for content in (encode_message(Message("records", {"records": []})), b"noise"):
            replies.append(transport.ask("a", content, 60.0))
        serve(transport, lambda request: encode_message(refuse("the questions are answered")), ended)

    asked = links.open("a")
    helper = threading.Thread(target=ask_and_answer)
    helper.start()
    list(islice(EdgeChecker(plan, "a", asked, {"b": None}, 60.0).check(), 1))
    ended.set()
    helper.join()
    first, second = (wire.decode_message(reply, messages.PEER_ANSWERS) for reply in replies)
    assert (first.kind, first.facts["code"]) == ("refused", 0)
    assert "checks its edges" in first.facts["reason"]
    assert second.kind == "refused"


def test_a_clock_that_differs_is_a_problem(links, monkeypatch):
    plan = build_peer_plan(graph={"name": "path"})
    transport, ended = links.open("b"), threading.Event()

    def answer(request):
        question = wire.decode_message(request.content, messages.QUESTIONS)
        facts = {"utc": time.time() - 2 * check.MOST_SKEW, "is_check": False}
        return encode_message(Message("probe", facts, question.state))

    helper = threading.Thread(target=serve, args=[transport, answer, ended])
    helper.start()
    found = run_check(links, plan, "a", {"b": None})
    ended.set()
    helper.join()
    assert "the clock there differs by 120 s" in found["b"].problem


def test_the_plan_and_the_host_of_the_certificate():
    plan = build_peer_plan()
    assert describe_plan(plan, "a").detail == f"{plan.digest[:16]}, 6 rounds; neighbours: b, d"
    with pytest.raises(InputError, match="client 'z' is not in the plan"):
        describe_plan(plan, "z")
    facts = CertificateFacts("peer", "a", 1, ("127.0.0.1",), None, None, "", "")
    assert check_own_host(plan, "a", facts).problem == ""
    wrong = check_own_host(plan, "a", replace(facts, hosts=("a.example.org",)))
    assert "the plan has 127.0.0.1:7001, and the certificate names a.example.org" in wrong.problem
    assert wrong.code == ExitCode.WRONG_NAME
    only_dials = build_peer_plan(peers={"addresses": {"b": "127.0.0.1:1", "d": "127.0.0.1:2"}})
    assert check_own_host(only_dials, "a", facts) is None
    assert count_stored_models(plan, "a") == 14
