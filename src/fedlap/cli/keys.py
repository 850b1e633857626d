"""Commands about keys and certificates: authority, server, request, sign, install, revoke and show."""

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.table import Table

from fedlap.cli import console
from fedlap.deploy.certificates import SERVER_NAME, CertificateFacts, check_client_name, format_time
from fedlap.deploy.keys import (
    CERTIFICATE_NAME,
    create_authority,
    create_server_keys,
    fingerprint_request,
    install_certificate,
    load_certificate_facts,
    name_client_folder,
    name_folder,
    request_certificate,
    revoke_certificates,
    sign_certificate,
)
from fedlap.deploy.register import REGISTER_NAME, Issue, Register
from fedlap.errors import InputError

KEYS_FOLDER = Path("keys")


def make_authority(folder: Path, name: str, days: int) -> None:
    """Create an authority."""
    facts = create_authority(folder, name, timedelta(days=days))
    console.print_result(
        f"authority {facts.name} in {folder}, valid until {format_time(facts.not_after)}; protect this folder"
    )


def make_server_keys(folder: Path, authority: Path, hosts: list[str], days: int) -> None:
    """Create or renew the server's certificate."""
    if not hosts:
        raise InputError("no host given; pass --host with the DNS name or IP address that clients use")
    facts = create_server_keys(folder, authority, hosts, timedelta(days=days))
    _print_installed(facts, folder)


def make_request(folder: Path | None, name: str | None, hosts: list[str], new_key: bool) -> None:
    """Create a private key and a request for a certificate."""
    if name is None and not hosts:
        raise InputError("pass --name for a client, --host for a server, or both for a peer")
    if folder is None:
        folder = KEYS_FOLDER / (SERVER_NAME if name is None else _choose_folder(name, hosts))
    request = request_certificate(folder, name, hosts, new_key)
    console.print_result(
        f"request in {request} with key {fingerprint_request(request)}; "
        "send it to the authority, who runs `fedlap keys sign`"
    )


def sign(request: Path, authority: Path, days: int, to: Path | None, name: str | None) -> None:
    """Sign a request."""
    signed, facts = sign_certificate(authority, request, timedelta(days=days), to, name)
    console.print_result(
        f"certificate {facts.common_name}{_describe_hosts(facts)} for key {fingerprint_request(request)} "
        f"in {signed}, "
        f"valid until {format_time(facts.not_after)}; "
        "send it back for `fedlap keys install`"
    )


def install(signed: Path, folder: Path | None) -> None:
    """Install a signed certificate."""
    if folder is None:
        folder = KEYS_FOLDER / name_folder(load_certificate_facts(signed))
    _print_installed(install_certificate(folder, signed), folder)


def revoke(authority: Path, name: str, issue: int | None) -> None:
    """Revoke certificates of a client or peer."""
    register = revoke_certificates(authority, name, issue)
    revoked = [entry.issue for entry in register.issues if entry.name == name and entry.revoked is not None]
    issues = ", ".join(str(number) for number in revoked)
    console.print_result(
        f"revoked issues of {name}: {issues}; servers and peers on other machines need a copy of "
        f"{authority / REGISTER_NAME}"
    )


def show(folder: Path, as_json: bool) -> None:
    """List the certificates of a folder, and warn if one expires soon."""
    now = datetime.now(UTC)
    facts = load_certificate_facts(folder / CERTIFICATE_NAME)
    issues = [Issue.of(facts)]
    if facts.role == "authority":
        issues += Register.load(folder / REGISTER_NAME).issues
    if as_json:
        entries = [{**asdict(issue), "state": issue.describe_state(now)} for issue in issues]
        print(json.dumps({"certificates": entries}))
    else:
        table = Table("role", "name", "issue", "valid until (UTC)", "state")
        for issue in issues:
            number = str(issue.issue) if issue.issue else ""
            end = format_time(issue.end).removesuffix(" UTC")
            table.add_row(issue.role, issue.name, number, end, issue.describe_state(now))
        console.out.print(table)
    last = {(issue.role, issue.name): issue for issue in issues}
    for issue in last.values():
        if issue.revoked is None and (text := issue.describe_expiry(now)):
            console.print_remark(f"warning: the certificate of {issue.role} {issue.name} {text}; renew it")


def _choose_folder(name: str, hosts: list[str]) -> str:
    return name_client_folder(check_client_name(name), "peer" if hosts else "client")


def _describe_hosts(facts: CertificateFacts) -> str:
    """Return the hosts that a certificate serves. The signer vouches for these hosts."""
    return f" for the hosts {', '.join(facts.hosts)}" if facts.hosts else ""


def _print_installed(facts: CertificateFacts, folder: Path) -> None:
    console.print_result(
        f"certificate {facts.common_name} in {folder}, valid until {format_time(facts.not_after)}"
    )
