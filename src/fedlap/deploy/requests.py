"""Answers to the requests of clients, one function per kind of request."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import torch

from fedlap.algorithms import CountedModels
from fedlap.deploy.event_words import EventReason
from fedlap.deploy.failpoints import pass_point
from fedlap.deploy.message_sizes import fill_message
from fedlap.deploy.moments import check_moments
from fedlap.deploy.roster_changes import RosterChange
from fedlap.deploy.score_sums import is_valid_tally
from fedlap.deploy.setup import Setup
from fedlap.deploy.site_data import check_shapes
from fedlap.deploy.tasks import choose_task, send_plan
from fedlap.deploy.transport import ExitCode
from fedlap.deploy.wire import ACK, FEDLAP_VERSION, Message, measure_norm, refuse
from fedlap.errors import InputError
from fedlap.training.state import describe_shapes, match_types

if TYPE_CHECKING:
    from fedlap.deploy.coordinator import Coordinator
    from fedlap.deploy.run_state import Site


def greet_client(run: "Coordinator", site: "Site", message: Message) -> Message:
    """Compare versions and plans, and send the plan."""
    version, plan = message.facts["version"], message.facts["plan"]
    if version != FEDLAP_VERSION:
        run.log("refused", name=site.name, reason=EventReason.OTHER_VERSION)
        return refuse(
            f"the client has fedlap {version}, and the server {FEDLAP_VERSION}; install one version on both",
            ExitCode.OTHER_VERSION,
        )
    if plan not in ("", run.plan.digest):
        run.log("refused", name=site.name, reason=EventReason.OTHER_PLAN)
        return refuse(
            f"the client expects plan {plan[:16]}, and the server runs {run.plan.digest[:16]}; use one plan, "
            "or another --folder at the client",
            ExitCode.OTHER_PLAN,
        )
    return send_plan(run)


def register(run: "Coordinator", site: "Site", message: Message) -> Message:
    """Take over the shapes of a client's rows; they may not change during the run."""
    try:
        shapes = check_shapes(run.plan.data, message.facts["shapes"])
        rows = shapes["train_rows"]
        check_moments(message.state, run.plan.data, rows)
    except InputError as error:
        run.log("refused", name=site.name, reason=EventReason.DATA)
        return refuse(str(error), ExitCode.OTHER_PLAN)
    known = dict(zip(run.setup.clients, run.setup.counts, strict=True)) if run.setups else {}
    if known.get(site.name, rows) != rows:
        run.log("refused", name=site.name, reason=EventReason.DATA)
        return refuse(
            f"client {site.name!r} has {rows} training rows, but had {known[site.name]} at the start of the "
            "run; restore the file, or leave the run and join it again",
            ExitCode.OTHER_PLAN,
        )
    if site.rows is None:
        run.log("registered", name=site.name, rows=rows)
    site.rows, site.test_rows, site.moments = rows, shapes["test_rows"], message.state
    run.changed += 1
    return ACK


def describe_setup(run: "Coordinator", site: "Site", message: Message) -> Message:
    """Return the clients, the graph and the settings in force, and the constants of the run."""
    if not run.setups:
        return refuse("the run has not started; poll for work")
    facts = {"setup": run.setup.version, "description": run.setup.describe()}
    return Message("setup", facts, run.constants)


def poll(run: "Coordinator", site: "Site", message: Message) -> Message:
    """Return the client's next task, or `wait`."""
    return choose_task(run, site)


def take_reply(run: "Coordinator", site: "Site", message: Message) -> Message:
    """Store an upload that was asked for and can be merged; refuse any other."""
    pass_point("server.reply.received")
    round, opened = message.facts["round"], run.open_round
    if run.setups and run.checkpoint.merged.get(site.name) == round:
        return ACK  # a repeated message
    places = {name: place for place, name in enumerate(run.setup.clients)} if run.setups else {}
    place = places.get(site.name)
    if opened is None or place is None or round != opened.number or place not in opened.messages:
        return _refuse_reply(run, site, EventReason.UNASKED)
    if place in opened.replies:
        return ACK
    if problem := opened.missing.get(place) or explain_refusal(run.setup, place, message):
        run.leave_out(site.name, problem)
        return _refuse_reply(run, site, problem)
    # A hostile client may send plain tuples, whose parts have no names.
    up = match_types(message.state, run.setup.sample_upload)
    run.storage.write_reply(round, place, up)
    opened.replies[place] = up
    run.changed += 1
    run.log("answered", name=site.name, round=round)
    return ACK


