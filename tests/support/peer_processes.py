"""Peers as real processes: `fedlap peer`, supervised, killed and restarted."""

from deployment_processes import RunProcesses, describe_plan
from ports import find_ports


def describe_peers(names="abcd", peers=None, **changes):
    """Return the values of a small plan of peers, whose addresses are free ports of this machine."""
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, find_ports(len(names)), strict=True)}
    settings = {"addresses": addresses, "staleness": 0, "deadline": 30.0, **(peers or {})}
    return describe_plan("dfedu") | {"clients": list(names), "peers": settings} | changes


class PeerProcesses(RunProcesses):
    """Peers in one folder."""

    def start_peer(self, name, point="", change=None, extra=()):
        """Start or restart a peer."""
        words = ["peer", "plan.toml", "--name", name, "--folder", f"peer-{name}"]
        words += ["--data", f"{name}.csv", *self.choose_connection(name)]
        self.start(name, [*words, *extra], point, change)

    def restart(self, owner, point):
        """Start a process that was killed."""
        self.start_peer(owner, point)

    def start_all(self, without=(), **changes):
        """Start all peers of the plan; `changes` by name."""
        for name in self.plan.clients:
            if name not in without:
                self.start_peer(name, change=changes.get(name))
        return self

    def find_folder(self, owner):
        """Return the folder of a peer."""
        return self.folder / f"peer-{owner}"

    def find_round(self, name):
        """Return the last round that a peer has finished."""
        return max((event.round for event in self.list_events("round-finished", name)), default=0)

    def wait_for_round(self, number, names=None):
        """Wait until peers have finished a round."""
        names = names or self.plan.clients
        self.wait(
            lambda: all(self.find_round(name) >= number for name in names), f"round {number} is finished"
        )
