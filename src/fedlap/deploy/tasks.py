"""The next task of a client: train, score, store its model, or wait."""

from typing import TYPE_CHECKING

from fedlap.deploy.run_state import Phase, Site
from fedlap.deploy.wire import Message
from fedlap.training.worker import owns_models, select_client

if TYPE_CHECKING:
    from fedlap.deploy.coordinator import Coordinator


def choose_task(run: "Coordinator", site: Site) -> Message:
    """Return the next task of a client, or `wait`."""
    name = site.name
    if run.phase is Phase.DONE or (run.phase is Phase.FINISHING and name in run.finished):
        return Message("stop", {"reason": "the run has ended"})
    if not run.setups or name not in run.setup.clients:
        if site.rows is None:
            return send_plan(run)
        return Message("wait", {"reason": "the next round" if run.setups else "the other clients"})
    if run.open_round is not None:
        return _choose_training(run, name)
    if run.phase is Phase.FINISHING:
        return _send_model(run, "finish", name)
    if run.phase is Phase.SCORING and name not in run.tallies:
        return _send_model(run, "score", name)
    return Message("wait", {"reason": f"the scores of round {run.checkpoint.round}"})


def send_plan(run: "Coordinator") -> Message:
    """Return the plan, as plain values."""
    return Message("plan", {"plan": run.plan.describe(), "digest": run.plan.digest})


def _choose_training(run: "Coordinator", name: str) -> Message:
    """Return the work of the round in progress, unless the client has answered or was not sampled."""
    opened, place = run.open_round, run.setup.clients.index(name)
    assert opened is not None
    if place not in opened.messages or place in opened.replies or place in opened.missing:
        return Message("wait", {"reason": f"round {opened.number}"})
    facts = {"round": opened.number, **_describe_versions(run, name)}
    return Message("train", facts, opened.messages[place])


def _send_model(run: "Coordinator", kind: str, name: str) -> Message:
    """Return a client's model, or its part of the server's state if the model depends on private state."""
    setup, server = run.setup, run.checkpoint.server
    is_model = owns_models(setup.method, server, setup.initial_private)
    facts = {"round": run.checkpoint.round, "is_model": is_model, **_describe_versions(run, name)}
    if not is_model:
        return Message(kind, facts, select_client(server, setup.clients.index(name)))
    models = setup.method.personal_models(server, setup.initial_private, len(setup.clients))
    place = setup.clients.index(name)
    return Message(kind, facts, models[place : place + 1])


def _describe_versions(run: "Coordinator", name: str) -> dict[str, int]:
    """Return the setup in force, and the last round in which a reply of the client was merged."""
    return {"setup": run.setup.version, "merged": run.checkpoint.merged.get(name, 0)}
