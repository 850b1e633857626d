"""The start of a peer: the setup of the run, and the round in which the peer begins or continues.

A run begins when all neighbours have been greeted, so that nobody proceeds before its neighbours listen. A
peer that was killed continues from its checkpoint. Without its disk it takes the setup of a neighbour, and
starts at the weighted mean of the models of its neighbours that train; so does a newcomer.
"""

from collections.abc import Mapping
from statistics import median_low
from typing import TYPE_CHECKING, Any, Final

import torch

from fedlap.data.federation import Federation
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.failpoints import pass_point
from fedlap.deploy.moments import ScalingConstants, apply_constants, check_constants
from fedlap.deploy.peers.changes import EdgeChange
from fedlap.deploy.peers.edges import add_newcomer, change_edge
from fedlap.deploy.peers.late_models import explain_late_models
from fedlap.deploy.peers.links import Link
from fedlap.deploy.peers.neighbours import START, Neighbour
from fedlap.deploy.peers.peer import Peer
from fedlap.deploy.peers.stages import Stage
from fedlap.deploy.setup import Setup
from fedlap.deploy.transport import PermanentError
from fedlap.errors import InputError
from fedlap.training.worker import Worker

if TYPE_CHECKING:
    from fedlap.deploy.peers.run import PeerRun

MOST_COUNT: Final = 2**53  # of a client
MISMATCH_PATIENCE: Final = 5.0  # seconds in which some neighbour must fit, after one that does not


# The setup.


def restore_setup(run: "PeerRun") -> bool:
    """Continue with the setup and the checkpoint of the folder; return whether there is a setup."""
    stored = run.storage.read_setup(run.plan.digest)
    if stored is None:
        return False
    agreed = Setup.parse(run.plan, stored[0])
    check_rows(run, agreed)
    _enter(run, agreed, *_build_peer(run, agreed, stored[1]), stored[1])
    return True


def check_setup(run: "PeerRun", description: Mapping[str, Any]) -> Setup:
    """Return the setup that a neighbour has sent; raise InputError unless it follows from the plan.

    The neighbour is trusted with the numbers of rows of other clients.
    """
    plan, counts = run.plan, description.get("counts")
    if (
        not isinstance(counts, list)
        or len(counts) != len(plan.clients)
        or not all(type(count) is int and 0 < count < MOST_COUNT for count in counts)
    ):
        raise InputError("its setup has no valid numbers of rows; start it again with an undamaged folder")
    graph = plan.build_graph(plan.clients)
    expected = Setup.of(plan, plan.clients, counts, graph, 1, 1).describe()
    if expected != description:
        raise InputError("its setup does not follow from the plan; start it again with an undamaged folder")
    agreed = Setup.parse(plan, expected)  # An equal description can have floats in place of integers.
    check_rows(run, agreed)
    return agreed


def check_rows(run: "PeerRun", agreed: Setup) -> None:
    """Raise InputError if this peer has another number of rows than when the run began."""
    if run.name not in agreed.clients:
        return
    expected, rows = agreed.counts[agreed.clients.index(run.name)], int(run.site.train.count)
    if rows != expected:
        raise InputError(
            f"{run.name!r} has {rows} training rows, and had {expected} when the run began; use the rows "
            "of that time"
        )


def enter_run(run: "PeerRun", agreed: Setup, constants: ScalingConstants, now: float) -> bool:
    """Store a setup and take it over; return False if the disk is full."""
    peer, setup, federation = _build_peer(run, agreed, constants)
    try:
        run.storage.write_setup(run.plan.digest, agreed.describe(), constants)
    except InputError as error:
        run.note_full_disk(str(error), now)
        return False
    _enter(run, agreed, peer, setup, federation, constants)
    return True


def _build_peer(run: "PeerRun", agreed: Setup, constants: ScalingConstants) -> tuple[Peer, Setup, Federation]:
    """Return the worker and the neighbours of a setup, the setup with this peer, and the scaled rows."""
    plan, setup = run.plan, agreed
    if run.name not in agreed.clients:
        setup = add_newcomer(agreed, run.name, int(run.site.train.count), run.weights)
    federation = apply_constants(run.site, plan.data.scale, check_constants(constants, plan.data))
    worker = Worker(
        setup.algorithm, federation, plan.build_architecture(), setup.roster,
        seed=plan.seed, batch=plan.batch, dtype=plan.dtype, fast=plan.task == "fast",
    )  # fmt: skip
    start = setup.build_start()[:1]
    neighbours = [Neighbour(name, weight, {START: start}) for name, weight in run.weights.items()]
    return Peer(plan, worker, neighbours, run.log, setup.upload_shapes), setup, federation