def explain_refusal(setup: Setup, place: int, message: Message) -> EventReason | None:
    """Return why the upload of the client at this place of the roster cannot be merged, or None if it can."""
    if message.facts["setup"] != setup.version:
        return EventReason.ROSTER
    if describe_shapes(message.state) != setup.upload_shapes:
        return EventReason.SHAPE
    models = message.state
    if isinstance(setup.sample_upload, CountedModels):
        models, counts = message.state
        if not torch.equal(counts, torch.full_like(counts, setup.counts[place])):
            return EventReason.ROWS
    norm, most = measure_norm(models), setup.plan.limits.most_norm
    if not norm < float("inf"):
        return EventReason.NOT_FINITE
    return EventReason.NORM if norm > most else None


def take_tally(run: "Coordinator", site: "Site", message: Message) -> Message:
    """Take over a client's sums over its rows; a client whose sums are refused is not asked again."""
    if run.phase != "scoring" or message.facts["round"] != run.checkpoint.round:
        return ACK  # of an earlier round
    is_valid = is_valid_tally(run.setup, site, message.state)
    run.tallies[site.name] = message.state if is_valid else None
    run.changed += 1
    return ACK if is_valid else _refuse_reply(run, site, EventReason.SHAPE)


def note_finished(run: "Coordinator", site: "Site", message: Message) -> Message:
    """Note that a client has stored its final model."""
    run.note_finished(site.name)
    return ACK


def note_decline(run: "Coordinator", site: "Site", message: Message) -> Message:
    """Note that a client cannot take part in a round."""
    if run.open_round is not None and message.facts["round"] == run.open_round.number:
        run.leave_out(site.name, EventReason.DECLINED)
        run.log("declined", name=site.name, round=run.round, reason=EventReason.STORAGE)
    return ACK


def note_heartbeat(run: "Coordinator", site: "Site", message: Message) -> Message:
    """Note that a client is alive, which every message does."""
    return ACK


def give_overview(run: "Coordinator", site: "Site", message: Message) -> Message:
    """Send `fedlap check` the plan and the bytes of a round's messages, after a comparison of versions."""
    answer = greet_client(run, site, message._replace(facts={**message.facts, "plan": ""}))
    if answer.kind == "refused":
        return answer
    return Message("overview", {**answer.facts, "up": run.sizes.up, "down": run.sizes.down})


def echo_probe(run: "Coordinator", site: "Site", message: Message) -> Message:
    """Answer a message of the size of a reply by one of the size of a task, with the server's clock."""
    return fill_message("probe", {"utc": time.time()}, run.sizes.down)


def note_leave(run: "Coordinator", site: "Site", message: Message) -> Message:
    """Note that a client leaves, for now or for good."""
    if message.facts["for_good"]:
        try:
            run.request_change(RosterChange("leave", site.name))
        except InputError as error:
            return refuse(str(error), ExitCode.REFUSED)
    else:
        run.log("away", name=site.name, round=run.round)
    site.is_away = True
    run.changed += 1
    return ACK


def _refuse_reply(run: "Coordinator", site: "Site", reason: EventReason) -> Message:
    run.log("refused", name=site.name, round=run.round, reason=reason)
    return refuse(f"the reply is refused: {reason}")


# Requests of `fedlap check`, which say nothing about the process of the client.
CHECK_REQUESTS: Final = ("check", "probe")
HANDLERS: Final[dict[str, Callable[..., Message]]] = {
    "hello": greet_client,
    "register": register,
    "setup": describe_setup,
    "poll": poll,
    "reply": take_reply,
    "tally": take_tally,
    "finished": note_finished,
    "decline": note_decline,
    "heartbeat": note_heartbeat,
    "check": give_overview,
    "probe": echo_probe,
    "leave": note_leave,
}
