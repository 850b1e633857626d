"""Files for operators: systemd units that are verified and hardened, and a Containerfile without privileges.

No container engine runs in the tests: the Containerfile is parsed, and never built.
"""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from fedlap.cli.exit_codes import EXIT_USAGE
from fedlap.deploy.transport import ExitCode

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
ROLES = ("client", "peer", "server")
COMMAND = "/opt/fedlap/bin/fedlap"
MOST_EXPOSURE = 1.7  # of 10, by `systemd-analyze security`; systemd 252 says 1.5
every_role = pytest.mark.parametrize("role", ROLES)


def read_unit(role):
    """Return the settings of a unit: section, key, value, in their order."""
    settings, section = [], ""
    for line in (FOLDER / f"fedlap-{role}.service").read_text().splitlines():
        if found := re.fullmatch(r"\[(\w+)\]", line):
            section = found[1]
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals, f"no setting: {line}"
            settings.append((section, key, value))
    return settings


def list_values(role, key):
    return [value for _, name, value in read_unit(role) if name == key]


@every_role
def test_the_unit_is_hardened(role):
    """Checked without systemd, since it is not everywhere."""
    expected = {
        "User": "fedlap",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateTmp": "yes",
        "PrivateDevices": "yes",
        "PrivateUsers": "yes",
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
        "RestrictSUIDSGID": "yes",
        "RestrictNamespaces": "yes",
        "LockPersonality": "yes",
        "UMask": "0077",
        "StateDirectory": f"fedlap-{role}",
        "StateDirectoryMode": "0700",
        "CacheDirectoryMode": "0700",
        "Restart": "on-failure",
        "KillSignal": "SIGTERM",
    }
    settings = {key: value for section, key, value in read_unit(role) if section == "Service"}
    assert {key: settings.get(key) for key in expected} == expected


@every_role
def test_permanent_errors_are_not_repeated(role):
    """Wrong settings and every exit code that waiting does not cure; all others are restarted."""
    (codes,) = list_values(role, "RestartPreventExitStatus")
    assert sorted(map(int, codes.split())) == sorted([EXIT_USAGE, *map(int, ExitCode)])


@every_role
def test_the_unit_s_words_come_from_its_environment(role):
    (command,) = list_values(role, "ExecStart")
    words = shlex.split(command)
    assert words[:2] == [COMMAND, {"server": "serve"}.get(role, role)]
    assert "--insecure" not in words
    comments = "\n".join(re.findall("^#.*$", (FOLDER / f"fedlap-{role}.service").read_text(), re.M))
    for variable in re.findall(r"\$\{(\w+)\}", command):
        assert f"{variable}=" in comments, f"{variable} has no example"


@pytest.fixture
def verified_unit(role, tmp_path):
    """A copy whose command exists, for systemd-analyze, which looks for it."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed; the unit's settings are checked above")
    command = shutil.which("true")
    copy = tmp_path / f"fedlap-{role}.service"
    copy.write_text((FOLDER / copy.name).read_text().replace(COMMAND, command))
    return copy


def analyze(*words):
    done = subprocess.run(["systemd-analyze", *map(str, words)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@every_role
def test_systemd_accepts_the_unit(role, verified_unit):
    assert analyze("verify", "--man=no", verified_unit) == (0, "", "")


def test_systemd_finds_a_wrong_unit(tmp_path):
    """A control: `verify` prints what it does not know."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "wrong.service"
    unit.write_text(f"[Service]\nExecStart={shutil.which('true')}\nProtectSistem=strict\n")
    assert "ProtectSistem" in analyze("verify", "--man=no", unit)[2]


@every_role
def test_systemd_finds_the_unit_little_exposed(role, verified_unit):
    code, out, err = analyze("security", "--offline=true", "--no-pager", "--json=short", verified_unit)
    if "unrecognized option" in err:
        pytest.skip("this systemd cannot analyse files")
    assert code == 0, err
    assert "PrivateTmp" in json.dumps(json.loads(out))
    limit = f"--threshold={int(10 * MOST_EXPOSURE)}"
    code, out, err = analyze("security", "--offline=true", "--no-pager", limit, verified_unit)
    assert code == 0, out


def read_containerfile():
    """Return the instructions: word and rest, with continued lines joined."""
    text = (FOLDER / "Containerfile").read_text()
    lines = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ").splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]


def test_the_container_has_no_privileges():
    instructions = read_containerfile()
    last = dict(instructions)
    user = last["USER"]
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user)
    words = [word for word, _ in instructions]
    assert words.index("USER") > max(place for place, word in enumerate(words) if word == "RUN")
    assert f"--uid {user.partition(':')[0]} " in next(
        rest for word, rest in instructions if "useradd" in rest
    )
    assert not any("sudo" in rest or "chmod 777" in rest for _, rest in instructions)
    assert json.loads(last["ENTRYPOINT"]) == ["fedlap"]


def test_the_container_s_root_can_be_read_only():
    """Everything that fedlap writes by default is in the volume or in /tmp."""
    instructions = read_containerfile()
    last = dict(instructions)
    variables = dict(word.split("=", 1) for word in last["ENV"].split())
    assert last["VOLUME"] == last["WORKDIR"] == variables["HOME"] == "/state"
    assert variables["XDG_CACHE_HOME"].startswith("/state/")
    assert variables["MPLCONFIGDIR"] == "/tmp"
    assert variables["PYTHONDONTWRITEBYTECODE"] == "1"
    assert "--read-only" in (FOLDER / "Containerfile").read_text()


def test_the_container_s_images_are_plain_names():
    images = [rest.split()[0] for word, rest in read_containerfile() if word == "FROM"]
    assert images == ["python:3.11-slim"] * 2
    assert "http" not in (FOLDER / "Containerfile").read_text()


def test_copied_files_exist():
    root = FOLDER.parents[1]
    for word, rest in read_containerfile():
        if word == "COPY" and "--from" not in rest:
            assert all((root / name).exists() for name in rest.split()[:-1])
