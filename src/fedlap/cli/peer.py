"""`fedlap peer`: a peer of a run without a server."""

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import torch
import typer

from fedlap.cli import console
from fedlap.cli.exit_codes import EXIT_FAILED
from fedlap.cli.interrupts import SIGNALS
from fedlap.cli.neighbours import parse_neighbours
from fedlap.cli.serve import PRIVATE_FILES
from fedlap.cli.site_client import copy_model, forget_client, read_rows
from fedlap.cli.site_keys import load_keys
from fedlap.deploy.change_files import take_change_files, write_change_file
from fedlap.deploy.event_log import EVENT_LOG_FILE, EventLog
from fedlap.deploy.expiry_watch import ExpiryWatch
from fedlap.deploy.key_watch import KEY_EVENTS
from fedlap.deploy.keys import Keys
from fedlap.deploy.peers.changes import EdgeChange, JoinRequest, describe_removal
from fedlap.deploy.peers.edges import find_address, find_edges
from fedlap.deploy.peers.messages import PEER_ANSWERS, clean_text
from fedlap.deploy.peers.peer_board import PeerBoard
from fedlap.deploy.peers.process import PeerProcess
from fedlap.deploy.peers.run import PeerRun
from fedlap.deploy.peers.signatures import CertificateSigner, NoSigner, Signer
from fedlap.deploy.peers.stages import Stage
from fedlap.deploy.peers.storage import PeerStorage
from fedlap.deploy.peers.transport import PeerTransport
from fedlap.deploy.peers.zenoh_peer import ZenohPeer
from fedlap.deploy.plan import Plan
from fedlap.deploy.transport import PermanentError, UnreachableError, format_problem
from fedlap.deploy.wire import Message, WireError, decode_message, encode_message
from fedlap.errors import InputError, suggest_names
from fedlap.storage.locks import lock_folders
from fedlap.training.interrupts import catch_signals

LEAVE_PATIENCE = 20.0  # seconds in which all neighbours can hear that this peer leaves
LEAVE_PAUSE = 0.2  # seconds between attempts to tell one


def load_plan(path: Path) -> Plan:
    """Read the plan of a run without a server."""
    plan = Plan.load(path)
    if plan.peers is None:
        raise InputError(
            f"{str(path)!r} is the plan of a run with a server; use fedlap serve, or add [peers] to the plan"
        )
    return plan


def choose_peer_action(
    plan_file: Path,
    name: str,
    data: str | None,
    label: str | None,
    client_columns: Sequence[str],
    listen: str | None,
    keys_folder: Path | None,
    insecure: bool,
    folder: Path | None,
    patience: float,
    *,
    leave: bool,
    model: Path | None,
    forget: bool,
    join: Path | None,
    request_join: Path | None,
    neighbours: str | None,
    address: str | None,
) -> None:
    """Take part in a run, leave it, ask to join it, copy the model, or forget everything."""
    place = folder or Path(f"fedlap-{name}")
    if forget:
        forget_client(place, "neighbours keep the last model that they have received")
        return
    if model is not None:
        copy_model(place, model)
        return
    plan = load_plan(plan_file)
    keys = load_keys(Keys.load_peer, keys_folder, insecure, name)
    signer: Signer = NoSigner() if keys is None else CertificateSigner(keys.folder)
    if request_join is not None:
        write_request(plan, name, neighbours, address, request_join, signer)
        return
    if data is None:
        raise InputError("--data is missing; pass the file of rows", field="data")
    request = None if join is None else JoinRequest.load(join, plan, signer)
    if request is not None and request.name != name:
        raise InputError(f"--join {join}: the request is of {request.name!r}, not of {name!r}; use that name")
    find_edges(plan, name, request)  # raises InputError for an unknown name, before there is a folder
    run_peer(plan, name, data, label, client_columns, listen, keys, signer, place, request, patience, leave)


