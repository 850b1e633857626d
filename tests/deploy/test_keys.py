"""Folders of keys: what is signed, what is refused, and who can read it."""

import json
import os
import shutil
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedlap.deploy import private_files
from fedlap.deploy.certificates import MOST_NAME_BYTES, describe_expiry, describe_time_left
from fedlap.deploy.keys import (
    Keys,
    create_authority,
    create_server_keys,
    fingerprint_request,
    install_certificate,
    link_register,
    name_client_folder,
    request_certificate,
    revoke_certificates,
    sign_certificate,
)
from fedlap.deploy.register import ISSUES_AHEAD, Register
from fedlap.errors import InputError
from key_folders import YEAR, KeyFolders

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def load_certificate(keys):
    return x509.load_pem_x509_certificate(keys.certificate.read_bytes())


def load_register(folders):
    return Register.load(folders.authority / "register.json")


def list_modes(folder):
    return {
        str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode)
        for path in [folder, *folder.rglob("*")]
        if path.name != ".lock"
    }


@pytest.mark.parametrize("name", ["north", "süd / *$#? ..:1", "名前", "x" * MOST_NAME_BYTES])
def test_a_client_s_certificate_names_it_and_serves_clients_alone(folders, name):
    keys = folders.sign_client(name)
    assert (keys.name, keys.facts.role, keys.facts.issue, keys.facts.hosts) == (name, "client", 1, ())
    certificate = load_certificate(keys)
    assert (
        certificate.subject.rfc4514_string()
        == x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name}:1")]).rfc4514_string()
    )
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_server_s_certificate_names_its_hosts_and_serves_alone(folders):
    keys = folders.sign_server(hosts=["server.example.org", "10.0.0.1", "::1"])
    assert keys.facts.hosts == ("server.example.org", "10.0.0.1", "::1")
    assert (keys.facts.name, keys.facts.role) == ("server", "server")
    usage = load_certificate(keys).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]


def test_a_peer_s_certificate_names_it_and_its_hosts_and_does_both(folders):
    keys = folders.sign_peer("n7", hosts=["n7.example.org", "::1"])
    assert (keys.name, keys.facts.role, keys.facts.issue) == ("n7", "peer", 1)
    assert keys.facts.hosts == ("n7.example.org", "::1")
    usage = load_certificate(keys).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}


def test_a_peer_without_hosts_has_a_client_s_certificate(folders):
    keys = Keys.load_peer(folders.sign_client("north").folder)
    assert (keys.name, keys.facts.role) == ("north", "client")


def test_a_peer_s_register_may_be_missing_and_must_be_valid(folders):
    keys = folders.sign_peer("n7", register=False)
    assert keys.load_register() is None
    link_register(keys.folder, folders.authority)
    assert Keys.load_peer(keys.folder).load_register() == load_register(folders)
    keys.register.resolve().write_text("{")
    with pytest.raises(InputError, match="is not valid"):
        Keys.load_peer(keys.folder)
    keys.register.resolve().unlink()
    with pytest.raises(InputError, match="cannot be read"):  # a link that leads nowhere
        Keys.load_peer(keys.folder)


def test_clients_and_peers_share_names_and_issues(folders):
    """A common name belongs to one certificate, whichever its role, and is revoked with it."""
    client, peer = folders.sign_client("north"), folders.sign_peer("north")
    assert (client.facts.common_name, peer.facts.common_name) == ("north:1", "north:2")
    assert load_register(folders).issued_common_names("north") == {"north:1", "north:2"}
    register = revoke_certificates(folders.authority, "north", 2)
    assert register.allowed_common_names(["north"])["north"] == ["north:1"]
    assert [issue.revoked is None for issue in register.issues] == [True, False]


def test_a_peer_cannot_have_the_server_s_name(folders, tmp_path):
    with pytest.raises(InputError, match="choose another name for a peer"):
        request_certificate(tmp_path / "keys", "server", ["localhost"])
    assert not (tmp_path / "keys").exists()
    with pytest.raises(InputError, match="or both for a peer"):
        request_certificate(tmp_path / "keys")


