"""A client's model file predicts, bit for bit, what the file of a simulation predicts."""

import numpy as np
import pandas as pd
import pytest
import torch

import fedlap as fl
from fedlap.deploy.data_plan import DataPlan
from fedlap.deploy.moments import (
    apply_constants,
    combine_moments,
    compute_moments,
    standardize_by_moments,
)
from fedlap.deploy.site_data import load_site
from fedlap.deploy.site_model import build_site_model, write_site_model
from fedlap.models import CrossEntropy, Model, SquaredError
from fedlap.personal import Personal
from user_tables import write

pytestmark = pytest.mark.filterwarnings("ignore::fedlap.errors.DataWarning")

ROWS, SEED = 90, 4
SITES = ("north", "south", "east")
_rng = np.random.default_rng(2)
FRAME = pd.DataFrame(
    {
        "hospital": np.tile(SITES, ROWS // 3),
        "age": _rng.normal(50, 9, ROWS),
        "soil": _rng.choice(["clay", "loam", "sand"], ROWS),
        "day": (pd.Timestamp("2020-01-01") + pd.to_timedelta(_rng.integers(0, 300, ROWS), "D")).astype(str),
        "cost": _rng.normal(1e3, 20, ROWS),
        "outcome": _rng.choice(["ill", "well"], ROWS),
    }
)
ENCODED = {"features": ["soil", "age", "day"], "levels": {"soil": ["clay", "loam", "sand"]}}
PLANS = {
    "targets": {"label": "cost", **ENCODED},
    "classes": {"label": "outcome", "task": "classification", "labels": ["ill", "well"], "features": ["age"]},
}


def build_plan(kind, scale, federation=None):
    """Return the plan; dates count from the first training date, as in the simulation."""
    plan = {**PLANS[kind], "scale": scale}
    if kind == "targets":
        origin = 18_262.0 if federation is None else federation.encoding.columns[2].origin
        plan["dates"] = {"day": str((pd.Timestamp(0) + pd.Timedelta(origin, "D")).date())}
    return DataPlan.of(plan)


@pytest.mark.parametrize("scale", ["none", "client", "pooled"])
@pytest.mark.parametrize("kind", PLANS)
def test_a_site_predicts_like_the_simulation(kind, scale, call, tmp_path):
    path, plan = write(tmp_path / "all.csv", FRAME), build_plan(kind, scale)
    federation = fl.data.load(
        "file", path=path, client="hospital", label=plan.label, features=list(plan.features), seed=SEED,
        scale="none",
    )  # fmt: skip
    plan = build_plan(kind, scale, federation)
    simulated = standardize_by_moments(federation, scale)
    lr = 1e-7 if scale == "none" else 0.1
    method = fl.FedU(fl.Graph.complete(simulated.clients), strength=0.01, lr=lr)
    result = fl.fit(method, simulated, fl.models.linear(), rounds=3, batch=8, seed=SEED)

    sites = {}
    for name in SITES:
        rows = FRAME[FRAME.hospital == name].drop(columns="hospital")
        sites[name] = load_site(plan, name, write(tmp_path / f"{name}.csv", rows), SEED)
    moments = {name: compute_moments(site, scale) for name, site in sites.items()}
    constants = combine_moments(moments, federation.clients)
    architecture = fl.models.linear()
    loss = SquaredError() if plan.classes is None else CrossEntropy()
    network = architecture.build((plan.inputs,), plan.outputs)
    model = Model(network, loss, architecture.l2, architecture)

    new = write(tmp_path / "new.csv", FRAME.sample(20, random_state=1).drop(columns=["hospital", plan.label]))
    for k, name in enumerate(federation.clients):
        one, other = tmp_path / "site.safetensors", tmp_path / "simulation.safetensors"
        write_site_model(one, result.models[k : k + 1], apply_constants(sites[name], scale, constants), model)
        result.personal(name).save(other)
        predictions = [call("predict", str(file), new, "--json") for file in (one, other)]
        assert predictions[0][0] == 0
        assert predictions[0] == predictions[1]
        mine, simulation = Personal.load(one), Personal.load(other)
        assert (mine.client, mine.features, mine.labels) == (name, simulation.features, simulation.labels)
        frame = pd.read_csv(new)
        assert torch.equal(mine.scores(frame), simulation.scores(frame))
        for file in (one, one.with_suffix(".json")):
            assert file.stat().st_mode & 0o777 == 0o600


def test_a_model_of_the_wrong_size_is_not_written(tmp_path):
    site = load_site(build_plan("classes", "none"), "north", write(tmp_path / "own.csv", FRAME), 0)
    architecture = fl.models.linear()
    model = Model(architecture.build((1,), 2), CrossEntropy(), architecture.l2, architecture)
    for w in (torch.zeros(1, model.size + 1), torch.zeros(2, model.size)):
        with pytest.raises(fl.InputError, match="w"):
            write_site_model(tmp_path / "my.safetensors", w, site, model)
    both = fl.Federation.from_dataframe(FRAME, "hospital", "outcome", features=["age"], scale="none")
    with pytest.raises(fl.InputError, match="the site has 3 clients; expected one"):
        build_site_model(torch.zeros(1, model.size), both, model)
    assert not list(tmp_path.glob("my*"))
