"""`docs/howto/peers.md`: its commands for one machine are run as they are written, and its plan is a plan."""

import os
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pandas
import pytest

from fedlap.deploy.peers.run_record import PeersRecord
from fedlap.deploy.peers.settings import PeerSettings
from fedlap.deploy.plan import Plan
from private_network import find_network_command

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "howto" / "peers.md"
REGIONS = ("northeast", "southeast", "southwest", "northwest")


def read_block(title, language=""):
    """Return the first block of code in a section of the page."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.search(rf"^```{language}\n(.*?)^```", section, re.S | re.M)[1]


def test_the_plan_on_the_page_is_valid():
    plan = Plan.of(tomllib.loads(read_block("The plan", "toml")))
    assert (plan.algorithm["name"], plan.clients) == ("dfedu", ("north", "east", "south", "west"))
    graph = plan.build_graph(plan.clients)
    for place, name in enumerate(plan.clients):  # one end of every edge dials the other
        for other in (plan.clients[end] for end in graph.neighbours(place)[0].tolist()):
            ends = [plan.peers.find_dialled(*pair, plan.clients) for pair in ((name, other), (other, name))]
            assert ends.count(None) == 1


def test_the_page_has_every_setting_with_its_default():
    text, default = PAGE.read_text(encoding="utf-8"), PeerSettings()
    shown = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", text, re.M))
    words = {"addresses": "none", "clip": "none", "staleness": f'`"{default.staleness}"`'}
    assert (dict(default.addresses), default.clip) == ({}, None)
    expected = {entry.name: str(getattr(default, entry.name)) for entry in fields(default)} | words
    assert shown == expected


@pytest.mark.docs
def test_the_commands_for_one_machine_work_as_they_are_written(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Its ports are fixed, and may be in use on this machine.
    network = find_network_command()[0] or []
    done = subprocess.run(
        [*network, "bash", "-e", "-c", read_block("Try it on one machine")], cwd=tmp_path,
        capture_output=True, text=True,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}, timeout=500,
    )  # fmt: skip
    logs = "\n".join(log.read_text() for log in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stderr + logs
    run = PeersRecord.read([tmp_path / f"fedlap-{name}" for name in REGIONS])
    assert {name: peer.round for name, peer in run.peers.items()} == dict.fromkeys(REGIONS, 50)
    assert (tmp_path / "report" / "page.html").is_file()
    houses = len(pandas.read_csv(tmp_path / "radon" / "northeast.csv"))
    assert len(pandas.read_csv(tmp_path / "predictions.csv")) == houses