def test_only_the_owner_can_use_the_files(folders):
    server, client, peer = folders.sign_server(), folders.sign_client("north"), folders.sign_peer("n7")
    for folder in (folders.authority, server.folder, client.folder, peer.folder):
        for name, mode in list_modes(folder).items():
            assert mode in (0o600, 0o700), name


def test_files_are_private_and_durable_when_they_get_their_names(tmp_path, monkeypatch):
    """No moment comes in which others can read them, or in which a certificate is not in the register."""
    written, replace_file = [], private_files.replace_file

    def note(path, **options):
        written.append((path.name, options))
        return replace_file(path, **options)

    monkeypatch.setattr(private_files, "replace_file", note)
    monkeypatch.setattr(Path, "chmod", lambda path, mode: None)
    umask = os.umask(0)
    try:
        folders = KeyFolders(tmp_path)
        folders.sign_client("north")
    finally:
        os.umask(umask)
    assert [name for name, _ in written if name.startswith(("register", "client-north"))] == [
        "register.json", "register.json", "client-north-1.pem",
    ]  # fmt: skip
    assert all(options == {"durable": True, "private": True} for _, options in written)
    for folder in tmp_path.iterdir():
        for name, mode in list_modes(folder).items():
            assert mode in (0o600, 0o700), name


def test_the_private_key_never_leaves_its_folder(folders):
    """No file of the authority holds a client's private key, and a request or a certificate holds none."""
    keys = folders.sign_client("north")
    secret = keys.key.read_bytes().split(b"\n")[1]
    for path in folders.folder.rglob("*"):
        if path.is_file() and path != keys.key:
            assert secret not in path.read_bytes(), path


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused(folders, mode):
    client, server = folders.sign_client("north"), folders.sign_server()
    for keys, load in ((client, Keys.load_client), (server, Keys.load_server), (client, Keys.load_peer)):
        keys.key.chmod(mode)
        with pytest.raises(InputError, match=f"has mode {mode:04o}.*run chmod 600"):
            load(keys.folder)
    (folders.authority / "key.pem").chmod(mode)
    with pytest.raises(InputError, match="other users can use it"):
        sign_certificate(folders.authority, client.folder / "request.pem", YEAR)


