"""Bytes of a method's messages and state per client, counted in a few rounds of a tiny federation."""

from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from fedlap.costs.workload import Workload
from fedlap.errors import UnsuitedError
from fedlap.training.assemble import Training, assemble
from fedlap.training.state import Traffic, apply_updates, count_bytes, count_traffic, list_leaves

LEAST_CLIENTS: Final = 20
ROUNDS: Final = 10  # Some methods do not send in every round.
MOST_GROWTH: Final = 1.05  # of the state per client, from a federation to one of twice its size


@dataclass(frozen=True)
class MethodSizes:
    """Bytes of a method per client; `up` and `down` per round and sampled client, in the mean over rounds.

    up, down: what a client sends and receives, all exchanges between peers included. message: the upload of
    local work. equal_down: the part of `down` that is equal for all clients. model: one model. server,
    private: the parts of server state and of private state that grow with the clients. fixed_server: the
    part of the server state that does not.
    """

    up: float
    down: float
    message: float
    equal_down: float
    model: float
    server: float
    private: float
    fixed_server: float


@torch.no_grad()
def count_method_sizes(workload: Workload) -> MethodSizes:
    """Return the sizes of a workload's method; raise UnsuitedError if its state grows with N²."""
    few, tiny = LEAST_CLIENTS, workload
    if not workload.has_server and workload.degree:
        few = max(few, workload.degree + 3)  # so that the ring has as many neighbours
        tiny = replace(workload, degree=max(2, workload.degree - workload.degree % 2))
    server, private = zip(*(_count_state(_assemble(tiny, few * size)) for size in (1, 2, 4)), strict=True)
    per_client, later = (server[1] - server[0]) / few, (server[2] - server[1]) / (2 * few)
    if later > MOST_GROWTH * per_client:
        raise UnsuitedError(
            f"algorithm = {workload.algorithm[0]!r} has server state that grows with the square of the "
            "clients; plan a method whose state grows with the clients, such as fedu",
            field="algorithm",
        )
    up, down, message, equal_down = (total / ROUNDS / few for total in _count_messages(_assemble(tiny, few)))
    edges = workload.degree / tiny.degree if tiny.degree and not workload.has_server else 1.0
    return MethodSizes(
        up=up * edges,
        down=down * edges,
        message=message,
        equal_down=equal_down,
        model=4.0 * workload.parameters,
        server=per_client,
        private=(private[1] - private[0]) / few,
        fixed_server=server[0] - per_client * few,
    )


def _assemble(workload: Workload, clients: int) -> Training:
    sized = workload.with_clients(clients, clients)
    return assemble([sized.build_job()], sized.build_schedule(ROUNDS))


def _count_state(training: Training) -> tuple[int, int]:
    """Return the bytes of server state and of private state."""
    engine: Any = training.engine
    return count_bytes(tuple(training.server)), count_bytes(tuple(engine.private))


def _count_messages(training: Training) -> tuple[int, int, int, int]:
    """Return the bytes of all rounds: sent and received by clients, uploads, and equal messages."""
    method, engine, server = training.method, training.engine, training.server
    sent, uploads, equal = Traffic(0, 0), 0, 0
    for round in range(1, ROUNDS + 1):
        cohort: Any = engine.sampler.draw(round)
        down = method.send(server, cohort.ids) if method.has_server else None
        replies = engine.local(method, round, cohort, down)
        uploads += count_bytes(tuple(replies.up))
        equal += sum(count_bytes(leaf) for leaf in list_leaves(tuple(down or ())) if _is_repeated(leaf))
        if down is None:
            (traffic,) = engine.mix(method, round, replies.up)
        else:
            (traffic,) = count_traffic(down, replies.up)
            server = apply_updates(server, method.merge(server, replies.ids, replies.up))
        sent = sent.add(traffic)
    return *sent, uploads, equal


def _is_repeated(leaf: Any) -> bool:
    """Return whether a part of a message has one row for all clients, which workers are sent once."""
    return isinstance(leaf, Tensor) and leaf.stride(0) == 0
