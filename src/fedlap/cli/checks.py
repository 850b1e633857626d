"""`fedlap check`: a client against its server, or a peer against its neighbours; one line per check."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import typer

from fedlap.cli import console
from fedlap.cli.exit_codes import EXIT_FAILED
from fedlap.cli.peer import choose_listen, load_plan
from fedlap.cli.site_client import check_rows_file, open_transport, read_rows, split_columns
from fedlap.cli.site_keys import load_keys
from fedlap.deploy.certificates import format_time
from fedlap.deploy.check import ConnectionChecker, Finding, check_data, check_disk
from fedlap.deploy.keys import Keys
from fedlap.deploy.peers.edge_check import EdgeChecker
from fedlap.deploy.peers.edges import find_edges
from fedlap.deploy.peers.start_check import (
    check_late_models,
    check_own_host,
    count_stored_models,
    describe_plan,
)
from fedlap.deploy.peers.zenoh_peer import ZenohPeer
from fedlap.deploy.transport import ExitCode
from fedlap.errors import InputError

PATIENCE: Final = 20.0  # seconds, by default, in which neighbours can get ready


def check_site(
    name: str,
    data: str,
    label: str | None,
    columns: str | None,
    server: str | None,
    plan: Path | None,
    listen: str | None,
    wait: float | None,
    keys: Path | None,
    folder: Path | None,
    insecure: bool,
) -> None:
    """Print one line per check of a client or a peer; exit with the code of the first problem."""
    if (server is None) == (plan is None):
        raise InputError("pass --server to check a client of a server, or --plan to check a peer, not both")
    if server is not None and (listen is not None or wait is not None):
        raise InputError("--listen and --wait are for peers; remove them, or pass --plan instead of --server")
    if server is not None:
        print_findings(list_client_findings(name, data, label, columns, server, keys, folder, insecure))
    elif plan is not None:
        patience = PATIENCE if wait is None else wait
        print_findings(
            list_peer_findings(plan, name, data, label, columns, listen, patience, keys, folder, insecure)
        )


def print_findings(findings: Iterable[Finding]) -> None:
    """Print findings as they come; exit with the code of the first problem."""
    problems = []
    for finding in findings:
        mark = "FAIL" if finding.problem else "note" if finding.is_remark else "ok"
        console.print_result(f"{mark:4}  {finding.subject:12} {finding.problem or finding.detail}")
        if finding.problem:
            problems.append(finding)
    if problems:
        raise typer.Exit(problems[0].code or EXIT_FAILED)


def list_client_findings(
    name: str,
    data: str,
    label: str | None,
    columns: str | None,
    server: str,
    keys: Path | None,
    folder: Path | None,
    insecure: bool,
) -> Iterator[Finding]:
    """Yield the findings about a client and its server."""
    check_rows_file(data)
    transport = open_transport(name, server, keys, insecure)
    try:
        if keys is not None:
            yield describe_certificate(Keys.load_client(keys))
        checker = ConnectionChecker(transport, lambda plan: transport.limit_messages(plan.limits.most_bytes))
        yield from checker.check()
        if checker.plan is not None:
            yield check_data(checker.plan, read_rows(name, data, label, split_columns(columns)))
            yield check_disk(checker.plan, folder or Path(f"fedlap-{name}"))
    finally:
        transport.close()


def list_peer_findings(
    plan_file: Path,
    name: str,
    data: str,
    label: str | None,
    columns: str | None,
    listen: str | None,
    patience: float,
    keys_folder: Path | None,
    folder: Path | None,
    insecure: bool,
) -> Iterator[Finding]:
    """Yield the findings about a peer, and then one per edge."""
    plan = load_plan(plan_file)
    assert plan.peers is not None
    keys = load_keys(Keys.load_peer, keys_folder, insecure, name)
    yield describe_plan(plan, name)
    if keys is not None:
        yield describe_certificate(keys)
        found = check_own_host(plan, name, keys.facts)
        if found is not None:
            yield found
    load_site = read_rows(name, data, label, split_columns(columns))
    fits = check_data(plan, load_site)
    yield fits
    yield check_disk(plan, folder or Path(f"fedlap-{name}"), count_stored_models(plan, name))
    yield check_late_models(plan, None if fits.problem else load_site)
    addresses = {
        neighbour: plan.peers.find_dialled(name, neighbour, plan.clients)
        for neighbour in find_edges(plan, name, None)
    }
    where = choose_listen(plan, name, listen, None)
    transport = ZenohPeer(name, where, keys, addresses, plan.limits.most_bytes)
    try:
        if transport.port:
            console.print_remark(
                f"{name} listens on port {transport.port}, and waits up to {patience:g} s for neighbours"
            )
        yield from EdgeChecker(plan, name, transport, addresses, patience).check()
    finally:
        transport.close()


def describe_certificate(keys: Keys) -> Finding:
    """Return a finding about the time that a certificate is still valid."""
    warning = keys.facts.describe_expiry()
    problem = warning if warning is not None and keys.facts.describe_invalidity() else ""
    end = f"valid until {format_time(keys.facts.not_after)}"
    return Finding("certificate", problem, warning or end, int(ExitCode.EXPIRED))
