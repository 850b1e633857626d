"""A server and four clients on this machine, with certificates: radon, split into four regions.

Each client is a process of its own with its own rows, key and folder. Usage: python demo.py [FOLDER]
"""

import json
import sys
import time
from pathlib import Path

from local_processes import (
    HOST,
    LIFETIME,
    MOST_SECONDS,
    Process,
    check_running,
    create_keys,
    end_all,
    find_free_ports,
    start_command,
)
from split_radon import split_radon

from fedlap.deploy.keys import create_server_keys


def start_processes(folder: Path, data: dict[str, Path]) -> dict[str, Process]:
    """Start the server and a client per file at the same time; each waits for the others."""
    address, keys = f"{HOST}:{find_free_ports(1)[0]}", folder / "keys"
    plan = data[next(iter(data))].with_name("plan.toml")
    commands = {"server": ["serve", plan, "--listen", address, "--folder", folder / "server"]}
    for name, path in data.items():
        words = ["client", "--name", name, "--data", path, "--server", address]
        commands[name] = [*words, "--folder", folder / name]
    return {
        name: start_command([*words, "--keys", keys / name], folder / f"{name}.log")
        for name, words in commands.items()
    }


def wait_for_end(folder: Path, processes: dict[str, Process]) -> None:
    """Wait until all processes have ended; end the others and show the log if one fails."""
    end = time.monotonic() + MOST_SECONDS
    try:
        while check_running(processes, folder, end):
            time.sleep(0.1)
    finally:
        end_all(processes)


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
    data = split_radon(folder / "data")
    create_keys(folder / "keys", list(data))
    create_server_keys(folder / "keys" / "server", folder / "keys" / "authority", [HOST], LIFETIME)
    print(f"A server and {len(data)} clients on {HOST}, with certificates of {folder / 'keys' / 'authority'}")
    wait_for_end(folder, start_processes(folder, data))
    print_results(folder)
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
