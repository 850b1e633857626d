"""Certificates of real peers: every wrong one is refused with its cause, and renewals and revocations work.

In each pair `holder` listens and `dialler` dials it.
"""

import re
import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fedlap.deploy.keys import link_register, revoke_certificates
from fedlap.deploy.peers.zenoh_peer import LISTENER
from fedlap.deploy.register import Register
from fedlap.deploy.transport import ExitCode, UnreachableError
from key_folders import (
    DAY,
    WAIT,
    EchoPeer,
    copy_authority,
    sign_by_itself,
    wait_for_lasting_error,
    wait_until,
)

pytestmark = [pytest.mark.deploy, pytest.mark.usefixtures("short_waits")]

SHORT = timedelta(seconds=12)


def assert_no_message(
    holder_keys, dialler_keys, dialler_cause, holder_cause=(UnreachableError, "not connected")
):
    """Assert that no message crosses the link, and that both sides state the cause.

    A cause is a code of PermanentError, or UnreachableError, and words.
    """
    with (
        EchoPeer("holder", holder_keys, {"dialler": None}) as holder,
        EchoPeer("dialler", dialler_keys, {"holder": holder.address}) as dialler,
    ):
        for peer, neighbour, (code, words) in (
            (dialler, "holder", dialler_cause),
            (holder, "dialler", holder_cause),
        ):
            if isinstance(code, ExitCode):
                error = wait_for_lasting_error(lambda: peer.ask(neighbour, timeout=2.0))  # noqa: B023
                assert error.code == code
                assert re.search(words, str(error))
            else:
                with pytest.raises(code, match=words):
                    peer.ask(neighbour, timeout=2.0)
            assert peer.transport.list_links() == []
        assert holder.received == dialler.received == []


def pose(keys, name):
    """Return keys that their owner presents as those of another name, and of a peer."""
    return replace(keys, facts=replace(keys.facts, name=name, role="peer"))


@pytest.mark.parametrize("without", ["holder", "dialler"])
def test_no_certificate(folders, without):
    keys = {name: None if name == without else folders.sign_peer(name) for name in ("holder", "dialler")}
    words = r"does not answer there|does not speak TLS|broke the TLS handshake"
    assert_no_message(keys["holder"], keys["dialler"], (UnreachableError, words))


def test_the_dialler_s_is_signed_by_itself(folders):
    keys = folders.sign_peer("dialler")
    sign_by_itself(keys)
    cause = (
        ExitCode.OTHER_AUTHORITY,
        "neighbour holder at .* does not accept the authority of the certificate",
    )
    assert_no_message(folders.sign_peer("holder"), keys, cause)


def test_the_holder_s_is_signed_by_itself(folders):
    keys = folders.sign_peer("holder")
    sign_by_itself(keys)
    cause = (ExitCode.OTHER_AUTHORITY, "of the neighbour holder at .* is from another authority")
    assert_no_message(keys, folders.sign_peer("dialler"), cause)


def test_another_authority_signed_the_dialler_s(folders, others):
    holder_keys, keys = folders.sign_peer("holder"), others.sign_peer("dialler")
    copy_authority(keys, holder_keys)
    assert_no_message(holder_keys, keys, (ExitCode.OTHER_AUTHORITY, "does not accept the authority"))


def test_another_authority_signed_the_holder_s(folders, others):
    keys, holder_keys = folders.sign_peer("dialler"), others.sign_peer("holder")
    copy_authority(holder_keys, keys)
    assert_no_message(holder_keys, keys, (ExitCode.OTHER_AUTHORITY, "is from another authority"))


@pytest.mark.parametrize(
    ("start", "words"), [(-2 * DAY, "expired at"), (DAY, "not valid before")], ids=["expired", "not-yet"]
)
@pytest.mark.parametrize("whose", ["dialler", "holder"])
def test_a_certificate_is_not_valid_now(folders, whose, start, words):
    keys = {
        name: folders.sign_peer(
            name, lifetime=DAY, start=datetime.now(UTC) + start if name == whose else None
        )
        for name in ("holder", "dialler")
    }
    causes = {
        "dialler": (
            (ExitCode.EXPIRED, f"dialler:1 of this peer .*{words}"),
            (UnreachableError, "not connected"),
        ),
        "holder": (
            (ExitCode.EXPIRED, "of the neighbour holder at .* is not valid now"),
            (ExitCode.EXPIRED, f"holder:1 of this peer .*{words}"),
        ),
    }
    assert_no_message(keys["holder"], keys["dialler"], *causes[whose])