def test_a_folder_that_others_can_use_is_refused(folders, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    with pytest.raises(InputError, match="run chmod 700"):
        request_certificate(shared, "north")
    assert list(shared.iterdir()) == []
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755


def test_a_renewal_is_one_more_issue_of_the_same_key(folders):
    first = folders.sign_client("north")
    key = first.key.read_bytes()
    second = folders.sign_client("north")
    assert (first.facts.issue, second.facts.issue) == (1, 2)
    assert second.key.read_bytes() == key
    assert first.facts.serial != second.facts.serial
    assert [(issue.name, issue.issue) for issue in load_register(folders).issues] == [
        ("north", 1),
        ("north", 2),
    ]


def test_a_new_key_needs_a_new_certificate(folders):
    keys = folders.sign_client("north")
    old = (folders.authority / "issued" / "client-north-1.pem").read_bytes()
    before = fingerprint_request(keys.folder / "request.pem")
    request = request_certificate(keys.folder, "north", new_key=True)
    assert fingerprint_request(request) != before
    with pytest.raises(InputError, match="cannot be used"):
        Keys.load_client(keys.folder)
    signed = folders.folder / "old.pem"
    signed.write_bytes(old)
    with pytest.raises(InputError, match="another private key"):
        install_certificate(keys.folder, signed)
    signed, _ = sign_certificate(folders.authority, request, YEAR)
    install_certificate(keys.folder, signed)
    assert Keys.load_client(keys.folder).facts.issue == 2


def test_only_name_hosts_and_key_of_a_request_are_signed(folders, tmp_path):
    """A request that asks to be an authority gets an ordinary certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "north")]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "hostile.pem"
    path.write_bytes(request.public_bytes(serialization.Encoding.PEM))
    signed, _ = sign_certificate(folders.authority, path, YEAR)
    extensions = x509.load_pem_x509_certificates(signed.read_bytes())[0].extensions
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]


def test_a_request_of_another_name_is_not_signed(folders, tmp_path):
    request = request_certificate(tmp_path / "mallory", "mallory")
    with pytest.raises(InputError, match="a request of 'mallory', not of 'north'"):
        sign_certificate(folders.authority, request, YEAR, name="north")
    assert load_register(folders).issues == ()


@pytest.mark.parametrize("change", ["flip", "truncate", "empty", "certificate", "missing"])
def test_a_damaged_request_is_not_signed(folders, tmp_path, change):
    request = request_certificate(tmp_path / "north", "north")
    content = request.read_bytes()
    if change == "missing":
        request.unlink()
    else:
        middle = len(content) // 2
        flipped = (
            content[:middle]
            + (b"A" if content[middle : middle + 1] != b"A" else b"B")
            + content[middle + 1 :]
        )
        changed = {
            "flip": flipped,
            "truncate": content[:middle],
            "empty": b"",
            "certificate": (folders.authority / "certificate.pem").read_bytes(),
        }
        request.write_bytes(changed[change])
    with pytest.raises(InputError, match="is not a request for a certificate"):
        sign_certificate(folders.authority, request, YEAR)
    assert load_register(folders).issues == ()


@pytest.mark.parametrize(
    "name", ["", " ", "a ", "a\nb", "\x1b[31m", "\udcff", "x" * (MOST_NAME_BYTES + 1), "\u202ea"]
)
def test_names_that_no_certificate_can_carry_are_refused(tmp_path, name):
    with pytest.raises(InputError, match="choose another name") as caught:
        request_certificate(tmp_path / "keys", name)
    assert caught.value.field == "name"
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize(
    "host", ["", "a b", "x" * 300, "a..b", "*.example.org", "a/b", "\udcff", "10.0.0.0/8"]
)
def test_wrong_hosts_are_refused(tmp_path, folders, host):
    with pytest.raises(InputError, match="expected a DNS name or an IP address"):
        create_server_keys(tmp_path / "wrong", folders.authority, [host], YEAR)
    assert not (tmp_path / "wrong").exists()


def test_a_file_of_another_authority_is_not_installed(folders, tmp_path):
    keys = folders.sign_client("north")
    other = KeyFolders(tmp_path / "other")
    signed, _ = sign_certificate(other.authority, keys.folder / "request.pem", YEAR)
    before = keys.certificate.read_bytes()
    with pytest.raises(InputError, match="from another authority"):
        install_certificate(keys.folder, signed)
    assert keys.certificate.read_bytes() == before
    shutil.copy(other.authority / "certificate.pem", keys.authority)
    with pytest.raises(InputError, match="not signed by its authority"):
        Keys.load_client(keys.folder)


def test_a_folder_of_another_role_is_refused(folders):
    client, server = folders.sign_client("north"), folders.sign_server()
    with pytest.raises(InputError, match="certificate of a client, expected a server"):
        Keys.load_server(client.folder)
    with pytest.raises(InputError, match="certificate of a server, expected a client"):
        Keys.load_client(server.folder)
    with pytest.raises(InputError, match="certificate of a server, expected a peer"):
        Keys.load_peer(server.folder)
    with pytest.raises(InputError, match="certificate of a peer, expected a client"):
        Keys.load_client(folders.sign_peer("n7").folder)


def test_a_server_without_a_register_does_not_start(folders):
    keys = folders.sign_server()
    keys.register.unlink()
    with pytest.raises(InputError, match=r"copy register\.json from the authority"):
        Keys.load_server(keys.folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"version": 2, "issues": []}',
        b'{"version": 1}',
        b'{"version": 1, "issues": [{}]}',
    ],
)
def test_a_wrong_register_is_an_error_of_one_line(tmp_path, content):
    path = tmp_path / "register.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"register .* is not valid") as caught:
        Register.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [("issue", "1"), ("name", 1), ("not_after", "soon"), ("not_after", "2026-01-01"), ("revoked", 3)],
)
def test_a_field_of_a_wrong_type_is_refused(folders, field, value):
    folders.sign_client("north")
    path = folders.authority / "register.json"
    facts = json.loads(path.read_text())
    facts["issues"][0][field] = value
    path.write_text(json.dumps(facts))
    with pytest.raises(InputError, match="is not valid"):
        Register.load(path)


def test_the_register_allows_exactly_what_is_not_revoked(folders):
    ahead = range(1, ISSUES_AHEAD + 1)
    assert load_register(folders).allowed_common_names(["north"])["north"] == [f"north:{n}" for n in ahead]
    for _ in range(2):
        folders.sign_client("north")
    folders.sign_client("east")
    allowed = load_register(folders).allowed_common_names(["north", "south"])
    assert allowed["north"] == [f"north:{number}" for number in range(1, 3 + ISSUES_AHEAD)]
    assert "east" not in allowed
    register = revoke_certificates(folders.authority, "north", 1)
    assert register == load_register(folders)
    assert register.allowed_common_names(["north"])["north"] == [
        f"north:{n + 2}" for n in range(ISSUES_AHEAD + 1)
    ]
    register = revoke_certificates(folders.authority, "north")
    assert register.allowed_common_names(["north"])["north"] == []  # no issue ahead, either
    folders.sign_client("north")
    allowed = load_register(folders).allowed_common_names(["north", "east"])
    assert allowed["north"] == [f"north:{n + 3}" for n in range(ISSUES_AHEAD + 1)]
    assert len(allowed["east"]) == 1 + ISSUES_AHEAD


def test_unknown_names_and_issues_cannot_be_revoked(folders):
    folders.sign_client("north")
    folders.sign_server()
    with pytest.raises(InputError, match="did you mean 'north'"):
        revoke_certificates(folders.authority, "nort")
    with pytest.raises(InputError, match="unknown client 'server'"):
        revoke_certificates(folders.authority, "server")
    with pytest.raises(InputError, match="issue = 2 of 'north' is unknown; choose from 1"):
        revoke_certificates(folders.authority, "north", 2)
    assert load_register(folders).issues[0].revoked is None


def test_two_signers_at_once_give_two_issues(folders, tmp_path):
    request = request_certificate(tmp_path / "north", "north")
    threads = [
        threading.Thread(target=sign_certificate, args=(folders.authority, request, YEAR)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(issue.issue for issue in load_register(folders).issues) == list(range(1, 9))


def test_an_authority_is_never_overwritten(folders):
    key = (folders.authority / "key.pem").read_bytes()
    with pytest.raises(InputError, match="has an authority already"):
        create_authority(folders.authority, "again", YEAR)
    assert (folders.authority / "key.pem").read_bytes() == key


def test_no_certificate_outlives_its_authority(tmp_path):
    create_authority(tmp_path / "authority", "short", timedelta(days=10))
    request = request_certificate(tmp_path / "north", "north")
    with pytest.raises(InputError, match=r"longer than its authority .*use fewer days"):
        sign_certificate(tmp_path / "authority", request, timedelta(days=11))
    assert Register.load(tmp_path / "authority" / "register.json").issues == ()


@pytest.mark.parametrize(
    ("left", "text"),
    [
        (timedelta(days=30), None),
        (timedelta(days=29, hours=23), "expires in 29 days"),
        (timedelta(days=1), "expires in 1 day"),
        (timedelta(hours=2), "expires in 2 hours"),
        (timedelta(seconds=5), "expires in 5 seconds"),
        (timedelta(0), "expires in a second"),
        (timedelta(seconds=-1), "expired at 2026-01-31 11:59:59 UTC"),
    ],
)
def test_warnings_begin_thirty_days_ahead(left, text):
    assert describe_expiry(NOW - timedelta(days=400), NOW + left, NOW) == text


def test_a_certificate_that_is_not_valid_yet_says_so():
    start = NOW + timedelta(hours=1)
    assert (
        describe_expiry(start, start + timedelta(days=1), NOW)
        == "is not valid before 2026-01-31 13:00:00 UTC"
    )


def test_durations_in_words():
    assert describe_time_left(timedelta(days=2)) == "2 days"


@pytest.mark.parametrize("name", ["../x", "a/b", "süd", "", ".", "a b", "*"])
def test_the_folder_of_a_client_stays_where_it_belongs(name):
    folder = Path(name_client_folder(name))
    assert len(folder.parts) == 1
    assert str(folder).startswith("client-")


def test_folders_of_clients_differ():
    names = ["north", "6e6f727468", "süd", "a b"]
    assert len({name_client_folder(name) for name in names}) == len(names)
