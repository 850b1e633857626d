"""`fedlap serve`: the server of a deployment."""

import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import torch

from fedlap.cli import console
from fedlap.cli.interrupts import SIGNALS
from fedlap.deploy.coordinator import Coordinator
from fedlap.deploy.event_log import EVENT_LOG_FILE, EventLog
from fedlap.deploy.expiry_watch import ExpiryWatch
from fedlap.deploy.keys import ServerKeys
from fedlap.deploy.plan import Plan
from fedlap.deploy.roster_changes import RosterChange
from fedlap.deploy.run_state import Phase
from fedlap.deploy.run_storage import SETUPS_FILE, RunStorage
from fedlap.deploy.server import DeploymentServer, write_change
from fedlap.deploy.status_board import StatusBoard
from fedlap.deploy.zenoh_server import ZenohServer
from fedlap.errors import InputError
from fedlap.storage.locks import lock_folders
from fedlap.training.interrupts import catch_signals

PRIVATE_FILES = 0o077  # the bits of files and folders that others do not get


def serve(plan_file: Path, listen: str, keys: Path | None, folder: Path | None, insecure: bool) -> None:
    """Serve the run of a plan until it ends or a signal arrives; a server that is started again resumes."""
    if (keys is None) != insecure:
        raise InputError(
            "--keys and --insecure are both set; use one"
            if insecure
            else "no keys are given; pass --keys FOLDER (fedlap keys), or --insecure on a trusted network"
        )
    os.umask(PRIVATE_FILES)
    torch.set_num_threads(1)  # Merging is cheap, and clients may share the machine in a test.
    plan = Plan.load(plan_file)
    storage, stop = RunStorage(folder or Path("runs") / plan.name), threading.Event()
    storage.prepare()
    with ExitStack() as until_end:
        until_end.enter_context(catch_signals(SIGNALS, stop.set))
        until_end.enter_context(lock_folders([storage.folder]))
        log = EventLog(storage.folder / EVENT_LOG_FILE, plan.name, plan.clients, show=console.print_remark)
        until_end.callback(log.close)
        coordinator = Coordinator(plan, storage, log.write, time.monotonic())
        log.allow(coordinator.sites)  # with the newcomers of a run that resumes
        transport = ZenohServer(
            listen,
            None if keys is None else ServerKeys.load(keys),
            list(coordinator.sites),
            plan.limits.most_bytes,
        )
        until_end.callback(transport.close)
        console.print_remark(f"{plan.name}: listening on port {transport.port}; plan {plan.digest[:16]}")
        log.write("listening", port=transport.port)
        board = until_end.enter_context(StatusBoard.show(storage.folder, coordinator, console.err))

        watch = None
        if keys is not None:
            watch = ExpiryWatch(lambda: ServerKeys.load(keys).facts, log.write, console.print_remark)

        def look_after(now: float) -> None:
            for remark in transport.refresh():
                console.print_remark(remark)
            if watch is not None:
                watch.look(now)
            log.allow(coordinator.sites)
            board.update(now)

        DeploymentServer(coordinator, transport, log.write, stop, look_after, console.print_remark).run()
        if coordinator.phase is not Phase.DONE:
            log.write("run-stopped", round=coordinator.round)
            console.print_remark(f"stopped in round {coordinator.round}; repeat the command to resume")
            return
        # Imported here, since pages load much that a server does not need before the end.
        from fedlap.deploy.run_report import write_run_report

        try:
            console.print_remark(f"{plan.name}: report {write_run_report(storage.folder)}")
        except InputError as error:  # such as a full disk; the models are stored
            console.print_remark(f"note: there is no report ({error}); repeat fedlap report {storage.folder}")
    console.print_result(f"{plan.name}: {plan.rounds} rounds are done; {storage.folder}")


def admit_client(folder: Path, name: str, neighbours: str | None) -> None:
    """Ask the server of a run to admit a client."""
    weights = {}
    for text in (neighbours or "").split(",") if neighbours else []:
        neighbour, has_weight, weight = text.strip().partition("=")
        try:
            weights[neighbour] = float(weight) if has_weight else 1.0
        except ValueError:
            raise InputError(f"--neighbours {text}: expected NAME or NAME=WEIGHT") from None
    _request_change(folder, RosterChange.parse({"kind": "join", "name": name, "neighbours": weights}))


def eject_client(folder: Path, name: str) -> None:
    """Ask the server of a run to eject a client."""
    _request_change(folder, RosterChange("eject", name))


def _request_change(folder: Path, change: RosterChange) -> None:
    if not (folder / SETUPS_FILE).exists():
        raise InputError(
            f"{str(folder)!r} is no run of fedlap serve that has started; pass the server's folder"
        )
    write_change(folder, change)
    console.print_result(f"{change.name}: requested; see fedlap status {folder}")
