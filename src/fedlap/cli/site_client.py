"""`fedlap client` and `fedlap check`: a client of a deployment."""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
import typer

from fedlap.cli import console
from fedlap.cli.interrupts import SIGNALS
from fedlap.cli.serve import PRIVATE_FILES
from fedlap.data.federation import Federation
from fedlap.deploy.certificates import format_time
from fedlap.deploy.check import ConnectionChecker, Finding, check_data, check_disk
from fedlap.deploy.client import SiteClient
from fedlap.deploy.client_storage import ClientStorage
from fedlap.deploy.data_plan import DataPlan
from fedlap.deploy.event_log import EVENT_LOG_FILE, EventLog
from fedlap.deploy.expiry_watch import ExpiryWatch
from fedlap.deploy.keys import ClientKeys
from fedlap.deploy.site_data import load_site
from fedlap.deploy.transport import ExitCode, PermanentError
from fedlap.deploy.zenoh_client import ZenohClient
from fedlap.errors import InputError
from fedlap.personal import Personal
from fedlap.storage.locks import lock_folders
from fedlap.training.interrupts import catch_signals

MOST_BYTES = 1_000_000_000  # the longest message, until the plan says what it is
EXIT_FAILED = 1


def read_rows(
    name: str, data: str, label: str | None, client_columns: Sequence[str]
) -> Callable[[DataPlan, int], Federation]:
    """Return a function that reads this client's rows as a plan describes them."""

    def load(plan: DataPlan, seed: int) -> Federation:
        described = plan if label is None else replace(plan, label=label)
        return load_site(described, name, data, seed, client=client_columns)

    return load


def open_transport(name: str, server: str, keys: Path | None, insecure: bool) -> ZenohClient:
    """Return the connection to a server; nothing is sent yet."""
    if (keys is None) != insecure:
        raise InputError(
            "--keys and --insecure are both set; use one"
            if insecure
            else "no keys are given; pass --keys FOLDER (fedlap keys request), or --insecure on a "
            "trusted network"
        )
    loaded = None if keys is None else ClientKeys.load(keys)
    if loaded is not None and loaded.name != name:
        raise InputError(
            f"--name {name}: the certificate in {str(keys)!r} is for {loaded.name!r}; use that name"
        )
    return ZenohClient(server, name, loaded, MOST_BYTES)


def choose_client_action(
    name: str,
    server: str | None,
    data: str | None,
    label: str | None,
    columns: str | None,
    keys: Path | None,
    insecure: bool,
    folder: Path | None,
    *,
    leave: bool,
    model: Path | None,
    forget: bool,
) -> None:
    """Take part in a run, leave it, copy the model, or forget everything."""
    place = folder or Path(f"fedlap-{name}")
    if forget:
        forget_client(place)
    elif model is not None:
        copy_model(place, model)
    elif server is None or (data is None and not leave):
        raise InputError("--server and --data are needed; pass the server's address and the file of rows")
    else:
        run_client(name, data or "", label, split_columns(columns), server, keys, place, insecure, leave)


def split_columns(columns: str | None) -> list[str]:
    """Return comma-separated names of columns."""
    return [column.strip() for column in columns.split(",")] if columns else []


def run_client(
    name: str,
    data: str,
    label: str | None,
    client_columns: Sequence[str],
    server: str,
    keys: Path | None,
    folder: Path,
    insecure: bool,
    leave: bool,
) -> None:
    """Take part in a run until it ends or a signal arrives."""
    os.umask(PRIVATE_FILES)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    transport = open_transport(name, server, keys, insecure)
    storage, stop = ClientStorage(folder), threading.Event()
    storage.prepare()

    def request_stop() -> None:
        stop.set()
        transport.interrupt()  # A client that waits for work does so for many seconds.

    with ExitStack() as until_end:
        until_end.callback(transport.close)
        until_end.enter_context(catch_signals(SIGNALS, request_stop))
        until_end.enter_context(lock_folders([folder]))
        log = EventLog(folder / EVENT_LOG_FILE, name, [name], show=console.print_remark)
        until_end.callback(log.close)
        load = read_rows(name, data, label, client_columns)
        watch = None
        if keys is not None:
            watch = ExpiryWatch(lambda: ClientKeys.load(keys).facts, log.write, console.print_remark)
        client = SiteClient(name, load, transport, storage, log.write, stop, console.print_remark, watch)
        if leave:
            client.leave(for_good=True)
            return
        client.run()
    if storage.model_path.exists():
        console.print_result(f"{name}: model {storage.model_path}")


def copy_model(folder: Path, to: Path) -> None:
    """Copy the client's model, without a word to the server."""
    path = ClientStorage(folder).model_path
    if not path.exists():
        raise InputError(f"{str(folder)!r} has no model yet; a client stores it after the first scored round")
    Personal.load(path).save(to)
    console.print_result(str(to))


def forget_client(folder: Path) -> None:
    """Delete the private state, the replies and the model of a client."""
    storage = ClientStorage(folder)
    if storage.read_plan() is None:
        raise InputError(f"{str(folder)!r} is no folder of fedlap client; nothing was deleted")
    with lock_folders([folder]):
        pass
    storage.forget()
    console.print_result(f"{folder} is deleted; the server keeps the models that it has received")


def check_client(
    name: str,
    data: str,
    label: str | None,
    columns: str | None,
    server: str,
    keys: Path | None,
    folder: Path | None,
    insecure: bool,
) -> None:
    """Print one line per check; exit with the code of the first problem."""
    findings: list[Finding] = []

    def add(finding: Finding) -> None:
        findings.append(finding)
        mark = "FAIL" if finding.problem else "ok"
        console.print_result(f"{mark:4}  {finding.subject:12} {finding.problem or finding.detail}")

    try:
        transport = open_transport(name, server, keys, insecure)
    except PermanentError as error:
        add(Finding("certificate", str(error), code=int(error.code)))
        raise typer.Exit(int(error.code)) from error
    if keys is not None:
        for finding in describe_certificate(ClientKeys.load(keys)):
            add(finding)
    try:
        checker = ConnectionChecker(transport)
        for finding in checker.check():
            add(finding)
        if checker.plan is not None:
            add(check_data(checker.plan, read_rows(name, data, label, split_columns(columns))))
            add(check_disk(checker.plan, folder or Path(f"fedlap-{name}")))
    finally:
        transport.close()
    problems = [finding for finding in findings if finding.problem]
    if problems:
        raise typer.Exit(problems[0].code or EXIT_FAILED)


def describe_certificate(keys: ClientKeys) -> list[Finding]:
    """Return a finding about the time that a certificate is still valid."""
    warning = keys.facts.describe_expiry()
    problem = warning if warning is not None and keys.facts.describe_invalidity() else ""
    end = f"valid until {format_time(keys.facts.not_after)}"
    return [Finding("certificate", problem, warning or end, int(ExitCode.EXPIRED))]
