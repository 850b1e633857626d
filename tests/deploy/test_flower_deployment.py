"""The Flower app in a real federation: a SuperLink with TLS, SuperNodes with registered keys, on loopback."""

import importlib.util
import signal
from pathlib import Path

import pytest
import torch
from benchmarks.flower_federation import FlowerFederation, wait_for

from fedlap.deploy.client_storage import MODEL_FILE
from fedlap.deploy.event_log import read_events
from flower_runs import APP, load_models, simulate, write_plan, write_sites
from path_proxy import PathProxy

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="flwr is not installed"),
]
NAMES = ("north", "east")


def test_a_killed_federation_loses_nothing(tmp_path):
    """Kill all processes after a round; a new run resumes, and the models are those of the simulation.

    SuperNodes reach the SuperLink through a proxy that passes the Fleet API alone.
    """
    sites = write_sites(tmp_path, NAMES)
    # SCAFFOLD has private state at the clients. No round is merged without one of them.
    config = write_plan(tmp_path, "scaffold", names=NAMES, rounds=2, limits={"minimum": 2, "deadline": 60.0})
    config |= {"names": "registered"}

    def count_merged():
        folder = tmp_path / "server"
        return len([e for e in read_events(folder) if e.event == "round-merged"]) if folder.exists() else 0

    federation = FlowerFederation(tmp_path, sites)
    with PathProxy(federation.port, tmp_path, "/v1/fleet/") as proxy:
        federation.fleet_port = proxy.port
        with federation:
            federation.run(APP, config)
            wait_for(lambda: count_merged() == 1, 120, federation.read_logs)
            for name in list(federation.processes):
                federation.end(name, signal.SIGKILL)
            written = [Path(site["state"]) for site in sites.values()]
            assert not any(list(folder.glob(f"*/*/{MODEL_FILE}")) for folder in written)
            federation.start_all()
            run = federation.run(APP, config)
            wait_for(
                lambda: all(list(folder.glob(f"*/*/{MODEL_FILE}")) for folder in written),
                120,
                federation.read_logs,
            )
            assert federation.wait_for_end(run, 60) == "finished:completed"
            assert proxy.refused == []  # SuperNodes need the Fleet API alone
            assert proxy.ask("/v1/control/list-runs") == proxy.ask("/v1/runtime/get-nodes") == 403
    assert count_merged() == 2
    models, expected = load_models(sites), simulate(config, NAMES)
    for name in NAMES:
        assert torch.equal(models[name], expected[name]), name
