"""The client's side of a run, without Flower: rows and private state stay on this machine."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs
import torch

import fedlap as fl
from fedlap.data.roster import Roster
from fedlap.personal.models import Personals
from fedlap.randomness import digest_names
from fedlap.training.state_bytes import decode_state, encode_state, list_state_types
from fedlap.training.worker import Worker
from fedlap_flower.task import Plan, build_algorithm, build_model, list_clients, load_rows

Content = tuple[dict[str, Any], bytes]  # facts for JSON, and a state


def answer(verb: str, facts: Mapping[str, Any], state: bytes, site: Mapping[str, Any]) -> Content:
    """Return the reply to a request: "describe", "train" or "evaluate".

    site: the node configuration: `name`, `data`, `label`, and `state`, the folder of private state.
    """
    plan, name = facts["plan"], facts["client"]
    if plan["fedlap"] != fl.__version__:
        raise fl.InputError(f"the server has fedlap {plan['fedlap']}; install it here, not {fl.__version__}")
    if read_name(site) not in ("", name):
        raise fl.InputError(f"the server calls {read_name(site)!r} {name!r}; register this node's name")
    arrays, labels = {name: load_rows(name, site)}, plan["labels"] or None
    rows = fl.Federation.from_arrays(
        arrays, plan["test-share"], plan["seed"], labels=labels, scale=plan["scale"]
    )
    if verb == "describe":
        return {"rows": int(rows.train.count), "inputs": rows.inputs, "outputs": rows.outputs}, b""
    folder = _open_folder(site, plan["id"])
    worker = _build_worker(plan, rows)
    if (path := folder / f"{_check_plain(name)}.state").exists():
        worker.load(path)
    received = decode_state(state, list_state_types(worker.method))
    if verb == "train":
        up = worker.local(facts["round"], received, merged=facts["merged"])
        worker.save(path)  # before the reply leaves
        return {}, encode_state(up)
    worker.confirm(facts["merged"])
    worker.save(path)
    w = received if facts["is_model"] else worker.personal_model(received)
    models = Personals.of(rows, worker.model, worker.adapt(w), worker.method)
    models.of_client(name).save(folder / f"{name}.safetensors")
    return {}, encode_state(worker.score(w))


def read_name(site: Mapping[str, Any]) -> str:
    """Return the name that a site claims: `name`, or `partition-id` in a simulation; "" if it has neither."""
    return str(site.get("name", site.get("partition-id", "")))


def build_roster(plan: Plan) -> Roster:
    """Return everything that is known about the clients without their rows."""
    clients, labels = list_clients(plan), tuple(map(str, range(plan["labels"])))
    return Roster(clients, digest_names(clients), torch.tensor(plan["rows"]), labels or None)


def _build_worker(plan: Plan, rows: fl.Federation) -> Worker:
    settings = {key: plan[key] for key in ("seed", "batch", "dtype", "fast")}
    return Worker(build_algorithm(plan), rows, build_model(plan), build_roster(plan), **settings)


def _open_folder(site: Mapping[str, Any], run: str) -> Path:
    """Return the folder of a run on this machine, which other users cannot read."""
    root = Path(str(site.get("state", platformdirs.user_state_path("fedlap") / "flower")))
    folder = root / _check_plain(run)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _check_plain(name: str) -> str:
    """Return a name that can name a file in any folder."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise fl.InputError(f"name {name!r} cannot name a file; use letters, digits, '_', '-' and '.'")
    return name
