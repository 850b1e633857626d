"""A deployment of real processes: `fedlap serve` and `fedlap client`, supervised, killed and restarted."""

import json
import signal
import time

import torch

import fedlap as fl
from deployments import read_model
from fedlap.deploy.event_log import read_events
from fedlap.deploy.failpoints import VARIABLE
from fedlap.deploy.plan import Plan
from ports import find_ports
from random_inputs import random_arrays

COUNTS = (9, 14, 6, 11)  # of the clients a to d
MORE_COUNTS = (*COUNTS, *(8 + k % 5 for k in range(12)))  # of a to p
FEATURES, LABELS = ("u", "v", "w", "t"), ("x", "y", "z")
SEED = 5
TICK = 0.02  # seconds between looks at processes and files
LIMIT = 90.0  # seconds of any wait, on a machine with other work
SERVER = "server"


def describe_plan(algorithm="fedu", **changes):
    """Return the values of a small plan."""
    values = {
        "name": "test", "clients": list("abcd"), "rounds": 10, "batch": 4, "evaluate_every": 5, "seed": SEED,
        "data": {"label": "y", "features": list(FEATURES), "task": "classification", "labels": list(LABELS)},
        "algorithm": {"name": algorithm}, "graph": {"name": "ring"}, "limits": {"deadline": 60.0},
    }  # fmt: skip
    if algorithm in ("fedper", "fedrep"):
        values["model"] = {"name": "mlp", "hidden": [5]}
    return values | changes


def build_federation(names="abcd"):
    """Return the rows of all clients, as a simulation has them."""
    arrays = {name: rows for name, rows in random_arrays(MORE_COUNTS).items() if name in names}
    return fl.Federation.from_arrays(arrays, test_share=0.25, seed=SEED, labels=list(LABELS), scale="none")


def write_rows(path, name, extra=None):
    """Write the rows of a client; `extra` is a column that no plan names."""
    x, y = random_arrays(MORE_COUNTS)[name]
    lines = [",".join([*FEATURES, "y", *(["note"] if extra else [])])]
    for row, label in zip(x.tolist(), y.tolist(), strict=True):
        lines.append(",".join([*map(repr, row), LABELS[label], *([extra] if extra else [])]))
    path.write_text("\n".join(lines) + "\n")


def format_toml(values):
    """Return plain values as an inline value of TOML."""
    if isinstance(values, dict):
        return "{" + ", ".join(f"{key} = {format_toml(value)}" for key, value in values.items()) + "}"
    return json.dumps(values)


