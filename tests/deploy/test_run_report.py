"""The page of a run between machines: its numbers are those of the run, also after a restart."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedlap as fl
from deployments import LocalDeployment, simulate
from fedlap.cli import app
from fedlap.deploy import client as client_module
from fedlap.deploy.plan import Plan
from fedlap.deploy.roster_changes import RosterChange
from fedlap.deploy.run_report import RunRecord, build_run_page, write_run_report
from fedlap.deploy.run_storage import is_server_folder
from fedlap.errors import InputError
from fedlap.personal import Personal
from fedlap.report.page import FactsSection, FigureSection, TableSection
from fedlap.report.page.client_gains import score_models
from fedlap.training.metrics import METRICS
from random_inputs import random_arrays

ROOT = Path(__file__).parents[2]


def build_plan(real=False, **changes):
    labels = {"task": "regression"} if real else {"task": "classification", "labels": ["x", "y", "z"]}
    data = {"label": "y", "features": ["u", "v", "w", "t"], "scale": "pooled", **labels}
    values = {"rounds": 4, "batch": 4, "evaluate_every": 2, "seed": 5, "limits": {"deadline": 30.0}}
    return Plan.of(
        {
            "name": "test",
            "clients": list("abcd"),
            "data": data,
            "graph": {"name": "ring"},
            **values,
            **changes,
        }
    )


def build_federation(real=False):
    arrays = random_arrays((9, 14, 6, 11), labels=1 if real else 3, real=real)
    labels = None if real else ["x", "y", "z"]
    return fl.Federation.from_arrays(arrays, test_share=0.25, seed=5, labels=labels, scale="none")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(client_module, "FIRST_DELAY", 0.0)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def find_section(page, kind, title):
    (section,) = (found for found in page.sections if isinstance(found, kind) and found.title == title)
    return section


def read_page(deployment):
    return build_run_page(RunRecord.read(deployment.folder / "server"), "fedlap report server")


@pytest.mark.parametrize("real", [False, True])
def test_the_table_has_every_client_with_the_scores_of_the_simulation(real, tmp_path):
    plan, federation = build_plan(real), build_federation(real)
    deployment = LocalDeployment(tmp_path, plan, federation).run()
    result = simulate(plan, federation)
    table = find_section(read_page(deployment), TableSection, "Clients").records
    lines = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [line["client"] for line in lines] == list(plan.clients)
    assert [line["train_rows"] for line in lines] == federation.train.count.tolist()
    assert [line["test_rows"] for line in lines] == federation.test.count.tolist()
    expected = score_models(result.federation, result.objective, result.models, METRICS["loss"])
    assert [-line["loss"] for line in lines] == pytest.approx(expected.tolist(), rel=1e-12)
    pooled, metric = deployment.coordinator.scores[-1], "rmse" if real else "accuracy"
    values = [line[metric] for line in lines]
    assert sum(values) / 4 == pytest.approx(getattr(pooled, f"{metric}_mean"), rel=1e-12)
    sites = deployment.coordinator.sites
    assert [line["rounds_left_out"] for line in lines] == [0] * 4
    for line in lines:
        assert 0 < line["upload_bytes"] <= sites[line["client"]].bytes_up


def test_a_restarted_server_has_the_page_of_the_run(tmp_path):
    deployment = LocalDeployment(tmp_path, build_plan(), build_federation())
    deployment.run()
    before = read_page(deployment)
    traffic = deployment.coordinator.checkpoint.traffic
    deployment.start_server()
    assert deployment.coordinator.phase == "done"
    sites = deployment.coordinator.sites.values()
    assert {site.name: [site.bytes_up, site.bytes_down] for site in sites} == traffic
    assert read_page(deployment) == before


def test_curves_have_every_scored_round(tmp_path):
    deployment = LocalDeployment(tmp_path, build_plan(rounds=6), build_federation()).run()
    figure = find_section(read_page(deployment), FigureSection, "Learning curves")
    first = figure.panels[0].series[0]
    scores = deployment.coordinator.scores
    assert first.x == [2, 4, 6] == [score.round for score in scores]
    assert first.mean == pytest.approx([100 * score.accuracy for score in scores], rel=1e-6)


def test_a_silent_client_and_a_departure_are_on_the_page(tmp_path):
    deployment = LocalDeployment(tmp_path, build_plan(rounds=6), build_federation())
    while deployment.coordinator.round < 3:
        for name in "abcd":
            deployment.step(name)
            deployment.advance()
    while deployment.coordinator.round < 4:
        for name in "abc":
            deployment.step(name)
        deployment.advance(31.0 if deployment.coordinator.list_awaited(deployment.now) == ["d"] else 0.0)
    deployment.coordinator.request_change(RosterChange("eject", "d"))
    deployment.run(without=("d",))
    page = read_page(deployment)
    table = find_section(page, TableSection, "Clients")
    assert [(row[0].text, row[0].note) for row in table.rows] == [
        ("a", ""), ("b", ""), ("c", ""), ("d", "has left"),
    ]  # fmt: skip
    left_out = [event["name"] for event in deployment.list_events("left-out")]
    assert [row[-3] for row in table.records.rows] == [left_out.count(name) for name in "abcd"]
    assert "d" in left_out
    assert "3 clients and 1 that left" in page.lead
    assert "from round" in find_section(page, FigureSection, "Learning curves").about
    versions = find_section(page, TableSection, "Versions of the graph").records.rows
    setups = deployment.coordinator.setups
    assert [row[-1] for row in versions] == [setup.digest for setup in setups]
    assert [row[:3] for row in versions] == [[1, 1, 4], [2, setups[1].first_round, 3]]
    assert dict(find_section(page, FactsSection, "Plan").facts)["digest"] == deployment.plan.digest


def test_the_command_writes_the_page_of_a_server(tmp_path):
    deployment = LocalDeployment(tmp_path, build_plan(), build_federation()).run()
    server = tmp_path / "server"
    assert is_server_folder(server)
    done = CliRunner().invoke(app, ["report", str(server), "--metric", "loss"])
    assert done.exit_code == 0, done.output
    text = (server / "report" / "page.html").read_text(encoding="utf-8")
    assert deployment.plan.digest in text
    assert f"loss over all test rows after round 4: {deployment.coordinator.scores[-1].loss:.4g}" in text
    with (server / "report" / "tables" / "clients.csv").open(encoding="utf-8") as file:
        assert [row["client"] for row in csv.DictReader(file)] == list("abcd")


def test_a_run_that_has_not_started_has_no_page(tmp_path):
    LocalDeployment(tmp_path, build_plan(), build_federation())
    with pytest.raises(InputError, match="has started"):
        write_run_report(tmp_path / "server")


@pytest.mark.deploy
def test_the_demonstration_trains_and_says_where_the_models_are(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "deploy" / "demo.py"), str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    models = re.findall(r"^(\w+) .* (\S+/model\.safetensors)$", done.stdout, re.M)
    assert [name for name, _ in models] == ["northeast", "southeast", "southwest", "northwest"]
    assert [Personal.load(path).client for _, path in models] == [name for name, _ in models]
    assert (tmp_path / "demo" / "server" / "report" / "page.html").exists()
