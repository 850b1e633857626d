"""Changes of the roster of a run: accepted while a round trains, and in force from the next round on."""

from typing import TYPE_CHECKING, Final

from fedlap.deploy.event_words import EventReason
from fedlap.deploy.message_sizes import measure_messages
from fedlap.deploy.roster_changes import RosterChange, change_setup
from fedlap.deploy.run_state import Site
from fedlap.errors import InputError

if TYPE_CHECKING:
    from fedlap.deploy.coordinator import Coordinator

EVENTS_OF_CHANGES: Final = {"join": "joined", "leave": "left", "eject": "ejected"}


def accept_change(run: "Coordinator", change: RosterChange) -> None:
    """Change the roster from the next round on; raise InputError if the graph or method forbids it.

    A name has at most one pending change. A removal of a newcomer that has not joined yet cancels its join.
    """
    if not run.setups:
        raise InputError("the run has not started; change the clients in the plan instead")
    pending = next((other for other in run.changes if other.name == change.name), None)
    if change.kind == "join":
        _accept_join(run, change, pending)
    elif pending is None:
        _accept_removal(run, change)
    elif pending.kind == "join":
        _cancel_join(run, pending, change)
    run.changed += 1


def _accept_join(run: "Coordinator", join: RosterChange, pending: RosterChange | None) -> None:
    if join == pending:
        return
    if pending is not None and pending.kind == "join":
        raise InputError(
            f"client {join.name!r} is admitted already, with other neighbours; eject it, then admit it again"
        )
    measure_messages(change_setup(run.setup, join, 1, run.checkpoint.round + 1))
    run.changes.append(join)
    _write_pending(run)
    run.sites[join.name] = Site(join.name)


def _cancel_join(run: "Coordinator", join: RosterChange, removal: RosterChange) -> None:
    run.changes.remove(join)
    _write_pending(run)
    del run.sites[join.name]
    run.log(EVENTS_OF_CHANGES[removal.kind], name=join.name, round=run.round)


def _accept_removal(run: "Coordinator", change: RosterChange) -> None:
    setup = run.setup  # without the clients that leave with the same round
    for removal in [*(other for other in run.changes if other.kind != "join"), change]:
        setup = change_setup(setup, removal, None, run.checkpoint.round + 1)
    measure_messages(setup)
    run.changes.append(change)
    _write_pending(run)
    site = run.sites[change.name]
    site.is_away, site.is_ejected = True, change.kind == "eject"
    _stop_waiting(run, change)


def _stop_waiting(run: "Coordinator", change: RosterChange) -> None:
    """Stop waiting for a client that leaves for good or is ejected, also if a lost reply of it counted.

    The new decision is on disk before the round is merged, so that it holds after a restart.
    """
    run.leave_out(change.name, EventReason.EJECTED if change.kind == "eject" else EventReason.LEFT)
    opened = run.open_round
    if opened is not None and opened.counted is not None:
        place = run.setup.clients.index(change.name)
        if place in opened.list_lost():
            run.decide(opened, [k for k in opened.counted if k != place])
            run.log("round-decided", round=opened.number, replies=len(opened.counted))


def apply_changes(run: "Coordinator", number: int) -> None:
    """Apply the pending changes of the roster whose newcomers have registered, from this round on."""
    ready = [c for c in run.changes if c.kind != "join" or run.sites[c.name].rows is not None]
    for change in ready:
        run.changes.remove(change)
        rows = run.sites[change.name].rows
        try:
            setup = change_setup(run.setup, change, rows, number)
        except InputError:  # An earlier change stands in its way, such as a neighbour that has left.
            run.log("not-changed", name=change.name, round=number, reason=EventReason.ROSTER)
            if change.name in run.setup.clients:  # The removal failed: the client can return.
                site = run.sites[change.name]
                site.is_away = site.is_ejected = False
            else:
                del run.sites[change.name]
            continue
        run.adopt(setup)
        described = [entry.describe() for entry in run.setups]
        run.storage.write_setups(run.plan.digest, described, run.constants)
        if change.kind != "join":
            del run.sites[change.name]
        run.log(EVENTS_OF_CHANGES[change.kind], name=change.name, round=number)
        run.log("graph-changed", round=number, version=setup.version, clients=len(setup.clients))
    if ready:
        _write_pending(run)


def _write_pending(run: "Coordinator") -> None:
    run.storage.write_pending([change.to_dict() for change in run.changes])
