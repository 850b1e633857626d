"""The ClientApp: it does the tasks of fedlap's server; rows, private state and model stay on this machine."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import platformdirs
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

import fedlap as fl
from fedlap.deploy import wire
from fedlap.deploy.client_storage import ClientStorage
from fedlap.deploy.data_plan import DataPlan
from fedlap.deploy.site_data import load_site
from fedlap.deploy.site_tasks import FullDiskError, SiteTasks

app = ClientApp()


@app.query()
def describe(message: Message, context: Context) -> Message:
    """Return the shapes of the rows, or what this node is called if the server asks for that."""
    if "task" in message.content:
        return reply(message, context)
    names = {key: str(context.node_config.get(key, "")) for key in ("name", "partition-id")}
    return Message(RecordDict({"names": ConfigRecord(names)}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Run the local work of a round."""
    return reply(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Store the personal model, and return sums over this client's rows if the round is scored."""
    return reply(message, context)


def reply(message: Message, context: Context) -> Message:
    """Answer a message with a task."""
    content = answer(message.content["task"], context.node_config)
    return Message(RecordDict({"reply": ConfigRecord({"content": content})}), reply_to=message)


def answer(facts: Mapping[str, Any], site: Mapping[str, Any]) -> bytes:
    """Do a task and return the answer, both as messages of fedlap.

    site: the node configuration, which the operator of this machine sets: `name`, `data`, `label`, and
    `state`, the folder of private state.
    """
    if facts["version"] != wire.FEDLAP_VERSION:
        raise fl.InputError(
            f"the server has fedlap {facts['version']}; install it here, not {wire.FEDLAP_VERSION}"
        )
    name, setup = str(facts["client"]), facts["setup"]

    def load(plan: DataPlan, seed: int) -> fl.Federation:
        return load_rows(plan, name, seed, site)

    storage = ClientStorage(choose_folder(site, str(facts["training"]), name))
    tasks = SiteTasks(name, load, storage, lambda: tasks.decode(setup))
    plan = tasks.decode(facts["plan"])
    if (node := read_name(site, plan.facts["plan"]["clients"])) != name:
        raise fl.InputError(f"the server calls {node!r} {name!r}; register this node's name")
    tasks.take_plan(plan)
    tasks.read_rows()
    task = tasks.decode(facts["task"])
    if task.kind == "plan":
        return wire.encode_message(tasks.describe_rows())
    if task.kind == "train" and (stored := storage.read_reply(facts["task"])):
        return stored
    tasks.prepare_worker(task)
    if task.kind == "train":
        try:
            return tasks.train(task, facts["task"])
        except FullDiskError as problem:
            decline = {"round": task.facts["round"], "reason": "the disk cannot be written"}
            print(f"{name}: {problem}")  # in the log of the SuperNode
            return wire.encode_message(wire.Message("decline", decline))
    tasks.write_model(task)
    return wire.encode_message(tasks.score(task) if task.kind == "score" else wire.Message("finished"))


def read_name(site: Mapping[str, Any], clients: Sequence[str]) -> str:
    """Return the name of a site; in a simulation a node has a number instead, its place in the plan."""
    return str(site["name"]) if "name" in site else clients[int(site["partition-id"])]


def load_rows(plan: DataPlan, name: str, seed: int, site: Mapping[str, Any]) -> fl.Federation:
    """Load the rows of this client: its file, or in a simulation those of a county in radon."""
    if "data" in site:
        return load_site(
            replace(plan, label=str(site.get("label", plan.label))), name, str(site["data"]), seed
        )
    radon = fl.data.load("radon", test_share=0, scale="none")
    rows = {name: radon.train.client(radon.clients.index(name))}
    return fl.Federation.from_arrays(rows, plan.test_share, seed, scale="none")


def choose_folder(site: Mapping[str, Any], training: str, name: str) -> Path:
    """Return the folder of a training and a client on this machine."""
    for part in (training, name):
        if not re.fullmatch(r"\w[\w. -]*", part):
            raise fl.InputError(f"name {part!r} cannot name a folder; use letters, digits, '_', '-' and '.'")
    return Path(str(site.get("state", platformdirs.user_state_path("fedlap") / "flower"))) / training / name