def test_the_holder_s_is_for_another_host(folders):
    keys = folders.sign_peer("holder", hosts=["holder.example.org", "10.0.0.1"])
    cause = (ExitCode.WRONG_NAME, "of the neighbour holder at .* is not for the host '127.0.0.1'")
    assert_no_message(keys, folders.sign_peer("dialler"), cause)


def test_the_dialler_s_is_that_of_another_neighbour(folders):
    keys = pose(folders.sign_peer("mallory"), "dialler")
    cause = (ExitCode.REFUSED, "holder refuses the certificate .*is revoked, dialler is no neighbour")
    assert_no_message(folders.sign_peer("holder"), keys, cause)


def test_the_holder_s_is_that_of_another_peer(folders):
    """The address leads to another peer of the same authority."""
    keys = pose(folders.sign_peer("mallory"), "holder")
    dialler_keys = folders.sign_peer("dialler")
    cause = (
        ExitCode.WRONG_NAME,
        "has the certificate mallory:1, expected one of holder; correct the address",
    )
    refusal = (ExitCode.REFUSED, "dialler refuses the certificate")
    assert_no_message(keys, dialler_keys, cause, refusal)


def test_a_client_s_certificate_cannot_be_dialled(folders):
    keys = pose(folders.sign_client("holder"), "holder")
    cause = (ExitCode.WRONG_NAME, "of the neighbour holder at .* is a client's")
    assert_no_message(keys, folders.sign_peer("dialler"), cause)


@pytest.mark.parametrize("whose", ["dialler", "holder"])
def test_a_revoked_certificate(folders, whose):
    """The side that has the register refuses; the other side has no register, and learns it."""
    keys = {name: folders.sign_peer(name, register=name != whose) for name in ("holder", "dialler")}
    revoke_certificates(folders.authority, whose)
    revoked = (
        ExitCode.REFUSED,
        f"the certificate {whose}:1 of {whose} is revoked, or not in this peer's copy",
    )
    refused = (ExitCode.REFUSED, f"refuses the certificate {whose}:1: it is revoked")
    causes = (refused, revoked) if whose == "dialler" else (revoked, refused)
    assert_no_message(keys["holder"], keys["dialler"], *causes)


def test_nothing_listens(folders):
    with EchoPeer("holder", folders.sign_peer("holder"), {"dialler": None}) as holder:
        address = holder.address
    with (
        EchoPeer("dialler", folders.sign_peer("dialler"), {"holder": address}) as dialler,
        pytest.raises(UnreachableError, match=r"not reachable .Connection refused"),
    ):
        dialler.ask("holder")


def test_a_revocation_cuts_the_link_and_a_new_issue_is_admitted(folders):
    with (
        EchoPeer("holder", folders.sign_peer("holder"), {"dialler": None}) as holder,
        EchoPeer(
            "dialler", folders.sign_peer("dialler", register=False), {"holder": holder.address}
        ) as dialler,
    ):
        for peer in (holder, dialler):
            wait_until(lambda: peer.transport.list_links(), "a link")  # noqa: B023
        assert dialler.ask("holder") == b"dialler: a"
        waits = [dialler.ask_in_thread("holder"), holder.ask_in_thread("dialler")]
        wait_until(lambda: len(holder.received) == 2, "the question is there")
        revoke_certificates(folders.authority, "dialler")
        for thread, outcomes in waits:
            thread.join(WAIT)
            assert isinstance(outcomes[0], UnreachableError)
        wait_until(lambda: holder.remarks, "the register is read")
        assert holder.remarks == ["revoked: dialler:1"]
        wait_for_refusal(dialler, "holder", "holder refuses the certificate dialler:1")
        wait_for_refusal(holder, "dialler", "dialler:1 of dialler is revoked")
        folders.sign_peer("dialler", register=False)  # the running peer takes it into use
        answer = wait_until(lambda: dialler.try_to_ask("holder"), "issue 2 is admitted")
        assert answer == b"dialler: a"
        wait_until(lambda: dialler.remarks, "the change is noted")
        assert dialler.remarks == ["certificate dialler:2 is in use"]
        assert wait_until(lambda: holder.try_to_ask("dialler"), "both ways") == b"holder: a"