def _enter(
    run: "PeerRun",
    agreed: Setup,
    peer: Peer,
    setup: Setup,
    federation: Federation,
    constants: ScalingConstants,
) -> None:
    """Take over a setup, and the checkpoint if there is one."""
    run.peer, run.setup, run.agreed = peer, setup, agreed
    run.federation, run.constants = federation, constants
    if run.settings.most_age and (
        remark := explain_late_models(run.plan, setup.algorithm, federation, setup.counts)
    ):
        run.say(f"note: {remark}")
    changes = run.storage.load_checkpoint(peer)
    if changes is not None:
        run.has_checkpoint = True
        run.changes = [EdgeChange.parse(change) for change in changes]
        run.weights = {name: one.weight for name, one in peer.neighbours.items()}
        run.links = {name: run.links.get(name) or Link(name) for name in run.weights}
        run.links_changed = True
        run.log("run-resumed", round=peer.round)
    pending, run.pending = run.pending, []
    for change in pending:
        try:
            change_edge(run, change)
        except InputError as error:
            run.say(str(error))
            run.log("not-changed", name=change.name, reason=EventReason.ROSTER)


# The first round.


def gather(run: "PeerRun", now: float) -> bool:
    """Build the setup when all records are here, and begin when all neighbours are ready."""
    _check_mismatch(run, now)
    if run.setup is None:
        if run.join is not None or run.records.list_missing() or run.waits_for_disk(now):
            return False
        setup, constants = run.records.build_setup()
        return enter_run(run, Setup.parse(run.plan, setup.describe()), constants, now)
    neighbours = run.require_peer().neighbours
    waited = [link for link in _list_links(run) if not neighbours[link.name].has_finished]
    ready = [link.is_greeted and bool(link.setup) for link in waited]
    has_begun = run.has_checkpoint or (any(ready) and any(link.has_started for link in waited))
    is_overdue = now - run.stage_since > run.settings.deadline
    if not all(ready) and not (has_begun and run.settings.most_age and is_overdue):
        return False
    _begin(run, now)
    return True


def _check_mismatch(run: "PeerRun", now: float) -> None:
    """Raise PermanentError if neighbours have another plan or version, and none has this peer's."""
    if any(link.is_greeted for link in run.links.values()):
        run.mismatch = None  # The patience begins again when this neighbour is lost.
    if run.mismatch is None:
        return
    since, problem, code = run.mismatch
    if now - since > MISMATCH_PATIENCE:
        raise PermanentError(problem, code)


def collect(run: "PeerRun", now: float) -> bool:
    """Start at the mean of the neighbours that train, as soon as their models are here."""
    peer = run.require_peer()
    expected = [peer.neighbours[link.name] for link in _list_links(run) if link.has_started]
    missing = [one for one in expected if one.newest == START and run.links[one.name].is_greeted]
    is_overdue = run.settings.most_age and now - run.stage_since > run.settings.deadline
    if len(missing) == len(expected) or (missing and not is_overdue):
        return False
    _start_at_mean(run, now)
    return True


def _list_links(run: "PeerRun") -> list[Link]:
    """Return the links of edges that count now or in a known round."""
    neighbours = run.require_peer().neighbours
    return [
        link
        for name, link in run.links.items()
        if neighbours[name].first_round is not None and not neighbours[name].is_removed
    ]


def _begin(run: "PeerRun", now: float) -> None:
    """Enter the first round, or the one in which the neighbours are.

    The median of their rounds counts, so that no neighbour alone decides it, except for an only one.
    """
    peer, rounds = run.require_peer(), [link.round for link in _list_links(run) if link.is_greeted]
    pass_point("peer.greeted")
    if not run.has_checkpoint and (run.join is not None or max(rounds, default=0) >= 1):
        run.enter_stage(Stage.COLLECTING, now)
        return
    if run.settings.most_age and rounds and median_low(rounds) > peer.round:
        peer.skip_to(median_low(rounds))
        run.log("rejoined", round=peer.round)
    elif not peer.round:
        run.log("run-started", clients=len(run.plan.clients))
    run.enter_stage(Stage.TRAINING, now)


def _start_at_mean(run: "PeerRun", now: float) -> None:
    """Start at the weighted mean of the neighbours' newest models, in their round.

    With staleness 0 it is the earliest round that a neighbour waits for. A neighbour whose model is not here
    does not pull until it is: its start model has nothing to do with its present one.
    """
    peer = run.require_peer()
    known = [one for one in peer.neighbours.values() if one.newest > START]
    total = sum(one.weight for one in known)
    models = [one.models[one.newest] for one in known]
    mean = sum(
        (one.weight / total * model for one, model in zip(known, models, strict=True)), torch.zeros(())
    )
    rounds = [max(run.links[one.name].round, (one.first_round or 1) - 1) for one in known]
    round = min(median_low(rounds) if run.settings.most_age else min(rounds), run.plan.rounds)
    for one in peer.neighbours.values():
        if one.newest == START:
            one.models = {}
    peer.skip_to(round, mean.to(models[0]))
    run.log("rejoined", round=peer.round, clients=len(known))
    run.enter_stage(Stage.TRAINING, now)
