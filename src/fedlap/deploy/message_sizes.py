"""Sizes of a run's messages, from the method itself: what it sends and uploads on a row of zeros."""

from typing import NamedTuple

import torch

from fedlap.deploy.moments import ScalingConstants
from fedlap.deploy.plan import Plan
from fedlap.deploy.setup import Setup
from fedlap.deploy.wire import Message, encode_message
from fedlap.errors import InputError
from fedlap.training.state import gather_lazy_rows, split_state
from fedlap.training.worker import owns_models, select_client


class MessageSizes(NamedTuple):
    """Bytes of a client's messages: its reply and its task in a round, and the longest message of the run."""

    up: int
    down: int
    longest: int


def build_first_setup(plan: Plan) -> Setup:
    """Return a plan's first setup; shapes do not depend on the counts of rows, which are not known yet."""
    counts = [1] * len(plan.clients)
    return Setup.of(plan, plan.clients, counts, plan.build_graph(plan.clients), version=1, first_round=1)


def measure_messages(setup: Setup) -> MessageSizes:
    """Return the sizes of a setup's messages; raise InputError if one exceeds the limit of the plan."""
    plan, method, wide = setup.plan, setup.method, 10**6
    turn = {"round": wide, "setup": wide, "merged": wide}
    server = method.init_server(setup.build_start())
    ids = setup.draw_cohort(1)
    task = split_state(gather_lazy_rows(method.send(server, ids)), [1] * len(ids))[0]
    down = len(encode_message(Message("train", turn, task)))
    up = len(encode_message(Message("reply", {"round": wide, "setup": wide}, setup.sample_upload)))
    if owns_models(method, server, setup.initial_private):
        final = method.personal_models(server, setup.initial_private, len(setup.clients))[:1]
    else:
        final = select_client(server, 0)
    facts = {"setup": wide, "description": setup.describe()}
    others = [
        Message("finish", {**turn, "is_model": True}, final),
        Message("setup", facts, _build_constants(plan)),
        Message("plan", {"plan": plan.describe(), "digest": plan.digest}),
    ]
    sizes = MessageSizes(up, down, max(up, down, *(len(encode_message(message)) for message in others)))
    if sizes.longest > plan.limits.most_bytes:
        raise InputError(
            f"most_bytes = {plan.limits.most_bytes:,}; the longest message of this run has {sizes.longest:,} "
            f"bytes; set at least that many",
            field="limits.most_bytes",
            scope="limits",
        )
    return sizes


def fill_message(kind: str, facts: dict[str, float], size: int) -> Message:
    """Return a message of zeros that has this size, within a few bytes."""
    empty = len(encode_message(Message(kind, facts, torch.zeros(0))))
    return Message(kind, facts, torch.zeros(max(0, size - empty) // 4))


def _build_constants(plan: Plan) -> ScalingConstants:
    """Return constants of the size that all clients receive."""
    zeros = torch.zeros(1, plan.data.inputs, dtype=torch.float64)
    targets = torch.zeros(plan.data.outputs, dtype=torch.float64)
    return ScalingConstants((zeros, zeros), (targets, targets))
