"""The Flower app in a real federation: a SuperLink with TLS, SuperNodes with registered keys, on loopback."""

import importlib.util
import signal
from pathlib import Path

import pytest
import torch
from benchmarks.flower_federation import FlowerFederation, wait_for

from fedlap.training.state_bytes import list_state_types, read_state_file
from fedlap_flower.task import build_algorithm
from flower_runs import APP, load_models, read_config, simulate, write_sites
from path_proxy import PathProxy

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="flwr is not installed"),
]


def read_round(path, config):
    """Return the last round of a checkpoint, 0 if there is none."""
    if not path.exists():
        return 0
    return read_state_file(path, list_state_types(build_algorithm(config)))[0]["round"]


def test_a_killed_federation_loses_nothing(tmp_path):
    """Kill all processes after a round; a new run resumes, and the models are those of the simulation.

    SuperNodes reach the SuperLink through a proxy that passes the Fleet API alone.
    """
    sites = write_sites(tmp_path, ("north", "east"))
    changes = {
        "clients": "north,east", "names": "registered", "folder": str(tmp_path / "server"), "labels": 3,
        "batch": 4, "rounds": 3, "dtype": "float64", "deadline": 60.0, "least-replies": 2,
        "algorithm.name": "scaffold",  # with private state at the clients
    }  # fmt: skip
    config = read_config() | changes
    checkpoint = tmp_path / "server" / "digits.checkpoint"
    federation = FlowerFederation(tmp_path, sites)
    with PathProxy(federation.port, tmp_path, "/v1/fleet/") as proxy:
        federation.fleet_port = proxy.port
        with federation:
            federation.run(APP, changes)
            wait_for(lambda: read_round(checkpoint, config) >= 1, 120, federation.read_logs)
            for name in list(federation.processes):
                federation.end(name, signal.SIGKILL)
            assert not list(tmp_path.glob("*-state/*/*.safetensors"))
            federation.start_all()
            run = federation.run(APP, changes)
            written = [Path(site["state"]) for site in sites.values()]
            wait_for(lambda: all(list(p.glob("*/*.json")) for p in written), 120, federation.read_logs)
            assert federation.wait_for_end(run, 60) == "finished:completed"
            assert proxy.refused == []  # SuperNodes need the Fleet API alone
            assert proxy.ask("/v1/control/list-runs") == proxy.ask("/v1/runtime/get-nodes") == 403
    result = simulate(config, sites)
    models = load_models(sites)
    assert torch.equal(torch.stack([models[name] for name in result.federation.clients]), result.models)