def write_request(
    plan: Plan, name: str, neighbours: str | None, address: str | None, to: Path, signer: Signer
) -> None:
    """Write a newcomer's signed request, which the operators of its neighbours get."""
    if name in plan.clients:
        raise InputError(f"--name {name}: the plan has this client; start it without a request", field="name")
    weights = parse_neighbours([neighbours] if neighbours else [], plan.clients)
    for neighbour in weights:
        if neighbour not in plan.clients:
            similar = suggest_names(neighbour, plan.clients)
            console.print_remark(
                f"note: {neighbour!r} is not in the plan; {similar}otherwise it must be a newcomer, too"
                if similar
                else f"note: {neighbour!r} is not in the plan, so it must be a newcomer, too"
            )
    JoinRequest(name, weights, address, plan.digest).save(to, signer)
    console.print_result(f"{to}: give it to {', '.join(weights)}; they run fedlap admit FOLDER {to.name}")


def choose_listen(plan: Plan, name: str, listen: str | None, join: JoinRequest | None) -> str | None:
    """Return the address to listen on: by default every interface, at the port of the peer's address."""
    assert plan.peers is not None
    address = plan.peers.addresses.get(name) if join is None else join.address
    if listen is not None or address is None:
        return listen
    return f"0.0.0.0:{address.rpartition(':')[2]}"


def run_peer(
    plan: Plan,
    name: str,
    data: str,
    label: str | None,
    client_columns: Sequence[str],
    listen: str | None,
    keys: Keys | None,
    signer: Signer,
    folder: Path,
    join: JoinRequest | None,
    patience: float,
    leave: bool,
) -> None:
    """Take part in a run until it ends or a signal arrives; or tell the neighbours that this peer leaves."""
    os.umask(PRIVATE_FILES)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    storage, stop = PeerStorage(folder), threading.Event()
    storage.prepare()
    storage.write_identity(name, None if keys is None else keys.folder)
    with ExitStack() as until_end:
        until_end.enter_context(lock_folders([folder]))
        path, names = folder / EVENT_LOG_FILE, [name, *plan.clients]
        log = until_end.enter_context(
            EventLog(path, plan.name, names, show=console.print_remark, hidden=KEY_EVENTS)
        )
        run = PeerRun(
            plan, name, read_rows(name, data, label, client_columns), storage, signer, log.write,
            time.monotonic(), console.print_remark, join, patience,
        )  # fmt: skip
        log.allow(run.links)
        addresses = {neighbour: find_address(run, neighbour) for neighbour in run.links}
        run.links_changed = False
        where = choose_listen(plan, name, listen, join)
        transport = ZenohPeer(name, where, keys, addresses, plan.limits.most_bytes, log=log.write)
        until_end.callback(transport.close)
        if leave:
            leave_run(run, transport)
            return
        watch = None
        if keys is not None:
            watch = ExpiryWatch(lambda: Keys.load_peer(keys.folder).facts, log.write, console.print_remark)

        board = until_end.enter_context(PeerBoard.show(folder, run, console.err))

        def look_after(now: float) -> None:
            for remark in transport.refresh():
                console.print_remark(remark)
            if watch is not None:
                watch.look(now)
            take_changes(run, log)
            board.update(now)

        process = PeerProcess(
            run, transport, lambda neighbour: find_address(run, neighbour), stop, look_after
        )

        def request_stop() -> None:
            stop.set()
            process.wake()

        until_end.enter_context(catch_signals(SIGNALS, request_stop))
        port = f"listens on port {transport.port}" if transport.port else "only dials"
        console.print_remark(f"{plan.name}: {name} {port}; plan {plan.digest[:16]}")
        if transport.port:
            log.write("listening", port=transport.port)
        process.run()
        if run.stage is not Stage.DONE:
            console.print_remark(f"stopped after round {run.round}; repeat the command to resume")
            return
    console.print_result(f"{name}: {plan.rounds} rounds are done; model {storage.site.model_path}")


