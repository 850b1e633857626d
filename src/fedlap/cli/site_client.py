"""`fedlap client`: a client of a deployment."""

import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from fedlap.cli import console
from fedlap.cli.interrupts import SIGNALS
from fedlap.cli.serve import PRIVATE_FILES
from fedlap.cli.site_keys import load_keys
from fedlap.data.federation import Federation
from fedlap.deploy.client import SiteClient
from fedlap.deploy.client_storage import ClientStorage
from fedlap.deploy.data_plan import DataPlan
from fedlap.deploy.disk_errors import convert_disk_errors
from fedlap.deploy.event_log import EventLog
from fedlap.deploy.expiry_watch import ExpiryWatch
from fedlap.deploy.keys import Keys
from fedlap.deploy.peers.storage import PEER_FILES
from fedlap.deploy.site_data import load_site
from fedlap.deploy.site_tasks import LoadSite
from fedlap.deploy.zenoh_client import ZenohClient
from fedlap.errors import InputError
from fedlap.personal import Personal
from fedlap.storage.locks import lock_folders
from fedlap.training.interrupts import catch_signals

MOST_BYTES = 40_000_000  # the longest message, until the plan says what it is
SHOWN_FILES = 5  # files that are listed because they are not deleted


def read_rows(name: str, data: str, label: str | None, client_columns: Sequence[str]) -> LoadSite:
    """Return a function that reads this client's rows as a plan describes them."""

    def load(plan: DataPlan, seed: int) -> Federation:
        described = plan if label is None else replace(plan, label=label)
        return load_site(described, name, data, seed, client=client_columns)

    return load


def check_rows_file(data: str) -> None:
    """Raise InputError for a file of rows that cannot be read, before anything is sent."""
    try:
        is_file = Path(data).is_file() and os.access(data, os.R_OK)
    except (OSError, ValueError):
        is_file = False
    if not is_file:
        raise InputError(f"--data {data}: no file that can be read; pass a .csv or .parquet file")


def open_transport(name: str, server: str, keys: Path | None, insecure: bool) -> ZenohClient:
    """Return the connection to a server; nothing is sent yet."""
    return ZenohClient(server, name, load_keys(Keys.load_client, keys, insecure, name), MOST_BYTES)


def choose_client_action(
    name: str,
    server: str | None,
    data: str | None,
    label: str | None,
    columns: str | None,
    keys: Path | None,
    insecure: bool,
    folder: Path | None,
    patience: float,
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
        if data is not None and not leave:
            check_rows_file(data)
        rows = read_rows(name, data or "", label, split_columns(columns))
        run_client(name, rows, server, keys, place, insecure, patience, leave)


def split_columns(columns: str | None) -> list[str]:
    """Return comma-separated names of columns."""
    return [column.strip() for column in columns.split(",")] if columns else []


def run_client(
    name: str,
    load_site: LoadSite,
    server: str,
    keys: Path | None,
    folder: Path,
    insecure: bool,
    patience: float,
    leave: bool,
) -> None:
    """Take part in a run until it ends, a signal arrives, or the server has been silent for too long."""
    os.umask(PRIVATE_FILES)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    transport = open_transport(name, server, keys, insecure)
    storage, stop = ClientStorage(folder), threading.Event()

    def request_stop() -> None:
        stop.set()
        transport.interrupt()  # A client that waits for work does so for many seconds.

    with ExitStack() as until_end:
        until_end.callback(transport.close)
        until_end.enter_context(catch_signals(SIGNALS, request_stop))
        storage.prepare()
        with convert_disk_errors(folder, only_full=True):
            until_end.enter_context(lock_folders([folder]))
        log = until_end.enter_context(EventLog.open(folder, name, [name], console.print_remark))
        watch = None
        if keys is not None:
            watch = ExpiryWatch(lambda: Keys.load_client(keys).facts, log.write, console.print_remark)
        client = SiteClient(
            name, load_site, transport, storage, log.write, stop, console.print_remark, watch, patience,
            lambda plan: transport.limit_messages(plan.limits.most_bytes),
        )  # fmt: skip
        if leave:
            client.leave(for_good=True)
            return
        client.run()
    if storage.model_path.exists():
        console.print_result(f"{name}: model {storage.model_path}")


def copy_model(folder: Path, to: Path) -> None:
    """Copy the client's model, without a word to the server; its owner alone can read the copy."""
    path = ClientStorage(folder).model_path
    if not path.exists():
        raise InputError(f"{str(folder)!r} has no model yet; a client stores it after the first scored round")
    umask = os.umask(PRIVATE_FILES)
    try:
        Personal.load(path).save(to)
    finally:
        os.umask(umask)
    console.print_result(str(to))


def forget_client(folder: Path, rest: str = "the server keeps the models that it has received") -> None:
    """Delete the state, the log and the model of a client or peer. rest: who keeps what, in words."""
    storage = ClientStorage(folder)
    if not storage.read_plan_digest():
        raise InputError(
            f"{str(folder)!r} is no folder of fedlap client or fedlap peer; nothing was deleted, use --folder"
        )
    with lock_folders([folder]):
        storage.forget(PEER_FILES)
    others = sorted(path.name for path in folder.iterdir())
    if not others:
        folder.rmdir()
        console.print_result(f"{folder} is deleted; {rest}")
        return
    shown = ", ".join(others[:SHOWN_FILES]) + (", …" if len(others) > SHOWN_FILES else "")
    console.print_result(
        f"state, log and model in {folder} are deleted; the folder still has {shown}; {rest}"
    )
