"""A server and four clients on this machine, with certificates: radon, split into four regions.

Each client is a process of its own with its own rows, key and folder. Usage: python demo.py [FOLDER]
"""

import json
import os
import runpy
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

from fedlap.deploy.keys import (
    create_authority,
    create_server_keys,
    install_certificate,
    request_certificate,
    sign_certificate,
)

HOST = "127.0.0.1"
LIFETIME = timedelta(days=60)
MOST_SECONDS = 300  # far more than the run needs


def create_keys(folder: Path, clients: list[str]) -> None:
    """Create an authority, the server's certificate, and a key and certificate for each client."""
    create_authority(folder / "authority", "demo", 2 * LIFETIME)
    create_server_keys(folder / "server", folder / "authority", [HOST], LIFETIME)
    for name in clients:
        request = request_certificate(folder / name, name)  # at the client; the key never leaves it
        signed, _ = sign_certificate(folder / "authority", request, LIFETIME)  # at the authority
        install_certificate(folder / name, signed)  # at the client


def find_free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def start_processes(folder: Path, data: dict[str, Path]) -> dict[str, subprocess.Popen[bytes]]:
    """Start the server and a client per file at the same time; each waits for the others."""
    address, keys = f"{HOST}:{find_free_port()}", folder / "keys"
    plan = data[next(iter(data))].with_name("plan.toml")
    commands = {"server": ["serve", plan, "--listen", address, "--folder", folder / "server"]}
    for name, path in data.items():
        words = ["client", "--name", name, "--data", path, "--server", address]
        commands[name] = [*words, "--folder", folder / name]
    processes = {}
    for name, words in commands.items():
        command = [sys.executable, "-m", "fedlap.cli", *map(str, words), "--keys", str(keys / name)]
        with (folder / f"{name}.log").open("wb") as log:
            processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
    return processes


def wait_for_end(folder: Path, processes: dict[str, subprocess.Popen[bytes]]) -> None:
    """Wait until all processes have ended; end the others and show the log if one fails."""
    end = time.monotonic() + MOST_SECONDS
    try:
        while any(process.poll() is None for process in processes.values()):
            failed = [name for name, process in processes.items() if process.poll()]
            if failed or time.monotonic() > end:
                log = (folder / f"{[*failed, 'server'][0]}.log").read_text(encoding="utf-8")
                sys.exit(f"{', '.join(failed) or 'the run'} did not end well; {folder} has the logs:\n{log}")
            time.sleep(0.1)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.terminate()
                process.wait()


def print_results(folder: Path) -> None:
    """Print the scores of the run, the scores of each client, and where the models lie."""
    print("\nround    loss    RMSE   (test rows of all clients)")
    for line in (folder / "server" / "rounds.jsonl").read_text(encoding="utf-8").splitlines():
        score = json.loads(line)
        print(f"{score['round']:5} {score['loss']:7.4f} {score['rmse']:7.4f}")
    clients = json.loads((folder / "server" / "clients.json").read_text(encoding="utf-8"))["clients"]
    print(f"\n{'client':10} {'rows':>4} {'test':>5} {'RMSE':>7}   model, on the client's disk")
    for name, facts in clients.items():
        model = folder / name / "model.safetensors"
        print(f"{name:10} {facts['train_rows']:4} {facts['test_rows']:5} {facts['rmse']:7.4f}   {model}")
    print(f"\nReport: {folder / 'server' / 'report' / 'page.html'}")
    print(f"Predict with a model: fedlap predict {model} {folder / 'data' / f'{name}.csv'}")


def main() -> None:
    """Split the rows, make keys, train, and print the scores."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    folder.mkdir(parents=True, mode=0o700)
    start = time.monotonic()
    split_radon = runpy.run_path(str(Path(__file__).with_name("split_radon.py")))["split_radon"]
    data = split_radon(folder / "data")
    create_keys(folder / "keys", list(data))
    print(f"A server and {len(data)} clients on {HOST}, with certificates of {folder / 'keys' / 'authority'}")
    wait_for_end(folder, start_processes(folder, data))
    print_results(folder)
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
