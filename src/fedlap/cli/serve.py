"""`fedlap serve`: the server of a deployment."""

import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import torch

from fedlap.cli import console
from fedlap.cli.interrupts import SIGNALS
from fedlap.cli.neighbours import parse_neighbours
from fedlap.cli.site_keys import load_keys
from fedlap.deploy.change_files import write_change_file
from fedlap.deploy.coordinator import Coordinator
from fedlap.deploy.disk_errors import convert_disk_errors
from fedlap.deploy.event_log import EVENT_LOG_FILE, EventLog
from fedlap.deploy.expiry_watch import ExpiryWatch
from fedlap.deploy.key_watch import KEY_EVENTS
from fedlap.deploy.keys import Keys
from fedlap.deploy.plan import Plan
from fedlap.deploy.roster_changes import RosterChange
from fedlap.deploy.run_storage import RunStorage, is_server_folder
from fedlap.deploy.server import DeploymentServer
from fedlap.deploy.server_board import ServerBoard
from fedlap.deploy.zenoh_server import ZenohServer
from fedlap.errors import InputError, unknown_name_error
from fedlap.storage.locks import lock_folders
from fedlap.training.interrupts import catch_signals

REPORT_PAGE = "report/page.html"
PRIVATE_FILES = 0o077  # the bits of files and folders that others do not get
SHOWN_ELSEWHERE = ("awaited", *KEY_EVENTS)  # The status line names the clients that are awaited.


def serve(plan_file: Path, listen: str, keys: Path | None, folder: Path | None, insecure: bool) -> None:
    """Serve the run of a plan until it ends or a signal arrives; a server that is started again resumes."""
    server_keys = load_keys(Keys.load_server, keys, insecure)
    os.umask(PRIVATE_FILES)
    torch.set_num_threads(1)  # Merging is cheap, and clients may share the machine in a test.
    plan = Plan.load(plan_file)
    if plan.peers is not None:
        raise InputError(
            f"{str(plan_file)!r} is the plan of a run without a server: it has [peers]; use fedlap peer"
        )
    storage, stop = RunStorage(folder or Path("runs") / plan.name), threading.Event()
    with ExitStack() as until_end:
        until_end.enter_context(catch_signals(SIGNALS, stop.set))
        storage.prepare()
        with convert_disk_errors(storage.folder, only_full=True):
            until_end.enter_context(lock_folders([storage.folder]))
        path = storage.folder / EVENT_LOG_FILE
        log = until_end.enter_context(
            EventLog(path, plan.name, plan.clients, show=console.print_remark, hidden=SHOWN_ELSEWHERE)
        )
        log.allow(storage.read_roster())  # The newcomers of a run that resumes are not in the plan.
        coordinator = Coordinator(plan, storage, log.write, time.monotonic())
        if coordinator.has_ended:
            report = f"report {found}, " if (found := storage.folder / REPORT_PAGE).exists() else ""
            facts = f"{plan.rounds} rounds, {report}folder {storage.folder}"
            console.print_result(f"{plan.name} is done: {facts}; the models are in the clients' folders")
            return
        transport = ZenohServer(
            listen, server_keys, list(coordinator.sites), plan.limits.most_bytes, log=log.write
        )
        until_end.callback(transport.close)
        console.print_remark(f"{plan.name}: plan {plan.digest[:16]}")
        if coordinator.was_done:
            seconds = f"{plan.limits.deadline:g} s"
            console.print_remark(
                f"the run is done; clients without their final model can fetch it for {seconds}"
            )
        log.write("listening", port=transport.port)
        board = until_end.enter_context(ServerBoard.show(storage.folder, coordinator, console.err))

        watch = None
        if keys is not None:
            watch = ExpiryWatch(lambda: Keys.load_server(keys).facts, log.write, console.print_remark)

        def look_after(now: float) -> None:
            for remark in transport.refresh():
                console.print_remark(remark)
            if watch is not None:
                watch.look(now)
            log.allow(coordinator.sites)
            board.update(now)

        DeploymentServer(coordinator, transport, log.write, stop, look_after, console.print_remark).run()
        if not coordinator.was_done:
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
    clients = _read_roster(folder)
    weights = parse_neighbours([neighbours] if neighbours else [], clients)
    change = RosterChange.parse({"kind": "join", "name": name, "neighbours": weights})
    if name in clients:
        raise InputError(f"client {name!r} is part of the run already; choose another name")
    for neighbour in weights:
        if neighbour not in clients:
            raise unknown_name_error("neighbour", neighbour, clients)
    _request_change(folder, change)


def eject_client(folder: Path, name: str) -> None:
    """Ask the server of a run to eject a client."""
    clients = _read_roster(folder)
    if name not in clients:
        raise unknown_name_error("client", name, clients)
    _request_change(folder, RosterChange("eject", name))


def _read_roster(folder: Path) -> list[str]:
    """Return the clients of a run, with the newcomers that it has admitted."""
    if not is_server_folder(folder):
        raise InputError(
            f"{str(folder)!r} is no run of fedlap serve that has started; pass the server's folder"
        )
    return RunStorage(folder).read_roster()


def _request_change(folder: Path, change: RosterChange) -> None:
    write_change_file(folder, change.to_dict())
    console.print_result(f"{change.name}: requested; see fedlap status {folder}")
