"""The page of a run without a server: its numbers are those of the simulation, and gaps are named."""

import csv
import os
from dataclasses import replace

import pytest
import torch

from deployments import simulate
from fedlap.deploy.peers.changes import EdgeChange
from fedlap.deploy.peers.peers_report import build_peers_page, read_peers_page
from fedlap.deploy.peers.run_record import PeersRecord
from fedlap.errors import InputError
from fedlap.report.page import FactsSection, FigureSection, TableSection
from fedlap.report.page.client_gains import score_models
from fedlap.training.metrics import METRICS
from peer_networks import PeerNetwork
from peer_plans import build_peer_plan, build_peer_rows

PATIENT = {"staleness": "any", "deadline": 15.0}


@pytest.fixture(autouse=True)
def no_waits_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def start_network(folder, plan, federation, **more):
    """Return a network whose folders have the names of their peers, as those of `fedlap peer`."""
    network = PeerNetwork(folder, plan, federation, **more)
    for name, run in network.runs.items():
        run.storage.write_identity(name, None)
    return network


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A run of four peers without faults, by the kind of their targets: real numbers or classes."""
    networks = {}

    def run(real=False):
        if real not in networks:
            folder = tmp_path_factory.mktemp("unbroken")
            networks[real] = start_network(folder, build_peer_plan(real), build_peer_rows(real)).run()
        return networks[real]

    return run


def read_run(network, names="abcd"):
    return PeersRecord.read([network.folder / name for name in names])


def find_section(page, kind, title):
    (section,) = (found for found in page.sections if isinstance(found, kind) and found.title == title)
    return section


def list_lines(table):
    return [dict(zip(table.records.columns, row, strict=True)) for row in table.records.rows]


@pytest.mark.parametrize("real", [False, True])
def test_the_scores_of_an_unbroken_run_are_those_of_the_simulation(real, unbroken):
    network = unbroken(real)
    plan, federation = network.plan, network.federation
    result = simulate(plan, federation)
    assert torch.equal(network.models, result.models)
    run = read_run(network)
    assert [score.round for score in run.scores] == [2, 4, 6] == [score.round for score in result.scores]
    for found, expected in zip(run.scores, result.scores, strict=True):
        known = expected if found.round == 6 else replace(expected, objective=None)
        assert replace(found, seconds=0.0) == replace(known, seconds=0.0)
    page = build_peers_page(run, "fedlap report")
    metric = METRICS["rmse" if real else "accuracy"]
    value = metric.format(getattr(result.scores[-1], metric.name))
    assert page.lead == f"Round 6 of 6, 4 peers. {metric.label} over all test rows after round 6: {value}."
    facts = dict(find_section(page, FactsSection, "Objective and traffic").facts)
    assert facts["J(W) of the last models"] == f"{result.scores[-1].objective:.10g}"
    lines = list_lines(find_section(page, TableSection, "Peers"))
    assert [line["peer"] for line in lines] == list("abcd")
    assert [line["train_rows"] for line in lines] == federation.train.count.tolist()
    assert [line["test_rows"] for line in lines] == federation.test.count.tolist()
    expected = score_models(result.federation, result.objective, result.models, METRICS["loss"])
    assert [-line["loss"] for line in lines] == pytest.approx(expected.tolist(), rel=1e-12)
    assert sum(line[metric.name] for line in lines) / 4 == pytest.approx(
        getattr(result.scores[-1], f"{metric.name}_mean"), rel=1e-12
    )
    assert [line["rounds_late"] for line in lines] == [0] * 4
    for side in ("upload_bytes", "download_bytes"):
        assert sum(line[side] for line in lines) == result.scores[-1].bytes_up
    assert dict(find_section(page, FactsSection, "Plan").facts)["digest"] == plan.digest
    assert "addresses" not in str(find_section(page, FactsSection, "Plan").facts)


def test_curves_have_the_rounds_that_everybody_scored(tmp_path):
    network = start_network(tmp_path, build_peer_plan(peers=PATIENT, rounds=12), build_peer_rows()).reach(3)
    network.kill("b")
    network.run_until(lambda: all(network.runs[name].round >= 7 for name in "acd"))
    network.start("b")
    network.run()
    run = read_run(network)
    rounds = [score.round for score in run.scores]
    assert set(run.peers["b"].tallies) == set(rounds)
    assert 6 not in rounds
    assert rounds[0] == 2
    assert rounds[-1] == 12
    figure = find_section(build_peers_page(run, ""), FigureSection, "Learning curves")
    assert figure.panels[0].series[0].x == rounds
    assert "left out: round " in figure.about
    assert figure.about.endswith("(b).")
    late = {name: run.count_late("b", name) for name in "ac"}
    assert late == {name: network.runs[name].peer.neighbours["b"].rounds_late for name in "ac"}
    assert min(late.values()) > 0
    lines = {
        line["peer"]: line
        for line in list_lines(find_section(build_peers_page(run, ""), TableSection, "Peers"))
    }
    assert lines["a"]["rounds_late"] >= late["a"]
    (edge,) = (line for line in list_lines(find_section(build_peers_page(run, ""), TableSection, "Edges"))
               if (line["one"], line["other"]) == ("a", "b"))  # fmt: skip
    assert (edge["late_models_of_other"], edge["removed_in_round"]) == (late["a"], None)
    assert edge["bytes_from_one"] == network.runs["b"].peer.neighbours["a"].bytes_down


def test_some_folders_say_which_are_missing(unbroken):
    run = read_run(unbroken(), "ac")
    assert run.missing == ["b", "d"]
    page = build_peers_page(run, "")
    assert "2 peers. Without a folder here: b, d." in page.lead
    facts = dict(find_section(page, FactsSection, "Objective and traffic").facts)
    assert facts["J(W) of the last models"] == "not known: the folder of b, d is missing"
    lines = list_lines(find_section(page, TableSection, "Peers"))
    count = sum(line["test_rows"] for line in lines)
    assert run.scores[-1].accuracy == pytest.approx(
        sum(line["accuracy"] * line["test_rows"] for line in lines) / count, rel=1e-12
    )
    assert [line["upload_bytes"] for line in lines] == [720, 720]


def test_a_run_in_progress_has_no_objective(tmp_path):
    network = start_network(tmp_path, build_peer_plan(peers=PATIENT), build_peer_rows()).reach(3)
    page = build_peers_page(read_run(network), "")
    facts = dict(find_section(page, FactsSection, "Objective and traffic").facts)
    assert facts["J(W) of the last models"].startswith("not known: ")


def test_changes_of_edges_are_on_the_page(tmp_path):
    network = start_network(tmp_path, build_peer_plan(peers=PATIENT), build_peer_rows()).reach(2)
    round = network.runs["a"].round + 1
    network.runs["a"].request_change(EdgeChange("eject", "b"))
    network.run()
    run = read_run(network)
    edges = {(edge.one, edge.other): edge for edge in run.edges}
    assert edges["a", "b"].removed == edges["a", "b"].changes[0][0] >= round
    assert [text for _, text in edges["a", "b"].changes] == ["a ejects b"]  # b's own record says the same
    assert [edge.removed for pair, edge in edges.items() if pair != ("a", "b")] == [None] * 3
    table = find_section(build_peers_page(run, ""), TableSection, "Edges")
    assert table.rows[0][0].note == f"removed from round {edges['a', 'b'].removed}"
    assert "a ejects b" in table.rows[0][-1].text
    W = torch.cat([network.runs[name].peer.worker.private for name in "abcd"])
    pairs = [(1, 2), (2, 3), (0, 3)]
    eta = run.agreed.settings["strength"]
    expected = eta / 2 * sum(float((W[i] - W[j]).square().sum()) for i, j in pairs)
    assert run.compute_penalty() == pytest.approx(expected, rel=1e-6)


def test_folders_of_other_runs_or_of_no_run_are_refused(unbroken, tmp_path):
    network, other = unbroken(), unbroken(real=True)
    with pytest.raises(InputError, match="different runs"):
        PeersRecord.read([network.folder / "a", other.folder / "b"])
    with pytest.raises(InputError, match="two folders are those of peer 'a'"):
        PeersRecord.read([network.folder / "a", network.folder / "a"])
    with pytest.raises(InputError, match="no folder of a peer that has started"):
        PeersRecord.read([network.folder / "a", tmp_path])
    early = start_network(tmp_path / "early", network.plan, network.federation)
    early.run_until(lambda: all(run.setup is not None for run in early.runs.values()))
    with pytest.raises(InputError, match="no peer has finished a round"):
        read_peers_page([early.folder / name for name in "abcd"], "")


def test_the_command_writes_the_page_of_peers(unbroken, tmp_path, call):
    network = unbroken()
    folders = [str(network.folder / name) for name in "abcd"]
    code, out, err = call("report", *folders, "--metric", "loss", out=False)
    assert code == 0, err
    report = network.folder / "a" / "report"
    assert out.strip() == (report / "page.html").resolve().as_uri()
    text = (report / "page.html").read_text(encoding="utf-8")
    assert network.plan.digest in text
    assert f"loss over all test rows after round 6: {read_run(network).scores[-1].loss:.4g}" in text
    with (report / "tables" / "peers.csv").open(encoding="utf-8") as file:
        assert [row["peer"] for row in csv.DictReader(file)] == list("abcd")
    code, _, err = call("report", str(tmp_path), folders[0], out=False)
    assert code == 2
    assert "no folder of a peer that has started" in err