def take_changes(run: PeerRun, log: EventLog) -> None:
    """Take over the changes of edges that the operator has asked for."""
    for values in take_change_files(run.storage.folder):
        try:
            change = EdgeChange.parse(values)
            log.allow([change.name])
            run.request_change(change)
        except InputError as error:
            console.print_remark(f"the edges stay as they are: {error}")


def leave_run(run: PeerRun, transport: PeerTransport) -> None:
    """Tell every neighbour, signed, that this peer leaves for good; those who know it are not asked again."""
    statement = describe_removal("leave", run.name, run.plan)
    message = Message("change", {"statement": statement, "proof": run.signer.sign(statement)})
    names, end = list(run.links), time.monotonic() + LEAVE_PATIENCE
    with ThreadPoolExecutor(max(1, len(names))) as pool:
        problems = list(pool.map(lambda name: tell_neighbour(run, transport, name, message, end), names))
    for name, problem in zip(names, problems, strict=True):
        if problem:
            console.print_remark(format_problem(name, problem))
        else:
            run.request_change(EdgeChange("depart", name))
    missed = [name for name, problem in zip(names, problems, strict=True) if problem]
    rest = f"; repeat the command for {', '.join(missed)}" if missed else ""
    console.print_result(f"{run.name}: {len(names) - len(missed)} of {len(names)} neighbours know{rest}")
    if missed:
        raise typer.Exit(EXIT_FAILED)
    run.log("left", name=run.name, round=run.round)


def tell_neighbour(run: PeerRun, transport: PeerTransport, name: str, message: Message, end: float) -> str:
    """Return why a neighbour has not taken a message until a time; an empty text if it has."""
    content, problem = encode_message(message), f"{name} has not answered"
    while (left := end - time.monotonic()) > 0:
        try:
            answer = decode_message(
                transport.ask(name, content, left), PEER_ANSWERS, run.state_types, run.plan.limits.most_bytes
            )
        except (UnreachableError, PermanentError, WireError) as error:
            problem = str(error)
        else:
            if answer.kind == "ack":
                return ""
            problem = clean_text(answer.facts.get("reason", answer.kind))
        time.sleep(min(LEAVE_PAUSE, left))
    return problem


def admit_newcomer(folder: Path, request: Path, neighbours: str | None) -> None:
    """Ask the peer of a folder to add the edge to a newcomer, which has signed the request."""
    if neighbours is not None:
        raise InputError("--neighbours is for a run with a server; remove it, since the request names them")
    name, keys, plan = read_folder(folder)
    found = JoinRequest.load(request, plan, NoSigner() if keys is None else CertificateSigner(keys))
    request_change(folder, found.admit(name))


def eject_neighbour(folder: Path, neighbour: str) -> None:
    """Ask the peer of a folder to remove the edge to a neighbour."""
    name, _, _ = read_folder(folder)
    if neighbour == name:
        raise InputError(f"{name!r} is this peer; to leave the run, use fedlap peer --leave")
    known = PeerStorage(folder).list_neighbours()
    if known is not None and neighbour not in known:
        raise InputError(
            f"{neighbour!r} is no neighbour of {name!r}; expected one of {', '.join(known) or 'none'}"
        )
    request_change(folder, EdgeChange("eject", neighbour))


def read_folder(folder: Path) -> tuple[str, Path | None, Plan]:
    """Return the name, the folder of keys and the plan of a peer's folder."""
    storage = PeerStorage(folder)
    identity, known = storage.read_identity(), storage.site.read_plan()
    if identity is None or known is None:
        raise InputError(
            f"{str(folder)!r} is no folder of fedlap peer that has started; pass a peer's folder"
        )
    return *identity, Plan.of(known["plan"])


def request_change(folder: Path, change: EdgeChange) -> None:
    """Write a change for the peer that runs in a folder."""
    write_change_file(folder, change.to_dict())
    console.print_result(f"{change.name}: requested; see fedlap status {folder}")
