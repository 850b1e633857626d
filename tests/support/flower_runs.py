"""Runs of the Flower app: their plans, clients with files of rows, and the simulation that they repeat."""

import tomllib
from pathlib import Path

import numpy as np
import pandas as pd

import fedlap as fl
from deployment_processes import format_toml
from deployments import read_model
from deployments import simulate as simulate_plan
from fedlap.deploy.client_storage import MODEL_FILE
from fedlap.deploy.plan import Plan

APP = Path(__file__).resolve().parents[2] / "examples" / "flower-app"
NAMES = ("north", "east", "south", "west", "island")
FEATURES, SEED = ("p", "q", "r", "s"), 3


def write_plan(folder, algorithm="fedu", real=False, names=NAMES, **changes):
    """Write a plan and return the configuration of a run, as Flower passes it."""
    labels = {"task": "regression"} if real else {"task": "classification", "labels": ["0", "1", "2"]}
    values = {
        "name": "test", "clients": list(names), "rounds": 3, "batch": 4, "seed": SEED, "dtype": "float64",
        "evaluate_every": 0, "graph": {"name": "ring"}, "algorithm": {"name": algorithm},
        "data": {"label": "y", "features": list(FEATURES), "scale": "client", **labels},
    }  # fmt: skip
    lines = [f"{key} = {format_toml(value)}" for key, value in (values | changes).items()]
    (folder / "plan.toml").write_text("\n".join(lines) + "\n")
    config = tomllib.loads((APP / "pyproject.toml").read_text("utf-8"))["tool"]["flwr"]["app"]["config"]
    return config | {"plan": str(folder / "plan.toml"), "folder": str(folder / "server")}


def draw_rows(names=NAMES, real=False):
    """Draw features and targets of clients of different sizes."""
    draws = np.random.default_rng(2)
    rows = {}
    for size, name in enumerate(names, 9):
        x = draws.normal(size=(size, len(FEATURES)))
        rows[name] = x, x[:, :1] - x[:, 1:2] if real else draws.integers(0, 3, size)
    return rows


def write_sites(folder, names=NAMES, real=False):
    """Write a file of rows per client; return the node configurations by name."""
    sites = {}
    for name, (x, y) in draw_rows(names, real).items():
        path = folder / f"{name}.csv"
        pd.DataFrame(x, columns=list(FEATURES)).assign(y=y).to_csv(path, index=False)
        sites[name] = {"name": name, "data": str(path), "state": str(folder / f"{name}-state")}
    return sites


def simulate(config, names=NAMES):
    """Return the models of the plain engine with all rows in one place, by name."""
    plan = Plan.load(Path(config["plan"]))
    rows = draw_rows(names, plan.data.classes is None)
    federation = fl.Federation.from_arrays(
        rows, plan.data.test_share, plan.seed, labels=plan.data.classes, scale="none"
    )
    return dict(zip(names, simulate_plan(plan, federation).models, strict=True))


def load_models(sites, training="*"):
    """Return the model that each client wrote to its disk, by name."""
    models = {}
    for name, site in sites.items():
        (path,) = Path(site["state"]).glob(f"{training}/{name}/{MODEL_FILE}")
        models[name] = read_model(path.parent)[0]
    return models