def wait_for_refusal(peer, neighbour, words):
    """Wait until a neighbour cannot be asked for a lasting cause with these words."""
    error = wait_for_lasting_error(lambda: peer.ask(neighbour))
    assert error.code == ExitCode.REFUSED
    assert words in str(error)


def copy_register(folders, keys):
    """Copy the authority's register, so that nobody reads the half of it."""
    copied = shutil.copy(folders.authority / "register.json", keys.folder / "register.copied")
    Path(copied).replace(keys.register)


def test_a_peer_without_a_register_admits_renewals_and_reads_a_register_that_is_copied_to_it(folders):
    holder_keys = folders.sign_peer("holder", register=False)
    with EchoPeer("holder", holder_keys, {"dialler": None}) as holder:
        for issue in (1, 2, 3, 4, 5):
            keys = folders.sign_peer("dialler", register=False)
            assert keys.facts.issue == issue
        with EchoPeer("dialler", keys, {"holder": holder.address}) as dialler:
            assert wait_until(lambda: dialler.try_to_ask("holder"), "a link") == b"dialler: a"
            opened = holder.transport._sessions[LISTENER]
            copy_register(folders, holder_keys)
            time.sleep(0.3)  # the peer refreshes every tenth of a second
            assert dialler.ask("holder") == b"dialler: a"
            assert holder.transport._sessions[LISTENER] is opened  # it revokes nothing
            revoke_certificates(folders.authority, "dialler", 5)
            copy_register(folders, holder_keys)
            wait_until(lambda: holder.remarks, "the register is read")
            assert holder.remarks == ["revoked: dialler:5"]
            wait_for_refusal(dialler, "holder", "holder refuses the certificate dialler:5")
            holder_keys.register.unlink()
            wait_until(lambda: len(holder.remarks) == 2, "the register is missed")
            assert "the last register counts" in holder.remarks[1]
            wait_for_refusal(dialler, "holder", "holder refuses the certificate dialler:5")
            link_register(holder_keys.folder, folders.authority)
            holder.transport.set_neighbours({"dialler": None, "n9": None})
            wait_for_refusal(dialler, "holder", "holder refuses the certificate dialler:5")


@pytest.mark.slow
def test_certificates_of_twelve_seconds_are_renewed_during_a_run(folders):
    """Both sides renew twice, after five seconds each. The certificates of the start expire meanwhile."""
    names = ("holder", "dialler")
    keys = {name: folders.sign_peer(name, lifetime=SHORT) for name in names}
    with (
        EchoPeer("holder", keys["holder"], {"dialler": None}, lease=2.0) as holder,
        EchoPeer("dialler", keys["dialler"], {"holder": holder.address}, lease=2.0) as dialler,
    ):
        start = renewed = time.monotonic()
        answered = dict.fromkeys(names, start)
        longest = 0.0
        issue = 1
        while time.monotonic() - start < 14.0 or issue < 3:
            if issue < 3 and time.monotonic() - renewed > 5.0:
                for name in names:
                    folders.sign_peer(name, lifetime=SHORT)
                renewed, issue = time.monotonic(), issue + 1
            for peer, neighbour in ((holder, "dialler"), (dialler, "holder")):
                if peer.try_to_ask(neighbour):
                    answered[peer.name] = time.monotonic()
                longest = max(longest, time.monotonic() - answered[peer.name])
            time.sleep(0.05)
        for peer, neighbour in ((holder, "dialler"), (dialler, "holder")):
            assert wait_until(lambda: peer.try_to_ask(neighbour), "a link")  # noqa: B023
        assert longest < 5.0
        for peer in (holder, dialler):
            wait_until(lambda: len(peer.remarks) > 1, "the last certificate is in use")  # noqa: B023
            assert peer.remarks == [f"certificate {peer.name}:{issue} is in use" for issue in (2, 3)]
        assert Register.load(folders.authority / "register.json").next_issue("peer", "holder") == 4