class RunProcesses:
    """Processes of a run in one folder, each of the real command line, with `restart` and `find_folder`."""

    def __init__(self, starter, folder, values, keys=None):
        """Write the plan and the rows. keys: folders of keys by owner; None: no TLS."""
        self.starter, self.folder, self.values, self.keys = starter, folder, values, keys
        self.plan = Plan.of(values)
        self.pids, self._brake = {}, folder / "brake"
        folder.mkdir(parents=True, exist_ok=True)
        self.write_plan(values)
        for name in self.plan.clients:
            self.write_rows(name)

    def write_rows(self, name):
        """Write the rows of a client of the plan, or of a newcomer."""
        write_rows(self.folder / f"{name}.csv", name)

    def write_plan(self, values):
        lines = [f"{key} = {format_toml(value)}" for key, value in values.items()]
        (self.folder / "plan.toml").write_text("\n".join(lines) + "\n")

    # Processes.

    def start(self, owner, words, point="", change=None):
        """Start a command; a process of the same owner must have ended."""
        assert owner not in self.pids or self.poll(owner) is not None
        self.pids[owner] = self.starter.start(
            words, self.folder / f"{owner}.out", self.folder, {VARIABLE: point}, change
        )

    def choose_connection(self, owner):
        """Return the options of the connection of an owner."""
        return ["--insecure"] if self.keys is None else ["--keys", self.keys[owner]]

    def poll(self, owner):
        """Return the exit code of a process, or None while it runs."""
        return self.starter.poll(self.pids[owner])

    def send_signal(self, owner, number):
        """Send a signal to a process."""
        self.starter.send_signal(self.pids[owner], number)

    def stop(self, owner):
        """Send SIGTERM, wait for the end of the process, and return its exit code."""
        self.send_signal(owner, signal.SIGTERM)
        self.wait(lambda: self.poll(owner) is not None, f"{owner} ends", without=(owner,))
        return self.poll(owner)

    def kill(self, *owners):
        """Kill processes that run."""
        for owner in owners:
            self.send_signal(owner, signal.SIGKILL)
        codes = self.wait(lambda: self._list_codes(owners), f"{owners} are killed", without=owners)
        assert codes == [-signal.SIGKILL] * len(owners), "a process ended before it was killed"

    def _list_codes(self, owners):
        """Return the exit codes of processes once all of them have ended."""
        codes = [self.poll(owner) for owner in owners]
        return None if None in codes else codes

    def close(self):
        """End every process that runs."""
        for owner in self.pids:
            self.send_signal(owner, signal.SIGKILL)

    # Waiting.

    def wait(self, condition, what, without=None, limit=LIMIT):
        """Poll a condition and return its value; print all logs if it does not hold in time.

        A process that fails meanwhile ends the wait, unless it is among `without`.
        """
        end = time.monotonic() + limit
        while not (value := condition()):
            failed = [
                owner
                for owner in self.pids
                if owner not in (without or ()) and self.poll(owner) not in (None, 0)
            ]
            if failed or time.monotonic() > end:
                reason = f"{failed} failed" if failed else f"after {limit:g} s still not"
                raise AssertionError(f"{reason}: {what}\n{self.format_logs()}")
            time.sleep(TICK)
        return value

    def slow_down(self, seconds):
        """Return the change of a process that waits for `seconds` in every round until `finish`.

        Without it, a test that waits on a busy machine may look again when the run has ended.
        """
        self._brake.touch()
        return "train_slowly_while", str(self._brake), seconds

    def finish(self):
        """Wait until all processes have ended by themselves, at full speed."""
        self._brake.unlink(missing_ok=True)
        self.wait(lambda: all(self.poll(owner) == 0 for owner in self.pids), "all processes end")
        return self

    def supervise(self, points):
        """Restart every process that is killed, with its next point armed; return the points that fired.

        points: for each owner, the points of its processes in order; those run already, with the first one.
        """
        waiting, fired = {owner: list(names) for owner, names in points.items()}, []

        def restart_killed():
            for owner in waiting:
                code = self.poll(owner)
                assert code in (None, 0, -signal.SIGKILL), f"after {fired}\n{self.format_logs()}"
                if code == -signal.SIGKILL:
                    fired.append(waiting[owner].pop(0))
                    point = waiting[owner][0] if waiting[owner] else ""
                    self.restart(owner, point)
            return all(self.poll(owner) == 0 for owner in self.pids)

        self.wait(restart_killed, "all processes end", without=tuple(waiting), limit=2 * LIMIT)
        return fired

    # Traces.

    @property
    def models(self):
        """The personal models that the clients have stored."""
        return torch.cat([read_model(self.find_folder(name)) for name in self.plan.clients])

    def list_events(self, event, owner=SERVER, **facts):
        """Return the events of a kind in the log of a process."""
        folder = self.find_folder(owner)
        lines = read_events(folder) if folder.exists() else []
        wanted = {"event": event, **facts}
        return [line for line in lines if all(getattr(line, key) == wanted[key] for key in wanted)]

    def read_output(self, owner):
        """Return standard output and error of all processes of an owner."""
        path = self.folder / f"{owner}.out"
        return path.read_text() if path.exists() else ""

    def format_logs(self):
        """Return the ends of all outputs and the exit codes."""
        return "\n".join(
            f"--- {owner}: exit code {self.poll(owner)}\n{self.read_output(owner)[-3000:]}"
            for owner in self.pids
        )


class DeploymentProcesses(RunProcesses):
    """A server and clients."""

    port = 0

    def start_server(self, point="", change=None):
        """Start or restart the server, on the port that it had; wait until a first one listens."""
        is_first = not self.port
        self.port = self.port or find_ports(1)[0]
        words = ["serve", "plan.toml", "--listen", f"127.0.0.1:{self.port}", "--folder", SERVER]
        self.start(SERVER, words + self.choose_connection(SERVER), point, change)
        if is_first:
            self.wait(lambda: self.list_events("listening"), "the server listens")

    def start_client(self, name, point="", change=None, port=None, extra=()):
        """Start or restart a client. port: that of a relay."""
        address = f"127.0.0.1:{port or self.port}"
        words = ["client", "--name", name, "--server", address, "--folder", f"client-{name}"]
        words += self.choose_connection(name)
        self.start(name, [*words, *(extra or ["--data", f"{name}.csv"])], point, change)

    def restart(self, owner, point):
        """Start a process that was killed."""
        if owner == SERVER:
            self.start_server(point)
        else:
            self.start_client(owner, point)

    def start_all(self, without=(), **changes):
        """Start the server and the clients of the plan; `changes` by client."""
        self.start_server()
        for name in self.plan.clients:
            if name not in without:
                self.start_client(name, change=changes.get(name))
        return self

    def wait_for_round(self, number):
        """Wait until a round is merged."""
        self.wait(lambda: self.round >= number, f"round {number} is merged")

    @property
    def server_folder(self):
        return self.folder / SERVER

    def client_folder(self, name):
        return self.folder / f"client-{name}"

    def find_folder(self, owner):
        """Return the folder of a process."""
        return self.server_folder if owner == SERVER else self.client_folder(owner)

    @property
    def round(self):
        """The last round that is merged."""
        return max((event.round for event in self.list_events("round-merged")), default=0)
