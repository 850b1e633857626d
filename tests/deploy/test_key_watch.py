"""Keys that are renewed, revoked or damaged on disk while a process watches them."""

import shutil

import pytest

from fedlap.deploy.key_watch import KeyWatch
from fedlap.deploy.keys import Keys, link_register, revoke_certificates
from fedlap.deploy.register import ISSUES_AHEAD, ISSUES_WITHOUT_REGISTER

NAMES = ("north", "n7")


def name_issues(name, last, first=1):
    return [f"{name}:{issue}" for issue in range(first, last + 1)]


def test_without_keys_there_are_no_rules():
    watch = KeyWatch(None, Keys.load_peer, NAMES)
    assert (watch.rules, watch.refresh()) == ({}, ([], False))


@pytest.mark.parametrize("role", ["server", "peer"])
def test_a_watch_follows_the_files(folders, role):
    keys = folders.sign_server() if role == "server" else folders.sign_peer("me")
    sign_again = folders.sign_server if role == "server" else lambda: folders.sign_peer("me")
    events, load = [], Keys.load_server if role == "server" else Keys.load_peer
    watch = KeyWatch(keys, load, NAMES, lambda event, **facts: events.append((event, facts)))
    assert watch.rules == {name: name_issues(name, ISSUES_AHEAD) for name in NAMES}
    assert watch.refresh() == ([], False)
    for _ in range(ISSUES_AHEAD):
        folders.sign_client("north")  # as the rules allow in advance
        assert watch.refresh() == ([], False)
    folders.sign_client("north")
    last = ISSUES_AHEAD + 1
    assert events == []
    assert watch.refresh() == ([f"allowed: north:{last}"], True)
    assert events == [("register-changed", {})]
    assert watch.rules["north"] == name_issues("north", last + ISSUES_AHEAD)
    assert watch.keys is keys
    revoke_certificates(folders.authority, "north", 1)
    assert watch.refresh() == (["revoked: north:1"], True)
    assert watch.rules["north"] == name_issues("north", last + ISSUES_AHEAD, first=2)
    renewed = sign_again()
    assert watch.refresh() == ([f"certificate {renewed.facts.common_name} is in use"], True)
    assert watch.keys == renewed
    assert events == 2 * [("register-changed", {})] + [("certificate-renewed", {"issue": 2})]
    for path in (keys.authority, keys.key, keys.certificate):
        path.write_bytes(path.read_bytes())
    assert watch.refresh() == ([], False)
    rules = watch.rules
    register = keys.register.resolve()
    content = register.read_bytes()
    register.write_text("{")
    (remark,), is_changed = watch.refresh()
    assert "changed keys are ignored: register" in remark
    assert not is_changed
    assert watch.rules == rules
    register.write_bytes(content)
    assert watch.refresh() == ([], False)
    watch.admit(["n7"])
    assert watch.rules == {"n7": name_issues("n7", ISSUES_AHEAD)}


def test_a_peer_without_a_register_takes_one_and_never_forgets_it(folders):
    keys = folders.sign_peer("me", register=False)
    folders.sign_client("north")
    watch = KeyWatch(keys, Keys.load_peer, NAMES)
    everything = {name: name_issues(name, ISSUES_WITHOUT_REGISTER) for name in NAMES}
    assert watch.rules == everything
    shutil.copy(folders.authority / "register.json", keys.register)
    assert watch.refresh() == ([], False)  # it revokes nothing
    revoke_certificates(folders.authority, "north")
    shutil.copy(folders.authority / "register.json", keys.register)
    assert watch.refresh() == (["revoked: north:1"], True)
    assert watch.rules["north"] == []
    keys.register.unlink()
    (remark,), is_changed = watch.refresh()
    assert "the last register counts" in remark
    assert not is_changed
    watch.admit(["north", "n9"])
    assert watch.rules == {"north": [], "n9": name_issues("n9", ISSUES_AHEAD)}
    link_register(keys.folder, folders.authority)
    assert watch.refresh() == ([], False)
