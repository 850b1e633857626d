"""A Flower federation of processes on loopback: a SuperLink with TLS, SuperNodes with registered keys.

Every process is ended by its id, with its children, and writes to a log file in the folder. Tests and
benchmarks use it.
"""

import contextlib
import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # else the SuperLink runs `uv sync`
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}


class FlowerFederation:
    """A SuperLink and SuperNodes; `sites` are the node configurations by name.

    secure: with TLS and registered keys; without it, a node has the name that it claims. tools: the folder of
    Flower's commands, by default that of this Python.
    """

    def __init__(
        self, folder: Path, sites: dict[str, dict[str, Any]], secure: bool = True, tools: Path | None = None
    ) -> None:
        self.folder, self.sites, self.secure = folder, sites, secure
        self.tools = Path(sys.executable).parent if tools is None else tools
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        home = self.folder / "flwr"
        home.mkdir(parents=True)
        paths = os.pathsep.join([str(self.tools), os.environ["PATH"]])
        self.environment = {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": paths}
        self.port = self.fleet_port = find_free_port()  # SuperNodes dial the second one, which may be a proxy
        trust = f'root-certificates = "{self.folder}/ca.pem"' if secure else "insecure = true"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "test"\n[superlink.test]\naddress = "127.0.0.1:{self.port}"\n{trust}\n'
        )
        if secure:
            write_certificates(self.folder)
            for name in sites:
                write_keys(self.folder / name)

    def __enter__(self) -> "FlowerFederation":
        try:
            self.start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.processes):
            self.end(name)

    def start_all(self) -> None:
        """Start the SuperLink, then the SuperNodes."""
        self.start_superlink()
        for name in self.sites:
            self.start_supernode(name)

    def start_superlink(self) -> None:
        """Start the SuperLink, wait until it answers, and register the keys of all nodes."""
        options = ["--insecure"]
        if self.secure:
            options = ["--enable-supernode-auth", f"--ssl-ca-certfile={self.folder}/ca.pem"]
            options += [f"--ssl-certfile={self.folder}/server.pem", f"--ssl-keyfile={self.folder}/server.key"]
        self.start("superlink", "flower-superlink", "--host=127.0.0.1", f"--port={self.port}", *options)
        wait_for(lambda: is_open(self.port), 60, self.read_logs)
        for name in self.sites if self.secure else ():
            self.call("supernode", "register", self.folder / f"{name}.pub", "test", "--name", name)

    def start_supernode(self, name: str) -> None:
        """Start the SuperNode of a client, which dials the SuperLink."""
        options = ["--insecure"]
        if self.secure:
            options = [f"--root-certificates={self.folder}/ca.pem"]
            options += [f"--auth-supernode-private-key={self.folder}/{name}"]
        config = " ".join(f"{key}={json.dumps(value)}" for key, value in self.sites[name].items())
        self.start(
            name, "flower-supernode", f"--superlink=127.0.0.1:{self.fleet_port}",
            f"--port={find_free_port()}", "--node-config", config, *options,
        )  # fmt: skip

    def start(self, name: str, tool: str, *words: str | Path) -> None:
        """Start a process in a new session; its output goes to a file."""
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [str(self.tools / tool), *map(str, words)]
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder,
                env=self.environment, start_new_session=True,
            )  # fmt: skip

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """Send a signal to a process; after its end, or 15 seconds, kill it and its children."""
        process = self.processes.pop(name)
        family = list_processes(process.pid)
        send_signal(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        for member in {*family, *list_processes(process.pid)}:
            send_signal(member, signal.SIGKILL)
        process.wait(15)

    def call(self, *words: str | Path) -> str:
        """Run `flwr` and return its output."""
        done = subprocess.run(
            [str(self.tools / "flwr"), *map(str, words)], capture_output=True, text=True, cwd=self.folder,
            env=self.environment, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, f"flwr {words}: {done.stdout}{done.stderr}\n{self.read_logs()}"
        return done.stdout

    def run(self, app: Path, changes: dict[str, Any]) -> str:
        """Start a run of an app and return its id; `changes` overrides its configuration."""
        path = self.folder / "changes.toml"
        path.write_text("".join(f'"{key}" = {json.dumps(value)}\n' for key, value in changes.items()))
        text = self.call("run", app, "test", "--run-config", path, "--format", "json")
        return str(json.loads(text)["run-id"])

    def read_status(self, run: str) -> str:
        """Return the status of a run, such as "finished:completed"."""
        answer = json.loads(self.call("list", "test", "--run-id", run, "--format", "json"))
        return str(answer["runs"][0]["status"])

    def wait_for_end(self, run: str, seconds: float) -> str:
        """Wait until a run ends; return its status."""
        # Every question to the SuperLink starts a process, which takes 2 s of CPU time.
        wait_for(lambda: self.read_status(run).startswith("finished"), seconds, self.read_logs, 5.0)
        return self.read_status(run)

    def read_logs(self) -> str:
        """Return the ends of all logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {path.stem}\n{path.read_text(errors='replace')[-3000:]}" for path in logs)


def find_free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def is_open(port: int) -> bool:
    """Return whether somebody listens on a port."""
    with socket.socket() as dialler:
        dialler.settimeout(1)
        return dialler.connect_ex(("127.0.0.1", port)) == 0


def wait_for(
    condition: Callable[[], bool], seconds: float, describe: Callable[[], str], pause: float = 0.1
) -> None:
    """Wait until a condition holds; fail after this time, with the logs."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s\n{describe()}"
        time.sleep(pause)


def send_signal(process: int, number: int) -> None:
    """Send a signal to a process if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def list_processes(first: int) -> list[int]:
    """Return the ids of a process and of all its descendants, whatever their sessions."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    family = [first]
    for process in family:  # it grows
        family += children.get(process, [])
    return family


def write_keys(path: Path) -> None:
    """Write a private key, and the public key as `.pub`, as SuperNodes need them."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
    path.chmod(0o600)
    public = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    path.with_suffix(".pub").write_bytes(key.public_key().public_bytes(*public))


def write_certificates(folder: Path) -> None:
    """Write an authority, `ca.pem`, and the certificate and key of a server on loopback."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def build(name: str, issuer: str, key: Any) -> Any:
        begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
        subject, by = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, n)]) for n in (name, issuer))
        start = x509.CertificateBuilder().subject_name(subject).issuer_name(by).public_key(key.public_key())
        end = begin + datetime.timedelta(days=2)
        return start.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)

    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    authority = build("authority", "authority", keys[0])
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(keys[0].public_key())
    authority = authority.add_extension(identifier, critical=False)
    hosts = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    server = build("server", "authority", keys[1])
    server = server.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    issued = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    server = server.add_extension(issued, critical=False)
    for path, unsigned in (("ca.pem", authority), ("server.pem", server)):
        signed = unsigned.sign(keys[0], hashes.SHA256())
        (folder / path).write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "server.key").write_bytes(keys[1].private_bytes(serialization.Encoding.PEM, *form))
    (folder / "server.key").chmod(0o600)
