"""The merge of a round: from the replies that count to the next checkpoint."""

import torch

from fedlap.algorithms import State
from fedlap.deploy.run_state import OpenRound
from fedlap.deploy.run_storage import ServerCheckpoint
from fedlap.deploy.setup import Setup
from fedlap.training.state import apply_updates, concatenate_states, count_bytes


def merge_round(
    setup: Setup, before: ServerCheckpoint, opened: OpenRound, now: float, traffic: dict[str, list[int]]
) -> ServerCheckpoint:
    """Return the run after a round; the counted replies are merged in the order of the roster.

    traffic: bytes of messages so far by client, up and down.
    """
    counted = opened.counted or []
    left_out = [name for name, _ in opened.list_left_out(setup.clients)]
    return ServerCheckpoint(
        opened.number,
        _merge_replies(setup, before.server, opened, counted),
        setup.version,
        before.merged | dict.fromkeys([setup.clients[k] for k in counted], opened.number),
        before.left_out | {name: before.left_out.get(name, 0) + 1 for name in left_out},
        before.bytes_up + sum(count_bytes(opened.replies[k]) for k in counted),
        before.bytes_down + sum(count_bytes(opened.messages[k]) for k in opened.cohort),
        before.seconds + now - opened.opened,
        before.traffic | traffic,
    )


def _merge_replies(setup: Setup, server: State, opened: OpenRound, counted: list[int]) -> State:
    """Return the merged state; the unchanged one if every client of the cohort has left the run."""
    if not counted:
        return server
    up = concatenate_states([opened.replies[k] for k in counted])
    (after,) = apply_updates([server], [setup.method.merge(server, torch.tensor(counted), up)])
    return after
