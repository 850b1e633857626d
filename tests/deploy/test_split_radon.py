"""The example that splits radon: regions of whole counties, all 919 houses, and a plan that reads them."""

import csv
import importlib.util
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import fedlap as fl
from fedlap.deploy.data_plan import DataPlan
from fedlap.deploy.plan import Plan
from fedlap.deploy.site_data import load_site

SCRIPT = Path(__file__).parents[2] / "examples" / "deploy" / "split_radon.py"


@pytest.fixture(scope="module")
def regions(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("split_radon", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script.split_radon(tmp_path_factory.mktemp("radon") / "new folder")


def read_rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return [
            (row["county"], float(row["floor"]), float(row["uranium"]), float(row["log_radon"]))
            for row in csv.DictReader(file)
        ]


def test_the_regions_have_all_houses_and_whole_counties(regions):
    radon = fl.data.load("radon", features=["floor", "uranium"], test_share=0, scale="none")
    names = [radon.clients[k] for k in radon.train.find_owners()]
    houses = zip(names, *radon.train.x.T.tolist(), radon.train.y[:, 0].tolist(), strict=True)
    rows = {name: read_rows(path) for name, path in regions.items()}
    assert sorted(row for part in rows.values() for row in part) == sorted(houses)
    assert sum(map(len, rows.values())) == 919
    assert min(map(len, rows.values())) > 100
    counties = {name: {row[0] for row in part} for name, part in rows.items()}
    assert len(set.union(*counties.values())) == sum(map(len, counties.values())) == 85
    places = dict(zip(radon.clients, radon.places.values, strict=True))
    middle = {name: np.mean([places[county] for county in part], 0) for name, part in counties.items()}
    assert middle["northeast"][0] > middle["northwest"][0]
    assert middle["southeast"][0] > middle["southwest"][0]
    assert middle["northeast"][1] > middle["southeast"][1]
    assert middle["northwest"][1] > middle["southwest"][1]


def test_the_plan_reads_every_region(regions):
    values = tomllib.loads((regions["northeast"].parent / "plan.toml").read_text(encoding="utf-8"))
    plan = DataPlan.of(values["data"])
    assert tuple(values["clients"]) == tuple(regions)
    for name, path in regions.items():
        site = load_site(plan, name, str(path), values["seed"])
        rows = torch.tensor([row[1:] for row in read_rows(path)], dtype=torch.float64)
        assert torch.equal(site.train.store, rows[:, :2])
        assert torch.equal(site.train.y, rows[site.train.row, 2:])
        assert len(site.train.row) + len(site.test.row) == len(rows)


def test_the_plan_of_peers_differs_in_the_method_and_has_addresses(regions):
    folder = regions["northeast"].parent
    served, peers = (Plan.load(folder / name) for name in ("plan.toml", "peers.toml"))
    assert (served.algorithm["name"], peers.algorithm["name"]) == ("fedu", "dfedu")
    assert (served.data, served.graph, served.rounds) == (peers.data, peers.graph, peers.rounds)
    assert tuple(peers.peers.addresses) == peers.clients == tuple(regions)
