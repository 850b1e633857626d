"""Runs of the Flower app: their configuration, clients with files of rows, and the simulation they repeat."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd

import fedlap as fl
from fedlap_flower.client import answer
from fedlap_flower.task import build_algorithm, build_model, list_clients, load_rows

APP = Path(__file__).resolve().parents[2] / "examples" / "flower-app"
NAMES = ("north", "east", "south", "west", "island")


def read_config(**changes):
    """Return the configuration as Flower passes it, with changes; `algorithm__lr` is `algorithm.lr`."""
    tables = tomllib.loads((APP / "pyproject.toml").read_text("utf-8"))["tool"]["flwr"]["app"]["config"]
    config = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    for section in (key for key, value in tables.items() if isinstance(value, dict)):
        config |= {f"{section}.{key}": value for key, value in tables[section].items()}
    named = {
        key.replace("__", ".").replace("least_replies", "least-replies"): changes[key] for key in changes
    }
    return config | {"clients": ",".join(NAMES), "labels": 3, "dtype": "float64", "batch": 4} | named


def write_sites(folder, names=NAMES, real=False):
    """Write a CSV file of rows per client; return the node configurations by name."""
    draws = np.random.default_rng(2)
    sites = {}
    for size, name in enumerate(names, 9):
        x = draws.normal(size=(size, 4))
        y = x[:, 0] - x[:, 1] if real else draws.integers(0, 3, size)
        path = folder / f"{name}.csv"
        pd.DataFrame(x, columns=list("abcd")).assign(label=y).to_csv(path, index=False)
        sites[name] = {"name": name, "data": str(path), "state": str(folder / f"{name}-state")}
    return sites


def simulate(config, sites, rounds=None):
    """Return the result of the plain engine with all rows in one place."""
    rows = {name: load_rows(name, sites[name]) for name in list_clients(config)}
    labels = config["labels"] or None
    federation = fl.Federation.from_arrays(
        rows, config["test-share"], config["seed"], labels=labels, scale=config["scale"]
    )
    schedule = {key: config[key] for key in ("rounds", "batch", "sample", "seed", "dtype")}
    return fl.fit(
        build_algorithm(config), federation, build_model(config), engine="one_by_one", evaluate_every=0,
        **schedule | ({"rounds": rounds} if rounds else {}),
    )  # fmt: skip


def load_models(sites, run="*"):
    """Return the model that each client wrote to its disk, by name."""
    models = {}
    for name, site in sites.items():
        (path,) = Path(site["state"]).glob(f"{run}/{name}.safetensors")
        models[name] = fl.personal.Personal.load(path).parameters
    return models


class DirectExchange:
    """An exchange that calls the clients in this process, with bytes alone between them and the server.

    lose: takes verb, name and reply, and returns the reply that arrives, or None. asked: all requests.
    """

    def __init__(self, sites, lose=lambda verb, name, reply: reply):
        self.sites, self.lose, self.asked = sites, lose, []

    def ask(self, verb, requests, seconds):
        replies = {}
        for name, (facts, state) in requests.items():
            self.asked.append((verb, name, facts.get("round")))
            reply = answer(verb, json.loads(json.dumps(facts)), state, self.sites[name])
            reply = self.lose(verb, name, (json.loads(json.dumps(reply[0])), reply[1]))
            if reply is not None:
                replies[name] = reply
        return replies
