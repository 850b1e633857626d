"""`fedlap check` and `fedlap client` over TLS in real processes: every cause has its line and its code."""

import re
from datetime import UTC, datetime

import pytest

from deployment_processes import SERVER, describe_plan, write_rows
from fedlap.deploy.keys import revoke_certificates
from fedlap.deploy.transport import ExitCode
from key_folders import DAY
from ports import find_ports
from relay import Relay

pytestmark = pytest.mark.deploy
WIDE = {"name": "mlp", "hidden": [2500]}  # 80 kB
UP, DOWN = 80_000, 80_000  # bytes of a message of FedU, at least


@pytest.fixture
def secure(deploy, folders):
    """A deployment over TLS that waits for its clients; `check` runs a check and returns code and lines."""
    keys = {SERVER: folders.sign_server().folder, "a": folders.sign_client("a").folder}
    deployment = deploy(describe_plan(rounds=1000, model=WIDE), keys)

    def run(owner, command, name, *words, keys=None, port=None, data="a.csv"):
        address = f"127.0.0.1:{port or deployment.port}"
        options = ["--name", name, "--data", data, "--server", address, "--folder", f"client-{owner}"]
        options += ["--insecure"] if keys == "" else ["--keys", keys or deployment.keys[name]]
        deployment.start(owner, [command, *options, *words])
        deployment.wait(lambda: deployment.poll(owner) is not None, f"{owner} ends", without=(owner,))
        code, lines = deployment.poll(owner), deployment.read_output(owner).splitlines()
        (deployment.folder / f"{owner}.out").unlink()
        del deployment.pids[owner]
        return code, lines

    def check(*words, **options):
        code, lines = run("check", "check", "a", *words, **options)
        return code, {line.split()[1]: line for line in lines if line.startswith(("ok", "FAIL", "note"))}

    deployment.run, deployment.check = run, check
    return deployment


def test_a_check_without_problems_and_with_each_of_them(secure, tmp_path):
    secure.start_server()
    code, found = secure.check()
    assert (code, list(found)) == (0, ["certificate", "server", "clock", "round", "data", "disk"])
    assert all(line.startswith("ok") for line in found.values()), found
    up, down = (
        int(text.replace(",", "")) for text in re.findall(r"([\d,]+) (?:bytes up|down)", found["round"])
    )
    assert UP <= up < 1.01 * UP
    assert DOWN <= down < 1.01 * DOWN
    assert not secure.list_events("connected"), "a check is no sign of life of the client"

    # Nothing answers there.
    code, found = secure.check(port=find_ports(1)[0])
    assert (code, list(found)) == (1, ["certificate", "server"])
    assert "is not reachable" in found["server"]

    # Rows that do not fit the plan, for a check and a client alike; a file that is not there.
    rows = secure.folder / "wrong.csv"
    write_rows(rows, "a")
    rows.write_text(rows.read_text().replace("u,", "other,", 1))
    code, found = secure.check(data="wrong.csv")
    assert code == ExitCode.OTHER_PLAN
    assert found["data"].startswith("FAIL")
    code, lines = secure.run("wrong", "client", "a", data="wrong.csv")
    assert code == ExitCode.OTHER_PLAN
    assert any("'u'" in line for line in lines)
    for command in ("check", "client"):
        code, lines = secure.run("nothing", command, "a", data="northest.csv")
        assert (code, len(lines)) == (2, 1), "the file is looked for before the server is asked"
        assert "northest.csv: no file that can be read" in lines[0]

    # A disk that cannot be written.
    code, found = secure.check("--folder", "a.csv/folder")
    assert code == ExitCode.STORAGE
    assert "cannot be written" in found["disk"]

    # A path that lets small messages pass only.
    with Relay(secure.port) as relay:
        relay.cut_after("up", 50_000)
        code, found = secure.check(port=relay.port)
    assert code == 1
    assert re.search(r"one of [\d,]+ bytes up and [\d,]+ down fails", found["message"])


def test_a_wrong_clock_is_a_problem(secure):
    secure.start_server(change=("answer_with_another_clock", -120.0))
    code, found = secure.check()
    assert code == 1
    assert "differs from the server's by 120 s; set it" in found["clock"]


def test_wrong_certificates_end_checks_and_clients_with_the_same_codes(secure, folders, others):
    secure.start_server()
    expired = folders.sign_client("c", lifetime=DAY, start=datetime.now(UTC) - 2 * DAY)
    revoked = folders.sign_client("d")
    revoke_certificates(folders.authority, "d")
    secure.wait(lambda: "revoked" in secure.read_output(SERVER), "the server reads the register")
    foreign = others.sign_client("b")
    elsewhere = folders.sign_server(hosts=["server.example.org"], name="elsewhere").folder
    plan = describe_plan(rounds=1000)
    stranger = type(secure)(secure.starter, secure.folder.parent / "elsewhere-run", plan, {SERVER: elsewhere})
    stranger.start_server()
    try:
        for name, keys, port, expected, words in (
            ("b", foreign.folder, secure.port, ExitCode.OTHER_AUTHORITY, "authority"),
            ("c", expired.folder, secure.port, ExitCode.EXPIRED, "expired at"),
            ("a", secure.keys["a"], stranger.port, ExitCode.WRONG_NAME, "is not for the host '127.0.0.1'"),
            ("d", revoked.folder, secure.port, ExitCode.REFUSED, "refuses the certificate d:1"),
            ("a", "", secure.port, ExitCode.OTHER_AUTHORITY, "speaks TLS"),
        ):
            for command in ("check", "client"):
                owner = f"{command}-{name}-{expected}"
                code, lines = secure.run(owner, command, name, keys=keys, port=port)
                assert code == expected, (owner, lines)
                errors = [line for line in lines if line.startswith(("FAIL", "error: "))]
                assert command == "check" or len(errors) == 1, (owner, lines)
                assert words in errors[-1], (owner, lines)
    finally:
        stranger.close()


def test_an_expired_certificate_of_the_server_ends_clients(secure, folders):
    folders.sign_server(lifetime=DAY, start=datetime.now(UTC) - 2 * DAY)
    secure.start_server()
    for command in ("check", "client"):
        code, lines = secure.run(command, command, "a")
        assert code == ExitCode.EXPIRED, lines
        assert any("of the server" in line and "is not valid now" in line for line in lines), lines


def test_a_client_whose_certificate_is_revoked_while_it_waits_ends(secure, folders):
    secure.start_server()
    secure.start_client("a")
    secure.wait(lambda: secure.list_events("registered", name="a"), "a registers")
    revoke_certificates(folders.authority, "a")
    secure.wait(lambda: secure.poll("a") is not None, "a ends", without=("a",))
    assert secure.poll("a") == ExitCode.REFUSED, secure.read_output("a")
    (line,) = [line for line in secure.read_output("a").splitlines() if line.startswith("error: ")]
    assert "refuses the certificate a:1" in line
